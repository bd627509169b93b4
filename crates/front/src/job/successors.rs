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
use rankrun_core::{Attempt, Rank, Stream, WorkerId};
use rankrun_wire::ToAgent;

use crate::delivery::Task;
use crate::job::attempts::spoken_wait;
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

    /// A rank runs.
    pub(crate) fn successor_runs(&mut self, rank: Rank) {
        let now = self.now();
        if !self.successors.is_on {
            return;
        }
        if !self.successors.attempts.contains_key(&rank) {
            // Its first attempt.
            self.decide(Some(rank), Event::Began);
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

    /// Begins the successors that are due.
    pub(crate) fn successors_due(&mut self, now: Duration) {
        if self.gang.stop_ordered().is_some() {
            self.successors.due.clear();
            return;
        }
        while let Some((_, rank)) = self.successors.due.first().copied().filter(|(due, _)| *due <= now) {
            self.successors.due.pop_first();
            self.decide(Some(rank), Event::Began);
            self.event(gang::Event::Again { rank });
            self.attempts.are_read.remove(&rank);
            self.last_words.forget(rank);
            self.last_lines.forget(rank);
            self.delivery.presenter.begin_rank(rank);
            let mut spec = self.plan.spec.clone();
            spec.attempt = self.successors.attempts.get(&rank).map_or(Attempt(0), |begun| begun.attempt);
            let places = self.plan.logs.as_ref().map(|logs| logs.places(&spec));
            if let Some(directory) = places.as_ref().and_then(|places| places.directory(rank)) {
                let task = Task::MoveLog { rank, directory: directory.to_owned() };
                self.delivery.files.submit(now, task);
            }
            self.send(ToAgent::Again(rank));
        }
    }
}
