//! What the last lines of a program's output say of its failure: recognisers, one table for each family of programs.
//!
//! A recogniser finds the last message of its kind in a tail of lines. Which of several messages is the cause is decided
//! by [`choose`]: a message that accounts for how the process ended comes before one that merely stands at the end, and of
//! equals the last one counts. What was written long before the end, and does not account for it, has been survived.
//!
//! Each recogniser has a sample of what a real program wrote (`conclusion/samples`).

mod languages;
mod logs;
mod mpi;
mod native;
mod python;
mod shell;
mod test_tools;

use std::ops::Range;

use crate::status::WorkerStatus;
use crate::testimony::Exception;

pub(crate) use mpi::{abort_banner, reason_of_stack, without_boxes};
pub(crate) use python::{
    HEADER, ends_with_traceback, exception_line, first_of_group, frame, is_group_header, is_header, place,
    within_margin,
};

/// Lines that may follow a line that calls itself an error: a word of farewell.
const NEAR: usize = 3;
/// The same for a line that calls itself fatal.
const NEAR_FATAL: usize = 10;
/// Lines before a message of one line that are shown with it, and after it.
const CONTEXT: (usize, usize) = (4, 2);

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
const SIGABRT: i32 = 6;
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
    fn cover(self, end: End) -> bool {
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
    fn farewell(self) -> usize {
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
    /// What is said, without the text around it: [`choose`] adds that.
    pub(super) said: Exception,
    /// Only how the process came down, although others of its kind name the failure.
    pub(super) is_manner: bool,
    /// It ends nothing, and is no cause: only its lines are known.
    pub(super) is_aside: bool,
}

impl Message {
    /// A message without a type.
    fn words(lines: Range<usize>, message: impl Into<String>) -> Message {
        Message::of(lines, "", message)
    }

    fn of(lines: Range<usize>, kind: &str, message: impl Into<String>) -> Message {
        let said = Exception { kind: kind.to_owned(), message: message.into(), ..Exception::default() };
        Message { lines, said, ..Message::default() }
    }

    /// A line from which the text was taken may have none: then the last line that has some stands for it.
    fn saying_something(mut self, lines: &[&str]) -> Message {
        if self.said.kind.is_empty() && self.said.message.trim().is_empty() {
            let has_text = |line: &&&str| !line.trim().is_empty();
            let text = lines[self.lines.clone()].iter().rev().find(has_text).copied();
            self.said.message = text.unwrap_or_default().trim().to_owned();
        }
        self
    }

    fn at(mut self, place: Option<(String, Option<u32>)>) -> Message {
        if let Some((file, line)) = place {
            (self.said.file, self.said.line) = (Some(file), line);
        }
        self
    }
}

/// All of them.
const FAMILIES: [&[Recogniser]; 7] =
    [python::ALL, native::ALL, languages::ALL, mpi::ALL, shell::ALL, test_tools::ALL, logs::ALL];

/// What was found to be the cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cause {
    pub(crate) exception: Exception,
    strength: Strength,
    /// The name of what found it.
    pub(crate) recogniser: &'static str,
}

impl Cause {
    /// Whether it was named by a runtime, or by a line that calls itself an error: what stdout says counts only then, where
    /// something else stands on stderr.
    pub(crate) fn is_marked(&self) -> bool {
        self.strength >= Strength::Error
    }
}

