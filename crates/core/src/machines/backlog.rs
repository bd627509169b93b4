//! What is done with output that comes faster than a copy of it can be written: its sender waits a little, and is not held up by a
//! destination that takes next to nothing.

use std::time::Duration;

/// Bytes that may wait.
pub const MOST: usize = 16 << 20;
/// Bytes that the destination must take before the sender is heard again, and within which time: the sender has more to say than output.
const STEP: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(1);

/// The output that waits for a destination, and what becomes of more.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Backlog {
    /// There is room.
    #[default]
    Open,
    /// The sender is not heard, until so few bytes wait.
    Full { until: Duration, bytes: usize },
    /// The destination takes less than a STEP in PATIENCE: what has no room is left out.
    Slow,
}

impl Backlog {
    /// So many bytes wait now.
    #[must_use]
    pub fn look(self, now: Duration, bytes: usize) -> Backlog {
        match self {
            Backlog::Open if bytes > MOST => Backlog::Full { until: now + PATIENCE, bytes: bytes - STEP },
            Backlog::Full { bytes: few, .. } if bytes <= few => Backlog::Open,
            Backlog::Full { until, .. } if until <= now => Backlog::Slow,
            Backlog::Slow if bytes <= MOST / 2 => Backlog::Open,
            Backlog::Open | Backlog::Full { .. } | Backlog::Slow => self,
        }
    }

    /// Whether the sender is heard.
    pub fn hears(self) -> bool {
        !matches!(self, Backlog::Full { .. })
    }

    /// Whether another piece is kept, where so many bytes wait.
    pub fn keeps(self, bytes: usize) -> bool {
        self != Backlog::Slow || bytes < MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender and a destination with a rate each, in bytes a second, for some seconds: the bytes that were left out, and the longest
    /// time for which the sender was not heard.
    fn run(sent: usize, taken: usize, seconds: u64) -> (usize, Duration) {
        let (mut backlog, mut waiting, mut left_out) = (Backlog::default(), 0, 0);
        let (mut longest, mut deaf_since) = (Duration::ZERO, None);
        for ms in 0..seconds * 1000 {
            let now = Duration::from_millis(ms);
            waiting -= waiting.min(taken / 1000);
            backlog = backlog.look(now, waiting);
            if !backlog.hears() {
                longest = longest.max(now - *deaf_since.get_or_insert(now));
                continue;
            }
            deaf_since = None;
            match backlog.keeps(waiting) {
                true => waiting += sent / 1000,
                false => left_out += sent / 1000,
            }
            assert!(waiting <= MOST + sent / 1000, "{waiting}");
        }
        (left_out, longest)
    }

    #[test]
    fn a_destination_that_works_gets_all_and_one_that_does_not_holds_up_nobody_for_long() {
        let mib = 1 << 20;
        for (sent, taken) in [(1000 * mib, 400 * mib), (400 * mib, 2 * mib), (2 * mib, 2 * mib)] {
            let (left_out, longest) = run(sent, taken, 60);
            assert_eq!(left_out, 0, "{sent} {taken}");
            assert!(longest < PATIENCE, "{sent} {taken}: {longest:?}");
        }
        for taken in [0, 1000, mib / 4] {
            let (left_out, longest) = run(100 * mib, taken, 120);
            assert!(left_out > 5000 * mib, "{taken}: {left_out}");
            assert!(longest <= PATIENCE, "{taken}: {longest:?}");
        }
        // It takes nothing for some seconds, and then all.
        let mut backlog = Backlog::Slow;
        assert!(!backlog.keeps(MOST));
        backlog = backlog.look(Duration::from_secs(10), MOST / 2);
        assert_eq!(backlog, Backlog::Open);
    }
}
