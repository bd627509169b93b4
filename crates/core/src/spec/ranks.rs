//! Sets of ranks as people write them: `0`, `0-3,8`, `0-198/3` (every third), `0-3 and 0-1 of spawn 1`, `all`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, Rank};

/// A set of ranks: everything, or a sorted list of inclusive ranges, each within one group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RankSet {
    All,
    Ranges(Vec<(Rank, Rank)>),
}

/// Ranks that a step may name at most: they are kept one by one.
const STEPS_MOST: u32 = 1 << 20;

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
                Some((_, last)) if next(*last) == Some(rank) => *last = rank,
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

    /// How many ranks are named, if they are.
    pub fn count(&self) -> Option<usize> {
        match self {
            RankSet::All => None,
            RankSet::Ranges(ranges) => {
                Some(ranges.iter().map(|(first, last)| (last.number() - first.number()) as usize + 1).sum())
            }
        }
    }

    /// The ranks that are named, in order.
    pub fn iter(&self) -> impl Iterator<Item = Rank> + '_ {
        let ranges = match self {
            RankSet::All => &[][..],
            RankSet::Ranges(ranges) => ranges,
        };
        let range = |(first, last): &(Rank, Rank)| {
            let group = first.group();
            (first.number()..=last.number()).map(move |number| Rank::of(group, number))
        };
        ranges.iter().flat_map(range)
    }

    /// The least rank named, if the set names any.
    pub fn min(&self) -> Option<Rank> {
        match self {
            RankSet::All => None,
            RankSet::Ranges(ranges) => ranges.first().map(|(first, _)| *first),
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
        if let Some((one, other)) = text.rsplit_once(AND) {
            let parts = (one.parse::<RankSet>(), other.parse::<RankSet>());
            let (Ok(RankSet::Ranges(mut ranges)), Ok(RankSet::Ranges(more))) = parts else { return Err(error()) };
            ranges.extend(more);
            ranges.sort_unstable();
            return Ok(RankSet::Ranges(ranges));
        }
        let (numbers, group) = match text.split_once(OF_SPAWN) {
            Some((numbers, group)) => (numbers, number(group)?),
            None => (text, 0),
        };
        let rank = |number| Rank::of(GroupId(group), number);
        let mut ranges = Vec::new();
        for part in numbers.split(',') {
            let (part, step) = match part.split_once('/') {
                Some((part, step)) if part.contains('-') => (part, number(step)?),
                Some(_) => return Err(error()),
                None => (part, 1),
            };
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last || step == 0 {
                return Err(error());
            }
            if step == 1 {
                ranges.push((first, last));
                continue;
            }
            if (last - first) / step >= STEPS_MOST {
                return Err(error());
            }
            ranges.extend((first..=last).step_by(step as usize).map(|rank| (rank, rank)));
        }
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
                _ => merged.push((first, last)),
            }
        }
        Ok(RankSet::Ranges(merged.into_iter().map(|(first, last)| (rank(first), rank(last))).collect()))
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankSet::All => f.write_str("all"),
            RankSet::Ranges(ranges) => {
                let groups = ranges.chunk_by(|(one, _), (other, _)| one.group() == other.group());
                for (of_group, at) in groups.zip(0..) {
                    if at > 0 {
                        f.write_str(AND)?;
                    }
                    write_numbers(of_group, f)?;
                    match of_group[0].0.group() {
                        GroupId(0) => {}
                        group => write!(f, "{OF_SPAWN}{group}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// Between the ranks of two groups.
const AND: &str = " and ";
/// Between the ranks of a group and the number of the group.
const OF_SPAWN: &str = " of spawn ";

/// The rank after this one in its group.
fn next(rank: Rank) -> Option<Rank> {
    rank.number().checked_add(1).map(|number| Rank::of(rank.group(), number))
}

/// The numbers of the ranks of one group.
fn write_numbers(ranges: &[(Rank, Rank)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut rest = ranges;
    while let Some((first, last)) = rest.first() {
        if rest.len() < ranges.len() {
            f.write_str(",")?;
        }
        let (first, last) = (first.number(), last.number());
        let steps = steps(rest);
        if steps >= STEPS_LEAST {
            write!(f, "{first}-{}/{}", rest[steps - 1].0.number(), rest[1].0.number() - first)?;
            rest = &rest[steps..];
            continue;
        }
        if first == last {
            write!(f, "{first}")?;
        } else {
            write!(f, "{first}-{last}")?;
        }
        rest = &rest[1..];
    }
    Ok(())
}

/// So many single ranks in equal steps are written as one.
const STEPS_LEAST: usize = 3;

/// How many of the first ranges are single ranks in equal steps.
fn steps(ranges: &[(Rank, Rank)]) -> usize {
    let [(first, _), (second, _), ..] = ranges else { return ranges.len().min(1) };
    let step = second.number() - first.number();
    let singles = ranges.iter().take_while(|(first, last)| first == last).zip(0u32..);
    singles.take_while(|((rank, _), at)| step.checked_mul(*at) == Some(rank.number() - first.number())).count()
}

/// A set of ranks as people write it.
pub(crate) mod written {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::RankSet;

    pub(crate) fn serialize<S: Serializer>(ranks: &RankSet, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(ranks)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RankSet, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
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
        assert_eq!("0-9/3,1".parse::<RankSet>().expect("a set").to_string(), "0-1,3-9/3");
        let both: RankSet = "0-2,8 and 0-1 of spawn 1".parse().expect("a set");
        assert_eq!(both.to_string(), "0-2,8 and 0-1 of spawn 1");
        let has = |group, number| both.contains(Rank::of(GroupId(group), number));
        assert!(has(0, 8) && has(1, 1) && !has(1, 2) && !has(2, 0) && !has(0, 3));
    }

    #[test]
    fn ranks_in_equal_steps_are_written_as_one() {
        let written = |ranks: &[u32]| RankSet::of(ranks.iter().copied().map(Rank)).to_string();
        let thirds: Vec<u32> = (0..200).step_by(3).collect();
        assert_eq!(written(&thirds), "0-198/3");
        assert_eq!(written(&[0, 2, 4]), "0-4/2");
        assert_eq!(written(&[0, 2]), "0,2", "two are no row");
        assert_eq!(written(&[0, 2, 4, 5]), "0,2,4-5");
        assert_eq!(written(&[1, 5, 6, 8, 10, 12, 20]), "1,5-6,8-12/2,20");
    }

    #[test]
    fn refuses_what_is_no_set() {
        for text in [
            "",
            ",",
            "1,",
            "-1",
            "3-1",
            "a",
            "1-",
            "+1",
            "99999999999",
            "0-4/0",
            "4/2",
            "0-4/",
            "0-4/2/2",
            "0-4294967295/2",
            "0 of spawn",
            "0 of spawn x",
            "0 and all",
        ] {
            assert!(text.parse::<RankSet>().is_err(), "{text:?} was taken");
        }
    }

    proptest! {
        #[test]
        fn sets_with_steps_are_read_again(parts in proptest::collection::vec((0u32..50, 1u32..6, 1u32..9), 1..6)) {
            let ranks = parts.iter().flat_map(|(first, step, count)| (0..*count).map(move |at| Rank(first + step * at)));
            let set = RankSet::of(ranks);
            prop_assert_eq!(set.to_string().parse::<RankSet>().expect("what we print, we read"), set);
        }

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
