//! `--restart-scope rank`: a rank that has failed gets a successor, while the others run on.
//!
//! A rank is over when its boundary is empty and its streams are closed. Then its own policy decides: its agent holds the place
//! open until it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rankrun_core::gang;
use rankrun_core::job::{RestartScope, RestartSpec};
use rankrun_core::report::AttemptReport;
use rankrun_core::restart::{Decision, Event, GiveUp, Outcome, Restarter};
use rankrun_core::verdict::{Verdict, of_rank};
use rankrun_core::worker;
use rankrun_core::{Attempt, Rank, RankSet, Stream, WorkerId};
use rankrun_wire::ToAgent;

use crate::delivery::Task;
use crate::job::attempts::{before_the_next, spoken_wait};
use crate::job::front::Front;

/// The ranks that may get successors.
#[derive(Debug, Default)]
pub(crate) struct Successors {
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
pub(crate) struct Next {
    /// The end of the last one.
    pub(crate) since: Duration,
    pub(crate) at: Duration,
}

impl Successors {
    pub(crate) fn new(spec: &RestartSpec, seed: u64) -> Successors {
        let is_on = spec.is_on() && spec.scope == RestartScope::Rank;
        Successors { is_on, spec: spec.clone(), seed, ..Successors::default() }
    }

    pub(crate) fn are_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Whether a rank waits for its next attempt.
    pub(crate) fn are_to_come(&self) -> bool {
        !self.due.is_empty()
    }

    /// The attempt of a rank that has an own one, the last where it waits for the next.
    pub(crate) fn attempt_of(&self, rank: Rank) -> Option<Attempt> {
        let begun = self.attempts.get(&rank)?;
        Some(Attempt(begun.attempt.0 - u32::from(self.next_of(rank).is_some())))
    }

    /// What a rank waits for, if it is to be started again.
    pub(crate) fn next_of(&self, rank: Rank) -> Option<Next> {
        let Begun { at, failed_at, .. } = *self.attempts.get(&rank)?;
        self.due.contains(&(at, rank)).then_some(Next { since: failed_at.unwrap_or(at), at })
    }

    pub(crate) fn policy(&mut self, rank: Rank) -> &mut Restarter {
        let (spec, seed) = (&self.spec, self.seed);
        self.policies.entry(rank).or_insert_with(|| Restarter::of_rank(spec, seed, rank))
    }
}

impl Front {
    /// A stream of a rank has ended.
    pub(crate) fn stream_closed(&mut self, worker: WorkerId, stream: Stream) {
        if self.successors.is_on {
            self.successors.ends.entry(worker.rank).or_default().closed[stream.index()] = true;
            self.rank_may_be_over(worker.rank);
        }
    }

    /// No process of a rank is left, but what could not be killed.
    pub(crate) fn rank_gone(&mut self, rank: Rank, outcome: worker::Outcome, is_left: bool) {
        if self.successors.is_on {
            let end = self.successors.ends.entry(rank).or_default();
            (end.gone, end.is_left) = (true, is_left);
            if let worker::Outcome::NeverStarted | worker::Outcome::SpawnFailed = outcome {
                end.closed = [true; 2];
            }
            self.rank_may_be_over(rank);
        }
    }

    /// The first attempt of each rank begins with that of the job, whether the rank can be started or not.
    pub(crate) fn begin_ranks(&mut self) {
        if self.successors.is_on {
            for rank in (0..self.plan.spec.map.world_size()).map(Rank) {
                self.decide(Some(rank), Event::Began);
            }
        }
    }

    /// A rank runs.
    pub(crate) fn successor_runs(&mut self, rank: Rank) {
        let now = self.now();
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
        let now = self.now();
        self.read_last_words_of(rank);
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
                self.send(ToAgent::Settled(rank));
            }
            Decision::Done => self.send(ToAgent::Settled(rank)),
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
    pub(crate) fn successors_due(&mut self, now: Duration) {
        if self.gang.stop_ordered().is_some() {
            return self.begin_no_more();
        }
        while let Some((_, rank)) = self.successors.due.first().copied().filter(|(due, _)| *due <= now) {
            self.successors.due.pop_first();
            self.decide(Some(rank), Event::Began);
            self.event(gang::Event::Again { rank });
            self.attempts.present.are_read.remove(&rank);
            self.last_words.forget(rank);
            self.last_lines.forget(rank);
            self.mpi_watch.sights.forget(rank);
            self.delivery.presenter.begin_rank(rank);
            let mut spec = self.plan.spec.clone();
            spec.attempt = self.successors.attempts.get(&rank).map_or(Attempt(0), |begun| begun.attempt);
            if let Some(logs) = self.plan.logs.as_ref().filter(|logs| logs.are_for_each_attempt(&spec)) {
                let places = Box::new(logs.places(&spec));
                self.delivery.files.submit(now, Task::MoveLog { rank, places });
            }
            self.send(ToAgent::Again(rank, spec.attempt));
        }
    }
}
