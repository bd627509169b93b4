//! Time since the start of the job. It stops while the job is paused.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_sys::proc::monotonic;

/// A clock that can be paused (SIGTSTP): all graces and time-outs stop with the ranks.
#[derive(Clone, Debug)]
pub struct Clock {
    /// On the clock that all processes of the node share. It is read once: of two readings, all that a program dates would be
    /// dated wrongly by the time between them.
    started: Duration,
    paused: Duration,
    /// Since the start.
    paused_since: Option<Duration>,
    /// Begin and end of the last pause that has ended, since the start.
    last_pause: (Duration, Duration),
}

impl Default for Clock {
    fn default() -> Self {
        Clock {
            started: monotonic(),
            paused: Duration::ZERO,
            paused_since: None,
            last_pause: (Duration::ZERO, Duration::ZERO),
        }
    }
}

impl Clock {
    /// The clock of another process of this machine, which has begun then ([`Clock::started`]) and was paused so long in all.
    pub fn of(started: Duration, paused: Duration) -> Clock {
        Clock { started, paused, ..Clock::default() }
    }

    /// When it has begun, on the clock that all processes of the node share.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// Time since the start, less the pauses.
    pub fn now(&self) -> Duration {
        self.paused_since.unwrap_or_else(|| self.since_start()).saturating_sub(self.paused)
    }

    /// Time since the start, with the pauses.
    fn since_start(&self) -> Duration {
        monotonic().saturating_sub(self.started)
    }

    /// What this clock showed at a time of `CLOCK_MONOTONIC` that another process has read; `None` before the start. What
    /// happened before the last pause but one is dated too early.
    pub(crate) fn at(&self, time: Duration) -> Option<Duration> {
        let time = time.checked_sub(self.started)?;
        if let Some(since) = self.paused_since {
            return Some(time.min(since).saturating_sub(self.paused));
        }
        let (begin, end) = self.last_pause;
        let of_last_pause = if time < end { end - time.max(begin) } else { Duration::ZERO };
        Some((time + of_last_pause).saturating_sub(self.paused))
    }

    /// How long it was paused in all.
    pub fn paused(&self) -> Duration {
        self.paused
    }

    pub fn is_paused(&self) -> bool {
        self.paused_since.is_some()
    }

    pub fn pause(&mut self) {
        let now = self.since_start();
        self.paused_since.get_or_insert(now);
    }

    pub fn resume(&mut self) {
        if let Some(since) = self.paused_since.take() {
            let end = self.since_start();
            self.paused += end.saturating_sub(since);
            self.last_pause = (since, end);
        }
    }
}

/// Time since the Unix epoch, for people.
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_time_of_another_process_is_that_of_this_clock_also_across_a_pause() {
        let started = s(1_000);
        let mut clock = Clock { started, ..Clock::default() };
        assert_eq!((clock.at(s(1_005)), clock.at(s(999))), (Some(s(5)), None));
        // 3 s in an earlier pause, and 10 s in the last one.
        clock.last_pause = (s(20), s(30));
        clock.paused = s(13);
        let shown = |time: u64| clock.at(s(1_000 + time));
        assert_eq!([19, 20, 25, 30, 31].map(shown), [16, 17, 17, 17, 18].map(|at| Some(s(at))));
    }

    #[test]
    fn what_has_just_happened_is_now() {
        let clock = Clock::default();
        let before = clock.now();
        let at = clock.at(monotonic()).expect("it has started");
        assert!((before..=clock.now()).contains(&at), "{before:?} {at:?}");
    }
}
