//! The state machine of a job's attempts: decides after each whether there is another one, and when (docs/restart.md).
//!
//! It has neither clock nor chance of its own: the same events at the same times, with the same seed, give the same
//! decisions, so that a journal can be replayed.
//!
//! With `--restart-scope rank` there is one for each rank ([`Restarter::of_rank`]), and an attempt is that of a rank.
//!
//! * **R-1** In no window of the budget begin more restarts after a failure than it allows.
//! * **R-2** The first restart is at once; each further wait is within the backoff's bounds.
//! * **R-3** Signals, lost nodes and lost peers are never taken for a failure that repeats itself.
//! * **R-4** A restart that a user asks for costs nothing.
//! * **R-5** No attempt begins while processes of the last one may be left (K-5).

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evidence::Class;
use crate::ids::{Attempt, Rank};
use crate::report::Report;
use crate::spec::restart::{NodeLoss, RESTARTABLE, RestartScope, RestartSpec};

mod answer;
mod giveup;
mod random;
mod repeated;
mod spoken;

pub use answer::{Answer, AnswerError, parse_answer};
pub use giveup::GiveUp;
pub use repeated::{EARLY, How, Outcome, fold, identity};
pub use spoken::{spoken, spoken_wait};

use random::Random;
use repeated::Failure;
use spoken::sentence;

/// An event of a job's attempts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// An attempt begins.
    Began,
    /// Every rank runs, and has said that it is ready where the program says so.
    Up,
    /// The program has made progress in this attempt, which may be over.
    Progress(Attempt),
    /// The attempt has ended, and everything of it is gone, or is known to be left.
    Ended(Outcome),
    /// Before the next attempt began it became known that processes of the last one are left.
    Left,
    /// A user asks for a restart.
    Planned,
    /// What `--on-failure` answered to the last end.
    Answered(Answer),
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Begin the next attempt after this time.
    Restart { after: Duration, attempt: Attempt, reason: Reason, because: String },
    /// The last attempt failed, and there is no other.
    GiveUp { why: GiveUp },
    /// There is nothing to do again: the job succeeded, was ended by its user, or has no restart policy.
    Done,
}

/// Why an attempt is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The last one failed. Only this costs budget.
    Failure,
    /// The last one could not be started.
    NotStarted,
    /// A user asked for it.
    Planned,
    /// A node was lost, which costs nothing (`--node-loss free`).
    NodeLost,
}

/// A policy of the user's own, asked about each failure.
pub trait OnFailure {
    /// `own` is what happens with [`Answer::Own`]. It may take its time: nothing that watches a job calls it.
    ///
    /// # Errors
    ///
    /// There is no answer: `own` happens.
    fn decide(&mut self, report: &Report, own: &Decision) -> Result<Answer, AnswerError>;
}

/// What the job is doing, and since when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// No attempt has begun.
    Idle,
    /// Ranks are being started, or are not ready yet.
    Starting {
        since: Duration,
    },
    Up {
        since: Duration,
    },
    /// The next attempt begins at `until`.
    Waiting {
        since: Duration,
        until: Duration,
        because: String,
    },
    Over {
        since: Duration,
    },
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Restarter {
    spec: RestartSpec,
    random: Random,
    phase: Phase,
    /// The number of the next attempt.
    next: Attempt,
    counts: Counts,
    /// The last decision, and what there was before it if it can still be changed by an answer.
    last: Decision,
    asked: Option<(Counts, Outcome)>,
    /// What was spent before that decision.
    before: Option<Counts>,
    /// A user has asked for a restart, and the attempt is still there.
    is_planned: bool,
    /// When the attempt began, and whether it has made progress.
    began: Duration,
    progressed: bool,
    /// Some attempt has made progress known.
    tells_progress: bool,
    /// The failure of the last attempt.
    failure: Option<Failure>,
}

