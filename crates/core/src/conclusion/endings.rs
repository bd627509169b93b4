//! What became of each rank, and how it ended where that leaves it open.

use std::time::Duration;

use crate::evidence::{Evidence, Fact, Source};
use crate::gang::{Gang, RankRecord};
use crate::grace::Work;
use crate::ids::Rank;
use crate::order::{Began, Weight, began};
use crate::peers::loss_of;
use crate::status::{WorkerStatus, signal_name};
use crate::verdict::{Fate, Finding};
use crate::worker::Outcome;

const SIGKILL: i32 = 9;

/// The fate of a rank.
pub(crate) fn fate(gang: &Gang, record: &RankRecord, finding: Option<&Finding>, is_culprit: bool) -> Fate {
    if is_culprit {
        return Fate::Culprit;
    }
    match (finding, record.status, record.outcome) {
        (Some(finding), ..) if finding.weight == Weight::Victim => Fate::Victim,
        // What only a child of it reported, it may have survived.
        (Some(finding), ..) if record.is_ended_by_our_signals() && finding.pid != record.pid => Fate::EndedByRankrun,
        (Some(_), ..) if is_on_our_signal(gang, record, finding) => Fate::EndedByRankrun,
        (Some(_), ..) => Fate::FailedToo,
        (None, Some(_), _) if has_lost_a_peer(gang, record) => Fate::Victim,
        (None, Some(_), _) if is_on_our_signal(gang, record, None) => Fate::EndedByRankrun,
        (None, Some(status), _) if status.success() => Fate::Succeeded,
        (None, Some(_), _) if record.is_ended_by_our_signals() => Fate::EndedByRankrun,
        (None, Some(_), _) => Fate::FailedToo,
        (None, None, Some(Outcome::NeverStarted | Outcome::SpawnFailed)) => Fate::NeverStarted,
        (None, None, _) => Fate::Unknown,
    }
}

/// Whether a rank reported the loss of a peer, although our signal came before its end.
fn has_lost_a_peer(gang: &Gang, record: &RankRecord) -> bool {
    let of_leader = gang.evidence().iter().filter(|evidence| evidence.pid.is_some() && evidence.pid == record.pid);
    of_leader.into_iter().any(|evidence| match &evidence.fact {
        Fact::Exception { exception, source: Source::Program } => loss_of(exception).is_some(),
        _ => false,
    })
}

/// Whether a rank ended by itself, with success or not, because a signal of ours told it to.
fn is_on_our_signal(gang: &Gang, record: &RankRecord, finding: Option<&Finding>) -> bool {
    let sent = record.stop.signals.first().map(|(_, sent)| *sent);
    let Some(ended) = record.ended_at else { return false };
    match finding {
        Some(finding) => {
            let is_reported = finding.at != ended;
            match began(gang, record, finding.at, is_reported) {
                Began::Before | Began::UnderWay => false,
                Began::Doubtful => sent.is_some(),
                Began::After => true,
            }
        }
        None => sent.is_some_and(|sent| ended >= sent) && !record.is_ended_by_our_signals(),
    }
}

/// How a rank ended, where its fate leaves that open.
pub(crate) fn how(gang: &Gang, rank: Rank, record: &RankRecord, fate: Fate) -> Option<String> {
    let status = record.status?;
    match fate {
        Fate::EndedByRankrun => on_signal(gang, record, status),
        Fate::Succeeded => hidden_failure(gang, rank, record),
        Fate::Culprit | Fate::Victim | Fate::FailedToo | Fate::NeverStarted | Fate::Unknown => None,
    }
}

fn on_signal(gang: &Gang, record: &RankRecord, status: WorkerStatus) -> Option<String> {
    let name = || record.stopped_with().filter(|signal| *signal != SIGKILL).map_or("SIGTERM".to_owned(), signal_name);
    match status {
        WorkerStatus::Signaled { signal: SIGKILL, .. } if gang.killed_at().is_none() => {
            let grace = seconds(record.stop.killed_after()?);
            let work = match record.stop.work {
                Work::Saving => ", still writing files",
                Work::Busy => ", still working",
                Work::Idle | Work::Unknown => "",
            };
            Some(format!("killed after {grace} of grace{work}"))
        }
        _ if record.is_ended_by_our_signals() => None,
        WorkerStatus::Exited { code } => Some(format!("exited {code} on {}", name())),
        WorkerStatus::Signaled { signal, .. } => Some(format!("killed by {} on {}", signal_name(signal), name())),
    }
}

/// A wrapper that left with 0 although the program in it raised.
fn hidden_failure(gang: &Gang, rank: Rank, record: &RankRecord) -> Option<String> {
    let evidence =
        gang.evidence().iter().rev().find(|evidence| evidence.rank == rank && is_of_child(evidence, record))?;
    let Fact::Exception { exception, .. } = &evidence.fact else { return None };
    // Whoever catches the exception of a child long before its own end has dealt with it.
    let is_last = record.ended_at.is_some_and(|ended| ended <= evidence.at + Duration::from_secs(2));
    let what = crate::causes::one_line(&exception.headline(), 100);
    is_last.then(|| format!("exited 0 although a process of it raised {what}"))
}

fn is_of_child(evidence: &Evidence, record: &RankRecord) -> bool {
    let Fact::Exception { source: Source::Program, exception } = &evidence.fact else { return false };
    evidence.pid != record.pid && !crate::causes::is_plain_exit(exception)
}

/// A time as people say it: `5 s`, `0.2 s`.
pub(crate) fn seconds(time: Duration) -> String {
    let tenths = (time.as_secs_f64() * 10.0).round() / 10.0;
    if tenths >= 10.0 || tenths.fract() == 0.0 { format!("{tenths:.0} s") } else { format!("{tenths:.1} s") }
}
