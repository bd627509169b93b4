//! How long somebody else has been silent, as far as that can be told.

use std::time::Duration;

use crate::lease::TICK;

/// The silence of a peer that gives a sign of life about once a [`TICK`], seen by somebody who looks as often.
///
/// Of the time between two looks only one tick counts: one who did not get to run, on a machine that slept or in a container that was
/// frozen, did not listen either, and must not take its own silence for that of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Silence {
    counted: Duration,
    looked: Duration,
}

impl Silence {
    /// The peer has been heard.
    pub fn heard(&mut self, now: Duration) {
        *self = Silence { counted: Duration::ZERO, looked: now };
    }

    /// Somebody looks, after having read all that has come: how long the silence has lasted.
    pub fn look(&mut self, now: Duration) -> Duration {
        self.counted += now.saturating_sub(self.looked).min(TICK);
        self.looked = self.looked.max(now);
        self.counted
    }

    /// When the silence will have lasted so long.
    pub fn until(&self, bound: Duration) -> Duration {
        self.looked + bound.saturating_sub(self.counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_does_not_run_takes_nobody_for_silent() {
        let mut silence = Silence::default();
        silence.heard(s(100));
        assert_eq!((silence.look(s(101)), silence.look(s(102))), (s(1), s(2)));
        assert_eq!(silence.until(s(30)), s(130));
        // It is away for a minute.
        assert_eq!(silence.look(s(162)), s(3));
        assert_eq!(silence.until(s(30)), s(189));
        silence.heard(s(163));
        assert_eq!((silence.look(s(163)), silence.look(s(164))), (s(0), s(1)));
    }

    #[test]
    fn all_time_counts_of_one_who_looks_in_time() {
        let mut silence = Silence::default();
        silence.heard(s(7));
        let step = Duration::from_millis(900);
        let lasted = (1..=20).map(|look| silence.look(s(7) + look * step)).last();
        assert_eq!(lasted, Some(20 * step));
    }
}