/// What was spent.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// When the restarts in the window began, or are to.
    recent: VecDeque<Duration>,
    /// Restarts in the life of the job.
    total: u32,
    /// Restarts since the job was last healthy.
    in_a_row: u32,
    /// Starts in a row that failed.
    failed_starts: u32,
}

impl Restarter {
    pub fn new(spec: &RestartSpec, seed: u64) -> Restarter {
        Restarter {
            spec: spec.clone(),
            random: Random::new(seed),
            phase: Phase::Idle,
            next: Attempt(0),
            counts: Counts::default(),
            last: Decision::Done,
            asked: None,
            before: None,
            is_planned: false,
            began: Duration::ZERO,
            progressed: false,
            tells_progress: false,
            failure: None,
        }
    }

    /// The policy in one sentence, for `-v`: `gives up after 3 restarts in 1 h; waits 1 s to 30 s between`.
    pub fn sentence(&self) -> String {
        sentence(&self.spec)
    }

    /// That of one rank, which has a budget and waits of its own.
    pub fn of_rank(spec: &RestartSpec, seed: u64, rank: Rank) -> Restarter {
        Restarter::new(spec, seed_of(seed, rank))
    }

    /// How many restarts after a failure the budget still allows now; `None` without one, and where each rank has its own.
    pub fn restarts_left(&self, now: Duration) -> Option<u32> {
        if self.spec.scope == RestartScope::Rank {
            return None;
        }
        let budget = &self.spec.budget;
        let total = budget.total.map(|total| total.saturating_sub(self.counts.total));
        let recent = budget.recent.map(|recent| {
            let counted = self.counts.recent.iter().filter(|begun| **begun + recent.window > now).count();
            recent.restarts.saturating_sub(u32::try_from(counted).unwrap_or(u32::MAX))
        });
        total.into_iter().chain(recent).min()
    }

    /// Whether somebody is asked about each failure.
    pub fn asks(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes an event as a journal has it. A decision follows an end, an answer and a user's demand.
    pub fn handle(&mut self, now: Duration, event: Event) -> Option<Decision> {
        match event {
            Event::Began => self.began(now),
            Event::Up => self.up(now),
            Event::Progress(attempt) => {
                self.progress(attempt);
            }
            Event::Ended(outcome) => return Some(self.ended(now, &outcome)),
            Event::Left => return Some(self.left(now)),
            Event::Planned => return Some(self.planned(now)),
            Event::Answered(answer) => return Some(self.answered(now, &answer)),
        }
        None
    }

    /// An attempt begins.
    pub fn began(&mut self, now: Duration) {
        if let (Decision::Restart { reason: Reason::Failure, .. }, Some(last)) =
            (&self.last, self.counts.recent.back_mut())
        {
            // It may have begun later than it was due, and the window counts from there.
            *last = now.max(*last);
        }
        self.next = Attempt(self.next.0 + 1);
        (self.began, self.progressed, self.is_planned) = (now, false, false);
        (self.asked, self.before) = (None, None);
        self.phase = Phase::Starting { since: now };
    }

    /// Every rank runs, and has said that it is ready where the program says so.
    pub fn up(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Starting { .. }) {
            self.counts.failed_starts = 0;
            self.phase = Phase::Up { since: now };
        }
    }

    /// The program has made progress in an attempt. It counts for that one, also if it becomes known only when the next one has
    /// begun. Returns whether it is the first of the present attempt: a journal needs no other.
    pub fn progress(&mut self, attempt: Attempt) -> bool {
        self.tells_progress = true;
        let runs = matches!(self.phase, Phase::Starting { .. } | Phase::Up { .. });
        if runs && attempt.0.saturating_add(1) == self.next.0 {
            return !std::mem::replace(&mut self.progressed, true);
        }
        if let Some(failure) = self.failure.as_mut().filter(|failure| failure.attempt() == attempt) {
            failure.has_progressed();
        }
        false
    }

