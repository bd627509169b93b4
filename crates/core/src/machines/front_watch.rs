//! The watch of an agent on its front: when the front counts as lost, and whether it may have given this node up before.

use std::time::Duration;

use crate::lease::TICK;
use crate::silence::{Silence, Standstill};

/// How long an agent that slept for longer than its front waits listens before the front counts as lost. A front that slept too, as when
/// all machines stood still together, sends a beat each second as soon as it runs.
const LISTENS: Duration = Duration::from_secs(5);

/// What an agent knows of its front. `patience` is how long the front may be silent; the front itself gives up a silent node earlier.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FrontWatch {
    silence: Silence,
    standstill: Standstill,
    /// How much of the silence had counted when the agent found that it had slept for longer than the front waits.
    slept: Option<Duration>,
}

impl FrontWatch {
    /// The loop turns.
    pub fn turn(&mut self, now: Duration) {
        self.standstill.turn(now);
    }

    /// The front was heard, over its connection or over a fresh one.
    ///
    /// What is read after sleeps may have been sent long before, and the end of the connection may be the next thing that is read: what
    /// was slept is kept as one standstill, however many sleeps it was.
    pub fn heard(&mut self, now: Duration) {
        self.standstill.ended(now, self.silence.uncounted(now));
        self.silence.heard(now);
        self.slept = None;
    }

    /// The agent looks, after having read all that has come. Whether the front is lost.
    pub fn look(&mut self, now: Duration, patience: Duration) -> bool {
        let counted = self.silence.look(now);
        if self.has_slept(now, patience) {
            self.slept.get_or_insert(counted);
        }
        self.bound(patience) <= counted
    }

    /// When the front will be lost, if it stays silent.
    pub fn until(&self, patience: Duration) -> Duration {
        self.silence.until(self.bound(patience))
    }

    /// How much of the silence must have counted for the front to be lost.
    fn bound(&self, patience: Duration) -> Duration {
        self.slept.map_or(patience, |slept| patience.min(slept + LISTENS))
    }

    /// Whether this node slept in the silence of the front for longer than the front waits.
    fn has_slept(&self, now: Duration, patience: Duration) -> bool {
        // Of each sleep one tick has counted.
        self.silence.uncounted(now) + TICK >= patience
    }

    /// Whether the front may have given up this node while nothing ran here. Then it has counted on the end of the ranks, and the next
    /// attempt may run by now.
    pub fn may_be_given_up(&self, now: Duration, patience: Duration) -> bool {
        self.has_slept(now, patience) || self.standstill.explains(now, patience, patience).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = s(60);

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A watch on a front that was heard until 100 s.
    fn watch() -> FrontWatch {
        let mut watch = FrontWatch::default();
        for second in 0..=100 {
            assert!(!looks(&mut watch, second));
            watch.heard(s(second));
        }
        watch
    }

    /// A turn of the loop, in which nothing is read. Whether the front is lost then.
    fn looks(watch: &mut FrontWatch, second: u64) -> bool {
        watch.turn(s(second));
        watch.look(s(second), PATIENCE)
    }

    #[test]
    fn a_front_is_lost_when_its_silence_has_lasted_as_long_as_it_may() {
        let mut watch = watch();
        assert_eq!(watch.until(PATIENCE), s(160));
        let lost = (101..).find(|second| looks(&mut watch, *second));
        assert_eq!(
            (lost, watch.may_be_given_up(s(160), PATIENCE)),
            (Some(160), false),
            "this node has always answered"
        );
    }

    #[test]
    fn an_agent_that_sleeps_often_in_the_silence_of_its_front_has_been_given_up() {
        let mut watch = watch();
        let lost = (1..).map(|sleep| 100 + 4 * sleep).find(|second| looks(&mut watch, *second)).map(s);
        assert!(lost.is_some_and(|lost| watch.may_be_given_up(lost, PATIENCE)), "{lost:?}");
        assert_eq!(watch.standstill.explains(s(300), PATIENCE, s(300)), None, "none of the sleeps alone was that long");
    }

    #[test]
    fn what_was_slept_still_counts_when_the_last_words_of_the_front_are_read_before_the_end_of_its_connection() {
        let mut watch = watch();
        for second in [130, 160, 190] {
            assert!(!looks(&mut watch, second));
        }
        watch.turn(s(191));
        watch.heard(s(191));
        assert!(watch.may_be_given_up(s(191), PATIENCE));
        for second in 192..=260 {
            assert!(!looks(&mut watch, second));
            watch.heard(s(second));
        }
        assert!(!watch.may_be_given_up(s(260), PATIENCE), "a front that is lost much later counted on nothing");
    }

    #[test]
    fn an_agent_that_slept_for_longer_than_its_front_waits_listens_for_it_only_briefly() {
        let mut watch = watch();
        assert!(!looks(&mut watch, 200));
        assert_eq!(watch.until(PATIENCE), s(205));
        assert_eq!((201..).find(|second| looks(&mut watch, *second)), Some(205));
        assert!(watch.may_be_given_up(s(205), PATIENCE));
    }

    #[test]
    fn a_front_that_slept_as_long_is_heard_again_and_not_lost() {
        let mut watch = watch();
        assert!((200..203).all(|second| !looks(&mut watch, second)));
        watch.heard(s(203));
        assert!((204..263).all(|second| !looks(&mut watch, second)));
        assert!(looks(&mut watch, 263));
    }

    #[test]
    fn after_a_sleep_that_is_shorter_than_its_front_waits_an_agent_listens_for_as_long_as_ever() {
        let mut watch = watch();
        assert!(!looks(&mut watch, 140));
        assert_eq!((141..).find(|second| looks(&mut watch, *second)), Some(199), "of the sleep one second counts");
    }
}
