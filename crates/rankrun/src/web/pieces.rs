//! Output of a rank as text for a page. Pure.

use rankrun_core::Stream;
use serde::Serialize;

/// Text that a rank wrote to one of its streams.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Piece {
    /// `stdout`, `stderr`, or `rankrun` for a line of ours.
    from: &'static str,
    /// It takes the place of the unfinished line before it, as a progress bar does.
    redraws: bool,
    text: String,
}

/// The last pieces of what was read.
#[derive(Debug)]
pub(super) struct Pieces {
    /// Bytes that are kept at most.
    most: usize,
    kept: std::collections::VecDeque<(&'static str, Vec<u8>)>,
    length: usize,
    /// Something was left out before these.
    is_cut: bool,
}

impl Pieces {
    pub(super) fn new(most: usize) -> Pieces {
        Pieces { most, kept: std::collections::VecDeque::new(), length: 0, is_cut: false }
    }

    pub(super) fn output(&mut self, stream: Stream, bytes: &[u8]) {
        let name = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        self.add(name, bytes);
    }

    /// A line of ours.
    pub(super) fn say(&mut self, text: &str) {
        let is_within = self.kept.back().is_some_and(|(_, last)| !last.ends_with(b"\n"));
        let start = if is_within { "\n" } else { "" };
        self.add("rankrun", format!("{start}rankrun: {text}\n").as_bytes());
    }

    fn add(&mut self, from: &'static str, bytes: &[u8]) {
        match self.kept.back_mut() {
            Some((last, text)) if *last == from => text.extend_from_slice(bytes),
            _ => self.kept.push_back((from, bytes.to_vec())),
        }
        self.length += bytes.len();
        // Twice as much, so that not each byte moves all others.
        if self.length > 2 * self.most {
            self.cut();
        }
    }

    /// Leaves out the oldest, up to the end of a line if one is near.
    fn cut(&mut self) {
        while self.length > self.most {
            let excess = self.length - self.most;
            let Some((_, first)) = self.kept.front_mut() else { return };
            self.is_cut = true;
            if first.len() <= excess {
                self.length -= first.len();
                self.kept.pop_front();
                continue;
            }
            let line = first[excess..].iter().position(|byte| *byte == b'\n').map_or(excess, |end| excess + end + 1);
            self.length -= line;
            first.drain(..line);
        }
    }

    /// Whether something was left out, and the text.
    pub(super) fn finish(mut self) -> (bool, Vec<Piece>) {
        self.cut();
        let pieces =
            self.kept.into_iter().map(|(from, bytes)| piece(from, &bytes)).filter(|piece| !piece.text.is_empty());
        (self.is_cut, pieces.collect())
    }
}

/// The text without what a terminal obeys. Of what overwrites a line, the last is left.
fn piece(from: &'static str, bytes: &[u8]) -> Piece {
    let whole = String::from_utf8_lossy(bytes);
    let plain = without_sequences(&whole);
    let mut text = String::with_capacity(plain.len());
    let mut redraws = false;
    for (number, line) in plain.split('\n').enumerate() {
        if number > 0 {
            text.push('\n');
        }
        let line = line.strip_suffix('\r').unwrap_or(line);
        let shown = line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or("");
        redraws |= number == 0 && shown.len() < line.len();
        text.extend(shown.chars().filter(|character| *character == '\t' || !character.is_control()));
    }
    Piece { from, redraws, text }
}

/// Text without escape sequences: colours, titles, movements.
fn without_sequences(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\x1b' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            // CSI: up to its final byte.
            Some('[') => drop(characters.by_ref().find(|next| matches!(next, '\x40'..='\x7e'))),
            // OSC: up to BEL, or ESC and one more.
            Some(']') if characters.by_ref().find(|next| matches!(next, '\x07' | '\x1b')) == Some('\x1b') => {
                characters.next();
            }
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(from: &'static str, redraws: bool, text: &str) -> Piece {
        Piece { from, redraws, text: text.to_owned() }
    }

    #[test]
    fn what_a_terminal_obeys_is_left_out_and_progress_bars_overwrite() {
        let mut pieces = Pieces::new(1000);
        pieces.output(Stream::Stdout, b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x00x\r\n");
        pieces.output(Stream::Stderr, b" 10%\r 20%\r 30%");
        pieces.output(Stream::Stderr, b"\r 40%\r");
        pieces.say("attempt 1 begins");
        pieces.output(Stream::Stderr, b"\r\xc3");
        pieces.output(Stream::Stderr, b"\xa4\xff<script>\n");
        let (is_cut, pieces) = pieces.finish();
        assert!(!is_cut);
        assert_eq!(
            pieces,
            [
                of("stdout", false, "red x\n"),
                of("stderr", true, " 40%"),
                of("rankrun", false, "\nrankrun: attempt 1 begins\n"),
                of("stderr", true, "ä\u{fffd}<script>\n"),
            ]
        );
    }

    #[test]
    fn only_the_last_bytes_are_kept() {
        let mut pieces = Pieces::new(20);
        for number in 0..100 {
            pieces.output(Stream::Stdout, format!("line {number}\n").as_bytes());
        }
        assert_eq!(pieces.finish(), (true, vec![of("stdout", false, "line 98\nline 99\n")]));
        let mut pieces = Pieces::new(4);
        pieces.output(Stream::Stdout, b"0123456789");
        pieces.say("x");
        let (is_cut, pieces) = pieces.finish();
        assert!(is_cut && pieces.iter().map(|piece| piece.text.len()).sum::<usize>() <= 4, "{pieces:?}");
    }
}
