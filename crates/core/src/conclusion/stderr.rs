//! The last lines that a rank wrote to stderr and to stdout, and what they say of its failure where nothing better does.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evidence::Source;
use crate::peers::{is_mild, loss_in};
use crate::recognisers::{End, abort_banner, choose, ends_with_traceback, is_of_make, without_boxes};
use crate::testimony::Exception;
use crate::traceback::HEADER;

/// Lines that the report shows of each rank.
pub const LINES: usize = 50;
/// Bytes that are shown of each line.
const LINE_BYTES: usize = 1000;
/// Bytes that are kept of each stream of each rank: a cause must not be lost behind the words of a clean-up.
const KEPT: usize = 16 * 1024;
/// Lines that are read for a cause, from the end: of empty lines, what is kept has many thousands.
const READ: usize = 1500;
/// Lines at the end, of which one that tells of a lost peer makes a victim of a rank that says nothing better.
const LAST: usize = 3;
/// A line that only may be the reason of an exit was written at most so long before it.
const SHORTLY: Duration = Duration::from_secs(2);

/// The tail of one stream of one rank.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Tail {
    bytes: Vec<u8>,
    /// When the last line that says something was written, if the time is known.
    at: Option<Duration>,
}

/// The form in which a tail is written to the journal: whole lines, and what follows the last of them.
#[derive(Serialize, Deserialize)]
struct Stored {
    lines: Vec<String>,
    partial: Vec<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<Duration>,
}

impl From<Tail> for Stored {
    fn from(tail: Tail) -> Stored {
        let end = tail.bytes.iter().rposition(|&byte| byte == b'\n');
        let (whole, partial) = tail.bytes.split_at(end.map_or(0, |end| end + 1));
        let lines = whole.strip_suffix(b"\n").map(|whole| whole.split(|&byte| byte == b'\n'));
        let lines = lines.into_iter().flatten().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        Stored { lines, partial: partial.to_vec(), at: tail.at }
    }
}

impl From<Stored> for Tail {
    fn from(stored: Stored) -> Tail {
        let mut bytes: Vec<u8> = stored.lines.iter().flat_map(|line| line.bytes().chain([b'\n'])).collect();
        bytes.extend(stored.partial);
        Tail { bytes, at: stored.at }
    }
}

impl Tail {
    /// Bytes that the rank wrote, at this time.
    pub fn write_at(&mut self, at: Duration, bytes: &[u8]) {
        // A rule or an empty line that follows says nothing.
        if bytes.iter().any(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii()) {
            self.at = Some(at);
        }
        self.write(bytes);
    }

