//! What became of each rank, and how it ended where that leaves it open.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::causes::{is_plain_exit, one_line};
use crate::evidence::{Class, Evidence, Fact, Source};
use crate::finding::Finding;
use crate::gang::{Gang, MpiLife, RankRecord};
use crate::grace::Work;
use crate::ids::Rank;
use crate::order::{Began, SETTLE, Weight, began};
use crate::peers::{Loss, loss_of};
use crate::status::{WorkerStatus, signal_name};
use crate::worker::Outcome;

const SIGKILL: i32 = 9;
/// How long before a lost connection, which may be to anything, a rank may have left whose loss that might be.
const LEFT_RECENTLY: Duration = Duration::from_secs(5);

/// What became of one rank, seen from the verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    Culprit,
    /// The user interrupted it on the terminal that it has, and the job with it.
    Interrupted,
    Succeeded,
    /// It failed because another one did: it lost that peer, repeats its failure, or was ended by its `MPI_Abort`.
    Victim,
    /// It ended by our own signals.
    EndedByRankrun,
    /// It failed too, of its own.
    FailedToo,
    NeverStarted,
    /// It was on a node that was lost.
    Lost,
    Unknown,
}

/// What there is to say of the end of a rank besides its fate.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Ending {
    /// How it ended where its fate leaves that open, such as `exited 1 on SIGTERM`.
    pub how: Option<String>,
    /// Why it failed, if it did, in its own words where it had any.
    pub cause: Option<String>,
}

/// The fate of a rank that did not decide on the end of the job.
pub(crate) fn fate(
    gang: &Gang,
    rank: Rank,
    record: &RankRecord,
    finding: Option<&Finding>,
    decided: Option<&Finding>,
) -> Fate {
    match (finding, record.status, record.outcome) {
        (Some(finding), ..) if finding.weight == Weight::Victim => Fate::Victim,
        (Some(finding), ..) if finding.weight == Weight::Late && !record.stop.signals.is_empty() => {
            Fate::EndedByRankrun
        }
        // What only a child of it reported, it may have survived.
        (Some(finding), ..) if record.is_ended_by_our_signals() && finding.pid != record.pid => Fate::EndedByRankrun,
        (Some(_), ..) if is_on_our_signal(gang, record, finding) => Fate::EndedByRankrun,
        (Some(_), ..) => Fate::FailedToo,
        (None, Some(_), _) if lost(gang, rank, record).is_some() => Fate::Victim,
        (None, Some(_), _) if is_on_our_signal(gang, record, None) => Fate::EndedByRankrun,
        (None, Some(status), _) if status.success() && is_taken_along(record, decided) => Fate::Victim,
        (None, Some(status), _) if status.success() => Fate::Succeeded,
        (None, Some(_), _) if record.is_ended_by_our_signals() => Fate::EndedByRankrun,
        (None, Some(_), _) => Fate::FailedToo,
        (None, None, Some(Outcome::NeverStarted | Outcome::SpawnFailed)) => Fate::NeverStarted,
        (None, None, _) if record.is_lost => Fate::Lost,
        (None, None, _) => Fate::Unknown,
    }
}

/// Whether a rank left MPI without `MPI_Finalize` after another's `MPI_Abort`: its library ended it, with 0 as it may be.
fn is_taken_along(record: &RankRecord, decided: Option<&Finding>) -> bool {
    let abort = decided.filter(|decided| decided.class == Class::Abort);
    let is_after = |abort: &Finding| record.ended_at.is_some_and(|ended| abort.at <= ended + SETTLE);
    record.mpi == MpiLife::Inited && abort.is_some_and(is_after)
}

/// What a rank reported to have lost, and when, if it did, although our signal may have come before its end.
pub(crate) fn lost(gang: &Gang, rank: Rank, record: &RankRecord) -> Option<(Loss, Duration)> {
    let leader = Some((rank, record.pid?));
    let mut of_leader = gang.evidence().iter().filter(|it| it.pid.map(|pid| (it.rank, pid)) == leader);
    of_leader.find_map(|evidence| match &evidence.fact {
        Fact::Exception { exception, source: Source::Program } => loss_of(exception).map(|loss| (loss, evidence.at)),
        _ => None,
    })
}

/// Of the ranks that ended with 0 by a time, and of which `is_meant` holds with their end, the last.
pub(crate) fn left_before(
    gang: &Gang,
    by: Duration,
    is_meant: impl Fn(&RankRecord, Duration) -> bool,
) -> Option<(Duration, Rank)> {
    let left = |record: &RankRecord| {
        let ended = record.ended_at.filter(|_| record.status.is_some_and(WorkerStatus::success))?;
        (ended <= by && is_meant(record, ended)).then_some((ended, record.rank))
    };
    gang.ranks().iter().filter_map(left).max()
}