/// The cause of the end of a process, as its last lines tell it. The lines are without colours, and without what a
/// carriage return overwrote.
pub(crate) fn choose(lines: &[&str], end: End) -> Option<Cause> {
    let found: Vec<(&Recogniser, Strength, Message)> = FAMILIES
        .into_iter()
        .flatten()
        .filter_map(|recogniser| {
            let message = (recogniser.find)(lines)?.saying_something(lines);
            let strength = if message.is_manner { Strength::Manner } else { recogniser.strength };
            Some((recogniser, strength, message))
        })
        .collect();
    // What messages of runtimes take up is no line of the program's own that follows; nor is that of an `MPI_Abort`.
    let mut is_own: Vec<bool> =
        lines.iter().map(|line| !line.trim().is_empty() && abort_banner(line).is_none()).collect();
    for (.., message) in found.iter().filter(|(_, strength, _)| *strength != Strength::Complaint) {
        is_own[message.lines.clone()].fill(false);
    }
    let mut own_from = vec![0; lines.len() + 1];
    for at in (0..lines.len()).rev() {
        own_from[at] = own_from[at + 1] + usize::from(is_own[at]);
    }
    // A line of a message that a runtime prints is no complaint of the program.
    let is_part = |complaint: &Message| {
        let holds =
            |other: &Message| other.lines.len() > 1 && complaint.lines.clone().all(|at| other.lines.contains(&at));
        found.iter().any(|(_, strength, other)| *strength != Strength::Complaint && holds(other))
    };
    let (recogniser, strength, message) = found
        .iter()
        .filter_map(|candidate| {
            let (Recogniser { accounts, .. }, strength, message) = candidate;
            if message.is_aside || *strength == Strength::Complaint && is_part(message) {
                return None;
            }
            let following = own_from[message.lines.end];
            let is_of_abort = matches!(accounts, Accounts::MpiError);
            let is_covered =
                accounts.cover(end) && (!matches!(accounts, Accounts::Any | Accounts::MpiError) || end.is_deliberate());
            let score = match strength {
                Strength::Named if is_of_abort && end.has_aborted => 6,
                Strength::Named if is_covered => 5,
                // One that does not account for the end was survived, unless the program said no more, or farewell to an exception.
                Strength::Named if end.is_deliberate() && following <= accounts.farewell() => 4,
                Strength::Fatal if end.is_deliberate() && following <= NEAR_FATAL => 5,
                Strength::Error if end.is_deliberate() && following <= NEAR => 4,
                Strength::Complaint if end.is_deliberate() && following == 0 => 3,
                Strength::Manner if is_covered => 2,
                _ => return None,
            };
            Some((score, candidate))
        })
        .max_by_key(|(score, (_, strength, message))| (*score, message.lines.end, *strength))?
        .1;
    let mut exception = message.said.clone();
    // Of what said only how the process came down, the place is of use.
    let place = found.iter().find_map(|(_, strength, later)| {
        let is_place = *strength == Strength::Manner && later.lines.start >= message.lines.end;
        (is_place && later.said.file.is_some()).then_some(&later.said)
    });
    if let (None, Some(place)) = (&exception.file, place) {
        let Exception { file, line, function, .. } = place.clone();
        (exception.file, exception.line, exception.function) = (file, line, function);
    }
    let shown = match message.lines.len() {
        1 => message.lines.start.saturating_sub(CONTEXT.0)..(message.lines.end + CONTEXT.1).min(lines.len()),
        _ => message.lines.clone(),
    };
    exception.traceback = lines[shown].join("\n").trim_matches('\n').to_owned();
    Some(Cause { exception, strength: *strength, recogniser: recogniser.name })
}

/// The names of all.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().flatten().map(|recogniser| recogniser.name)
}

/// The last line for which this holds.
fn last(lines: &[&str], is: impl Fn(&str) -> bool) -> Option<usize> {
    lines.iter().rposition(|line| is(line))
}

/// `/a/b.c:5` or `/a/b.c:5:9`, as it stands at the end of a text.
fn file_and_line(text: &str) -> Option<(String, Option<u32>)> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '(' || c == ')');
    let (before, last) = text.rsplit_once(':')?;
    let last = last.parse::<u32>().ok()?;
    match before.rsplit_once(':') {
        Some((file, line)) if line.parse::<u32>().is_ok() => Some((file.to_owned(), line.parse().ok())),
        _ => Some((before.to_owned(), Some(last))),
    }
    .filter(|(file, _)| !file.is_empty())
}

#[cfg(test)]
mod tests;