    /// Bytes that the rank wrote.
    pub fn write(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        // What is too much goes in large pieces, so that each byte is moved once or twice.
        if self.bytes.len() + bytes.len() > 2 * KEPT {
            let kept = self.bytes.len().min(KEPT - bytes.len());
            self.bytes.drain(..self.bytes.len() - kept);
            // Half a line is none.
            if let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
                self.bytes.drain(..=end);
            }
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The last lines, the unterminated last one included, as a terminal would have shown them.
    pub fn lines(&self) -> Vec<String> {
        let text = text_of(&self.bytes);
        let mut lines: Vec<String> = text.lines().rev().take(LINES).map(|line| cut(shown(line)).to_owned()).collect();
        lines.reverse();
        lines
    }

    /// The last [`READ`] lines, as the program meant them: without colours, and without the `[rank3]: ` that torch puts
    /// before those of a traceback.
    ///
    /// This reads all that is kept: it is for the end of a rank, or a timer, and never for each piece of output.
    pub(crate) fn bare(&self) -> Vec<String> {
        let text = text_of(&self.bytes);
        let mut lines: Vec<String> =
            text.lines().rev().take(READ).map(|line| without_rank(without_escapes(cut(shown(line))))).collect();
        lines.reverse();
        lines
    }

    /// The traceback that the text ends with, if nothing was written after the exception's own line. Reads all that is
    /// kept.
    pub fn last_traceback(&self) -> Option<Exception> {
        // Most texts end otherwise, and have none.
        let whole = self.bytes.strip_suffix(b"\n")?;
        let last = whole.iter().rposition(|&byte| byte == b'\n')?;
        if whole[last + 1..].first().is_none_or(|byte| *byte == b' ') || !self.contains(HEADER) {
            return None;
        }
        let lines = self.bare();
        ends_with_traceback(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The code of the first `MPI_Abort` of a rank of `MPI_COMM_WORLD` that the text tells of: one on an intercommunicator
    /// may return, and another one follow. Reads all that is kept.
    pub fn aborted(&self, rank: u32) -> Option<i32> {
        if !self.contains("Abort(") {
            return None;
        }
        self.bare().iter().filter_map(|line| abort_banner(line)).find_map(|(of, code)| (of == rank).then_some(code))
    }

    fn contains(&self, mark: &str) -> bool {
        self.bytes.windows(mark.len()).any(|window| window == mark.as_bytes())
    }
}

/// The last lines of both streams of a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tails<'a> {
    pub(crate) stderr: Option<&'a Tail>,
    pub(crate) stdout: Option<&'a Tail>,
    /// When the rank ended, if that is known.
    pub(crate) ended_at: Option<Duration>,
}

/// What the last lines say.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Words {
    /// The failure, and the stream that told of it.
    pub failure: Option<(Source, Exception)>,
    /// The line that says that a peer is gone, where nothing names the failure.
    pub peer_lost: Option<String>,
    /// The code of an `MPI_Abort` that the rank itself called.
    pub aborted: Option<i32>,
    /// The last line of stderr, where the rank ended of its own decision: the program's own words, though what they mean is
    /// not known.
    #[serde(default)]
    pub last_line: Option<String>,
}

impl Tails<'_> {
    /// What they say of the end of rank `rank`.
    pub(crate) fn words(self, rank: u32, end: End) -> Words {
        let bare = |tail: Option<&Tail>| {
            tail.map(|tail| without_make(without_boxes(tail.bare(), end.has_aborted))).unwrap_or_default()
        };
        let (stderr, stdout) = (bare(self.stderr), bare(self.stdout));
        let is_old = |tail: &Tail| Some(self.ended_at?.saturating_sub(tail.at?) > SHORTLY);
        let is_old = self.stderr.and_then(is_old).unwrap_or_default();
        let is_silent = stderr.iter().all(|line| line.trim().is_empty());
        let read = |lines: &[String]| choose(&lines.iter().map(String::as_str).collect::<Vec<_>>(), end);
        let on_stderr = read(&stderr);
        let on_stdout = || read(&stdout).filter(|cause| is_silent || cause.is_marked());
        let failure = match on_stderr {
            Some(cause) if cause.is_marked() => Some((Source::Stderr, cause.exception)),
            weak => on_stdout()
                .map(|cause| (Source::Stdout, cause.exception))
                .or(weak.filter(|_| !is_old).map(|cause| (Source::Stderr, cause.exception))),
        };
        let last = stderr.iter().rev().filter(|line| !line.trim().is_empty()).take(LAST);
        let peer_lost = last.filter(|line| !is_mild(line)).find(|line| loss_in(line).is_some()).cloned();
        let aborted = self.stderr.and_then(|stderr| stderr.aborted(rank));
        let last_line = last_of_own(&stderr).filter(|_| end.is_deliberate() && !is_old);
        let last_line = last_line.map(|line| line.trim().to_owned());
        Words { failure, peer_lost: peer_lost.filter(|_| end.is_deliberate()), aborted, last_line }
    }
}

/// The last line in which a program says something of its end. How to call the program, how far it came, how much it copied and what
/// Python warns of is no reason. One that is only a warning or a notice was survived.
fn last_of_own(lines: &[String]) -> Option<&String> {
    let is_python_warning = |line: &str| line.split_whitespace().take(5).any(|word| word.ends_with("Warning:"));
    let is_by_the_way = |at: usize| {
        let line = &lines[at];
        // The line of the source is below the warning.
        let is_below =
            line.starts_with("  ") && at.checked_sub(1).is_some_and(|above| is_python_warning(&lines[above]));
        is_python_warning(line) || is_below || is_of_usage(line) || is_of_progress(line)
    };
    let says_something = |at: &usize| says(&lines[*at]) && abort_banner(&lines[*at]).is_none();
    let last = (0..lines.len()).rev().filter(says_something).find(|&at| !is_by_the_way(at))?;
    Some(&lines[last]).filter(|line| !is_mild(line))
}

/// `Usage: solver FILE`, `Try 'ls --help' for more information.`
fn is_of_usage(line: &str) -> bool {
    let line = line.trim_start().to_ascii_lowercase();
    line.starts_with("usage: ") || line.starts_with("try ") && line.contains("--help")
}

/// A bar (`40%|####  |`), and the closing lines of dd.
fn is_of_progress(line: &str) -> bool {
    let is_count = |end: &str| {
        line.strip_suffix(end).is_some_and(|count| count.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'+')))
    };
    line.contains("%|")
        || line.contains(" copied, ") && line.ends_with("B/s")
        || is_count(" records in")
        || is_count(" records out")
}

