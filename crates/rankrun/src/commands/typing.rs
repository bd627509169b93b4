//! What somebody gives to the ranks of a job (`rankrun attach --stdin`): the next piece follows when the ranks have read the last one, and
//! a piece of which it is not known whether a front that was killed had taken it comes again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_core::control::{Answer, Request};
use rankrun_sys::poll::wait_for;
use rankrun_sys::terminal;
use rustix::event::{PollFd, PollFlags};
use rustix::stdio::stdin;

use crate::commands::jobs::{self, ANSWER_BOUND, Connection, Found, Silence};
use crate::message::Problem;

/// The longest piece, in bytes of the ranks and of the request: that has a bound.
const PIECE: usize = 8 << 10;
const ENCODED: usize = 15 << 10;

/// While so many bytes wait, no more are read.
const MOST: usize = 64 << 10;

/// What is typed.
pub(crate) struct Typing {
    found: Found,
    connection: Option<Connection>,
    /// Tells our pieces from those of others.
    from: String,
    number: u64,
    /// What is not sent yet.
    waiting: Vec<u8>,
    /// What the ranks have not read: its request, and so many bytes.
    sent: Option<(Request, usize)>,
    /// The end follows what waits.
    has_ended: bool,
    /// The end was sent, or no more is taken.
    is_over: bool,
    /// All ranks have closed their stdin: of so many bytes at most a part was read before.
    swallowed: Option<usize>,
    /// What is to be said of that.
    said: Option<&'static str>,
    /// Something was typed after the end: that is said once.
    comes_late: Option<bool>,
}

