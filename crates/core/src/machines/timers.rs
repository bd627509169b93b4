//! Deadlines, in order: one for each key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A set of deadlines. Setting one, and finding the next, cost O(log n).
#[derive(Clone, Debug)]
pub struct Timers<K> {
    order: BTreeSet<(Duration, K)>,
    at: BTreeMap<K, Duration>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Timers { order: BTreeSet::new(), at: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Timers<K> {
    /// Sets or replaces the deadline of a key; `None` removes it.
    pub fn set(&mut self, key: K, at: Option<Duration>) {
        let before = match at {
            Some(at) => self.at.insert(key, at),
            None => self.at.remove(&key),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, key));
        }
        if let Some(at) = at {
            self.order.insert((at, key));
        }
    }

    /// The deadline of a key.
    pub fn at(&self, key: K) -> Option<Duration> {
        self.at.get(&key).copied()
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Duration> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Removes and returns a key with a passed deadline, the earliest first.
    pub fn pop_due(&mut self, now: Duration) -> Option<K> {
        let (at, key) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.set(key, None);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_key_comes_once_at_its_last_deadline_and_in_order(
            steps in proptest::collection::vec((0u8..10, proptest::option::of(0u64..50)), 0..60),
            now in 0u64..60,
        ) {
            let (mut timers, mut model) = (Timers::default(), BTreeMap::new());
            for (key, at) in steps {
                timers.set(key, at.map(Duration::from_millis));
                match at {
                    Some(at) => { model.insert(key, at); }
                    None => { model.remove(&key); }
                }
                prop_assert_eq!(timers.next(), model.values().min().map(|at| Duration::from_millis(*at)));
            }
            let mut due = Vec::new();
            while let Some(key) = timers.pop_due(Duration::from_millis(now)) {
                due.push(key);
            }
            let mut expected: Vec<_> = model.into_iter().filter(|(_, at)| *at <= now).collect();
            expected.sort_by_key(|(key, at)| (*at, *key));
            prop_assert_eq!(due, expected.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
            prop_assert!(timers.next().is_none_or(|at| at > Duration::from_millis(now)));
        }
    }
}
