//! Whether a destination is slow.

use std::time::Duration;

/// How long output waits in memory before the destination is judged.
pub(crate) const WINDOW: Duration = Duration::from_millis(50);
/// A destination that takes this much in that time, 25 MB/s, is not slow: with a disk between, the ranks would wait for that, and the
/// processes that move the output would lack the time that it takes.
pub(crate) const FAST: u64 = 5 << 18;

/// The pace at which the destination takes the output of a stream while much of it waits.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the window began, if much waits.
    since: Option<Duration>,
    /// Bytes that were taken in the window.
    taken: u64,
    is_slow: bool,
}

impl Pace {
    /// The destination has taken something.
    pub(super) fn took(&mut self, size: u64) {
        self.taken += size;
    }

    /// Little waits.
    pub(super) fn rest(&mut self) {
        *self = Pace::default();
    }

    /// Much waits. Whether the destination is slow; before it is judged it is not.
    pub(super) fn is_slow(&mut self, now: Duration) -> bool {
        match self.since {
            Some(since) if now < since + WINDOW => return self.is_slow,
            Some(since) => {
                let (taken, passed) = (u128::from(self.taken), (now - since).as_nanos());
                self.is_slow = taken * WINDOW.as_nanos() < u128::from(FAST) * passed;
            }
            None => {}
        }
        (self.since, self.taken) = (Some(now), 0);
        self.is_slow
    }

    /// When it is judged next, if it is not slow.
    pub(super) fn due(&self) -> Option<Duration> {
        self.since.filter(|_| !self.is_slow).map(|since| since + WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_judged_by_what_it_takes_while_much_waits() {
        let windows = |tenths: u32| WINDOW * tenths / 10;
        let mut pace = Pace::default();
        pace.took(10 * FAST);
        assert_eq!((pace.is_slow(windows(100)), pace.due()), (false, Some(windows(110))));
        // What it took before the window does not count.
        pace.took(FAST - 1);
        assert!(!pace.is_slow(windows(109)));
        assert_eq!((pace.is_slow(windows(110)), pace.due()), (true, None));
        // One that is slow is judged again.
        pace.took(2 * FAST);
        assert!(pace.is_slow(windows(119)));
        assert!(!pace.is_slow(windows(125)));
        assert_eq!(pace.due(), Some(windows(135)));
        // It is the pace that counts, however long nobody asked.
        pace.took(2 * FAST);
        assert!(pace.is_slow(windows(155)));
        pace.rest();
        assert_eq!(pace.due(), None);
    }
}