/// The lines without the last ones of GNU make, which only tell that a command failed: `make: *** [Makefile:3: a] Error 3`.
fn without_make(mut lines: Vec<String>) -> Vec<String> {
    let is_end = |line: &str| {
        is_of_make(line)
            && (line.contains(": *** [") && line.contains("] Error ") || line.contains(": Leaving directory '"))
    };
    let last = lines.iter().rposition(|line| says(line) && !is_end(line));
    if let Some(last) = last.filter(|last| lines[*last..].iter().any(|line| is_end(line))) {
        lines.truncate(last + 1);
    }
    lines
}

/// The text of an output. Of one in UTF-16 (`wine`, programs for Windows) the characters of ASCII remain.
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    match text.contains('\0') {
        // The mark of the byte order is no UTF-8.
        true => text.replace('\0', "").replace("\u{fffd}\u{fffd}", "").into(),
        false => text,
    }
}

/// Whether a line has a letter or a digit: a rule (`----`, `====`, `╰──╯`) says nothing.
fn says(line: &str) -> bool {
    line.chars().any(char::is_alphanumeric)
}

/// What a terminal shows of a line at its end: a carriage return begins it anew.
fn shown(line: &str) -> &str {
    let line = line.trim_end_matches('\r');
    line.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or(line)
}

fn cut(line: &str) -> &str {
    if line.len() <= LINE_BYTES {
        return line;
    }
    let end = (0..=LINE_BYTES).rev().find(|&at| line.is_char_boundary(at));
    &line[..end.unwrap_or(0)]
}

fn without_rank(line: String) -> String {
    let rest = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]:"));
    match rest.filter(|(rank, _)| rank.parse::<u32>().is_ok()) {
        Some((_, text)) => text.strip_prefix(' ').unwrap_or(text).to_owned(),
        None => line,
    }
}

