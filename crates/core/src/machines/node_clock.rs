//! The clock of a node, as far as the front can know it from the messages of its agent.
//!
//! Each message gives an upper bound of the difference between the clocks: its arrival time less its sending time. The answer to a
//! beat gives a lower one too, as in NTP: it was not sent before the beat was. The difference lies between the greatest lower and the
//! least upper bound, however long messages were under way. Both become wider with time, since no two clocks run alike.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;

/// How fast two clocks may drift apart: the kernel adjusts each by 500 ppm at most (adjtimex(2)).
const DRIFT_PPM: i128 = 1_000;

/// The clock that a time was read from, and how wrong that time may be on the front's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reading {
    pub node: NodeId,
    /// At most so much too early or too late.
    pub bound: Duration,
}

/// When something happened, and when the front received it. Both are times on the front's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Moment {
    /// When the front received it: waits are counted from then on.
    pub now: Duration,
    /// When it happened on its node.
    pub at: Duration,
    /// How exact that is, where it was read from another machine's clock.
    pub clock: Option<Reading>,
}

impl Moment {
    /// Of the front itself.
    pub fn of_front(now: Duration) -> Moment {
        Moment { now, at: now, clock: None }
    }

    /// The latest time at which it may have happened.
    pub fn latest(&self) -> Duration {
        self.at + self.clock.map_or(Duration::ZERO, |clock| clock.bound)
    }
}

/// How a node's clock differs from the front's. All differences are the front's time less the node's, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct NodeClock {
    node: NodeId,
    upper: Option<i128>,
    lower: Option<i128>,
    /// When the bounds were last widened, on the front's clock.
    widened: Duration,
}

impl NodeClock {
    pub fn new(node: NodeId) -> NodeClock {
        NodeClock { node, upper: None, lower: None, widened: Duration::ZERO }
    }

    /// Converts `at` on the node's clock to the front's clock. `now` is the front's time.
    pub fn moment(&mut self, now: Duration, at: Duration) -> Moment {
        self.widen(now);
        let seen = nanos(now) - nanos(at);
        let upper = self.upper.map_or(seen, |upper| upper.min(seen));
        self.upper = Some(upper);
        // Clocks that were set by more than the drift: the newer bound counts.
        self.lower = self.lower.map(|lower| lower.min(upper));
        let lower = self.lower.unwrap_or(upper);
        let middle = nanos(at) + lower + (upper - lower) / 2;
        let middle = Duration::from_nanos(u64::try_from(middle).unwrap_or_default());
        let half = u64::try_from((upper - lower + 1) / 2).unwrap_or(u64::MAX);
        let clock = self.lower.map(|_| Reading { node: self.node, bound: Duration::from_nanos(half) });
        Moment { now, at: middle.min(now), clock }
    }

    /// The answer to a beat, which the front sent at `sent` on its own clock: the node sent it at `at` on its clock.
    pub fn answered(&mut self, now: Duration, sent: Duration, at: Duration) {
        self.moment(now, at);
        let seen = nanos(sent) - nanos(at);
        let lower = self.lower.map_or(seen, |lower| lower.max(seen));
        self.lower = Some(lower);
        self.upper = self.upper.map(|upper| upper.max(lower));
    }

    /// The job was paused: both clocks were stopped, for different times.
    pub fn forget(&mut self) {
        (self.upper, self.lower) = (None, None);
    }

    fn widen(&mut self, now: Duration) {
        let drift = nanos(now.saturating_sub(self.widened)) * DRIFT_PPM / 1_000_000;
        self.upper = self.upper.map(|upper| upper + drift);
        self.lower = self.lower.map(|lower| lower - drift);
        self.widened = now.max(self.widened);
    }
}

/// Whether of two times it cannot be said which was first: they were read from different clocks, and are closer than these allow.
pub fn is_order_uncertain(one: (Duration, Option<Reading>), other: (Duration, Option<Reading>)) -> bool {
    let bound = |clock: Option<Reading>| clock.map_or(Duration::ZERO, |clock| clock.bound);
    let node = |clock: Option<Reading>| clock.map(|clock| clock.node);
    let both = bound(one.1) + bound(other.1);
    node(one.1) != node(other.1) && !both.is_zero() && one.0.abs_diff(other.0) <= both
}

