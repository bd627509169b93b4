//! Sets of ranks as people write them: `0`, `0-3,8`, `all`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::Rank;

/// A set of ranks: everything, or a sorted list of inclusive ranges.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RankSet {
    All,
    Ranges(Vec<(Rank, Rank)>),
}

/// Why a text is no set of ranks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{text}\" is not a set of ranks")]
pub struct RankSetError {
    pub text: String,
}

impl RankSet {
    /// The set that holds just these ranks.
    pub fn of(ranks: impl IntoIterator<Item = Rank>) -> Self {
        let mut sorted: Vec<Rank> = ranks.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut ranges: Vec<(Rank, Rank)> = Vec::new();
        for rank in sorted {
            match ranges.last_mut() {
                Some((_, last)) if last.0.checked_add(1) == Some(rank.0) => *last = rank,
                _ => ranges.push((rank, rank)),
            }
        }
        RankSet::Ranges(ranges)
    }

    pub fn contains(&self, rank: Rank) -> bool {
        match self {
            RankSet::All => true,
            RankSet::Ranges(ranges) => {
                let after = ranges.partition_point(|(first, _)| *first <= rank);
                after > 0 && rank <= ranges[after - 1].1
            }
        }
    }

    /// The greatest rank named, if the set names any.
    pub fn max(&self) -> Option<Rank> {
        match self {
            RankSet::All => None,
            RankSet::Ranges(ranges) => ranges.last().map(|(_, last)| *last),
        }
    }
}

impl FromStr for RankSet {
    type Err = RankSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || RankSetError { text: text.to_owned() };
        let number = |part: &str| -> Result<u32, RankSetError> {
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(error());
            }
            part.parse().map_err(|_| error())
        };
        if text == "all" {
            return Ok(RankSet::All);
        }
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(error());
            }
            ranges.push((first, last));
        }
        ranges.sort_unstable();
        let mut merged: Vec<(Rank, Rank)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.0.saturating_add(1) => end.0 = end.0.max(last),
                _ => merged.push((Rank(first), Rank(last))),
            }
        }
        Ok(RankSet::Ranges(merged))
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankSet::All => f.write_str("all"),
            RankSet::Ranges(ranges) => {
                for (i, (first, last)) in ranges.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    if first == last {
                        write!(f, "{first}")?;
                    } else {
                        write!(f, "{first}-{last}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_people_write() {
        let set: RankSet = "0-2,8,3,20-21".parse().expect("a set");
        assert_eq!(set.to_string(), "0-3,8,20-21");
        assert!(set.contains(Rank(3)) && set.contains(Rank(8)) && !set.contains(Rank(9)) && !set.contains(Rank(22)));
        assert_eq!("all".parse::<RankSet>(), Ok(RankSet::All));
    }

    #[test]
    fn refuses_what_is_no_set() {
        for text in ["", ",", "1,", "-1", "3-1", "a", "1-", "+1", "99999999999"] {
            assert!(text.parse::<RankSet>().is_err(), "{text:?} was taken");
        }
    }

    proptest! {
        #[test]
        fn folding_and_reading_again_keeps_the_set(ranks in proptest::collection::vec(0u32..200, 1..40)) {
            let set = RankSet::of(ranks.iter().copied().map(Rank));
            let again: RankSet = set.to_string().parse().expect("what we print, we read");
            prop_assert_eq!(&again, &set);
            for rank in 0..201 {
                prop_assert_eq!(set.contains(Rank(rank)), ranks.contains(&rank));
            }
        }
    }
}
