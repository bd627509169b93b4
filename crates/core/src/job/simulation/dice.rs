//! The choices of a simulation.

use std::time::Duration;

/// A small generator (xorshift64*), good enough for choices.
#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// The dice of a seed. Those with other factors show other numbers.
    pub(super) fn of(seed: u64, factor: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_mul(factor) | 1);
        (0..4).for_each(|_| {
            dice.next();
        });
        dice
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A time, short ones more often.
    pub(super) fn time(&mut self, most: Duration) -> Duration {
        let share = self.below(1 << 20) as f64 / (1u64 << 20) as f64;
        most.mul_f64(share * share)
    }
}