    /// The attempt has ended: decides.
    pub fn ended(&mut self, now: Duration, outcome: &Outcome) -> Decision {
        let up_since = match self.phase {
            Phase::Up { since } => Some(since),
            Phase::Idle | Phase::Starting { .. } | Phase::Waiting { .. } | Phase::Over { .. } => None,
        };
        if up_since.is_some_and(|since| now.saturating_sub(since) >= self.spec.healthy) {
            self.counts.in_a_row = 0;
        }
        let before = self.counts.clone();
        let decision = match () {
            () if self.is_planned && outcome.allows_planned() => self.last.clone(),
            () => self.decide(now, outcome, up_since.unwrap_or(self.began)),
        };
        self.before = Some(before.clone());
        let is_asked = decision != Decision::Done && !self.is_planned;
        self.asked = is_asked.then(|| (before, outcome.clone()));
        self.is_planned = false;
        self.conclude(now, decision)
    }

    /// Processes of the last attempt are left, which was not known when its end was decided: no other begins.
    pub fn left(&mut self, now: Duration) -> Decision {
        if !matches!(self.last, Decision::Restart { .. }) {
            return self.last.clone();
        }
        self.asked = None;
        if let Some(before) = self.before.take() {
            self.counts = before;
        }
        self.conclude(now, Decision::GiveUp { why: GiveUp::Left })
    }

    /// A user asks for a restart: it costs nothing, nor does the restart after a failure that it replaces. If an attempt runs, it is to be stopped now, and its end, which is
    /// not [`by_user`](Outcome::by_user), then has the same decision.
    pub fn planned(&mut self, now: Duration) -> Decision {
        self.is_planned = matches!(self.phase, Phase::Starting { .. } | Phase::Up { .. });
        self.asked = None;
        if let (false, Some(before)) = (self.is_planned, self.before.take()) {
            self.counts = before;
        }
        // What has been mended is not a failure that repeats itself.
        self.failure = None;
        let decision = Decision::Restart {
            after: Duration::ZERO,
            attempt: self.next,
            reason: Reason::Planned,
            because: "restart requested".to_owned(),
        };
        match self.is_planned {
            true => {
                self.last = decision.clone();
                decision
            }
            false => self.conclude(now, decision),
        }
    }

    /// What `--on-failure` answered to the last end. It may choose against the policy, and not beyond the budget, nor
    /// where processes are left.
    pub fn answered(&mut self, now: Duration, answer: &Answer) -> Decision {
        let Some((before, outcome)) = self.asked.take() else { return self.last.clone() };
        let is_bound = matches!(&self.last, Decision::GiveUp { why: GiveUp::Budget { .. } | GiveUp::Left });
        let is_restart = matches!(self.last, Decision::Restart { .. });
        let wait = match answer {
            Answer::Own => return self.last.clone(),
            Answer::Stop => {
                self.counts = before;
                return self.conclude(now, Decision::GiveUp { why: GiveUp::Told });
            }
            _ if is_bound => return self.last.clone(),
            Answer::Restart if is_restart => return self.last.clone(),
            Answer::Restart => None,
            Answer::Wait(time) => Some(*time),
        };
        self.counts = before;
        let decision = self.restart(now, wait, outcome.because());
        self.conclude(now, decision)
    }

