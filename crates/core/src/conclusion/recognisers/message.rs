//! What a recogniser is, and the message that it finds.

use std::ops::Range;

use crate::status::WorkerStatus;
use crate::testimony::Exception;

/// What is known of the end of the process that wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct End {
    pub(crate) status: Option<WorkerStatus>,
    /// It asked for the end of the job, as by `MPI_Abort`.
    pub(crate) has_aborted: bool,
    /// Its interpreter reported a plain `sys.exit`: no exception reached the top.
    pub(crate) has_left: bool,
}

impl End {
    /// Whether it ended by its own decision, as a process does that has noticed its failure.
    pub(crate) fn is_deliberate(self) -> bool {
        self.has_aborted
            || match self.status {
                Some(WorkerStatus::Exited { .. }) | None => true,
                Some(WorkerStatus::Signaled { signal, .. }) => {
                    // One that was leaving when the job was stopped.
                    signal == SIGABRT || self.has_left && [SIGINT, SIGKILL, SIGTERM].contains(&signal)
                }
            }
    }
}

const SIGINT: i32 = 2;
pub(super) const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Which ends of a process a message accounts for, however long before them it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Accounts {
    /// An exception that reaches the top of its program, and makes this exit code.
    Uncaught(&'static [u8]),
    /// One of these codes.
    Codes(&'static [u8]),
    /// `abort()`, whether the status of the process or of its child was handed on.
    Abort,
    /// Any signal, or one of these codes.
    SignalOr(&'static [u8]),
    /// 128 + n: a shell exits so with the status of a child that a signal ended.
    HandedOn,
    /// Any failure; an abort comes from it, whatever was written after it.
    MpiError,
    /// An abort of MPI of which nothing else is known than what it printed.
    UnknownAbort,
    /// Any failure.
    Any,
    /// None: it counts only near the end.
    Nothing,
}

impl Accounts {
    pub(super) fn cover(self, end: End) -> bool {
        let code = end.status.map(WorkerStatus::shell_code);
        let is_code = |codes: &[u8]| code.is_some_and(|code| codes.contains(&code));
        match self {
            Accounts::Uncaught(codes) => is_code(codes) && !end.has_left,
            Accounts::Codes(codes) => is_code(codes),
            Accounts::Abort => code == Some(128 + SIGABRT as u8),
            Accounts::SignalOr(codes) => code.is_some_and(|code| code > 128) || is_code(codes),
            Accounts::HandedOn => matches!(end.status, Some(WorkerStatus::Exited { code }) if code > 128),
            Accounts::UnknownAbort => !end.has_aborted,
            Accounts::MpiError | Accounts::Any => true,
            Accounts::Nothing => false,
        }
    }

    /// Lines that may follow such a message where it does not account for the end of its process: who prints an exception that it has
    /// caught, and exits with a code of its own, says one line at most.
    pub(super) fn farewell(self) -> usize {
        usize::from(matches!(self, Accounts::Uncaught(_)))
    }
}

/// How much a message says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Strength {
    /// How the process came down, and not why.
    Manner,
    /// A line that reads like a complaint.
    Complaint,
    /// A line that calls itself an error.
    Error,
    /// A line that calls itself fatal.
    Fatal,
    /// The message of a runtime: it names the failure.
    Named,
}

/// One kind of message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recogniser {
    pub(super) strength: Strength,
    pub(super) accounts: Accounts,
    /// The last message of this kind.
    pub(super) find: fn(&[&str]) -> Option<Message>,
    /// By which a sample names it.
    pub(super) name: &'static str,
}

/// A message that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Message {
    /// Its lines.
    pub(super) lines: Range<usize>,
    /// What is said, without the text around it: `choose` adds that.
    pub(super) said: Exception,
    /// Only how the process came down, although others of its kind name the failure.
    pub(super) is_manner: bool,
    /// It ends nothing, and is no cause: only its lines are known.
    pub(super) is_aside: bool,
}

impl Message {
    /// A message without a type.
    pub(super) fn words(lines: Range<usize>, message: impl Into<String>) -> Message {
        Message::of(lines, "", message)
    }

    pub(super) fn of(lines: Range<usize>, kind: &str, message: impl Into<String>) -> Message {
        let said = Exception { kind: kind.to_owned(), message: message.into(), ..Exception::default() };
        Message { lines, said, ..Message::default() }
    }

    /// A line from which the text was taken may have none: then the last line that has some stands for it.
    pub(super) fn saying_something(mut self, lines: &[&str]) -> Message {
        if self.said.kind.is_empty() && self.said.message.trim().is_empty() {
            let has_text = |line: &&&str| !line.trim().is_empty();
            let text = lines[self.lines.clone()].iter().rev().find(has_text).copied();
            self.said.message = text.unwrap_or_default().trim().to_owned();
        }
        self
    }

    pub(super) fn at(mut self, place: Option<(String, Option<u32>)>) -> Message {
        if let Some((file, line)) = place {
            (self.said.file, self.said.line) = (Some(file), line);
        }
        self
    }
}

/// The last line for which this holds.
pub(super) fn last(lines: &[&str], is: impl Fn(&str) -> bool) -> Option<usize> {
    lines.iter().rposition(|line| is(line))
}

/// `/a/b.c:5` or `/a/b.c:5:9`, as it stands at the end of a text.
pub(super) fn file_and_line(text: &str) -> Option<(String, Option<u32>)> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '(' || c == ')');
    let (before, last) = text.rsplit_once(':')?;
    let last = last.parse::<u32>().ok()?;
    match before.rsplit_once(':') {
        Some((file, line)) if line.parse::<u32>().is_ok() => Some((file.to_owned(), line.parse().ok())),
        _ => Some((before.to_owned(), Some(last))),
    }
    .filter(|(file, _)| !file.is_empty())
}
