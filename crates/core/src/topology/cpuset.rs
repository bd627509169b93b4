//! Sets of CPUs, as the kernel writes them: `0-3,8`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A set of the kernel's CPU numbers. A CPU is a hardware thread.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct CpuSet {
    /// 64 CPUs a word; the last word is not 0.
    words: Vec<u64>,
}

/// A number that no machine has: a typing error must not take all memory.
const MOST: u32 = 1 << 16;

/// Why a text is no set of CPUs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{text}\" is not a list of CPUs")]
pub struct CpuSetError {
    pub text: String,
}

impl CpuSet {
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// The CPUs from 0 on.
    pub fn first(count: u32) -> CpuSet {
        (0..count).collect()
    }

    pub fn insert(&mut self, cpu: u32) {
        let word = cpu as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % 64);
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let of_word = |(at, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 64 + bit)
        };
        self.words.iter().enumerate().flat_map(of_word)
    }

    pub fn lowest(&self) -> Option<u32> {
        self.iter().next()
    }

    pub fn union(&self, other: &CpuSet) -> CpuSet {
        self.combined(other, |one, other| one | other)
    }

    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.combined(other, |one, other| one & other)
    }

    /// What is in this set and not in the other.
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        self.combined(other, |one, other| one & !other)
    }

    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.without(other).is_empty()
    }

    pub fn meets(&self, other: &CpuSet) -> bool {
        self.words.iter().zip(&other.words).any(|(one, other)| one & other != 0)
    }

    fn combined(&self, other: &CpuSet, each: impl Fn(u64, u64) -> u64) -> CpuSet {
        let word = |words: &[u64], at: usize| words.get(at).copied().unwrap_or(0);
        let length = self.words.len().max(other.words.len());
        let mut words: Vec<u64> = (0..length).map(|at| each(word(&self.words, at), word(&other.words, at))).collect();
        while words.last() == Some(&0) {
            words.pop();
        }
        CpuSet { words }
    }

    /// The first CPU of each unbroken range, and how many there are in it.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut cpus = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = cpus.next()?;
            let mut count = 1;
            while cpus.next_if_eq(&(first + count)).is_some() {
                count += 1;
            }
            Some((first, count))
        })
    }

    /// The kernel's mask: 64 CPUs a word, the lowest first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// The kernel's list format (cpuset(7)), without strides. An empty text is the empty set.
    fn from_str(text: &str) -> Result<CpuSet, CpuSetError> {
        let error = || CpuSetError { text: text.trim().to_owned() };
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            let number = part.parse::<u32>().ok().filter(|number| digits && *number < MOST);
            number.ok_or_else(error)
        };
        let mut set = CpuSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(error());
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (first, count) in self.ranges() {
            match count {
                1 => write!(f, "{comma}{first}")?,
                2 => write!(f, "{comma}{first},{}", first + 1)?,
                _ => write!(f, "{comma}{first}-{}", first + count - 1)?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().expect("a list")
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, written) in [
            ("", ""),
            ("\n", ""),
            ("0\n", "0"),
            ("0-3,8", "0-3,8"),
            ("3,2,1", "1-3"),
            ("0,1", "0,1"),
            ("63-64", "63,64"),
        ] {
            assert_eq!(set(text).to_string(), written, "{text:?}");
        }
        for text in ["x", "3-1", "1-", "-1", "1,,2", "1 2", "99999999", "+1", "0-7:2/4"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn sets_are_combined() {
        let (one, other) = (set("0-3,64"), set("2-5"));
        assert_eq!(one.union(&other), set("0-5,64"));
        assert_eq!(one.intersection(&other), set("2,3"));
        assert_eq!(one.without(&other), set("0,1,64"));
        assert_eq!(set("64").without(&one), CpuSet::new());
        assert!(set("2,3").is_subset(&one) && !other.is_subset(&one));
        assert!(one.meets(&other) && !one.meets(&set("4-63")));
        assert_eq!((one.count(), one.lowest(), CpuSet::new().lowest()), (5, Some(0), None));
        assert_eq!(CpuSet::first(3), set("0-2"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(cpus in proptest::collection::btree_set(0u32..600, 0..40)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set.clone()));
            prop_assert_eq!(set.count() as usize, cpus.len());
        }
    }
}
