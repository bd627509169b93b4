//! `--restart-scope rank`: what is known of the attempts of single ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::{Attempt, Rank, Stream};
use crate::restart::{Decision, Event, Restarter};
use crate::spec::job::{RestartScope, RestartSpec};

/// The ranks that may get successors.
#[derive(Debug, Default)]
pub(in crate::job) struct Successors {
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
    /// The ranks of which an attempt has run.
    have_run: BTreeSet<Rank>,
}

#[derive(Debug, Default)]
struct End {
    gone: bool,
    closed: [bool; 2],
    is_left: bool,
}

/// The present attempt of a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::job) struct Begun {
    pub(in crate::job) attempt: Attempt,
    pub(in crate::job) at: Duration,
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
    pub(in crate::job) fn new(spec: &RestartSpec, seed: u64) -> Successors {
        let is_on = spec.is_on() && spec.scope == RestartScope::Rank;
        Successors { is_on, spec: spec.clone(), seed, ..Successors::default() }
    }

    pub(in crate::job) fn are_on(&self) -> bool {
        self.is_on
    }

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Whether a rank waits for its next attempt.
    pub(in crate::job) fn are_to_come(&self) -> bool {
        !self.due.is_empty()
    }

    /// The attempt of a rank that has an own one, the last where it waits for the next.
    pub(in crate::job) fn attempt_of(&self, rank: Rank) -> Option<Attempt> {
        let begun = self.attempts.get(&rank)?;
        Some(Attempt(begun.attempt.0 - u32::from(self.next_of(rank).is_some())))
    }

    /// What a rank waits for, if it is to be started again.
    pub(in crate::job) fn next_of(&self, rank: Rank) -> Option<Next> {
        let Begun { at, failed_at, .. } = *self.attempts.get(&rank)?;
        self.due.contains(&(at, rank)).then_some(Next { since: failed_at.unwrap_or(at), at })
    }

    /// The policy of a rank takes an event.
    pub(in crate::job) fn decide(&mut self, rank: Rank, now: Duration, event: Event) -> Option<Decision> {
        let (spec, seed) = (&self.spec, self.seed);
        self.policies.entry(rank).or_insert_with(|| Restarter::of_rank(spec, seed, rank)).handle(now, event)
    }

    /// A stream of a rank has ended.
    pub(in crate::job) fn closed(&mut self, rank: Rank, stream: Stream) {
        self.ends.entry(rank).or_default().closed[stream.index()] = true;
    }

    /// No process of a rank is left, but what could not be killed. `has_streams`: its streams are still to end.
    pub(in crate::job) fn gone(&mut self, rank: Rank, is_left: bool, has_streams: bool) {
        let end = self.ends.entry(rank).or_default();
        (end.gone, end.is_left) = (true, is_left);
        if !has_streams {
            end.closed = [true; 2];
        }
    }

    /// Whether all of a rank is over, once: and whether processes of it are left.
    pub(in crate::job) fn take_over(&mut self, rank: Rank) -> Option<bool> {
        let is_over = self.ends.get(&rank).is_some_and(|end| end.gone && end.closed == [true; 2]);
        let end = is_over.then(|| self.ends.remove(&rank)).flatten()?;
        Some(end.is_left)
    }

    /// The present attempt of a rank.
    pub(in crate::job) fn begun(&self, rank: Rank) -> Begun {
        self.attempts.get(&rank).copied().unwrap_or_default()
    }

    /// A rank runs. If it is a successor: its attempt, and when the one before failed.
    pub(in crate::job) fn runs(&mut self, rank: Rank) -> Option<(Attempt, Duration)> {
        self.have_run.insert(rank);
        let begun = self.attempts.entry(rank).or_default();
        begun.failed_at.take().map(|failed_at| (begun.attempt, failed_at))
    }

    /// Of how many ranks an attempt has run. Those that have failed since are started again beside the others.
    pub(in crate::job) fn have_run(&self) -> usize {
        self.have_run.len()
    }

    /// A rank that has failed is to be started again.
    pub(in crate::job) fn plan(&mut self, now: Duration, rank: Rank, at: Duration, attempt: Attempt) {
        self.attempts.insert(rank, Begun { attempt, at, failed_at: Some(now) });
        self.due.insert((at, rank));
    }

    /// A rank that is to be started again now, and its attempt.
    pub(in crate::job) fn pop_due(&mut self, now: Duration) -> Option<(Rank, Attempt)> {
        let (_, rank) = self.due.first().copied().filter(|(due, _)| *due <= now)?;
        self.due.pop_first();
        Some((rank, self.begun(rank).attempt))
    }

    /// No rank is started again. Returns those that waited for it.
    pub(in crate::job) fn give_up(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.due).into_iter().map(|(_, rank)| rank).collect()
    }
}
