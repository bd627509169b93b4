//! A map by key that never takes long to grow: it consists of many small ones, each of which grows by itself.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::names::Name;

/// With a million keys, one of them moves 16,000 of them when it grows: about a millisecond.
const PARTS: usize = 64;

#[derive(Debug)]
pub(super) struct Table<V> {
    /// None at all before the first key.
    parts: Vec<HashMap<Name, V>>,
    hasher: RandomState,
    len: usize,
}

impl<V> Default for Table<V> {
    fn default() -> Table<V> {
        Table { parts: Vec::new(), hasher: RandomState::new(), len: 0 }
    }
}

impl<V> Table<V> {
    fn part(&self, key: &[u8]) -> usize {
        self.hasher.hash_one(key) as usize % PARTS
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&V> {
        self.parts.get(self.part(key))?.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        let part = self.part(key);
        self.parts.get_mut(part)?.get_mut(key)
    }

    /// The key as it is held.
    pub(super) fn name(&self, key: &[u8]) -> Option<&Name> {
        self.parts.get(self.part(key))?.get_key_value(key).map(|(name, _)| name)
    }

    pub(super) fn insert(&mut self, key: Name, value: V) {
        let part = self.part(&key);
        if self.parts.is_empty() {
            self.parts.resize_with(PARTS, HashMap::new);
        }
        if let Some(part) = self.parts.get_mut(part) {
            self.len += usize::from(part.insert(key, value).is_none());
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<V> {
        let part = self.part(key);
        let part = self.parts.get_mut(part)?;
        let value = part.remove(key)?;
        if part.len() < part.capacity() / 4 {
            part.shrink_to(2 * part.len());
        }
        self.len -= 1;
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &V)> {
        self.parts.iter().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}
