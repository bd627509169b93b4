//! The error stacks and the banners of MPICH, Intel MPI and Open MPI.

use super::message::{Accounts, Message, Recogniser, Strength, last};
use crate::error_stack::{STACK_FOLLOWS, reason, with_reason};
use crate::open_mpi;

/// How a box of Open MPI begins if the file of its texts is missing. The topic follows.
const WITHOUT_TEXTS: &str = "Sorry!  You were supposed to get help about:";

/// The lines of the longest box that is read, with its lower edge: that of `MPI_Abort` (Open MPI 1 to 5).
const LONGEST_BOX: usize = 8;

pub(super) const ALL: &[Recogniser] = &[
    Recogniser { strength: Strength::Named, accounts: Accounts::MpiError, find: mpich, name: "mpich" },
    Recogniser { strength: Strength::Named, accounts: Accounts::MpiError, find: open_mpi, name: "open_mpi" },
    Recogniser { strength: Strength::Named, accounts: Accounts::MpiError, find: wordless, name: "open_mpi_wordless" },
    Recogniser {
        strength: Strength::Manner,
        accounts: Accounts::UnknownAbort,
        find: open_mpi_abort,
        name: "open_mpi_abort",
    },
];

/// `Abort(940230662) on node 1 (rank 1 in comm 0): Fatal error in internal_Send: Invalid rank, error stack:`, then the
/// stack, whose last line says most.
fn mpich(lines: &[&str]) -> Option<Message> {
    let is_early = |line: &str| line.starts_with("Attempting to use an MPI routine (");
    let is_stack = |line: &str| line.contains("Fatal error in ") && line.ends_with(STACK_FOLLOWS);
    let at = last(lines, |line| is_stack(line) || is_early(line))?;
    if is_early(lines[at]) {
        return Some(Message::words(at..at + 1, lines[at]));
    }
    let headline = &lines[at][lines[at].find("Fatal error in ")?..];
    let depth = lines[at + 1..].iter().take_while(|line| reason(line).is_some()).count();
    Some(Message::words(at..at + 1 + depth, with_reason(headline, &lines[at + 1..at + 1 + depth])))
}

/// `[host:pid] *** An error occurred in MPI_Send`, and further down `*** MPI_ERR_RANK: invalid rank`; or `*** The
/// MPI_Comm_rank() function was called before MPI_INIT was invoked.`
fn open_mpi(lines: &[&str]) -> Option<Message> {
    let is_early = |line: &str| line.starts_with("*** The MPI_") && line.contains(" function was called ");
    if let Some(at) = last(lines, is_early) {
        let end = at + lines[at..].iter().take_while(|line| line.starts_with("*** ")).count();
        let is_abort = |line: &&&str| line.contains("] Local abort ");
        let end = end + usize::from(lines.get(end).filter(is_abort).is_some());
        return Some(Message::words(at..end, lines[at].trim_start_matches("*** ")));
    }
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

/// The box of an Open MPI that is not where it was built for, and so does not find the words of its own errors
/// (`opal/util/show_help.c`).
fn wordless(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| line.starts_with(WITHOUT_TEXTS))?;
    let topic = lines.get(at + 1)?.trim();
    if !topic.starts_with("mpi_errors_are_fatal") {
        return None;
    }
    let (file, _) = lines.get(at + 3)?.trim().split_once(": ").filter(|(file, _)| file.ends_with(".txt"))?;
    let (start, end) = of_box(lines, at);
    let advice = "OPAL_PREFIX must name its directory";
    // The box before it (`opal/mca/btl/tcp`). The error has a code for anything.
    let is_hung_up = |pair: &[&str]| pair[0].starts_with(WITHOUT_TEXTS) && pair[1].trim() == "peer hung up";
    let why = match lines[..start].windows(2).any(is_hung_up) {
        true => "a peer hung up".to_owned(),
        false => format!("{file} is missing"),
    };
    Some(Message::words(start..end, format!("{}: {why} ({advice})", open_mpi::WORDLESS)))
}

