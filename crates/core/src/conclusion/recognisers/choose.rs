//! Which of the messages that were found is the cause.

use super::message::{Accounts, End, Message, Recogniser, Strength};
use super::mpi::abort_banner;
use super::{languages, logs, mpi, native, python, shell, test_tools};
use crate::testimony::Exception;

/// Lines that may follow a line that calls itself an error: a word of farewell.
const NEAR: usize = 3;
/// The same for a line that calls itself fatal.
const NEAR_FATAL: usize = 10;
/// Lines before a message of one line that are shown with it, and after it.
const CONTEXT: (usize, usize) = (4, 2);

/// All of them.
pub(super) const FAMILIES: [&[Recogniser]; 7] =
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
