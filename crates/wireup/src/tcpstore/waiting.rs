//! Who waits for which keys and barriers.
//!
//! Each wait has a number. The waits for one key are kept in the order of their numbers, so that one of them is found, ended
//! or cancelled without a look at the others: thousands may wait for one key, and all time out together.

use std::collections::{BTreeMap, HashMap};

use super::server::ConnId;

type Key = Box<[u8]>;

/// What a connection waits for.
#[derive(Debug)]
enum Wait {
    /// The keys that were missing, and how many of them still are.
    Keys {
        keys: Vec<Key>,
        missing: usize,
    },
    Barrier {
        key: Key,
    },
}

/// All waits.
#[derive(Default, Debug)]
pub(super) struct Waiting {
    next: u64,
    waits: HashMap<ConnId, (u64, Wait)>,
    keys: HashMap<Key, BTreeMap<u64, ConnId>>,
    /// With the count at which each is over.
    barriers: HashMap<Key, BTreeMap<u64, (ConnId, i64)>>,
}

impl Waiting {
    /// A connection waits for these keys, none of which is there. If it waited before, it does so no longer.
    pub(super) fn begin<'a>(&mut self, conn: ConnId, missing: impl Iterator<Item = &'a [u8]>) {
        let number = self.number(conn);
        let mut keys = Vec::new();
        for key in missing {
            let waits = self.keys.entry(key.into()).or_default();
            // A key may be named twice.
            if waits.insert(number, conn).is_none() {
                keys.push(key.into());
            }
        }
        let missing = keys.len();
        self.waits.insert(conn, (number, Wait::Keys { keys, missing }));
    }

    /// A connection waits until the barrier's count is `world_size`.
    pub(super) fn begin_barrier(&mut self, conn: ConnId, key: &[u8], world_size: i64) {
        let number = self.number(conn);
        self.barriers.entry(key.into()).or_default().insert(number, (conn, world_size));
        self.waits.insert(conn, (number, Wait::Barrier { key: key.into() }));
    }

    fn number(&mut self, conn: ConnId) -> u64 {
        self.cancel(conn);
        self.next += 1;
        self.next
    }

    /// A connection waits no longer.
    pub(super) fn cancel(&mut self, conn: ConnId) {
        let Some((number, wait)) = self.waits.remove(&conn) else { return };
        match wait {
            Wait::Keys { keys, .. } => keys.iter().for_each(|key| remove(&mut self.keys, key, number)),
            Wait::Barrier { key } => remove(&mut self.barriers, &key, number),
        }
    }

    /// A key is there: the connections that have nothing left to wait for.
    pub(super) fn key_is_there(&mut self, key: &[u8]) -> Vec<ConnId> {
        let Some(waits) = self.keys.remove(key) else { return Vec::new() };
        waits.into_values().filter(|conn| self.has_one_less(*conn)).collect()
    }

    /// A queue has got an element: the first connection that has nothing left to wait for. Those before it have one key
    /// less to wait for.
    pub(super) fn queue_has_one_more(&mut self, key: &[u8]) -> Option<ConnId> {
        loop {
            let waits = self.keys.get_mut(key)?;
            let first = waits.pop_first();
            if waits.is_empty() {
                self.keys.remove(key);
            }
            let (_, conn) = first?;
            if self.has_one_less(conn) {
                return Some(conn);
            }
        }
    }

    /// A barrier's count has grown: the connections that have passed it.
    pub(super) fn barrier_reached(&mut self, key: &[u8], count: i64) -> Vec<ConnId> {
        let Some(waits) = self.barriers.get_mut(key) else { return Vec::new() };
        let mut passed = Vec::new();
        waits.retain(|_, (conn, world_size)| {
            let waits_on = count < *world_size;
            if !waits_on {
                passed.push(*conn);
            }
            waits_on
        });
        if waits.is_empty() {
            self.barriers.remove(key);
        }
        for conn in &passed {
            self.waits.remove(conn);
        }
        passed
    }

    /// Whether that was the last key that a connection waited for.
    fn has_one_less(&mut self, conn: ConnId) -> bool {
        let Some((_, Wait::Keys { missing, .. })) = self.waits.get_mut(&conn) else { return false };
        *missing -= 1;
        *missing == 0 && self.waits.remove(&conn).is_some()
    }

    /// How many connections wait.
    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }

    /// Keys and barriers that somebody waits for.
    #[cfg(test)]
    pub(super) fn awaited(&self) -> usize {
        self.keys.len() + self.barriers.len()
    }
}

fn remove<V>(map: &mut HashMap<Key, BTreeMap<u64, V>>, key: &[u8], number: u64) {
    if let Some(waits) = map.get_mut(key) {
        waits.remove(&number);
        if waits.is_empty() {
            map.remove(key);
        }
    }
}