/// Of the ranks that ended with 0 of their own shortly after a peer was lost, and lost none themselves, the first: its
/// connections go before its process does, as after `destroy_process_group`.
pub(crate) fn left_after(gang: &Gang, lost_at: Duration) -> Option<(Duration, Rank)> {
    let left = |record: &RankRecord| {
        let ended = record.ended_at.filter(|_| record.status.is_some_and(WorkerStatus::success))?;
        let is_own = record.stop.signals.first().is_none_or(|(_, sent)| ended < *sent);
        let is_meant = is_own && (lost_at..=lost_at + LEFT_RECENTLY).contains(&ended);
        (is_meant && lost(gang, record.rank, record).is_none()).then_some((ended, record.rank))
    };
    gang.ranks().iter().filter_map(left).min()
}

/// Whether a rank that ended then may be the other end of a connection that was lost at this time.
pub(crate) fn is_recent(ended: Duration, lost_at: Duration) -> bool {
    lost_at <= ended + LEFT_RECENTLY
}

/// Whether a rank ended by itself, with success or not, because a signal of ours told it to. One that was not sent any, or
/// could not notice it, has ended of its own, however late.
fn is_on_our_signal(gang: &Gang, record: &RankRecord, finding: Option<&Finding>) -> bool {
    let sent = record.stop.signals.first().map(|(_, sent)| *sent);
    let (Some(ended), Some(sent)) = (record.ended_at, sent) else { return false };
    match finding {
        Some(finding) => {
            let is_reported = finding.at != ended;
            match began(gang, record, finding.at, is_reported) {
                Began::Before | Began::UnderWay => false,
                Began::Doubtful | Began::After => true,
            }
        }
        None => ended >= sent && !record.is_ended_by_our_signals(),
    }
}

/// How a rank ended, where its fate leaves that open.
pub(crate) fn how(gang: &Gang, rank: Rank, record: &RankRecord, fate: Fate) -> Option<String> {
    let status = record.status?;
    match fate {
        Fate::EndedByRankrun => on_signal(gang, record, status),
        Fate::Succeeded => hidden_failure(gang, rank, record),
        Fate::Culprit
        | Fate::Interrupted
        | Fate::Victim
        | Fate::FailedToo
        | Fate::NeverStarted
        | Fate::Lost
        | Fate::Unknown => None,
    }
}

fn on_signal(gang: &Gang, record: &RankRecord, status: WorkerStatus) -> Option<String> {
    let name = || record.stopped_with().filter(|signal| *signal != SIGKILL).map(signal_name);
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
        WorkerStatus::Exited { code } => Some(format!("exited {code} on {}", name()?)),
        WorkerStatus::Signaled { signal, .. } => Some(format!("killed by {} on {}", signal_name(signal), name()?)),
    }
}

/// A wrapper that left with 0 although the program in it raised.
fn hidden_failure(gang: &Gang, rank: Rank, record: &RankRecord) -> Option<String> {
    let evidence =
        gang.evidence().iter().rev().find(|evidence| evidence.rank == rank && is_of_child(evidence, record))?;
    let Fact::Exception { exception, .. } = &evidence.fact else { return None };
    // Whoever catches the exception of a child long before its own end has dealt with it.
    let is_last = record.ended_at.is_some_and(|ended| ended <= evidence.at + Duration::from_secs(2));
    let what = one_line(&exception.headline(), 100);
    is_last.then(|| format!("exited 0 although a process of it raised {what}"))
}

fn is_of_child(evidence: &Evidence, record: &RankRecord) -> bool {
    let Fact::Exception { source: Source::Program, exception } = &evidence.fact else { return false };
    evidence.pid != record.pid && !is_plain_exit(exception)
}