impl Typing {
    /// Asks whether the ranks can be given something.
    pub(crate) fn begin(found: &Found) -> Result<Typing, Problem> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let from = format!("{}-{}", std::process::id(), since.as_nanos());
        let asks = Request::Input { from: from.clone(), number: 0, text: Some(String::new()) };
        let explain = |silence| jobs::explain("attach", found, silence);
        let (connection, answer) = found.patiently(|found| found.begin(asks.clone(), ANSWER_BOUND)).map_err(explain)?;
        match answer {
            // A job that is over has told its exit code on the other connection.
            Answer::InputTaken { .. } | Answer::Over { .. } => {}
            Answer::Refused { error, hint } => return Err(jobs::refused("give stdin to", &found.job, &error, hint)),
            other => return Err(jobs::unexpected(&found.job, &other)),
        }
        let (found, connection) = (found.clone(), Some(connection));
        let (waiting, sent, has_ended, is_over, swallowed, said) = Default::default();
        let comes_late = Some(false);
        Ok(Typing {
            found,
            connection,
            from,
            number: 0,
            waiting,
            sent,
            has_ended,
            is_over,
            swallowed,
            said,
            comes_late,
        })
    }

    /// This was typed.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        match &mut self.comes_late {
            _ if !self.has_ended => self.waiting.extend_from_slice(bytes),
            Some(comes_late) => *comes_late |= !bytes.is_empty(),
            None => {}
        }
    }

    /// No more will be.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// What the ranks were not given, for whoever leaves.
    pub(crate) fn rest(&self) -> Option<String> {
        let sent = self.sent.as_ref().map_or(0, |(_, bytes)| *bytes);
        let (rest, doubtful) = (self.waiting.len(), sent + self.swallowed.unwrap_or(0));
        // A file or a pipe may have more that was not read.
        let more = match self.has_ended || terminal::is_terminal(stdin()) {
            true => "",
            false => ", nor what is after them",
        };
        match (rest, doubtful) {
            (0, 0) => None,
            (rest, 0) => {
                Some(format!("rankrun: the last {rest} bytes that were typed were not given to the ranks{more}"))
            }
            (rest, doubtful) => {
                let most = rest + doubtful;
                Some(format!(
                    "rankrun: of what was typed, the last {rest} to {most} bytes were not given to the ranks{more}"
                ))
            }
        }
    }

    /// Whether more can be typed: what the ranks do not read stays here.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < MOST
    }

    /// What is waited for. `reads`: our stdin is given to the ranks.
    pub(crate) fn ends(&self, reads: bool) -> impl Iterator<Item = BorrowedFd<'_>> {
        let answers = self.connection.as_ref().filter(|_| self.sent.is_some()).map(AsFd::as_fd);
        answers.into_iter().chain((reads && self.wants_more()).then(stdin))
    }

    fn wants_more(&self) -> bool {
        !self.has_ended && !self.is_over && self.waiting.is_empty()
    }

    /// Goes on as far as possible. `reads`: our stdin is given to the ranks. Returns what is to be said: whether somebody reads it, and why
    /// nothing more is taken, once.
    pub(crate) fn go_on(&mut self, reads: bool) -> Result<Option<String>, Problem> {
        let last = self.give(reads)?;
        let said = [self.said.take().map(str::to_owned), last].into_iter().flatten().collect::<Vec<_>>().join("\n");
        Ok(Some(said).filter(|said| !said.is_empty()))
    }

    fn give(&mut self, reads: bool) -> Result<Option<String>, Problem> {
        if self.comes_late.take_if(|comes_late| *comes_late).is_some() {
            return Ok(Some(
                "rankrun: nothing more that is typed is read: you have ended the stdin of the ranks".to_owned(),
            ));
        }
        while !self.is_over {
            if reads
                && self.wants_more()
                && let Err(error) = self.read()
            {
                self.is_over = true;
                return Ok(Some(format!("rankrun: cannot read stdin: {}", rankrun_sys::reason(&error))));
            }
            let Some((request, _)) = self.sent.clone().or_else(|| self.next()) else { return Ok(None) };
            let Some(connection) = &mut self.connection else {
                let Ok(mut connection) = self.found.connect(Duration::ZERO) else { return Ok(None) };
                if connection.send(&[request]).is_ok() {
                    self.connection = Some(connection);
                }
                return Ok(None);
            };
            match connection.next_answer() {
                Ok(None) => return Ok(None),
                Ok(Some(Answer::InputTaken { read })) => {
                    let (request, bytes) = self.sent.take().unzip();
                    let is_end = matches!(request, Some(Request::Input { text: None, .. }));
                    self.is_over = is_end;
                    let before = self.swallowed;
                    self.swallowed = if read || is_end { None } else { Some(before.unwrap_or(0) + bytes.unwrap_or(0)) };
                    // Another attempt may read what is typed then.
                    if before.is_some() != self.swallowed.is_some() && !is_end {
                        self.said = Some(match read {
                            true => "rankrun: what is typed is read again",
                            false => "rankrun: no rank has its stdin open: nobody reads what is typed",
                        });
                    }
                }
                Ok(Some(Answer::Over { .. })) => self.is_over = true,
                Ok(Some(Answer::Refused { error, .. })) => {
                    self.is_over = true;
                    return Ok(Some(format!("rankrun: nothing more that is typed is read: {error}")));
                }
                Ok(Some(other)) => return Err(jobs::unexpected(&self.found.job, &other)),
                // The front was killed. Another one may take its place: then this comes again.
                Err(Silence::Ended) => {
                    self.connection = None;
                    return Ok(None);
                }
                Err(silence) => return Err(jobs::explain("attach", &self.found, silence)),
            }
        }
        Ok(None)
    }

    /// Reads what our stdin has. A terminal that is gone is no end.
    fn read(&mut self) -> io::Result<()> {
        let mut ends = [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)];
        wait_for(&mut ends, Some(Duration::ZERO));
        if ends[0].revents().is_empty() {
            return Ok(());
        }
        let is_gone = ends[0].revents().contains(PollFlags::HUP) && terminal::is_terminal(stdin());
        let mut room = vec![0; PIECE];
        match rustix::io::read(stdin(), &mut room) {
            Ok(0) if is_gone => return Err(rustix::io::Errno::IO.into()),
            Ok(0) => self.end(),
            Ok(count) => self.waiting.extend_from_slice(&room[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Sends the next piece, if there is one.
    fn next(&mut self) -> Option<(Request, usize)> {
        let (text, length) = match self.waiting.is_empty() {
            true if self.has_ended => (None, 0),
            true => return None,
            false => {
                let (text, length) = encoded(&self.waiting);
                self.waiting.drain(..length);
                (Some(text), length)
            }
        };
        self.number += 1;
        let request = Request::Input { from: self.from.clone(), number: self.number, text };
        let sent = self.connection.as_mut().map(|connection| connection.send(std::slice::from_ref(&request)));
        if !matches!(sent, Some(Ok(()))) {
            self.connection = None;
        }
        self.sent = Some((request, length));
        self.sent.clone()
    }
}

/// The beginning of these bytes as the text of a request, and how many that are.
fn encoded(bytes: &[u8]) -> (String, usize) {
    let (mut text, mut size) = (String::new(), 0);
    for (at, byte) in bytes.iter().take(PIECE).enumerate() {
        let char = char::from(*byte);
        // As JSON has it: `\u001b`, `\"`, or the character itself.
        size += if char.is_ascii_control() { 6 } else { 2 };
        if size > ENCODED {
            return (text, at);
        }
        text.push(char);
    }
    let length = text.chars().count();
    (text, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_as_long_as_a_request_may_be() {
        for bytes in [
            vec![b'a'; 3 * PIECE],
            vec![0; 3 * PIECE],
            vec![0xff; 3 * PIECE],
            (0..=255).cycle().take(3 * PIECE).collect(),
        ] {
            let (text, length) = encoded(&bytes);
            let back: Vec<u8> = text.chars().map(|char| u8::try_from(char).expect("a byte")).collect();
            assert!(length > PIECE / 4 && back == bytes[..length]);
            let request = Request::Input { from: "1".repeat(64), number: u64::MAX, text: Some(text) };
            let line = serde_json::to_vec(&rankrun_core::control::Line::new(&request)).expect("it is JSON");
            assert!(line.len() < rankrun_core::control::MAX_REQUEST, "{}", line.len());
        }
        assert_eq!(encoded(b"ab"), ("ab".to_owned(), 2));
    }
}
