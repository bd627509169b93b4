//! How far ranks are in MPI and in their lives, and the exits that the others would wait for.

use std::collections::BTreeSet;
use std::time::Duration;

use super::event::Effect;
use super::record::{MpiLife, RankRecord};
use super::state::Gang;
use crate::evidence::{Fact, MpiEvent};
use crate::ids::{GroupId, Rank, WorkerId};
use crate::node_clock::Moment;
use crate::status::WorkerStatus;
use crate::worker::{Stop, StopWhy};

/// How long a sibling must still be in MPI after a rank's exit without finalize, before that exit is a failure.
const FINALIZE_PATIENCE: Duration = Duration::from_secs(1);
/// The time of an end may be early by this much: agents use the time at the start of their loop's turn.
const END_MARGIN: Duration = Duration::from_millis(50);

impl Gang {
    pub(super) fn ended(&mut self, moment: Moment, rank: Rank, status: WorkerStatus, effects: &mut Vec<Effect>) {
        // It ended before the stop was ordered.
        let stopping = self.stop_at.is_some_and(|stop| stop <= moment.latest() + END_MARGIN);
        let Some(record) = self.ranks.get_mut(rank) else {
            return;
        };
        record.status = Some(status);
        record.ended_at = Some(moment.at);
        record.stop_ordered_before_end = stopping;
        let mpi = record.mpi;
        if !status.success() {
            if !record.is_ended_by_our_signals() {
                self.fact(moment, rank, Fact::Ended { status }, effects);
            }
            return;
        }
        self.heard_of(moment.now, rank, effects);
        if stopping {
            return;
        }
        match mpi {
            MpiLife::Inited => self.to_judge.entry(moment.now + FINALIZE_PATIENCE).or_default().push(rank),
            MpiLife::NotInited => {
                self.has_left_before_init = true;
                self.judge_exits_before_init(moment.now, effects);
            }
            MpiLife::Finalized => {}
        }
    }

    pub(super) fn mpi(&mut self, moment: Moment, rank: Rank, event: MpiEvent, effects: &mut Vec<Effect>) {
        let Some(record) = self.ranks.get_mut(rank) else {
            return;
        };
        match event {
            MpiEvent::Inited => {
                record.mpi = MpiLife::Inited;
                record.mpi_since = Some(moment.at);
                record.passed_barrier = false;
                record.finalizing_since = None;
                self.is_of_mpi = true;
                self.judge_exits_before_init(moment.now, effects);
            }
            MpiEvent::PassedBarrier => {
                if !record.passed_barrier {
                    record.mpi_since = Some(moment.at);
                }
                record.passed_barrier = true;
            }
            MpiEvent::Finalizing => record.finalizing_since = Some(moment.at),
            MpiEvent::Finalized => (record.mpi, record.mpi_since) = (MpiLife::Finalized, Some(moment.at)),
            MpiEvent::Aborted { code, message } => self.fact(moment, rank, Fact::Aborted { code, message }, effects),
            MpiEvent::Refused { call, detail } => self.refused(moment, rank, call, detail),
            MpiEvent::Malformed { reason } => self.fact(moment, rank, Fact::Malformed { reason }, effects),
        }
    }

    /// A rank that has exited without ever being in MPI is missed by a sibling that is in `MPI_Init`.
    fn judge_exits_before_init(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        // All ranks are looked at, and this is asked for each: most jobs have only the one kind or the other.
        if self.stop_at.is_some() || !self.is_of_mpi || !self.has_left_before_init {
            return;
        }
        let waits = |it: &&RankRecord| it.mpi == MpiLife::Inited && it.status.is_none() && !it.passed_barrier;
        // Each group starts by itself.
        let waiting: BTreeSet<GroupId> = self.ranks.iter().filter(waits).map(|record| record.rank.group()).collect();
        // And `MPI_Comm_spawn` returns when all ranks that it has started are in MPI.
        let lives =
            |rank: &Rank| self.ranks.get(*rank).is_some_and(|it| it.mpi == MpiLife::Inited && it.status.is_none());
        let is_awaited = |group: GroupId| waiting.contains(&group) || self.askers.get(&group).is_some_and(lives);
        let is_missing = |it: &&RankRecord| {
            it.mpi == MpiLife::NotInited && it.status.is_some_and(WorkerStatus::success) && is_awaited(it.rank.group())
        };
        if let Some(rank) = self.ranks.iter().find(is_missing).map(|record| record.rank) {
            self.fact(Moment::of_front(now), rank, Fact::ExitBeforeInit, effects);
        }
    }

    /// A rank that is gone and never was in MPI, for which another of its group waits in `MPI_Init`. With `--keep-going` the failure of the
    /// one does not end the others, and MPI gives them no world without it.
    pub(crate) fn missed_in_init(&self) -> Option<WorkerId> {
        if !self.is_of_mpi || self.stop_at.is_some() {
            return None;
        }
        let is_gone = |it: &RankRecord| it.status.is_some() || it.is_lost || it.outcome.is_some();
        let waits = |it: &&RankRecord| it.mpi == MpiLife::Inited && !it.passed_barrier && !is_gone(it);
        let mut waiting: Vec<GroupId> = self.ranks.iter().filter(waits).map(|record| record.rank.group()).collect();
        waiting.dedup();
        let is_asker_in_mpi =
            |rank: &Rank| self.ranks.get(*rank).is_some_and(|it| it.mpi == MpiLife::Inited && !is_gone(it));
        let is_awaited = |group: GroupId| {
            waiting.binary_search(&group).is_ok() || self.askers.get(&group).is_some_and(is_asker_in_mpi)
        };
        let is_missed = |it: &&RankRecord| it.mpi == MpiLife::NotInited && is_gone(it) && is_awaited(it.rank.group());
        self.ranks.iter().find(is_missed).map(|record| self.worker(record.rank))
    }