/// A line without control sequences (ECMA-48, 5.4) and titles of a terminal.
fn without_escapes(line: &str) -> String {
    if !line.contains('\x1b') {
        return line.to_owned();
    }
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('\x1b') {
        out.push_str(&rest[..at]);
        let sequence = &rest[at + 1..];
        rest = match sequence.chars().next() {
            Some('[') => {
                let end = sequence[1..].find(|c: char| ('@'..='~').contains(&c)).map(|end| end + 2);
                &sequence[end.unwrap_or(sequence.len())..]
            }
            Some(']') => {
                let end =
                    sequence.find('\x07').map(|end| end + 1).or_else(|| sequence.find("\x1b\\").map(|end| end + 2));
                &sequence[end.unwrap_or(sequence.len())..]
            }
            Some(other) => &sequence[other.len_utf8()..],
            None => "",
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::WorkerStatus;

    fn tail(text: &str) -> Tail {
        let mut tail = Tail::default();
        tail.write(text.as_bytes());
        tail
    }

    fn exited(code: u8) -> End {
        End { status: Some(WorkerStatus::Exited { code }), ..End::default() }
    }

    fn headline(stderr: &str, stdout: &str, end: End) -> Option<(Source, String)> {
        let (stderr, stdout) = (tail(stderr), tail(stdout));
        let words = Tails { stderr: Some(&stderr), stdout: Some(&stdout), ended_at: None }.words(0, end);
        words.failure.map(|(source, exception)| (source, exception.headline()))
    }

    const SEED: &str = "starting\nTraceback (most recent call last):\n  File \"/x/test.py\", line 11, in <module>\n    func()\n  \
        File \"/x/test.py\", line 6, in func\n    raise ValueError('failure!')\nValueError: failure!\n";

    #[test]
    fn a_traceback_at_the_end_is_known_as_one() {
        let exception = tail(SEED).last_traceback().expect("a traceback");
        assert_eq!(exception.headline(), "ValueError: failure!");
        assert_eq!((exception.file.as_deref(), exception.line), (Some("/x/test.py"), Some(6)));
        assert_eq!(exception.function.as_deref(), Some("func"));
        assert_eq!(tail(&format!("{SEED}caught, going on\n")).last_traceback(), None);
        assert_eq!(tail(SEED.trim_end()).last_traceback(), None, "its line may not be whole");
        let torch: String = SEED.lines().map(|line| format!("[rank1]: {line}\n")).collect();
        assert_eq!(tail(&torch).last_traceback(), Some(exception));
    }

    #[test]
    fn sixty_lines_of_a_clean_up_do_not_hide_the_cause_and_a_survived_one_is_none() {
        let cleanup: String =
            (0..60).map(|at| format!("removing temporary file {at} of the run, please wait\n")).collect();
        let expected = Some((Source::Stderr, "ValueError: failure!".to_owned()));
        assert_eq!(headline(&format!("{SEED}{cleanup}"), "", exited(1)), expected);
        let left = End { has_left: true, ..exited(1) };
        assert_eq!(headline(&format!("{SEED}{cleanup}"), "", left), None, "it was caught, and much came after it");
        assert_eq!(headline(&format!("{SEED}giving up\n"), "", left), expected);
        let killed = End { status: Some(WorkerStatus::Signaled { signal: 9, core_dumped: false }), ..End::default() };
        assert_eq!(headline(&format!("{SEED}{cleanup}"), "", killed), None);
        let message = "Could not override 'model.depht'.\nKey 'depht' is not in struct\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n";
        assert_eq!(headline(message, "", killed), None);
        let stopped = End { has_left: true, ..killed };
        let expected = "Could not override 'model.depht'. Key 'depht' is not in struct".to_owned();
        assert_eq!(
            headline(message, "", stopped),
            Some((Source::Stderr, expected)),
            "it was leaving when it was stopped"
        );
    }

    #[test]
    fn what_a_progress_bar_or_a_colour_stands_in_front_of_is_found() {
        let expected = Some((Source::Stderr, "ValueError: failure!".to_owned()));
        assert_eq!(headline(&format!("\r 0%|   |\r80%|## |{}", &SEED[9..]), "", exited(1)), expected);
        let colored =
            SEED.replace("Traceback", "\x1b[1;31mTraceback").replace("ValueError:", "\x1b[31mValueError\x1b[0m:");
        assert_eq!(headline(&colored, "", exited(1)), expected);
        assert_eq!(tail("\r10%\r20%\r\nok\r\n").lines(), ["20%", "ok"]);
    }

    #[test]
    fn stdout_is_heard_where_stderr_says_nothing() {
        let stdout = "step 12\nERROR: temperature out of range: -4 K\n";
        let expected = "ERROR: temperature out of range: -4 K".to_owned();
        assert_eq!(headline("", stdout, exited(3)), Some((Source::Stdout, expected.clone())));
        assert_eq!(headline("a warning\n", stdout, exited(3)), Some((Source::Stdout, expected)));
        assert_eq!(
            headline("FATAL: no mesh\n", stdout, exited(3)),
            Some((Source::Stderr, "FATAL: no mesh".to_owned()))
        );
        assert_eq!(headline("", "step 12\nstep 13\n", exited(3)), None);
    }

    #[test]
    fn the_last_line_of_stderr_is_one_that_says_something_and_is_no_warning() {
        let last = |text: &str| {
            let tail = tail(text);
            Tails { stderr: Some(&tail), stdout: None, ended_at: None }.words(0, exited(3)).last_line
        };
        for (text, expected) in [
            ("no room\n", Some("no room")),
            ("no room\n-----------\n\n", Some("no room")),
            ("| no room |\n╰─────────╯\n==== ====\n", Some("| no room |")),
            ("=======\n", None),
            ("WARNING: tuning file not found, using defaults\n", None),
            ("no room\n[INFO] bye\n", None),
            ("cannot open mesh\nUsage: solver [-n N] FILE\n", Some("cannot open mesh")),
            (
                "ls: unrecognized option '--bogus'\nTry 'ls --help' for more information.\n",
                Some("ls: unrecognized option '--bogus'"),
            ),
            ("no room\na.py:3: UserWarning: old\n  warnings.warn(\"old\")\n", Some("no room")),
            ("no room\n 40%|####      | 4/10\n", Some("no room")),
            (
                "dd: writing to '/dev/full': No space left on device\n1+0 records in\n0+0 records out\n0 bytes copied, 2.9e-05 s, 0.0 kB/s\n",
                Some("dd: writing to '/dev/full': No space left on device"),
            ),
            ("no room\nmake[1]: *** [Makefile:2: a] Error 3\nmake: *** [Makefile:5: b] Error 2\n", Some("no room")),
            ("no room\ngmake: *** [Makefile:5: b] Error 2\n", Some("no room")),
            ("make: *** [Makefile:2: a] Error 3\n", Some("make: *** [Makefile:2: a] Error 3")),
        ] {
            assert_eq!(last(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn an_old_line_is_not_the_reason_of_an_exit() {
        let said = |text: &str, at: u64, ended: u64| {
            let mut tail = Tail::default();
            tail.write_at(Duration::from_secs(at), text.as_bytes());
            tail.write_at(Duration::from_secs(ended), b"---------\n\n");
            let words = Tails { stderr: Some(&tail), stdout: None, ended_at: Some(Duration::from_secs(ended)) };
            let words = words.words(0, exited(3));
            words.failure.map(|(_, exception)| exception.headline()).or(words.last_line)
        };
        for text in ["loading the tuning file\n", "plugin x is not supported\n"] {
            assert_eq!(said(text, 1, 60), None, "{text}");
            assert_eq!(said(text, 59, 60).as_deref(), Some(text.trim()));
        }
        assert!(said("FATAL: no mesh\n", 1, 60).is_some(), "it calls itself the reason");
    }

    #[test]
    fn words_in_utf_16_are_read() {
        let mut tail = Tail::default();
        tail.write(&"\u{feff}Fatal: no licence\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>());
        assert_eq!(tail.lines().first().map(String::as_str), Some("Fatal: no licence"));
        let words = Tails { stderr: Some(&tail), stdout: None, ended_at: None }.words(0, exited(5));
        assert_eq!(words.last_line.as_deref(), Some("Fatal: no licence"));
    }

    #[test]
    fn a_lost_peer_counts_in_the_last_lines_of_a_rank_that_gave_up_for_it() {
        let lost = |text: &str, end| {
            let tail = tail(text);
            Tails { stderr: Some(&tail), stdout: None, ended_at: None }.words(0, end).peer_lost
        };
        let gloo = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711";
        assert_eq!(lost(&format!("{gloo}\n"), exited(1)).as_deref(), Some(gloo));
        assert_eq!(lost(&format!("{gloo}\na\nb\nc\n"), exited(1)), None, "it was long ago");
        assert_eq!(lost("W: Connection refused, retrying\n", exited(1)), None, "it is no failure");
        let segv = End { status: Some(WorkerStatus::Signaled { signal: 11, core_dumped: false }), ..End::default() };
        assert_eq!(lost(&format!("{gloo}\n"), segv), None, "that does not crash a program");
    }

    #[test]
    fn the_banner_of_an_abort_counts_for_the_rank_that_it_names() {
        let banner =
            "Abort(8) on node 1 (rank 1 in comm 480): application called MPI_Abort(comm=0x84000003, 8) - process 1\n";
        let tail = tail(banner);
        assert_eq!(
            Tails { stderr: Some(&tail), stdout: None, ended_at: None }.words(1, End::default()).aborted,
            Some(8)
        );
        assert_eq!(Tails { stderr: Some(&tail), stdout: None, ended_at: None }.words(0, End::default()).aborted, None);
    }

    #[test]
    fn memory_is_bounded_and_the_report_has_the_last_lines_each_cut() {
        let mut tail = Tail::default();
        for number in 0..20_000 {
            tail.write(format!("line {number}\n").as_bytes());
            assert!(tail.bytes.len() <= 2 * KEPT);
        }
        tail.write(&[b'\xff'; 5000]);
        let lines = tail.lines();
        assert_eq!((lines.len(), lines[0].as_str()), (LINES, "line 19951"));
        assert!((LINE_BYTES - 3..=LINE_BYTES).contains(&lines[LINES - 1].len()));
        tail.write(&[b'x'; 1 << 20]);
        assert!(tail.bytes.len() <= 2 * KEPT);
    }

    #[test]
    fn the_lines_that_are_read_for_a_cause_are_bounded_and_the_last_ones() {
        let mut tail = Tail::default();
        for _ in 0..200_000 {
            tail.write(b"\n");
        }
        tail.write(SEED.as_bytes());
        assert!(tail.bytes.len() > 2 * READ);
        let bare = tail.bare();
        assert_eq!((bare.len(), bare.last().map(String::as_str)), (READ, Some("ValueError: failure!")));
        assert_eq!(
            tail.last_traceback().map(|exception| exception.headline()),
            Some("ValueError: failure!".to_owned())
        );
    }

    #[test]
    fn a_tail_is_read_from_a_journal_as_it_was_written() {
        for text in ["", "a", "a\n", "a\n\nb\r\nc", "\n"] {
            let tail = tail(text);
            let json = serde_json::to_string(&tail).expect("plain data");
            assert_eq!(serde_json::from_str::<Tail>(&json).expect("our own"), tail, "{json}");
        }
        assert_eq!(serde_json::to_string(&tail("a\nb")).expect("plain data"), r#"{"lines":["a"],"partial":[98]}"#);
    }
}
