//! Chance that can be played again.

use std::env;
use std::ops::RangeInclusive;

/// xorshift: small, and the same everywhere.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// `count` seeds, or those that `RANKRUN_TEST_SEED` gives: `N`, or `N-M`.
///
/// # Panics
/// If `RANKRUN_TEST_SEED` is none of both.
pub fn seeds(count: u64) -> RangeInclusive<u64> {
    let Ok(given) = env::var("RANKRUN_TEST_SEED") else { return 1..=count };
    let (first, last) = given.split_once('-').unwrap_or((&given, &given));
    let number = |word: &str| word.parse().expect("RANKRUN_TEST_SEED is a number, or two as in 3-7");
    number(first)..=number(last)
}
