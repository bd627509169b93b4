//! How long somebody else has been silent, as far as that can be told.

use std::time::Duration;

use crate::lease::TICK;

/// The silence of a peer that gives a sign of life about once a [`TICK`], seen by somebody who looks as often.
///
/// Of the time between two looks only one tick counts: one who did not get to run, on a machine that slept or in a container that was
/// frozen, did not listen either, and must not take its own silence for that of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Silence {
    heard: Duration,
    counted: Duration,
    looked: Duration,
}

impl Silence {
    /// The peer has been heard.
    pub fn heard(&mut self, now: Duration) {
        *self = Silence { heard: now, counted: Duration::ZERO, looked: now };
    }

    /// Somebody looks, after having read all that has come: how long the silence has lasted.
    pub fn look(&mut self, now: Duration) -> Duration {
        self.counted += now.saturating_sub(self.looked).min(TICK);
        self.looked = self.looked.max(now);
        self.counted
    }

    /// How much of the time since the peer was heard has not counted: it may have given us up so much earlier than we do.
    pub fn uncounted(&self, now: Duration) -> Duration {
        now.saturating_sub(self.heard + self.counted)
    }

    /// When the silence will have lasted so long.
    pub fn until(&self, bound: Duration) -> Duration {
        self.looked + bound.saturating_sub(self.counted)
    }
}

/// When the loop of a listener stood still: a process that was stopped, or a machine without time for it. Its peers heard nothing
/// from it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standstill {
    turned: Option<Duration>,
    /// When the last one ended, and how long it was.
    last: Option<(Duration, Duration)>,
}

impl Standstill {
    /// The loop turns. It does so at least once a [`TICK`], as long as it runs.
    pub fn turn(&mut self, now: Duration) {
        let away = self.turned.map_or(Duration::ZERO, |before| now.saturating_sub(before));
        if away > 2 * TICK {
            // On a busy machine one who wakes up is often away again at once: that is the same one.
            let goes_on = |(ended, _): &(Duration, Duration)| now.saturating_sub(away) <= *ended + 2 * TICK;
            let before = self.last.filter(goes_on).map_or(Duration::ZERO, |(_, length)| length);
            self.last = Some((now, before + away));
        }
        self.turned = Some(now);
    }

    /// How long the loop stood still, if that was long enough for a peer with this patience to give it up, and has ended within the
    /// time that the peer needs to end.
    pub fn explains(&self, now: Duration, patience: Duration, end: Duration) -> Option<Duration> {
        let (ended, length) = self.last?;
        (length + TICK >= patience && now <= ended + end).then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stood_still_for_longer_than_its_peers_wait_explains_that_they_gave_it_up() {
        let mut standstill = Standstill::default();
        (10..20).for_each(|second| standstill.turn(s(second)));
        assert_eq!(standstill.explains(s(19), s(3), s(5)), None);
        standstill.turn(s(31));
        standstill.turn(s(32));
        assert_eq!(standstill.explains(s(32), s(3), s(5)), Some(s(12)));
        assert_eq!(standstill.explains(s(32), s(60), s(5)), None, "they wait for longer");
        assert_eq!(standstill.explains(s(37), s(3), s(5)), None, "it was too long ago");
        standstill.turn(s(35));
        assert_eq!(standstill.explains(s(35), s(3), s(5)), Some(s(15)), "it hardly ran in between");
        (36..40).for_each(|second| standstill.turn(s(second)));
        standstill.turn(s(43));
        assert_eq!(standstill.explains(s(43), s(3), s(5)), Some(s(4)), "a later one is another");
    }

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
        assert_eq!((silence.uncounted(s(162)), silence.look(s(163)), silence.uncounted(s(163))), (s(59), s(4), s(59)));
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