    /// The policy's own decision.
    fn decide(&mut self, now: Duration, outcome: &Outcome, up_since: Duration) -> Decision {
        let give_up = |why| Decision::GiveUp { why };
        let Some(class) = outcome.class.filter(|_| !outcome.by_user && self.spec.is_on()) else {
            return Decision::Done;
        };
        if outcome.is_left {
            return give_up(GiveUp::Left);
        }
        if !RESTARTABLE.contains(&class) && class != Class::SpawnFailed && !outcome.is_not_ready {
            // Its time was over, or its output could not be written: that is no failure of the ranks.
            return Decision::Done;
        }
        if class == Class::SpawnFailed || outcome.is_not_ready {
            return self.start_again(outcome);
        }
        if class == Class::NodeLost && self.spec.node_loss == NodeLoss::Free {
            // Nor does it repeat a failure, or wait.
            let (attempt, because) = (self.next, outcome.because());
            return Decision::Restart { after: Duration::ZERO, attempt, reason: Reason::NodeLost, because };
        }
        let attempt = Attempt(self.next.0.saturating_sub(1));
        let failure = Failure::new(attempt, class, outcome, now.saturating_sub(up_since), self.progressed);
        let before = self.failure.replace(failure.clone());
        let knows_progress = self.tells_progress || self.spec.progress_file.is_some();
        if !self.spec.on.contains(&class) {
            return give_up(GiveUp::Class(class));
        }
        if self.spec.never_codes.contains(outcome.code.0) {
            return give_up(GiveUp::Code(outcome.code));
        }
        let repeated = before.filter(|_| self.spec.breaker).and_then(|before| failure.repeats(&before, knows_progress));
        if let Some(how) = repeated {
            return give_up(GiveUp::Repeated { how, what: outcome.words() });
        }
        if !self.spec.budget.is_given() {
            return give_up(GiveUp::NoBudget);
        }
        self.restart(now, None, outcome.because())
    }

    /// Another attempt after one that could not be started. It has limits and waits of its own.
    fn start_again(&mut self, outcome: &Outcome) -> Decision {
        self.counts.failed_starts += 1;
        let tries = self.counts.failed_starts;
        if tries > self.spec.start.retries {
            return Decision::GiveUp { why: GiveUp::NotStarted { tries, is_not_ready: outcome.is_not_ready } };
        }
        let because = format!("{}, in try {tries} of {}", outcome.because(), self.spec.start.retries + 1);
        Decision::Restart { after: self.spec.start.backoff, attempt: self.next, reason: Reason::NotStarted, because }
    }

    /// A restart after a failure, if the budget has one. `wait` is the time until then, if that is given.
    fn restart(&mut self, now: Duration, wait: Option<Duration>, because: String) -> Decision {
        let after = wait.unwrap_or_else(|| self.wait());
        let give_up = |restarts, window| Decision::GiveUp { why: GiveUp::Budget { restarts, window } };
        if let Some(total) = self.spec.budget.total.filter(|total| self.counts.total >= *total) {
            return give_up(total, None);
        }
        let begins = now + after;
        if let Some(recent) = self.spec.budget.recent {
            while self.counts.recent.front().is_some_and(|first| *first + recent.window <= now) {
                self.counts.recent.pop_front();
            }
            let counted = self.counts.recent.iter().filter(|begun| **begun + recent.window > begins).count();
            if counted >= recent.restarts as usize {
                return give_up(recent.restarts, Some(recent.window));
            }
            self.counts.recent.push_back(begins);
        }
        self.counts.total = self.counts.total.saturating_add(1);
        self.counts.in_a_row = self.counts.in_a_row.saturating_add(1);
        self.counts.failed_starts = 0;
        Decision::Restart { after, attempt: self.next, reason: Reason::Failure, because }
    }

    /// The time before the next restart after a failure: none before the first.
    fn wait(&mut self) -> Duration {
        match self.counts.in_a_row {
            0 => Duration::ZERO,
            restarts => self.random.between(self.spec.backoff.min, self.spec.backoff.limit(restarts)),
        }
    }

    fn conclude(&mut self, now: Duration, decision: Decision) -> Decision {
        self.phase = match &decision {
            Decision::Restart { after, because, .. } => {
                Phase::Waiting { since: now, until: now + *after, because: because.clone() }
            }
            Decision::GiveUp { .. } | Decision::Done => Phase::Over { since: now },
        };
        self.last = decision.clone();
        decision
    }
}

fn seed_of(seed: u64, rank: Rank) -> u64 {
    seed ^ (u64::from(rank.number()) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
#[path = "restart_tests.rs"]
mod tests;
