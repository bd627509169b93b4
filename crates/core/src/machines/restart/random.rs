//! Chance that can be repeated.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014): one number of state, and good enough to spread waits.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A time between the two, both included, each as likely as any other.
    pub(crate) fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = high.saturating_sub(low).as_nanos();
        // The product of 64 bits and a span: its upper half is below the span + 1.
        let nanos = (u128::from(self.next()) * (span + 1)) >> 64;
        low + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
