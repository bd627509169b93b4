//! The clock of a node, as far as the front can know it from the messages of its agent.

use std::time::Duration;

use rankrun_core::gang::Moment;

/// How a node's clock differs from the front's.
///
/// Each message gives an upper bound of the difference: its arrival time less its sending time. The least of these is
/// used: its error is the shortest transit time of all messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeClock {
    /// Front's time less node's time, in nanoseconds.
    offset: Option<i128>,
}

impl NodeClock {
    /// Converts `at` on the node's clock to the front's clock. `now` is the front's time.
    pub(crate) fn moment(&mut self, now: Duration, at: Duration) -> Moment {
        let seen = nanos(now) - nanos(at);
        let offset = self.offset.map_or(seen, |offset| offset.min(seen));
        self.offset = Some(offset);
        let at = u64::try_from(nanos(at) + offset).unwrap_or_default();
        Moment { now, at: Duration::from_nanos(at).min(now) }
    }

    /// The job was paused: both clocks were stopped, for different times.
    pub(crate) fn forget(&mut self) {
        self.offset = None;
    }
}

fn nanos(time: Duration) -> i128 {
    time.as_nanos() as i128
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_fastest_message_tells_the_difference() {
        let mut clock = NodeClock::default();
        // The node started 10 ms after the front; the first message was 5 ms under way.
        assert_eq!(clock.moment(ms(115), ms(100)).at, ms(115));
        assert_eq!(clock.moment(ms(211), ms(200)).at, ms(211));
        // This one was held up for a second: its time is right to the millisecond.
        assert_eq!(clock.moment(ms(1_310), ms(300)), Moment { now: ms(1_310), at: ms(311) });
        clock.forget();
        assert_eq!(clock.moment(ms(1_500), ms(400)).at, ms(1_500));
        // A node that started first.
        let mut clock = NodeClock::default();
        assert_eq!(clock.moment(ms(5), ms(1_000)).at, ms(5));
        assert_eq!(clock.moment(ms(2_000), ms(1_500)).at, ms(505));
    }
}
