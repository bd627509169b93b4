//! The error stacks and the banners of MPICH, Intel MPI and Open MPI.

use super::{Accounts, Message, Recogniser, Strength, last};

pub(super) const ALL: &[Recogniser] = &[
    Recogniser { strength: Strength::Named, accounts: Accounts::Any, find: mpich },
    Recogniser { strength: Strength::Named, accounts: Accounts::Any, find: open_mpi },
    Recogniser { strength: Strength::Manner, accounts: Accounts::Nothing, find: banner },
];

/// `Abort(940230662) on node 1 (rank 1 in comm 0): Fatal error in internal_Send: Invalid rank, error stack:`, then the
/// stack, whose last line says most.
fn mpich(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| line.contains("Fatal error in ") && line.ends_with(", error stack:"))?;
    let from = lines[at].find("Fatal error in ")?;
    let headline = lines[at][from..].trim_end_matches(", error stack:");
    let reason = |line: &str| {
        // `internal_Send(78).: Invalid rank has value 7 but must be nonnegative and less than 4`
        let (function, reason) = line.split_once(": ")?;
        let (_, number) = function.trim_end_matches('.').strip_suffix(')')?.rsplit_once('(')?;
        number.parse::<u32>().ok().map(|_| reason.to_owned())
    };
    let stack: Vec<String> = lines[at + 1..].iter().map_while(|line| reason(line)).collect();
    let message = match (stack.last(), headline.rsplit_once(": ")) {
        (Some(reason), Some((call, class))) if reason.starts_with(class) => format!("{call}: {reason}"),
        (Some(reason), _) => format!("{headline} ({reason})"),
        (None, _) => headline.to_owned(),
    };
    Some(Message::words(at..at + 1 + stack.len(), message))
}

/// `[host:pid] *** An error occurred in MPI_Send`, and further down `*** MPI_ERR_RANK: invalid rank`.
fn open_mpi(lines: &[&str]) -> Option<Message> {
    let said = |line: &'_ str| line.split_once("] *** ").map(|(_, text)| text.trim().to_owned());
    let at = last(lines, |line| said(line).is_some_and(|text| text.starts_with("An error occurred in ")))?;
    let block: Vec<String> = lines[at..].iter().map_while(|line| said(line)).collect();
    let reason = block.iter().find(|text| text.starts_with("MPI_ERR_"));
    let call = block.first()?.trim_start_matches("An error occurred in ").to_owned();
    let message = match reason {
        Some(reason) => format!("{call}: {reason}"),
        None => format!("an error occurred in {call}"),
    };
    Some(Message::words(at..at + block.len(), message))
}

/// The lines about `MPI_Abort` itself, which say no reason.
fn banner(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| abort_banner(line).is_some() || line.starts_with("MPI_ABORT was invoked on rank "))?;
    let is_box = |at: &usize| lines[*at].starts_with("-----");
    let end = match lines[at].starts_with("MPI_ABORT was") {
        true => (at..lines.len()).find(is_box).map_or(at + 1, |end| end + 1),
        false => at + 1,
    };
    Some(Message::words(at..end, lines[at]))
}

/// Whose `MPI_Abort` a line tells of, by its rank in `MPI_COMM_WORLD`, and with which code: `Abort(8) on node 1 (rank 1 in
/// comm 480): application called MPI_Abort(comm=0x84000003, 8) - process 1` (MPICH 4 and 5, Intel MPI 2021).
pub(crate) fn abort_banner(line: &str) -> Option<(u32, i32)> {
    let (_, rest) = line.split_once("Abort(")?;
    let (code, rest) = rest.split_once(") on node ")?;
    let (node, rest) = rest.split_once(' ')?;
    rest.contains("application called MPI_Abort(").then_some(())?;
    Some((node.parse().ok()?, code.parse().ok()?))
}