    /// See [`Gang::missed_in_init`].
    pub(super) fn missed(&mut self, moment: Moment, rank: Rank, effects: &mut Vec<Effect>) {
        let has_succeeded = self.ranks.get(rank).and_then(|record| record.status).is_some_and(WorkerStatus::success);
        let is_known = self.evidence.iter().any(|it| it.rank == rank && it.fact == Fact::ExitBeforeInit);
        if has_succeeded && !is_known {
            self.fact(moment, rank, Fact::ExitBeforeInit, effects);
        }
        if self.stop_at.is_none() {
            self.stop(moment.now, Stop { why: StopWhy::GangFailed, grace: self.rules.grace_failure }, effects);
        }
    }

    /// Ranks that exited without finalize while others are still in MPI.
    pub(super) fn judge_exits_without_finalize(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        while let Some(entry) = self.to_judge.first_entry() {
            if *entry.key() > now {
                break;
            }
            for rank in entry.remove() {
                let in_mpi = self.ranks.iter().any(|rank| rank.mpi == MpiLife::Inited && rank.status.is_none());
                if in_mpi && self.stop_at.is_none() {
                    self.fact(Moment::of_front(now), rank, Fact::ExitWithoutFinalize, effects);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Class;
    use crate::gang::{Event, Rules};
    use crate::ids::{Attempt, GangId, WorkerId, worker};
    use crate::verdict::verdict;

    fn rules() -> Rules {
        let grace = Duration::from_secs(5);
        Rules { grace_failure: grace, grace_outside: grace, timeout: None, keep_going: false, terminal: None }
    }

    fn feed(gang: &mut Gang, seconds: u64, event: Event) {
        gang.handle(Duration::from_secs(seconds), event, &mut Vec::new());
    }

    #[test]
    fn nothing_that_is_said_of_a_withdrawn_group_counts() {
        let of_group = WorkerId { rank: Rank::of(GroupId(1), 0), attempt: Attempt(0) };
        let mut gang = Gang::new(GangId::default(), 1, rules());
        gang.add(GroupId(1), Attempt(0), 1, Rank(0));
        gang.withdraw(GroupId(1));
        let mut effects = Vec::new();
        let stopped = Event::Stopped { worker: of_group, signal: 19 };
        gang.handle(Duration::from_secs(2), stopped, &mut effects);
        gang.handle(Duration::from_secs(60), Event::Tick, &mut effects);
        assert_eq!((gang.evidence(), gang.stop_ordered(), effects), (&[][..], None, Vec::new()));
    }

    /// `MPI_Comm_spawn` waits for all ranks of the new group, also with `--keep-going`.
    #[test]
    fn a_spawned_rank_that_fails_without_mpi_is_missed_by_the_rank_that_asked_for_it_and_goes_on() {
        let of_group = |number| WorkerId { rank: Rank::of(GroupId(1), number), attempt: Attempt(0) };
        let mut gang = Gang::new(GangId::default(), 1, Rules { keep_going: true, ..rules() });
        feed(&mut gang, 1, Event::Mpi { worker: worker(0), event: MpiEvent::Inited });
        gang.add(GroupId(1), Attempt(0), 2, Rank(0));
        assert_eq!(gang.missed_in_init(), None);
        let status = WorkerStatus::Exited { code: 1 };
        feed(&mut gang, 2, Event::Ended { worker: of_group(1), status });
        assert_eq!(gang.missed_in_init(), Some(of_group(1)));
        feed(&mut gang, 3, Event::Ended { worker: worker(0), status });
        assert_eq!(gang.missed_in_init(), None, "nobody waits for it any more");
    }

    /// `MPI_Comm_spawn` waits for all ranks of the new group.
    #[test]
    fn a_spawned_rank_that_leaves_without_mpi_is_missed_by_the_rank_that_asked_for_it() {
        let of_group = |number| WorkerId { rank: Rank::of(GroupId(1), number), attempt: Attempt(0) };
        let ended = |worker| Event::Ended { worker, status: WorkerStatus::Exited { code: 0 } };
        for asker_has_ended in [false, true] {
            let mut gang = Gang::new(GangId::default(), 1, rules());
            feed(&mut gang, 1, Event::Mpi { worker: worker(0), event: MpiEvent::Inited });
            gang.add(GroupId(1), Attempt(0), 2, Rank(0));
            if asker_has_ended {
                feed(&mut gang, 2, Event::Mpi { worker: worker(0), event: MpiEvent::Finalized });
                feed(&mut gang, 2, ended(worker(0)));
            }
            feed(&mut gang, 3, ended(of_group(1)));
            let culprit = verdict(&gang).culprit.map(|culprit| (culprit.rank, culprit.class));
            assert_eq!(culprit, (!asker_has_ended).then_some((of_group(1).rank, Class::ExitBeforeInit)));
        }
    }
}
