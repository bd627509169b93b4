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

/// Standstills that are remembered at a time. Each is shorter than those before it: four of these within one time-out are rare, and
/// then the oldest goes, which is the first that is too long ago.
const STANDSTILLS: usize = 4;

/// When the loop of a listener stood still: a process that was stopped, or a machine without time for it. Its peers heard nothing
/// from it meanwhile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standstill {
    turned: Option<Duration>,
    /// When each ended, and how long it was, the oldest first. A standstill that was followed by a longer one is left out: it
    /// explains nothing that the longer one does not.
    past: Vec<(Duration, Duration)>,
}

impl Standstill {
    /// The loop turns. It does so at least once a [`TICK`], as long as it runs. Standstills are not added up: in a turn between two of
    /// them the loop has sent and read.
    pub fn turn(&mut self, now: Duration) {
        let away = self.turned.map_or(Duration::ZERO, |before| now.saturating_sub(before));
        self.ended(now, away);
        self.turned = Some(now);
    }

    /// A standstill of this length has ended. Two ticks or less are none.
    pub(crate) fn ended(&mut self, now: Duration, length: Duration) {
        if length > 2 * TICK {
            self.past.retain(|(_, before)| *before > length);
            if self.past.len() >= STANDSTILLS {
                self.past.remove(0);
            }
            self.past.push((now, length));
        }
    }

    /// How long the loop stood still, if that was long enough for a peer with this patience to give it up, and has ended within the
    /// time that the peer needs to end.
    pub fn explains(&self, now: Duration, patience: Duration, end: Duration) -> Option<Duration> {
        let may_explain = |(ended, length): &&(Duration, Duration)| *length + TICK >= patience && now <= *ended + end;
        self.past.iter().find(may_explain).map(|(_, length)| *length)
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
        assert_eq!(standstill.explains(s(35), s(3), s(5)), Some(s(12)), "a shorter one does not take its place");
        (36..40).for_each(|second| standstill.turn(s(second)));
        standstill.turn(s(43));
        assert_eq!(standstill.explains(s(43), s(3), s(5)), Some(s(4)), "the longer one was too long ago");
    }

    #[test]
    fn short_standstills_between_which_the_loop_runs_are_not_one_long_standstill() {
        let mut standstill = Standstill::default();
        let mut now = s(10);
        for _ in 0..150 {
            for step in [2_100, 900, 1_000] {
                now += Duration::from_millis(step);
                standstill.turn(now);
            }
        }
        assert_eq!(standstill.explains(now, s(60), s(15)), None);
    }

    #[test]
    fn only_so_many_standstills_are_remembered() {
        let mut standstill = Standstill::default();
        let mut now = s(0);
        for length in (3..100).rev() {
            standstill.turn(now);
            now += s(length);
            standstill.turn(now);
        }
        assert_eq!(standstill.past.len(), STANDSTILLS);
        assert_eq!(
            standstill.explains(now, s(3), s(5)),
            Some(s(4)),
            "that of 3 s has just ended, and that of 4 s before it"
        );
    }

    #[test]
    fn sleeps_in_a_silence_add_up_to_what_has_not_counted() {
        let mut silence = Silence::default();
        silence.heard(s(100));
        for sleep in 0..10 {
            silence.look(s(110 + 10 * sleep));
        }
        assert_eq!((silence.uncounted(s(200)), silence.look(s(200))), (s(90), s(10)));
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
