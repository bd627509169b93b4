//! The clock on the terminal of a job that prints nothing: it runs, and nobody has to ask.

use std::time::Duration;

/// How long a job must print nothing.
const AFTER: Duration = Duration::from_secs(10);
/// How often the clock moves.
const STEP: Duration = Duration::from_secs(1);

/// When it is shown.
#[derive(Clone, Debug, Default)]
pub struct QuietClock {
    is_on: bool,
    /// Bytes that the ranks had written when they were last looked at, and since when that has not changed.
    written: u64,
    since: Duration,
    next: Duration,
    is_shown: bool,
}

/// What is to be done about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Show {
    Text(String),
    Nothing,
}

impl QuietClock {
    /// `is_on`: there is a terminal, and the user wants to hear of us.
    pub fn new(is_on: bool) -> QuietClock {
        QuietClock { is_on, next: AFTER, ..QuietClock::default() }
    }

    /// When [`QuietClock::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.is_on.then_some(self.next)
    }

    /// The ranks have written so many bytes. `ranks` of them live; none, and it is not shown.
    pub fn tick(&mut self, now: Duration, written: u64, ranks: impl FnOnce() -> usize) -> Option<Show> {
        if !self.is_on {
            return None;
        }
        if written != self.written {
            (self.written, self.since, self.next) = (written, now, now + AFTER);
            return std::mem::take(&mut self.is_shown).then_some(Show::Nothing);
        }
        if now < self.next {
            return None;
        }
        self.next = now + STEP;
        let ranks = ranks();
        if ranks == 0 {
            return std::mem::take(&mut self.is_shown).then_some(Show::Nothing);
        }
        self.is_shown = true;
        Some(Show::Text(text(ranks, now, now - self.since)))
    }
}

fn text(ranks: usize, runs: Duration, silent: Duration) -> String {
    let shown = |time: Duration| {
        let seconds = time.as_secs();
        format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    };
    let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    format!("rankrun: {ranks}, {}; nothing printed for {}", shown(runs), shown(silent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_job_that_prints_nothing_has_a_clock_until_it_prints_again() {
        let mut clock = QuietClock::new(true);
        assert_eq!(clock.tick(at(3), 0, || 4), None);
        let shown = |text: &str| Some(Show::Text(text.to_owned()));
        assert_eq!(clock.tick(at(10), 0, || 4), shown("rankrun: 4 ranks, 0:00:10; nothing printed for 0:00:10"));
        assert_eq!((clock.tick(at(10), 0, || 4), clock.deadline()), (None, Some(at(11))));
        assert_eq!(clock.tick(at(3700), 5, || 4), Some(Show::Nothing), "it prints");
        assert_eq!((clock.tick(at(3709), 5, || 4), clock.deadline()), (None, Some(at(3710))));
        assert_eq!(clock.tick(at(3710), 5, || 1), shown("rankrun: 1 rank, 1:01:50; nothing printed for 0:00:10"));
        assert_eq!(clock.tick(at(3711), 5, || 0), Some(Show::Nothing), "all have ended");
        assert_eq!(clock.tick(at(3712), 5, || 0), None);
    }

    #[test]
    fn a_job_without_a_terminal_has_none() {
        let mut clock = QuietClock::new(false);
        assert_eq!((clock.deadline(), clock.tick(at(100), 0, || 4)), (None, None));
    }
}
