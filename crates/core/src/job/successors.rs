//! `--restart-scope rank`: a rank that has failed gets a successor, while the others run on.
//!
//! A rank is over when its boundary is empty and its streams are closed. Then its own policy decides: its agent holds the place
//! open until it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::attempts::{before_the_next, spoken_wait};
use super::event::{Effect, Order};
use super::{Job, RestartScope, RestartSpec};
use crate::gang;
use crate::ids::{Attempt, Rank, Stream, WorkerId};
use crate::ranks::RankSet;
use crate::report::AttemptReport;
use crate::restart::{Decision, Event, GiveUp, Outcome, Restarter};
use crate::verdict::{Verdict, of_rank};
use crate::worker;

/// The ranks that may get successors.
#[derive(Debug, Default)]
pub(super) struct Successors {
    /// The scope is the rank.
    is_on: bool,
    spec: RestartSpec,
    seed: u64,
    policies: BTreeMap<Rank, Restarter>,
    /// What of a rank is over.
    ends: BTreeMap<Rank, End>,
    /// When the successors begin that are to come.
    due: BTreeSet<(Duration, Rank)>,
    attempts: BTreeMap<Rank, Begun>,
}

#[derive(Debug, Default)]
struct End {
    gone: bool,
    closed: [bool; 2],
    is_left: bool,
}

/// The present attempt of a rank.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    attempt: Attempt,
    at: Duration,
    /// The end of the one before, until this one runs.
    failed_at: Option<Duration>,
}

/// The next attempt of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    /// The end of the last one.
    pub since: Duration,
    pub at: Duration,
}

impl Successors {
    pub(super) fn new(spec: &RestartSpec, seed: u64) -> Successors {
        let is_on = spec.is_on() && spec.scope == RestartScope::Rank;
        Successors { is_on, spec: spec.clone(), seed, ..Successors::default() }
    }

    pub(super) fn are_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The attempt of a rank that has an own one, the last where it waits for the next.
    pub(super) fn attempt_of(&self, rank: Rank) -> Option<Attempt> {
        let begun = self.attempts.get(&rank)?;
        Some(Attempt(begun.attempt.0 - u32::from(self.next_of(rank).is_some())))
    }

    /// What a rank waits for, if it is to be started again.
    pub(super) fn next_of(&self, rank: Rank) -> Option<Next> {
        let Begun { at, failed_at, .. } = *self.attempts.get(&rank)?;
        self.due.contains(&(at, rank)).then_some(Next { since: failed_at.unwrap_or(at), at })
    }

    pub(super) fn policy(&mut self, rank: Rank) -> &mut Restarter {
        let (spec, seed) = (&self.spec, self.seed);
        self.policies.entry(rank).or_insert_with(|| Restarter::of_rank(spec, seed, rank))
    }
}

impl Job {
    /// A stream of a rank has ended.
    pub(super) fn stream_closed(&mut self, worker: WorkerId, stream: Stream) {
        if self.successors.is_on {
            self.successors.ends.entry(worker.rank).or_default().closed[stream.index()] = true;
            self.rank_may_be_over(worker.rank);
        }
    }

    /// No process of a rank is left, but what could not be killed.
    pub(super) fn rank_gone(&mut self, rank: Rank, outcome: worker::Outcome, is_left: bool) {
        if self.successors.is_on {
            let end = self.successors.ends.entry(rank).or_default();
            (end.gone, end.is_left) = (true, is_left);
            if let worker::Outcome::NeverStarted | worker::Outcome::SpawnFailed = outcome {
                end.closed = [true; 2];
            }
            self.rank_may_be_over(rank);
        }
    }

    /// Whether a rank waits for its next attempt.
    pub fn has_successors_to_come(&self) -> bool {
        !self.successors.due.is_empty()
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
    pub(super) fn begin_successors(&mut self) {
        if self.successors.is_on {
            for rank in (0..self.spec.map.world_size()).map(Rank) {
                self.decide(Some(rank), Event::Began);
            }
        }
    }

    /// A rank runs.
    pub(super) fn successor_runs(&mut self, rank: Rank) {
        let now = self.now;
        if !self.successors.is_on {
            return;
        }
        self.decide(Some(rank), Event::Up);
        let begun = self.successors.attempts.entry(rank).or_default();
        if let Some(failed_at) = begun.failed_at.take() {
            let (attempt, took) = (begun.attempt, now.saturating_sub(failed_at).as_secs_f64());
            self.note(format!("restarted: rank {rank} runs (attempt {attempt}, {took:.2} s after the failure)"));
        }
    }

    fn rank_may_be_over(&mut self, rank: Rank) {
        let is_over = |end: &mut End| end.gone && end.closed == [true; 2];
        let ends = &mut self.successors.ends;
        let Some(end) = ends.get_mut(&rank).and_then(|end| is_over(end).then(|| std::mem::take(end))) else { return };
        ends.remove(&rank);
        let now = self.now;
        self.read_words_of(rank);
        let verdict = of_rank(&self.gang, rank);
        let is_stopping = self.gang.stop_ordered().is_some();
        let outcome = Outcome { is_left: end.is_left, ..Outcome::of(&verdict, is_stopping) };
        let decision = self.decide(Some(rank), Event::Ended(outcome)).unwrap_or(Decision::Done);
        match decision {
            _ if is_stopping => {}
            Decision::Restart { after, attempt, because, .. } => {
                self.plan_successor(rank, now, after, attempt, &because, &verdict);
            }
            Decision::GiveUp { why } => {
                if why != GiveUp::NoBudget {
                    self.note(format!("rank {rank}: {why}"));
                    self.attempts.give_up(format!("rank {rank}: {why}"));
                }
                self.send(Order::Settled(rank));
            }
            Decision::Done => self.send(Order::Settled(rank)),
        }
    }

    fn plan_successor(
        &mut self,
        rank: Rank,
        now: Duration,
        after: Duration,
        attempt: Attempt,
        because: &str,
        verdict: &Verdict,
    ) {
        let begun = self.successors.attempts.get(&rank).copied().unwrap_or_default();
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
        let wait = spoken_wait(after);
        self.note(format!("{because}: restarting rank {rank}{wait}: attempt {attempt}"));
        self.successors.attempts.insert(rank, Begun { attempt, at: now + after, failed_at: Some(now) });
        self.successors.due.insert((now + after, rank));
    }

    /// The job is being stopped: the report says which ranks would have been started again, and who ended that.
    fn begin_no_more(&mut self) {
        let waiting: Vec<Rank> = std::mem::take(&mut self.successors.due).into_iter().map(|(_, rank)| rank).collect();
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
    pub(super) fn successors_due(&mut self) {
        if self.gang.stop_ordered().is_some() {
            return self.begin_no_more();
        }
        let now = self.now;
        while let Some((_, rank)) = self.successors.due.first().copied().filter(|(due, _)| *due <= now) {
            self.successors.due.pop_first();
            self.decide(Some(rank), Event::Began);
            self.event(gang::Event::Again { rank });
            self.attempts.forget(rank);
            self.words.forget(rank);
            self.lines.forget(rank);
            self.mpi_watch.forget(rank);
            let attempt = self.successors.attempts.get(&rank).map_or(Attempt(0), |begun| begun.attempt);
            self.out.push(Effect::BeginRank(rank, attempt));
            self.send(Order::Again(rank, attempt));
        }
    }
}
