//! The first line that a relay sends, and what may come before it: whatever a login shell prints.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::ops::Range;

use rankrun_core::lease::Lapse;

use rankrun_core::memory::Memory;

/// Bytes before the marker that are skipped at most.
pub const NOISE_MOST: usize = 4 * 1024 * 1024;
/// Bytes of them that are kept: the first.
const NOISE_KEPT: usize = 1024;
/// Bytes of the line itself.
const LINE_MOST: usize = 1024;

/// What a relay says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// [`crate::VERSION`] of the relay.
    pub version: u32,
    /// The version of its rankrun.
    pub release: String,
    /// The session of the stream that follows.
    pub session: NonZeroU64,
    /// The address of the front as sshd on the node sees it, and that of the node as ssh reached it.
    pub client: Option<IpAddr>,
    pub server: Option<IpAddr>,
}

impl Greeting {
    /// Ours. `connection` is the value of `SSH_CONNECTION`: client, port, server, port.
    pub fn ours(session: NonZeroU64, connection: &str) -> Greeting {
        let mut words = connection.split_ascii_whitespace();
        let client = words.next().and_then(|word| word.parse().ok());
        let server = words.nth(1).and_then(|word| word.parse().ok());
        let release = env!("CARGO_PKG_VERSION").to_owned();
        Greeting { version: crate::VERSION, release, session, client, server }
    }

    /// The line.
    pub fn line(&self, marker: &str) -> String {
        let address = |it: Option<IpAddr>| it.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let Greeting { version, release, session, client, server } = self;
        format!("{marker} ready {version} {release} {session:x} {} {}\n", address(*client), address(*server))
    }

    fn parse(words: &str) -> Option<Greeting> {
        let mut words = words.split(' ');
        let version = words.next()?.parse().ok()?;
        let release = words.next()?.to_owned();
        let session = NonZeroU64::new(u64::from_str_radix(words.next()?, 16).ok()?)?;
        let mut address = || words.next().and_then(|word| word.parse().ok());
        Some(Greeting { version, release, session, client: address(), server: address() })
    }
}

/// How a relay has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Farewell {
    pub code: u8,
    /// Why the guard has ended the agent, if it has.
    pub lapse: Option<Lapse>,
    /// What guard or relay have found in /dev/shm, if they have looked in place of the agent.
    pub memory: Option<Memory>,
}

/// Bytes of names in a farewell. The whole line is smaller than PIPE_BUF: what others write to the pipe does not come between.
const NAMES_MOST: usize = 3 * 1024;

/// The line on its stderr with which a relay ends.
pub fn farewell(marker: &str, Farewell { code, lapse, memory }: &Farewell) -> String {
    let lapse = lapse.map_or(0, |lapse| lapse as u32);
    match memory.clone().map(|memory| memory.within(NAMES_MOST)) {
        Some(memory) => format!("{marker} ended {code} {lapse} {}\n", memory.word()),
        None => format!("{marker} ended {code} {lapse}\n"),
    }
}

/// What such a line says, and where the line is.
pub fn find_farewell(marker: &str, bytes: &[u8]) -> Option<(Farewell, Range<usize>)> {
    let start = format!("{marker} ended ");
    let from = find(bytes, start.as_bytes())?;
    let rest = &bytes[from + start.len()..];
    let length = rest.iter().position(|byte| *byte == b'\n')?;
    let mut words = std::str::from_utf8(&rest[..length]).ok()?.split(' ');
    let code = words.next()?.parse().ok()?;
    let lapse = Lapse::from_number(words.next()?.parse().ok()?);
    let farewell = Farewell { code, lapse, memory: words.next().and_then(Memory::of_word) };
    Some((farewell, from..from + start.len() + length + 1))
}

/// What has come of the other node so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Nothing that is complete.
    More,
    /// There is no rankrun of this version on the node; it runs this system on this machine (`uname -sm`).
    NeedsBinary { system: String },
    /// The copy of the binary has failed, in the node's own words.
    CopyFailed { why: String },
    /// The relay runs. The bytes belong to the stream.
    Ready { greeting: Greeting, rest: Vec<u8> },
    /// This is not a relay.
    Nonsense,
}

/// Finds the lines that begin with the marker.
#[derive(Clone, Debug)]
pub struct Listener {
    marker: Vec<u8>,
    buffer: Vec<u8>,
    /// What came before the first marker: its beginning, and how much it is.
    noise: Vec<u8>,
    noise_size: usize,
    /// A marker has been found.
    is_found: bool,
}

impl Listener {
    pub fn new(marker: &str) -> Listener {
        Listener {
            marker: marker.as_bytes().to_vec(),
            buffer: Vec::new(),
            noise: Vec::new(),
            noise_size: 0,
            is_found: false,
        }
    }

    /// What the node printed before the first marker: how many bytes, and the first of them.
    pub fn noise(&self) -> (usize, &[u8]) {
        (self.noise_size, &self.noise)
    }

