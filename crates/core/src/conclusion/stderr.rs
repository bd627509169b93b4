//! The last lines that a rank wrote to stderr, and what they say of its failure where nothing better does.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::testimony::Exception;

/// Lines that are kept of each rank.
pub const LINES: usize = 50;
/// Bytes that are kept of each line.
const LINE_BYTES: usize = 1000;

/// The tail of one rank's stderr.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tail {
    lines: VecDeque<String>,
    partial: Vec<u8>,
}

impl Tail {
    /// Bytes that the rank wrote.
    pub fn write(&mut self, bytes: &[u8]) {
        // Of a flood only the end counts.
        let bytes = &bytes[bytes.len().saturating_sub(LINES * LINE_BYTES)..];
        for piece in bytes.split_inclusive(|&b| b == b'\n') {
            let (text, ends) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            let room = LINE_BYTES.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                let line = String::from_utf8_lossy(&self.partial).trim_end_matches('\r').to_owned();
                self.partial.clear();
                if self.lines.len() == LINES {
                    self.lines.pop_front();
                }
                self.lines.push_back(line);
            }
        }
    }

    /// The lines, the unterminated last one included.
    pub fn lines(&self) -> Vec<String> {
        let partial = (!self.partial.is_empty()).then(|| String::from_utf8_lossy(&self.partial).into_owned());
        self.lines.iter().cloned().chain(partial).collect()
    }

    /// The lines as the program meant them: torch puts `[rank3]: ` before those of a traceback.
    fn bare(&self) -> Vec<String> {
        self.lines().into_iter().map(|line| without_rank(&line).to_owned()).collect()
    }

    /// The last failure that the text tells of: a Python traceback, a Rust panic, an uncaught C++ exception, a failed
    /// assertion.
    pub fn exception(&self) -> Option<Exception> {
        let lines = self.bare();
        let found = [traceback(&lines), panic(&lines), terminate(&lines), assertion(&lines)];
        // A bare `std::terminate` after something else is how that brought the process down: torch's threads do it.
        let telling = |exception: &Exception| exception.kind != TERMINATE;
        found.into_iter().flatten().max_by_key(|(at, told)| (telling(told), *at)).map(|(_, exception)| exception)
    }

    /// Whether the text ends with a whole traceback: nothing was written after the exception's own line.
    pub fn ends_with_traceback(&self) -> bool {
        let lines = self.bare();
        self.partial.is_empty() && traceback(&lines).is_some_and(|(at, _)| at + 1 == lines.len())
    }

    /// The line that says that a peer is gone, if there is one: this rank is then rather a victim.
    pub fn peer_lost(&self) -> Option<String> {
        self.lines().into_iter().rev().find(|line| tells_of_a_lost_peer(line))
    }
}

/// What gloo, NCCL, MPI libraries, torch's store and Python's sockets say when the other end is gone.
const PEER_LOST: [&str; 26] = [
    "connection closed by peer",
    "connection reset by peer",
    "connectionreseterror",
    "connectionabortederror",
    "brokenpipeerror",
    "broken pipe",
    "connection refused",
    "connectionrefusederror",
    "connection was reset",
    "socket closed",
    "socket timeout",
    "failed to recv, got 0 bytes",
    "recvvalue failed",
    "sendbytes failed",
    "recvbytes failed",
    "remote process exited or there was a network error",
    "ncclremoteerror",
    "nccl communicator was aborted",
    "watchdog caught collective operation timeout",
    "process group watchdog thread terminated",
    "mpi_err_proc_failed",
    "mpix_err_proc_failed",
    "communication error with rank",
    "readline failed",
    "distnetworkerror",
    "diststoreerror",
];

/// Whether a line of text says that a peer is gone.
pub fn tells_of_a_lost_peer(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    PEER_LOST.iter().any(|phrase| text.contains(phrase))
}

fn without_rank(line: &str) -> &str {
    let rest = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]: "));
    rest.filter(|(rank, _)| rank.parse::<u32>().is_ok()).map_or(line, |(_, text)| text)
}

/// A Python traceback: the index of its last line, and what it says.
fn traceback(lines: &[String]) -> Option<(usize, Exception)> {
    let start = lines.iter().rposition(|line| line.starts_with("Traceback (most recent call last):"))?;
    let end = (start + 1..lines.len()).find(|&at| !lines[at].starts_with(' ') && !lines[at].is_empty())?;
    let (kind, message) = lines[end].split_once(": ").unwrap_or((lines[end].as_str(), ""));
    let is_name = |c: char| c.is_alphanumeric() || c == '.' || c == '_';
    if kind.is_empty() || !kind.chars().all(is_name) {
        return None;
    }
    let frame = lines[start..end].iter().rev().find_map(|line| frame(line));
    let (file, line, function) =
        frame.map_or((None, None, None), |(file, line, name)| (Some(file), Some(line), Some(name)));
    let kind = kind.rsplit('.').next().unwrap_or(kind).to_owned();
    let traceback = lines[start..=end].join("\n");
    Some((end, Exception { kind, message: message.to_owned(), traceback, file, line, function }))
}

/// `  File "a.py", line 5, in func`
fn frame(line: &str) -> Option<(String, u32, String)> {
    let rest = line.trim_start().strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let (number, function) = match rest.split_once(", in ") {
        Some((number, function)) => (number, function),
        None => (rest, ""),
    };
    Some((file.to_owned(), number.trim().parse().ok()?, function.to_owned()))
}

