//! The first line of the report: who failed, and why.

use std::time::Duration;

use crate::causes::one_line;
use crate::endings::{is_recent, left_before, lost, seconds};
use crate::evidence::Class;
use crate::exit::ExitCode;
use crate::gang::{Gang, Outside, RankRecord};
use crate::hosts::fold;
use crate::order::SETTLE;
use crate::peers::Loss;
use crate::report::OutputFate;
use crate::stacks::odd::Hang;
use crate::status::signal_name;
use crate::verdict::{Fate, Finding, Verdict, finding};

/// Columns of a headline, at most.
pub const WIDTH: usize = 200;

/// What is known of the end besides the verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Circumstances<'a> {
    /// What rankrun exits with.
    pub code: ExitCode,
    pub output: OutputFate,
    /// The node whose agent or guard may have been lost, and why it was.
    pub node: &'a str,
    pub why_lost: Option<&'a str>,
}

/// The headline, on one line of at most [`WIDTH`] columns, as it can be printed.
pub fn headline(verdict: &Verdict, gang: &Gang, circumstances: Circumstances<'_>) -> String {
    let text = match (&verdict.culprit, &verdict.interrupted) {
        (Some(culprit), _) => of_culprit(culprit, verdict, gang),
        (None, Some(finding)) => of_interrupted(finding),
        (None, None) => of_job(verdict, gang, circumstances),
    };
    one_line(&text, WIDTH)
}

fn of_culprit(culprit: &Finding, verdict: &Verdict, gang: &Gang) -> String {
    let Finding { rank, cause, .. } = culprit;
    // Whoever failed while we ended the job stands in the report, too.
    let is_all = !verdict.fates.contains(&Fate::FailedToo);
    let nobody = || {
        // What a rank that we ended would still have reported is not known.
        let is_open = |fate: &Fate| matches!(fate, Fate::EndedByRankrun | Fate::Lost | Fate::Unknown);
        match verdict.fates.iter().any(is_open) {
            _ if !is_all => "",
            true => "no rank is known to have failed of its own: ",
            false => "no rank failed of its own: ",
        }
    };
    match (culprit.class, culprit.loss()) {
        (Class::Hang, _) => of_hang(gang),
        (Class::SpawnFailed, _) => format!("rank {rank} could not be started: {cause}"),
        (Class::LeftEarly, _) => format!("{}rank {rank} {cause}", nobody()),
        (_, Some(Loss::Peer)) if gang.ranks().len() > 1 => {
            format!("{}rank {rank} was the first to miss a peer: {cause}", nobody())
        }
        (_, Some(Loss::Connection | Loss::Unreached)) => {
            let text = match is_lost_beside(culprit, verdict, gang) {
                true => format!("{}rank {rank} was the first to lose a connection: {cause}", nobody()),
                false => format!("rank {rank} failed: {cause}"),
            };
            with(text, &left_shortly_before(culprit, gang).unwrap_or_default())
        }
        _ => format!("rank {rank} failed: {cause}"),
    }
}

/// A text with what there is to add to it, which is not cut off.
fn with(text: String, added: &str) -> String {
    format!("{}{added}", one_line(&text, WIDTH.saturating_sub(added.len())))
}

/// That a rank had left shortly before a connection was lost. It may have been to that rank, or to anything else.
fn left_shortly_before(culprit: &Finding, gang: &Gang) -> Option<String> {
    // The connections of a process go before it has ended.
    let is_own = |record: &RankRecord, ended| record.stop.signals.first().is_none_or(|(_, sent)| ended < *sent);
    let is_meant = |record: &RankRecord, ended| is_recent(ended, culprit.at) && is_own(record, ended);
    let (ended, rank) = left_before(gang, culprit.at + SETTLE, is_meant)?;
    Some(match culprit.at.saturating_sub(ended) {
        _ if ended > culprit.at => format!(" (rank {rank} left with code 0 at that moment)"),
        time if time < Duration::from_millis(50) => format!(" (rank {rank} had left with code 0 just before)"),
        time => format!(" (rank {rank} had left with code 0, {} before)", seconds(time)),
    })
}

/// Whether a key was pressed cannot be known: only what the rank did.
fn of_interrupted(finding: &Finding) -> String {
    let kind = finding.exception.as_ref().map(|exception| exception.kind.as_str()).filter(|kind| !kind.is_empty());
    let how = match (kind, finding.class) {
        (Some(kind), _) => format!("ended by {kind}"),
        (None, Class::Signal) => "ended by SIGINT".to_owned(),
        (None, Class::Abort) => format!("aborted with code {}", finding.code.0),
        (None, _) => format!("exited with code {}", finding.code.0),
    };
    format!("interrupted: rank {}, which has the terminal, {how}", finding.rank)
}