/// The box of Open MPI's `MPI_Abort`, which says no reason.
fn open_mpi_abort(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| line.starts_with("MPI_ABORT was invoked on rank "))?;
    let (start, end) = of_box(lines, at);
    // Open MPI 5, and 4.
    let code = lines[at..end].iter().find_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("Errorcode: ").or_else(|| line.strip_prefix("with errorcode ")?.strip_suffix('.'))
    });
    let code = code.map(|code| format!(" with code {code}")).unwrap_or_default();
    Some(Message::words(start..end, format!("{}{code}", lines[at])))
}

/// The lines without what Open MPI prints beside a failure and is no word of the program: the stack at a signal and, where the
/// abort is known, the box of `MPI_Abort`.
pub(crate) fn without_boxes(lines: Vec<String>, has_aborted: bool) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(lines.len());
    let mut lines = lines.into_iter();
    while let Some(line) = lines.next() {
        if line.ends_with("] *** Process received signal ***") {
            // Without its end, all of the rest is of it.
            lines.find(|line| line.ends_with("] *** End of error message ***"));
        } else if has_aborted && is_of_abort(&line, lines.as_slice().first()) {
            kept.pop_if(|edge| is_edge(edge));
            lines.by_ref().take(LONGEST_BOX - 1).find(|line| is_edge(line));
        } else {
            kept.push(line);
        }
    }
    kept
}

/// Whether a box of Open MPI is that of `MPI_Abort`, by its first two lines: without the file of its texts Open MPI names the topic.
fn is_of_abort(first: &str, second: Option<&String>) -> bool {
    let has_topic = || second.is_some_and(|topic| topic.trim() == "mpi-abort");
    first.starts_with("MPI_ABORT was invoked on rank ") || (first.starts_with(WITHOUT_TEXTS) && has_topic())
}

/// From where to where the box of Open MPI goes whose first line is this one. One that has no lower edge, because the process
/// was killed meanwhile, ends where its longest could: what stands further down is not of it.
fn of_box(lines: &[&str], at: usize) -> (usize, usize) {
    let longest = (at + LONGEST_BOX).min(lines.len());
    let end = (at..longest).find(|at| is_edge(lines[*at])).map_or(longest, |edge| edge + 1);
    (at.checked_sub(1).filter(|at| is_edge(lines[*at])).unwrap_or(at), end)
}

/// The upper or lower edge of a box of Open MPI.
fn is_edge(line: &str) -> bool {
    line.len() > 10 && line.bytes().all(|byte| byte == b'-')
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_open_mpi_prints_beside_a_failure_is_left_out() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let edge = "-".repeat(74);
        // Open MPI 4.1.4.
        let abort = format!(
            "no mesh\n{edge}\nMPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 3.\n\nNOTE: …\n{edge}\nbye"
        );
        assert_eq!(without_boxes(lines(&abort), true), ["no mesh", "bye"]);
        assert_eq!(without_boxes(lines(&abort), false).len(), 8, "nothing else is known of the abort");
        // Open MPI 5.0.11, where the file of its texts is missing.
        let wordless = format!(
            "no mesh\n{edge}\nSorry!  You were supposed to get help about:\n    mpi-abort\nfrom the file:\n    /x/help-mpi-api.txt: No such file or directory\nBut I couldn't find that topic in the file.  Sorry!\n{edge}\nbye"
        );
        assert_eq!(without_boxes(lines(&wordless), true), ["no mesh", "bye"]);
        let signal = "no mesh\n[vm:9] *** Process received signal ***\n[vm:9] Signal: Aborted (6)\n[vm:9] [ 0] libc.so.6(+0x3c050)\n[vm:9] *** End of error message ***";
        assert_eq!(without_boxes(lines(signal), false), ["no mesh"]);
        let cut = "no mesh\n[vm:9] *** Process received signal ***\n[vm:9] Signal: Aborted (6)";
        assert_eq!(without_boxes(lines(cut), false), ["no mesh"]);
        assert_eq!(without_boxes(lines("a\n-----------\nb"), true).len(), 3);
    }
}
