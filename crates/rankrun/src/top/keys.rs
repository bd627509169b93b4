//! What a terminal sends for keys: bytes in, keys out (xterm's control sequences; ECMA-48).

/// A key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// A letter together with Ctrl.
    Control(char),
}

/// Bytes that are not a whole key yet.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// The keys in these bytes. What begins a sequence is kept: see [`Decoder::flush`].
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut at = 0;
        while let Some((length, key)) = first(&self.pending[at..]) {
            at += length;
            keys.extend(key);
        }
        self.pending.drain(..at);
        keys
    }

    /// Whether a sequence has begun. If nothing follows in a moment, it was the key Escape.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Nothing has followed.
    pub(crate) fn flush(&mut self) -> Option<Key> {
        let pending = std::mem::take(&mut self.pending);
        (pending.first() == Some(&0x1b)).then_some(Key::Escape)
    }
}

/// The first key and its length; `None` if more bytes are needed. A sequence of no key that is known is skipped.
fn first(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    let one = |key: Key| Some((1, Some(key)));
    match *bytes.first()? {
        0x1b => escape(bytes),
        b'\r' | b'\n' => one(Key::Enter),
        b'\t' => one(Key::Tab),
        0x7f | 0x08 => one(Key::Backspace),
        byte @ 0x01..=0x1a => one(Key::Control(char::from(byte - 1 + b'a'))),
        0x00..=0x1f => Some((1, None)),
        byte if byte.is_ascii() => one(Key::Char(char::from(byte))),
        byte => {
            let length = match byte {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => return Some((1, None)),
            };
            let Some(char) = bytes.get(..length) else {
                return if bytes.len() < length { None } else { Some((1, None)) };
            };
            match std::str::from_utf8(char) {
                Ok(text) => Some((length, text.chars().next().map(Key::Char))),
                Err(_) => Some((1, None)),
            }
        }
    }
}

/// A sequence that begins with ESC.
fn escape(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match *bytes.get(1)? {
        b'[' => {
            let end = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte))? + 2;
            let parameter = bytes[2..end].split(|byte| *byte == b';').next().unwrap_or_default();
            let key = match (bytes[end], parameter) {
                (b'A', _) => Some(Key::Up),
                (b'B', _) => Some(Key::Down),
                (b'C', _) => Some(Key::Right),
                (b'D', _) => Some(Key::Left),
                (b'H', _) | (b'~', b"1" | b"7") => Some(Key::Home),
                (b'F', _) | (b'~', b"4" | b"8") => Some(Key::End),
                (b'~', b"5") => Some(Key::PageUp),
                (b'~', b"6") => Some(Key::PageDown),
                _ => None,
            };
            Some((end + 1, key))
        }
        b'O' => {
            let key = match *bytes.get(2)? {
                b'A' => Some(Key::Up),
                b'B' => Some(Key::Down),
                b'C' => Some(Key::Right),
                b'D' => Some(Key::Left),
                b'H' => Some(Key::Home),
                b'F' => Some(Key::End),
                b'M' => Some(Key::Enter),
                _ => None,
            };
            Some((3, key))
        }
        // The key Escape twice, or a letter with Alt: the Escape counts alone.
        _ => Some((1, Some(Key::Escape))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_what_terminals_send() {
        let keys =
            Decoder::default().read(b"j\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1;5H\x1b[F\r\x7f\x03\x1b[200~\xc3\xa4\x1bx");
        let expected = [
            Key::Char('j'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Enter,
            Key::Backspace,
            Key::Control('c'),
            Key::Char('ä'),
            Key::Escape,
            Key::Char('x'),
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn a_key_may_come_in_pieces_and_an_escape_alone_is_a_key() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.read(b"\x1b"), []);
        assert_eq!(decoder.read(b"["), []);
        assert_eq!(decoder.read(b"Bq"), [Key::Down, Key::Char('q')]);
        assert_eq!(decoder.read(b"\x1b"), []);
        assert!(decoder.is_waiting());
        assert_eq!((decoder.flush(), decoder.is_waiting()), (Some(Key::Escape), false));
        assert_eq!(decoder.read(b"\xe2\x82"), []);
        assert_eq!(decoder.read(b"\xac\xff\x00a"), [Key::Char('€'), Key::Char('a')]);
    }
}