fn nanos(time: Duration) -> i128 {
    time.as_nanos() as i128
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn close(one: Duration, other: Duration) -> bool {
        one.abs_diff(other) < ms(2)
    }

    #[test]
    fn the_fastest_message_tells_the_difference() {
        let mut clock = NodeClock::new(NodeId(1));
        // The node started 10 ms after the front; the first message was 5 ms under way.
        assert_eq!(clock.moment(ms(115), ms(100)).at, ms(115));
        assert!(close(clock.moment(ms(211), ms(200)).at, ms(211)));
        // This one was held up for a second: its time is right but for the drift of two clocks.
        let late = clock.moment(ms(1_310), ms(300));
        assert!(close(late.at, ms(311)) && late.now == ms(1_310) && late.clock.is_none());
        clock.forget();
        assert_eq!(clock.moment(ms(1_500), ms(400)).at, ms(1_500));
        // A node that started first.
        let mut clock = NodeClock::new(NodeId(1));
        assert_eq!(clock.moment(ms(5), ms(1_000)).at, ms(5));
        assert!(close(clock.moment(ms(2_000), ms(1_500)).at, ms(505)));
    }

    #[test]
    fn the_order_of_times_of_one_node_is_certain_and_of_two_only_beyond_their_bounds() {
        let of = |at, node, bound| (ms(at), Some(Reading { node: NodeId(node), bound: ms(bound) }));
        assert!(is_order_uncertain(of(100, 1, 2), of(103, 2, 1)));
        assert!(!is_order_uncertain(of(100, 1, 2), of(104, 2, 1)));
        assert!(!is_order_uncertain(of(100, 1, 2), of(101, 1, 2)));
        assert!(is_order_uncertain((ms(101), None), of(100, 1, 2)), "the front's own node");
        assert!(!is_order_uncertain((ms(100), None), (ms(100), None)));
    }

    /// What comes from a node: how long after the one before the front sends a beat, how long it is under way, how long until the
    /// node's next message is sent, and how long that is under way. In microseconds.
    type Exchange = (u32, u32, u32, u32);

    proptest! {
        #[test]
        fn the_true_time_lies_within_the_bound(
            offset in -3_000_000_000i64..3_000_000_000, drift in -90i64..90,
            exchanges in prop::collection::vec((0u32..2_000_000, 1u32..50_000, 0u32..500_000, 1u32..50_000), 1..40),
        ) {
            let exchanges: Vec<Exchange> = exchanges;
            // The node's clock as a function of the front's, in nanoseconds.
            let start = 10_000_000_000i64;
            let of_node = |front: i64| Duration::from_nanos((front + offset + (front - start) * drift / 1_000_000) as u64);
            let of_front = |front: i64| Duration::from_nanos(front as u64);
            let mut clock = NodeClock::new(NodeId(1));
            let mut front = start;
            let mut width = None;
            for (wait, there, later, back) in exchanges {
                let sent = front + i64::from(wait) * 1000;
                let answered = sent + i64::from(there) * 1000;
                let arrived = answered + i64::from(back) * 1000;
                clock.answered(of_front(arrived), of_front(sent), of_node(answered));
                let happened = arrived + i64::from(later) * 1000;
                front = happened + i64::from(back) * 1000;
                let moment = clock.moment(of_front(front), of_node(happened));
                let bound = moment.clock.expect("there was an answer").bound;
                prop_assert!(moment.at.abs_diff(of_front(happened)) <= bound + Duration::from_nanos(2), "{moment:?} {happened}");
                prop_assert!(moment.at <= moment.now);
                // It never becomes worse than the last round trip, but for the drift.
                let trip = Duration::from_micros(u64::from(there) + u64::from(back));
                prop_assert!(bound <= trip / 2 + Duration::from_micros(500), "{bound:?} {trip:?}");
                width = Some(bound);
            }
            prop_assert!(width.is_some());
        }
    }
}