/// `thread 'main' panicked at src/main.rs:5:9:`, and the message on the next line (Rust 1.73).
fn panic(lines: &[String]) -> Option<(usize, Exception)> {
    let at = lines.iter().rposition(|line| line.starts_with("thread '") && line.contains(" panicked at "))?;
    let (_, place) = lines[at].split_once(" panicked at ")?;
    let message = lines.get(at + 1).cloned().unwrap_or_default();
    let mut parts = place.trim_end_matches(':').split(':');
    let (file, line) = (parts.next().map(str::to_owned), parts.next().and_then(|line| line.parse().ok()));
    let traceback = lines[at..].join("\n");
    Some((at, Exception { kind: "panic".to_owned(), message, traceback, file, line, function: None }))
}

/// What stands for the type where a program was terminated without an exception.
const TERMINATE: &str = "std::terminate";

/// libstdc++'s and libc++abi's last words.
fn terminate(lines: &[String]) -> Option<(usize, Exception)> {
    const THROWING: &str = "terminate called after throwing an instance of '";
    let at = lines.iter().rposition(|line| line.contains("terminate called") || line.contains("terminating due to"))?;
    let kind = match lines[at].split_once(THROWING) {
        Some((_, rest)) => rest.trim_end_matches('\'').to_owned(),
        None => TERMINATE.to_owned(),
    };
    let what = lines.get(at + 1).and_then(|line| line.trim_start().strip_prefix("what():"));
    let message = what.map(|what| what.trim().to_owned()).unwrap_or_default();
    Some((at, Exception { kind, message, traceback: lines[at..].join("\n"), ..Exception::default() }))
}

/// glibc's `prog: file.c:5: func: Assertion `x' failed.`
fn assertion(lines: &[String]) -> Option<(usize, Exception)> {
    let at = lines.iter().rposition(|line| line.contains(": Assertion `") && line.contains("' failed"))?;
    let (before, after) = lines[at].split_once(": Assertion `")?;
    let mut parts = before.split(": ").nth(1).unwrap_or_default().split(':');
    let (file, line) = (parts.next().map(str::to_owned), parts.next().and_then(|line| line.parse().ok()));
    let message = format!("Assertion `{after}").trim_end_matches('.').to_owned();
    let exception =
        Exception { kind: String::new(), message, traceback: lines[at].clone(), file, line, function: None };
    Some((at, exception))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(text: &str) -> Tail {
        let mut tail = Tail::default();
        tail.write(text.as_bytes());
        tail
    }

    const SEED: &str = "starting\nTraceback (most recent call last):\n  File \"/x/test.py\", line 11, in <module>\n    func()\n  \
        File \"/x/test.py\", line 6, in func\n    raise ValueError('failure!')\nValueError: failure!\n";

    #[test]
    fn a_traceback_names_the_exception_and_its_place() {
        let exception = tail(SEED).exception().expect("a traceback");
        assert_eq!(exception.headline(), "ValueError: failure!");
        assert_eq!((exception.file.as_deref(), exception.line), (Some("/x/test.py"), Some(6)));
        assert_eq!(exception.function.as_deref(), Some("func"));
        assert!(tail(SEED).ends_with_traceback());
        assert!(!tail(&format!("{SEED}caught, going on\n")).ends_with_traceback());
    }

    #[test]
    fn a_traceback_with_torchs_prefix_is_read_as_well() {
        let torch: String = SEED.lines().map(|line| format!("[rank1]: {line}\n")).collect();
        assert_eq!(tail(&torch).exception(), tail(SEED).exception());
        assert!(tail(&torch).ends_with_traceback());
    }

    #[test]
    fn other_languages_last_words_are_understood() {
        let panic = tail("\nthread 'main' panicked at src/main.rs:5:9:\nindex out of bounds\nnote: run with\n");
        let exception = panic.exception().expect("a panic");
        assert_eq!((exception.headline().as_str(), exception.line), ("panic: index out of bounds", Some(5)));
        let thrown = tail("terminate called after throwing an instance of 'std::runtime_error'\n  what():  boom\n");
        assert_eq!(thrown.exception().expect("thrown").headline(), "std::runtime_error: boom");
        let plain = tail("terminate called without an active exception\n");
        assert_eq!(plain.exception().expect("terminated").headline(), "std::terminate");
        let after = tail(&format!("{SEED}terminate called without an active exception\n"));
        assert_eq!(after.exception().expect("both").headline(), "ValueError: failure!");
        let assert = tail("a.out: a.c:7: main: Assertion `x == 1' failed.\n");
        let exception = assert.exception().expect("an assertion");
        assert_eq!((exception.headline().as_str(), exception.line), ("Assertion `x == 1' failed", Some(7)));
        assert_eq!(tail("all is well\n").exception(), None);
    }

    #[test]
    fn victims_are_known_by_what_their_libraries_say() {
        let gloo = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711\n";
        assert!(tail(gloo).peer_lost().is_some());
        assert!(tail(SEED).peer_lost().is_none());
    }

    #[test]
    fn only_the_last_lines_are_kept_and_a_long_line_is_cut() {
        let mut tail = Tail::default();
        for number in 0..200 {
            tail.write(format!("line {number}\n").as_bytes());
        }
        tail.write(&[b'x'; 5000]);
        let lines = tail.lines();
        assert_eq!(lines.len(), LINES + 1);
        assert_eq!(lines[0], "line 150");
        assert_eq!(lines[LINES].len(), LINE_BYTES);
    }
}