    fn skip(&mut self, size: usize) {
        let kept = NOISE_KEPT.saturating_sub(self.noise.len()).min(size);
        self.noise.extend_from_slice(&self.buffer[..kept]);
        self.noise_size += size;
        self.buffer.drain(..size);
    }

    /// The stream has ended before the first marker: all that came is noise.
    pub fn end(&mut self) {
        if !self.is_found {
            self.skip(self.buffer.len());
        }
    }

    /// Takes bytes. Call it again, with none, after each result but `More`.
    pub fn hear(&mut self, bytes: &[u8]) -> Heard {
        self.buffer.extend_from_slice(bytes);
        let Some(at) = find(&self.buffer, &self.marker) else {
            if self.buffer.len() + self.noise_size > NOISE_MOST {
                return Heard::Nonsense;
            }
            if !self.is_found {
                // The marker itself may have come in part.
                self.skip(self.buffer.len().saturating_sub(self.marker.len()));
            }
            return Heard::More;
        };
        let line = &self.buffer[at + self.marker.len()..];
        let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
            return if line.len() > LINE_MOST { Heard::Nonsense } else { Heard::More };
        };
        let words = String::from_utf8_lossy(&line[..end]).trim().to_owned();
        let rest = line[end + 1..].to_vec();
        if !std::mem::replace(&mut self.is_found, true) {
            self.skip(at);
        }
        self.buffer = rest;
        let (word, words) = words.split_once(' ').unwrap_or((&words, ""));
        match word {
            "need" => Heard::NeedsBinary { system: words.to_owned() },
            "failed" => Heard::CopyFailed { why: words.to_owned() },
            "ready" => match Greeting::parse(words) {
                Some(greeting) => Heard::Ready { greeting, rest: std::mem::take(&mut self.buffer) },
                None => Heard::Nonsense,
            },
            _ => Heard::Nonsense,
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        let session = NonZeroU64::new(0xab).expect("not zero");
        Greeting::ours(session, "10.0.0.1 4711 10.0.0.2 22")
    }

    #[test]
    fn a_farewell_is_found_among_other_words_when_it_is_whole() {
        let some = Memory { doubtful: vec!["/dev/shm/a b".into()], ..Memory::default() };
        for (lapse, memory) in [(None, None), (Some(Lapse::Stopped), None), (None, Some(some.clone()))] {
            let said = Farewell { code: 123, lapse, memory };
            let line = farewell("rr-1", &said);
            let text = format!("bye{line}Killed\n");
            let (heard, range) = find_farewell("rr-1", text.as_bytes()).expect("it is there");
            assert_eq!((heard, &text[range]), (said, line.as_str()));
        }
        for wrong in ["rr-1 ended 12", "rr-2 ended 0\n", "rr-1 ended \n", "rr-1 ended 0\n", "rr-1 ended 300 0\n"] {
            assert_eq!(find_farewell("rr-1", wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn what_a_shell_prints_is_skipped_however_the_bytes_come() {
        let mut stream = b"Welcome to node07!\nmotd without newline".to_vec();
        stream.extend_from_slice(b"M4rk need Linux x86_64\n");
        stream.extend_from_slice(greeting().line("M4rk").as_bytes());
        stream.extend_from_slice(b"\0\0frames");
        for size in [1, 2, 7, stream.len()] {
            let mut listener = Listener::new("M4rk");
            let mut heard = Vec::new();
            for piece in stream.chunks(size) {
                let mut next = listener.hear(piece);
                while next != Heard::More {
                    let is_ready = matches!(next, Heard::Ready { .. });
                    heard.push(next);
                    if is_ready {
                        break;
                    }
                    next = listener.hear(b"");
                }
                if heard.len() == 2 {
                    break;
                }
            }
            assert_eq!(heard[0], Heard::NeedsBinary { system: "Linux x86_64".to_owned() }, "by {size}");
            assert!(
                matches!(&heard[1], Heard::Ready { greeting: it, .. } if *it == greeting()),
                "by {size}: {heard:?}"
            );
            assert_eq!(listener.noise(), (39, &b"Welcome to node07!\nmotd without newline"[..]));
        }
    }

    #[test]
    fn noise_and_lines_are_bounded() {
        let mut listener = Listener::new("M4rk");
        let heard: Vec<Heard> = (0..5000).map(|_| listener.hear(&[b'x'; 1000])).collect();
        assert_eq!(heard.iter().filter(|it| **it == Heard::More).count(), NOISE_MOST / 1000);
        assert_eq!(listener.noise().1.len(), NOISE_KEPT);
        let mut listener = Listener::new("M4rk");
        assert_eq!(listener.hear(b"bye"), Heard::More);
        listener.end();
        assert_eq!(listener.noise(), (3, &b"bye"[..]));
        let mut listener = Listener::new("M4rk");
        assert_eq!(listener.hear(b"M4rk "), Heard::More);
        assert_eq!(listener.hear(&[b'x'; 2000]), Heard::Nonsense);
        assert_eq!(Listener::new("M4rk").hear(b"M4rk ready soon\n"), Heard::Nonsense);
    }
}