/// Whether others lost a connection as well, so that all of them may have lost the same. A connection may be to anything:
/// where the others only say that a rank is gone, and said so after the end of this one, it is this one that they lost.
fn is_lost_beside(culprit: &Finding, verdict: &Verdict, gang: &Gang) -> bool {
    let end = gang.ranks().get(culprit.rank).and_then(|record| record.ended_at);
    let of_finding = |rank| finding(gang, rank).and_then(|finding| Some((finding.loss()?, finding.at)));
    let others = verdict.fates.iter().zip(gang.ranks()).filter(|(fate, _)| **fate == Fate::Victim);
    let losses = others.filter_map(|(_, it)| of_finding(it.rank).or_else(|| lost(gang, it.rank, it)));
    losses.into_iter().any(|(loss, at)| loss < Loss::Peer || end.is_none_or(|end| at <= end))
}

fn of_job(verdict: &Verdict, gang: &Gang, circumstances: Circumstances<'_>) -> String {
    let Circumstances { code, output, node, why_lost } = circumstances;
    match gang.outside() {
        Some(Outside::Signal(signal)) => ended_by(gang, signal),
        Some(Outside::Restart) => "ended for a requested restart".to_owned(),
        Some(Outside::Interrupted(rank)) => format!("interrupted: rank {rank}, which has the terminal"),
        Some(Outside::OutputFailed) => match gang.why_no_logs() {
            Some(why) => why.to_owned(),
            None => "could not write output for longer than --drain".to_owned(),
        },
        Some(Outside::Timeout) => match gang.rules().timeout {
            Some(timeout) => format!("timed out after {} (--timeout)", seconds(timeout)),
            None => "timed out (--timeout)".to_owned(),
        },
        Some(Outside::Planned(stop)) => stop.headline(),
        Some(Outside::Hang) => of_hang(gang),
        Some(Outside::Alone) => of_alone(gang),
        Some(Outside::OutputGone) => "nobody reads the output any more".to_owned(),
        Some(Outside::AgentLost) => {
            format!("node {node} was lost: {}", why_lost.unwrap_or("its agent was killed or stopped"))
        }
        Some(Outside::NodeLost) => of_lost_nodes(gang),
        Some(Outside::GuardLost) => format!("the guard of node {node} was killed"),
        Some(Outside::WireUpLost) => format!("cannot connect the ranks of Open MPI: {}", gang.why_wire_up_lost()),
        None if code == ExitCode::LEFT_BEHIND => "processes of the job are left".to_owned(),
        None if !gang.lost_nodes().is_empty() => of_lost_nodes(gang),
        None if verdict.code == ExitCode::SUCCESS && output == OutputFate::Lost => {
            "every rank succeeded, but not all of the output could be written".to_owned()
        }
        None if code == ExitCode::INTERNAL => "rankrun itself failed: how its ranks ended is not known".to_owned(),
        None if output == OutputFate::Written => "every rank succeeded".to_owned(),
        None => "the job succeeded, but not all of its output could be written".to_owned(),
    }
}

/// Which ranks were not connected.
fn of_alone(gang: &Gang) -> String {
    let why = gang.alone().first().map_or_else(|| "ranks run MPI alone".to_owned(), ToString::to_string);
    format!("ended by --strict: {why}")
}

/// That no rank has made progress, and for which of them the others wait.
fn of_hang(gang: &Gang) -> String {
    let Some(Hang { silent, odd }) = gang.hang() else { return "all ranks wait (--stall)".to_owned() };
    let ranks = gang.ranks().len();
    let silence =
        format!("{ranks} rank{}, silent for {} (--stall)", if ranks == 1 { "" } else { "s" }, seconds(*silent));
    match odd {
        Some(odd) => format!("{silence}: {}", odd.text),
        None => silence,
    }
}

/// Who ended the job, where a signal to rankrun or a request that counts as one did.
pub fn ended_by(gang: &Gang, signal: i32) -> String {
    match gang.requested() {
        Some(request) => format!("stopped by \"rankrun stop\" ({})", request.by),
        None => format!("ended by {}", signal_name(signal)),
    }
}

