//! Time since the start of the job. It stops while the job is paused.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that can be paused (SIGTSTP): all graces and time-outs stop with the ranks.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
    paused: Duration,
    paused_since: Option<Instant>,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { start: Instant::now(), paused: Duration::ZERO, paused_since: None }
    }
}

impl Clock {
    /// Time since the start, less the pauses.
    pub fn now(&self) -> Duration {
        let until = self.paused_since.unwrap_or_else(Instant::now);
        until.duration_since(self.start).saturating_sub(self.paused)
    }

    pub fn is_paused(&self) -> bool {
        self.paused_since.is_some()
    }

    pub fn pause(&mut self) {
        self.paused_since.get_or_insert_with(Instant::now);
    }

    pub fn resume(&mut self) {
        if let Some(since) = self.paused_since.take() {
            self.paused += since.elapsed();
        }
    }
}

/// Time since the Unix epoch, for people.
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
