//! `--restart-scope rank`: a rank that has failed gets a successor, while the others run on.
//!
//! A rank is over when its boundary is empty and its streams are closed. Then its own policy decides: its agent holds the place
//! open until it is told.

use std::time::Duration;

use crate::gang;
use crate::ids::{Attempt, Rank, Stream, WorkerId};
use crate::job::decisions::between::{before_the_next, spoken_wait};
use crate::job::event::Effect;
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::successors::Next;
use crate::ranks::RankSet;
use crate::report::AttemptReport;
use crate::restart::{Decision, Event, GiveUp, Outcome};
use crate::verdict::{Verdict, of_rank};
use crate::worker;

impl Job {
    /// Whether a rank waits for its next attempt.
    pub fn has_successors_to_come(&self) -> bool {
        self.successors.are_to_come()
    }

    /// The attempt of a rank: its own with `--restart-scope rank`, the last where it waits for the next.
    pub fn attempt_of(&self, rank: Rank) -> Attempt {
        self.successors.attempt_of(rank).unwrap_or(self.spec.attempt)
    }

    /// What a rank waits for, if it is to be started again.
    pub fn next_of(&self, rank: Rank) -> Option<Next> {
        self.successors.next_of(rank)
    }

    /// The first attempt of each rank begins with that of the job, whether the rank can be started or not.
    pub(in crate::job) fn begin_successors(&mut self) {
        if self.successors.are_on() {
            for rank in (0..self.spec.map.world_size()).map(Rank) {
                self.decide(Some(rank), Event::Began);
            }
        }
    }

    /// A stream of a rank has ended.
    pub(in crate::job) fn stream_closed(&mut self, worker: WorkerId, stream: Stream) {
        if self.successors.are_on() {
            self.successors.closed(worker.rank, stream);
            self.rank_may_be_over(worker.rank);
        }
    }

    /// No process of a rank is left, but what could not be killed.
    pub(in crate::job) fn rank_gone(&mut self, rank: Rank, outcome: worker::Outcome, is_left: bool) {
        if self.successors.are_on() {
            let has_streams = !matches!(outcome, worker::Outcome::NeverStarted | worker::Outcome::SpawnFailed);
            self.successors.gone(rank, is_left, has_streams);
            self.rank_may_be_over(rank);
        }
    }

    /// A rank runs.
    pub(in crate::job) fn successor_runs(&mut self, rank: Rank) {
        if !self.successors.are_on() {
            return;
        }
        self.decide(Some(rank), Event::Up);
        if let Some((attempt, failed_at)) = self.successors.runs(rank) {
            let took = self.now.saturating_sub(failed_at).as_secs_f64();
            self.note(format!("restarted: rank {rank} runs (attempt {attempt}, {took:.2} s after the failure)"));
        }
    }

    fn rank_may_be_over(&mut self, rank: Rank) {
        let Some(is_left) = self.successors.take_over(rank) else { return };
        self.read_words_of(rank);
        let verdict = of_rank(&self.gang, rank);
        let is_stopping = self.gang.stop_ordered().is_some();
        let outcome = Outcome { is_left, ..Outcome::of(&verdict, is_stopping) };
        let decision = self.decide(Some(rank), Event::Ended(outcome)).unwrap_or(Decision::Done);
        match decision {
            _ if is_stopping => {}
            Decision::Restart { after, attempt, because, .. } => {
                self.plan_successor(rank, after, attempt, &because, &verdict);
            }
            Decision::GiveUp { why } => {
                if why != GiveUp::NoBudget {
                    self.note(format!("rank {rank}: {why}"));
                    self.attempts.give_up(format!("rank {rank}: {why}"));
                }
                self.settle(rank);
            }
            Decision::Done => self.settle(rank),
        }
    }

    /// A rank gets no successor: its agent need not hold the place open.
    fn settle(&mut self, rank: Rank) {
        let attempt = self.attempt_of(rank);
        self.send(Order::Settled(WorkerId { rank, attempt }));
    }

    fn plan_successor(&mut self, rank: Rank, after: Duration, attempt: Attempt, because: &str, verdict: &Verdict) {
        let (now, begun) = (self.now, self.successors.begun(rank));
        self.attempts.keep(AttemptReport {
            attempt: begun.attempt.0,
            summary: because.to_owned(),
            exit_code: verdict.code,
            class: verdict.class,
            rank: Some(rank),
            began: begun.at.as_secs_f64(),
            seconds: now.saturating_sub(begun.at).as_secs_f64(),
            report: None,
        });
        self.note(format!("{because}: restarting rank {rank}{}: attempt {attempt}", spoken_wait(after)));
        self.successors.plan(now, rank, now + after, attempt);
    }

    /// The job is being stopped: the report says which ranks would have been started again, and who ended that.
    fn begin_no_more(&mut self) {
        let waiting = self.successors.give_up();
        if waiting.is_empty() {
            return;
        }
        if let Some(why) = self.forbids_attempt() {
            let noun = if waiting.len() == 1 { "rank" } else { "ranks" };
            self.attempts.give_up(format!("{noun} {}: {}", RankSet::of(waiting), before_the_next(why)));
            self.keep_interrupt();
        }
    }

    /// Begins the successors that are due.
    pub(in crate::job) fn successors_due(&mut self) {
        if self.gang.stop_ordered().is_some() {
            return self.begin_no_more();
        }
        while let Some((rank, attempt)) = self.successors.pop_due(self.now) {
            self.decide(Some(rank), Event::Began);
            let worker = WorkerId { rank, attempt };
            self.event(gang::Event::Again { worker });
            self.attempts.forget(rank);
            self.words.forget(rank);
            self.lines.forget(rank);
            self.mpi_watch.forget(rank);
            self.out.push(Effect::BeginRank(worker));
            self.send(Order::Again(worker));
        }
    }
}