/// A time as people say it: `5 s`, `0.2 s`.
pub(crate) fn seconds(time: Duration) -> String {
    let tenths = (time.as_secs_f64() * 10.0).round() / 10.0;
    if tenths >= 10.0 || tenths.fract() == 0.0 { format!("{tenths:.0} s") } else { format!("{tenths:.1} s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{Event, Rules};
    use crate::grace::StopRecord;
    use crate::ids::{GangId, Pid, worker};
    use crate::testimony::{Exception, Testimony};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn two_ranks() -> Gang {
        let (grace_failure, grace_outside) = (ms(5_000), ms(25_000));
        let rules = Rules { grace_failure, grace_outside, timeout: None, keep_going: false, terminal: None };
        Gang::new(GangId::default(), 2, rules)
    }

    #[test]
    fn what_a_rank_of_another_node_with_the_same_pid_lost_is_not_held_against_it() {
        let mut gang = two_ranks();
        let said = |kind: &str| Testimony::Uncaught(Exception { kind: kind.to_owned(), ..Exception::default() });
        let reset = Event::Testimony { worker: worker(1), pid: Pid(500), testimony: said("ConnectionResetError") };
        let started = (0..2).map(|rank| (0, Event::Started { worker: worker(rank), pid: Pid(500) }));
        let end = WorkerStatus::Signaled { signal: 15, core_dumped: false };
        let failed = (110, Event::Ended { worker: worker(1), status: WorkerStatus::Exited { code: 1 } });
        let stop = [(2_120, signalled(&[(15, 2_111)], Work::Idle)), (2_120, ended(end))];
        for (at, event) in started.chain([(100, reset), failed, (2_110, Event::Tick)]).chain(stop) {
            gang.handle(ms(at), event, &mut Vec::new());
        }
        assert_eq!(crate::verdict::verdict(&gang).fates, [Fate::EndedByRankrun, Fate::Culprit]);
    }

    /// Two ranks, of which rank 1 fails after 100 ms; then what happens to rank 0, whose fate and how it ended are returned.
    fn ending(events: impl IntoIterator<Item = (u64, Event)>, fate_is: Fate) -> Option<String> {
        let mut gang = two_ranks();
        let failure = (100, Event::Ended { worker: worker(1), status: WorkerStatus::Exited { code: 9 } });
        let started = (0..2).map(|rank| (0, Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) }));
        for (at, event) in started.chain([failure]).chain(events) {
            gang.handle(ms(at), event, &mut Vec::new());
        }
        let record = gang.ranks().get(Rank(0)).expect("a rank");
        assert_eq!(fate(&gang, Rank(0), record, None, None), fate_is);
        how(&gang, Rank(0), record, fate_is)
    }

    fn signalled(signals: &[(i32, u64)], work: Work) -> Event {
        let signals = signals.iter().map(|(signal, at)| (*signal, ms(*at))).collect();
        Event::Signalled { worker: worker(0), record: StopRecord { signals, work } }
    }

    fn ended(status: WorkerStatus) -> Event {
        Event::Ended { worker: worker(0), status }
    }

    #[test]
    fn what_a_rank_did_on_our_signal_is_told() {
        let (exited, killed) =
            (|code| WorkerStatus::Exited { code }, |signal| WorkerStatus::Signaled { signal, core_dumped: false });
        let (once, twice) = (&[(15, 110)][..], &[(15, 110), (9, 5_110)][..]);
        for (signals, work, status, expected) in [
            (once, Work::Unknown, killed(15), None),
            (once, Work::Unknown, exited(143), None),
            (once, Work::Unknown, exited(1), Some("exited 1 on SIGTERM")),
            (once, Work::Unknown, exited(0), Some("exited 0 on SIGTERM")),
            (once, Work::Unknown, killed(11), Some("killed by SIGSEGV on SIGTERM")),
            (twice, Work::Unknown, killed(9), Some("killed after 5 s of grace")),
            (twice, Work::Idle, killed(9), Some("killed after 5 s of grace")),
            (twice, Work::Busy, killed(9), Some("killed after 5 s of grace, still working")),
            (twice, Work::Saving, killed(9), Some("killed after 5 s of grace, still writing files")),
        ] {
            let events = [(110, signalled(signals, work)), (5_200, ended(status))];
            assert_eq!(ending(events, Fate::EndedByRankrun).as_deref(), expected, "{signals:?} {work:?} {status:?}");
        }
    }

    #[test]
    fn a_failure_that_a_wrapper_hides_is_told() {
        let exception = Exception { kind: "ValueError".to_owned(), message: "boom".to_owned(), ..Exception::default() };
        let said = |testimony| Event::Testimony { worker: worker(0), pid: Pid(200), testimony };
        let events = |end: u64| {
            let uncaught = (20, said(Testimony::Uncaught(exception.clone())));
            [uncaught, (21, said(Testimony::Exiting { code: 1 })), (end, ended(WorkerStatus::Exited { code: 0 }))]
        };
        let told = Some("exited 0 although a process of it raised ValueError: boom".to_owned());
        assert_eq!(ending(events(30), Fate::Succeeded), told);
        assert_eq!(ending(events(3_000), Fate::Succeeded), None, "whoever waited that long has dealt with it");
    }
}
