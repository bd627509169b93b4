//! Whether the next attempt may begin: only when the ranks of the last one are gone from every node (R-5, K-5).
//!
//! A node that is lost cannot be asked at once. Its agent ends the ranks by itself when it has not heard the front for the time that
//! it was told, so that the ranks are gone at the latest at [`Loss::fenced_at`].

use std::time::Duration;

use crate::contact::ANSWER_BOUND;
use crate::worker::KILL_BOUND;

/// The time that the agent may need beyond its bounds: to run, to look, and to kill in two steps.
const SLACK: Duration = Duration::from_secs(2);

/// What is known of the last attempt on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Its agent, its guard or a second connection has proved that nothing is left there.
    Gone,
    /// One of these has found processes that could not be killed.
    Left,
    /// The node is lost, and nothing has come from it since.
    Unknown(Loss),
}

/// The loss of a node, and the bounds within which its agent ends the ranks by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// When the front closed the connection. An answer of the front on a fresh one may have been under way then, and the agent has heard
    /// nothing later ([`ANSWER_BOUND`]).
    pub at: Duration,
    /// How long the agent may miss the front until it ends the ranks.
    pub patience: Duration,
    /// The longest time from the first signal of that to SIGKILL.
    pub grace: Duration,
}

impl Loss {
    /// From then on no rank of the node runs.
    pub fn fenced_at(&self) -> Duration {
        self.at + ANSWER_BOUND + self.patience + self.grace + KILL_BOUND + SLACK
    }
}

/// Whether the next attempt may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clearance {
    Clear,
    /// Not before a proof from the nodes whose fate is not known, or this time.
    Wait {
        until: Duration,
    },
    /// Never: processes are left.
    Left,
}

/// Decides from the fates of all nodes of the last attempt.
pub fn clearance(now: Duration, fates: impl IntoIterator<Item = Fate>) -> Clearance {
    let mut clearance = Clearance::Clear;
    for fate in fates {
        match (fate, clearance) {
            (Fate::Left, _) => return Clearance::Left,
            (Fate::Gone, _) => {}
            (Fate::Unknown(loss), _) if loss.fenced_at() <= now => {}
            (Fate::Unknown(loss), Clearance::Wait { until }) => {
                clearance = Clearance::Wait { until: until.max(loss.fenced_at()) };
            }
            (Fate::Unknown(loss), Clearance::Clear | Clearance::Left) => {
                clearance = Clearance::Wait { until: loss.fenced_at() };
            }
        }
    }
    clearance
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lost(at: u64, patience: u64, grace: u64) -> Fate {
        Fate::Unknown(Loss { at: s(at), patience: s(patience), grace: s(grace) })
    }

    #[test]
    fn the_next_attempt_waits_for_proof_or_for_the_fence() {
        let bound = ANSWER_BOUND + KILL_BOUND + SLACK;
        let wait = |until| Clearance::Wait { until };
        for (now, fates, expected) in [
            (0, &[][..], Clearance::Clear),
            (9, &[Fate::Gone, Fate::Gone], Clearance::Clear),
            (10, &[Fate::Gone, lost(10, 60, 5)], wait(s(75) + bound)),
            (10, &[lost(10, 60, 5), lost(9, 60, 30), Fate::Gone], wait(s(99) + bound)),
            (83, &[lost(10, 60, 5)], wait(s(75) + bound)),
            (84, &[lost(10, 60, 5)], Clearance::Clear),
            (84, &[lost(10, 60, 5), lost(20, 60, 5)], wait(s(85) + bound)),
            (10, &[lost(10, 60, 5), Fate::Left, Fate::Gone], Clearance::Left),
            (500, &[Fate::Left], Clearance::Left),
        ] {
            assert_eq!(clearance(s(now), fates.iter().copied()), expected, "{now} s: {fates:?}");
        }
    }

    /// A node that is lost, as it is in truth. Times are in milliseconds.
    #[derive(Clone, Copy, Debug)]
    struct Lost {
        at: u64,
        patience: u64,
        grace: u64,
        /// How long before the loss the agent has heard the front last, and whether it sees the end of the stream.
        deaf: u64,
        /// How long after the loss an answer of the front has arrived, if one was under way.
        answer: Option<u64>,
        sees_end: Option<u64>,
        /// Of the grace and of the kill bound, how much the ranks and the kernel use.
        uses: (u64, u64),
        /// How long after the end of the ranks the proof comes, if it does.
        proof: Option<u64>,
    }

    impl Lost {
        /// When the last rank of the node ends.
        fn ends_at(&self) -> u64 {
            let heard = self.answer.map_or(self.at.saturating_sub(self.deaf), |after| self.at + after);
            let silent = heard + self.patience;
            let stops = self.sees_end.map_or(silent, |after| silent.min(self.at + after));
            stops + self.uses.0.min(self.grace) + self.uses.1.min(KILL_BOUND.as_millis() as u64)
        }

        fn fate(&self, now: u64) -> Fate {
            let ms = Duration::from_millis;
            match self.proof {
                Some(after) if self.ends_at() + after <= now => Fate::Gone,
                _ => Fate::Unknown(Loss { at: ms(self.at), patience: ms(self.patience), grace: ms(self.grace) }),
            }
        }
    }

    fn nodes() -> impl Strategy<Value = Vec<Lost>> {
        let node = (
            (0..100_000u64, 0..70_000u64, 0..40_000u64),
            0..60_000u64,
            (proptest::option::of(0..=ANSWER_BOUND.as_millis() as u64), proptest::option::of(0..100_000u64)),
            (0..50_000u64, 0..6_000u64),
            proptest::option::of(0..90_000u64),
        );
        let node = node.prop_map(|((at, patience, grace), deaf, (answer, sees_end), uses, proof)| Lost {
            at,
            patience,
            grace,
            deaf,
            answer,
            sees_end,
            uses,
            proof,
        });
        proptest::collection::vec(node, 1..6)
    }

    proptest! {
        /// whenever the front looks, an attempt begins only when no rank of the one before lives; and it does begin (K-5).
        #[test]
        fn no_two_attempts_at_once(nodes in nodes(), steps in proptest::collection::vec(1..20_000u64, 1..40)) {
            let mut now = nodes.iter().map(|node| node.at).max().unwrap_or(0);
            let mut last = Duration::ZERO;
            for step in steps.into_iter().chain(std::iter::repeat(1_000)) {
                match clearance(Duration::from_millis(now), nodes.iter().map(|node| node.fate(now))) {
                    Clearance::Clear => break,
                    Clearance::Wait { until } => last = until,
                    Clearance::Left => prop_assert!(false, "nothing was found left"),
                }
                prop_assert!(last > Duration::from_millis(now), "a wait has an end");
                now += step;
            }
            for node in &nodes {
                prop_assert!(node.ends_at() <= now, "{node:?} has ranks when the next attempt begins at {now}");
            }
        }
    }
}