/// `node node07 was lost: …`.
fn of_lost_nodes(gang: &Gang) -> String {
    let Some(first) = gang.lost_nodes().first() else { return "a node was lost".to_owned() };
    if let Some(time) = gang.stood_still() {
        let names: Vec<&str> = gang.lost_nodes().iter().map(|lost| lost.name.as_str()).collect();
        let (nodes, own) = match names.len() {
            1 => ("node ", "its"),
            _ => ("", "their"),
        };
        let names = fold(&names);
        return format!("rankrun itself stood still for {} s: {nodes}{names} ended {own} ranks", time.as_secs());
    }
    let more = match gang.lost_nodes().len() - 1 {
        0 => String::new(),
        1 => " (and another after it)".to_owned(),
        more => format!(" (and {more} more after it)"),
    };
    with(format!("node {} was lost: {}", first.name, first.why), &more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{Event, Rules};
    use crate::ids::Rank;
    use crate::ids::{GangId, Pid, worker};
    use crate::stacks::odd::OddRank;
    use crate::status::WorkerStatus;
    use crate::verdict::verdict;

    fn gang(ranks: u32) -> Gang {
        let rules = Rules {
            grace_failure: Duration::from_secs(5),
            grace_outside: Duration::from_secs(25),
            timeout: None,
            keep_going: false,
            terminal: None,
        };
        Gang::new(GangId::default(), ranks, rules)
    }

    /// A job of three ranks that is ended because it has stalled.
    fn stalled(odd: Option<OddRank>) -> (Verdict, String) {
        let mut gang = gang(3);
        let mut feed = |seconds: u64, event| gang.handle(Duration::from_secs(seconds), event, &mut Vec::new());
        (0..3).for_each(|rank| feed(0, Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) }));
        feed(9, Event::Hang(Hang { silent: Duration::from_secs(8), odd }));
        let status = WorkerStatus::Signaled { signal: 15, core_dumped: false };
        (0..3).for_each(|rank| feed(10, Event::Ended { worker: worker(rank), status }));
        let verdict = verdict(&gang);
        let circumstances =
            Circumstances { code: verdict.code, output: OutputFate::Written, node: "a", why_lost: None };
        let text = headline(&verdict, &gang, circumstances);
        (verdict, text)
    }

    #[test]
    fn without_the_end_of_every_rank_there_is_no_success() {
        let mut gang = gang(2);
        let ended = |rank| Event::Ended { worker: worker(rank), status: WorkerStatus::Exited { code: 0 } };
        gang.handle(Duration::from_secs(1), ended(0), &mut Vec::new());
        let concluded = verdict(&gang);
        assert_eq!((concluded.code, concluded.class), (ExitCode::INTERNAL, Some(Class::LauncherLost)));
        let circumstances =
            Circumstances { code: concluded.code, output: OutputFate::Written, node: "a", why_lost: None };
        let text = headline(&concluded, &gang, circumstances);
        assert_eq!(text, "rankrun itself failed: how its ranks ended is not known");
        gang.handle(Duration::from_secs(2), ended(1), &mut Vec::new());
        assert_eq!(verdict(&gang).code, ExitCode::SUCCESS);
    }

    #[test]
    fn a_stall_is_blamed_on_the_rank_that_the_others_wait_for() {
        let text = "rank 1 on a: waits for a lock; the others wait in MPI_Barrier";
        let odd = OddRank { rank: Rank(1), text: text.to_owned(), is_certain: true };
        let (verdict, told) = stalled(Some(odd.clone()));
        let culprit = verdict.culprit.expect("it is certain");
        assert_eq!((culprit.rank, culprit.pid, culprit.class), (Rank(1), Some(Pid(101)), Class::Hang));
        assert_eq!(verdict.fates, [Fate::EndedByRankrun, Fate::Culprit, Fate::EndedByRankrun]);
        assert_eq!((verdict.code, verdict.class), (ExitCode::HANG, Some(Class::Hang)));
        assert_eq!(told, format!("3 ranks, silent for 8 s (--stall): {text}"));
        // What may be otherwise is told, and nobody is blamed.
        let (verdict, told) = stalled(Some(OddRank { is_certain: false, ..odd }));
        assert_eq!((verdict.culprit, verdict.class), (None, Some(Class::Hang)));
        assert_eq!(told, format!("3 ranks, silent for 8 s (--stall): {text}"));
        let (verdict, told) = stalled(None);
        assert_eq!((verdict.culprit, told.as_str()), (None, "3 ranks, silent for 8 s (--stall)"));
    }
}
