//! The last waits of a job, when no agent is connected any more: for what holds its nodes, then for the nodes of which nothing is known, and
//! at last for a signal that may have been for all processes of the job.

use std::time::Duration;

/// How long guard and agent may take to end after the ranks, beyond the time of a kill.
const HOLDERS_BOUND: Duration = Duration::from_secs(15);
/// How long a node that was lost, and that had joined by itself, may take to say that nothing is left there.
const LOST_BOUND: Duration = Duration::from_secs(3);
/// How long the answers of a second connection may take beyond the grace, and in all at least.
const BEYOND_GRACE: Duration = Duration::from_secs(5);
const ANSWERS_BOUND: Duration = Duration::from_secs(10);
/// After this time the user is told for whom we wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far the end of a job has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    /// An agent is connected, or about to be.
    #[default]
    Before,
    /// The guards, and the ssh that lead to them, end when nothing is left: since when they are waited for.
    Holders(Duration),
    /// Nodes that were lost are asked what is left there.
    Answers { since: Duration, until: Duration, is_told: bool },
    /// The signal that has ended a rank may have been for rankrun too, and come a little later: until when that is waited for.
    Signal(Duration),
    /// Nothing is waited for.
    Over,
}

/// The last waits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::job) struct Closing {
    stage: Stage,
    /// Until when a signal may follow.
    signal_until: Option<Duration>,
    /// The user wants to wait no longer.
    is_hurried: bool,
}

/// What the wait for the answers has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::job) enum Answers {
    /// They are waited for. The user is to be told so now, and how long that may last at most.
    Awaited {
        tell: Option<Duration>,
    },
    Over,
}

impl Closing {
    pub(in crate::job) fn has_begun(&self) -> bool {
        self.stage != Stage::Before
    }

    /// Whether something is waited for.
    pub(in crate::job) fn is_under_way(&self) -> bool {
        self.has_begun() && self.stage != Stage::Over
    }

    pub(in crate::job) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::Before | Stage::Over => None,
            Stage::Holders(since) => Some(since + HOLDERS_BOUND),
            Stage::Signal(until) => Some(until),
            Stage::Answers { since, until, is_told } => Some(if is_told { until } else { until.min(since + PATIENCE) }),
        }
    }

    /// No agent is connected. `signal_until`: until when a signal may follow that has ended a rank.
    pub(in crate::job) fn begin(&mut self, now: Duration, signal_until: Option<Duration>) {
        self.stage = Stage::Holders(now);
        self.signal_until = signal_until;
    }

    /// A signal has come.
    pub(in crate::job) fn signalled(&mut self) {
        self.signal_until = None;
    }

    /// All waits are over once what there is was looked at.
    pub(in crate::job) fn hurry(&mut self) {
        self.is_hurried = true;
    }

    /// Whether the nodes that were lost, and that had joined, are still waited for.
    pub(in crate::job) fn awaits_lost(&self, now: Duration) -> bool {
        matches!(self.stage, Stage::Holders(since) if now < since + LOST_BOUND)
    }

    /// What holds the nodes was looked at; `is_any_held`: a node that is waited for has not said what is left there. Returns whether the
    /// nodes of which nothing is known are to be asked now.
    pub(in crate::job) fn looked(&mut self, now: Duration, is_any_held: bool, grace: Duration) -> bool {
        let Stage::Holders(since) = self.stage else { return false };
        if self.is_hurried {
            self.stage = Stage::Over;
            return false;
        }
        let asks = !is_any_held || now >= since + HOLDERS_BOUND;
        if asks {
            let until = now + ANSWERS_BOUND.max(grace + BEYOND_GRACE);
            self.stage = Stage::Answers { since: now, until, is_told: false };
        }
        asks
    }

    /// Whether answers are still waited for; `is_any_open`: one has not come.
    pub(in crate::job) fn answers(&mut self, now: Duration, is_any_open: bool) -> Answers {
        let awaits_signal = self.signal_until.is_some_and(|until| now < until) && !self.is_hurried;
        let after = self.signal_until.filter(|_| awaits_signal).map_or(Stage::Over, Stage::Signal);
        let (since, until, is_told) = match &mut self.stage {
            Stage::Answers { since, until, is_told } => (since, until, is_told),
            Stage::Signal(_) => {
                self.stage = after;
                return Answers::Over;
            }
            Stage::Before | Stage::Holders(_) | Stage::Over => return Answers::Over,
        };
        if !is_any_open || now >= *until || self.is_hurried {
            self.stage = after;
            return Answers::Over;
        }
        let is_due = !*is_told && now >= *since + PATIENCE;
        *is_told |= is_due;
        Answers::Awaited { tell: is_due.then(|| *until - now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(8);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn begun() -> Closing {
        let mut closing = Closing::default();
        assert!(!closing.looked(at(1), false, GRACE) && closing.deadline().is_none());
        closing.begin(at(1), None);
        closing
    }

    #[test]
    fn nothing_is_asked_while_a_node_is_held_and_all_of_it_has_a_bound() {
        let mut closing = begun();
        assert!(!closing.looked(at(2), true, GRACE));
        assert_eq!(closing.deadline(), Some(at(16)));
        assert!(closing.looked(at(16), true, GRACE));
        assert_eq!(closing.answers(at(16), true), Answers::Awaited { tell: None });
        // The grace and five seconds more.
        assert_eq!(closing.answers(at(17), true), Answers::Awaited { tell: Some(at(12)) });
        assert_eq!(closing.answers(at(18), true), Answers::Awaited { tell: None });
        assert_eq!(closing.deadline(), Some(at(29)));
        assert_eq!(closing.answers(at(29), true), Answers::Over);
        assert!(closing.is_over() && closing.deadline().is_none());
    }

    #[test]
    fn a_signal_that_may_follow_is_waited_for_at_last() {
        let looked = || {
            let mut closing = Closing::default();
            closing.begin(at(1), Some(at(3)));
            assert!(closing.looked(at(2), false, GRACE));
            assert_eq!(closing.answers(at(2), false), Answers::Over);
            assert!(!closing.is_over() && closing.deadline() == Some(at(3)));
            closing
        };
        let mut late = looked();
        assert_eq!(late.answers(at(3), false), Answers::Over);
        assert!(late.is_over());
        let mut come = looked();
        come.signalled();
        assert_eq!(come.answers(at(2), false), Answers::Over);
        assert!(come.is_over());
    }

    #[test]
    fn answers_end_the_wait_and_so_does_a_second_signal() {
        let mut closing = begun();
        assert!(closing.looked(at(1), false, GRACE));
        assert_eq!(closing.answers(at(1), false), Answers::Over);
        let mut hurried = begun();
        hurried.hurry();
        assert!(!hurried.is_over(), "what holds the nodes was not looked at");
        assert!(!hurried.looked(at(1), true, GRACE) && hurried.is_over());
        let mut late = begun();
        assert!(late.looked(at(1), false, GRACE));
        late.hurry();
        assert_eq!(late.answers(at(2), true), Answers::Over);
    }

    #[test]
    fn lost_nodes_that_had_joined_have_less_time() {
        let closing = begun();
        assert!(closing.awaits_lost(at(3)) && !closing.awaits_lost(at(4)));
    }
}
