//! How far the nodes of an attempt have come together, and when other machines are asked for signs of life.

use std::time::Duration;

/// How long it takes until the user is told for whom we wait, and then how often.
const PATIENCE: Duration = Duration::from_secs(1);
const PROGRESS_STEP: Duration = Duration::from_secs(5);
/// How often other machines are asked for a sign of life.
pub const BEAT: Duration = Duration::from_secs(1);

/// How far the nodes have come together.
#[derive(Debug)]
pub(in crate::job) struct Muster {
    at_a_time: usize,
    phase: Phase,
    /// When to say next for whom we wait.
    progress_due: Duration,
    /// When the agents are to hear of us next.
    beat_due: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Gathering,
    /// The first node has been told to start the present attempt.
    First,
    All,
}

impl Muster {
    pub(in crate::job) fn new(at_a_time: usize) -> Muster {
        Muster { at_a_time, phase: Phase::Gathering, progress_due: PATIENCE, beat_due: Duration::ZERO }
    }

    /// How many nodes are called in a second at most.
    pub(in crate::job) fn at_a_time(&self) -> usize {
        self.at_a_time
    }

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        let progress = (self.phase == Phase::Gathering).then_some(self.progress_due);
        [Some(self.beat_due), progress].into_iter().flatten().min()
    }

    /// Whether the nodes come together, and none has been told to start.
    pub(in crate::job) fn is_gathering(&self) -> bool {
        self.phase == Phase::Gathering
    }

    /// Whether every node has been told to start the present attempt.
    pub(in crate::job) fn has_started(&self) -> bool {
        self.phase == Phase::All
    }

    /// The first node is told to start the present attempt.
    pub(in crate::job) fn start_first(&mut self) {
        self.phase = Phase::First;
    }

    /// The others are told to. Returns whether it is time to: the first has been.
    pub(in crate::job) fn start_others(&mut self) -> bool {
        let is_time = self.phase == Phase::First;
        if is_time {
            self.phase = Phase::All;
        }
        is_time
    }

    /// No other node is told to start the present attempt.
    pub(in crate::job) fn start_none(&mut self) {
        self.phase = Phase::All;
    }

    /// Whether it is time to say for whom we wait.
    pub(in crate::job) fn tells_progress(&mut self, now: Duration) -> bool {
        let is_due = self.is_gathering() && self.progress_due <= now;
        if is_due {
            self.progress_due = now + PROGRESS_STEP;
        }
        is_due
    }

    /// Whether it is time for signs of life.
    pub(in crate::job) fn beats(&mut self, now: Duration) -> bool {
        let is_due = self.beat_due <= now;
        if is_due {
            self.beat_due = now + BEAT;
        }
        is_due
    }
}
