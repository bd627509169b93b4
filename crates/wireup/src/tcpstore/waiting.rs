//! Who waits for which keys and barriers.
//!
//! Each wait has a number. The waits for one key are kept in the order of their numbers, so that one of them is found, ended
//! or cancelled without a look at the others: thousands may wait for one key, and all time out together. One client may wait for
//! many keys: a key is held once, and one that a single client waits for takes no more than that.
//!
//! What a wait that is over has held is taken back in parts ([`Waiting::tidy`]), since that may take long. Until then its number may
//! still be found at a key, and counts for nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::names::Name;
use super::server::ConnId;
use super::table::Table;

/// What a connection waits for.
#[derive(Debug)]
enum Wait {
    /// The keys that were missing, how many of them still are, and whether more are to be named.
    Keys {
        keys: Vec<Name>,
        missing: usize,
        is_open: bool,
    },
    Barrier {
        key: Name,
        world_size: i64,
    },
}

/// The waits for one key, by number.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "most keys have one, which takes half the room then")]
enum Waiters {
    One(u64, ConnId),
    Many(Box<VecDeque<(u64, ConnId)>>),
}

impl Waiters {
    /// Returns whether it is new.
    fn insert(&mut self, number: u64, conn: ConnId) -> bool {
        match self {
            Waiters::One(known, _) if *known == number => false,
            Waiters::One(known, other) => {
                let mut both = VecDeque::from([(*known, *other), (number, conn)]);
                both.make_contiguous().sort_unstable_by_key(|(number, _)| *number);
                *self = Waiters::Many(both.into());
                true
            }
            Waiters::Many(all) => {
                // Most come last.
                let at = all.partition_point(|(known, _)| *known < number);
                let is_new = all.get(at).is_none_or(|(known, _)| *known != number);
                if is_new {
                    all.insert(at, (number, conn));
                }
                is_new
            }
        }
    }

    /// Returns whether none is left.
    fn remove(&mut self, number: u64) -> bool {
        match self {
            Waiters::One(known, _) => *known == number,
            Waiters::Many(all) => {
                if let Ok(at) = all.binary_search_by_key(&number, |(known, _)| *known) {
                    all.remove(at);
                }
                all.is_empty()
            }
        }
    }

    fn into_all(self) -> VecDeque<(u64, ConnId)> {
        match self {
            Waiters::One(number, conn) => VecDeque::from([(number, conn)]),
            Waiters::Many(all) => *all,
        }
    }
}

/// All waits.
#[derive(Default, Debug)]
pub(super) struct Waiting {
    next: u64,
    waits: HashMap<ConnId, (u64, Wait)>,
    keys: Table<Waiters>,
    /// By the count at which each is over, and its number.
    barriers: HashMap<Name, BTreeMap<(i64, u64), ConnId>>,
    /// The numbers and the keys of waits that are over.
    over: Vec<(u64, Vec<Name>)>,
}

impl Waiting {
    /// A connection begins to name what it waits for. If it waited before, it does so no longer.
    pub(super) fn begin(&mut self, conn: ConnId) {
        let number = self.number(conn);
        self.waits.insert(conn, (number, Wait::Keys { keys: Vec::new(), missing: 0, is_open: true }));
    }

    /// It waits for this key, which is not there.
    pub(super) fn add(&mut self, conn: ConnId, key: &[u8]) {
        let Some((number, Wait::Keys { keys, missing, .. })) = self.waits.get_mut(&conn) else { return };
        let known = self.keys.name(key).map_or_else(|| key.into(), Name::clone);
        // A key may be named twice.
        let is_new = match self.keys.get_mut(key) {
            Some(waiters) => waiters.insert(*number, conn),
            None => {
                self.keys.insert(Name::clone(&known), Waiters::One(*number, conn));
                true
            }
        };
        if is_new {
            keys.push(known);
            *missing += 1;
        }
    }

    /// It has named all. Returns whether all of them are there, so that it waits no longer.
    pub(super) fn is_over(&mut self, conn: ConnId) -> bool {
        let Some((_, Wait::Keys { missing, is_open, keys })) = self.waits.get_mut(&conn) else { return false };
        *is_open = false;
        keys.shrink_to_fit();
        *missing == 0 && self.end(conn)
    }

    /// A connection waits until the barrier's count is `world_size`.
    pub(super) fn begin_barrier(&mut self, conn: ConnId, key: &[u8], world_size: i64) {
        let number = self.number(conn);
        self.barriers.entry(key.into()).or_default().insert((world_size, number), conn);
        self.waits.insert(conn, (number, Wait::Barrier { key: key.into(), world_size }));
    }

    fn number(&mut self, conn: ConnId) -> u64 {
        self.cancel(conn);
        self.next += 1;
        self.next
    }

    /// A connection waits no longer.
    pub(super) fn cancel(&mut self, conn: ConnId) {
        let Some((number, Wait::Barrier { key, world_size })) = self.waits.get(&conn) else {
            self.end(conn);
            return;
        };
        if let Some(waits) = self.barriers.get_mut(key) {
            waits.remove(&(*world_size, *number));
            if waits.is_empty() {
                self.barriers.remove(key);
            }
        }
        self.waits.remove(&conn);
    }

    /// A wait for keys is over. Returns whether there was one.
    fn end(&mut self, conn: ConnId) -> bool {
        match self.waits.remove(&conn) {
            Some((number, Wait::Keys { keys, .. })) => {
                if !keys.is_empty() {
                    self.over.push((number, keys));
                }
                true
            }
            Some((_, Wait::Barrier { .. })) | None => false,
        }
    }

    /// Takes back so many of the keys of waits that are over.
    pub(super) fn tidy(&mut self, count: usize) {
        for _ in 0..count {
            let Some((number, keys)) = self.over.last_mut() else { return };
            if let Some(key) = keys.pop()
                && self.keys.get_mut(&key).is_some_and(|waiters| waiters.remove(*number))
            {
                self.keys.remove(&key);
            }
            if keys.is_empty() {
                self.over.pop();
            }
        }
    }

    /// Whether there is nothing to take back.
    pub(super) fn is_tidy(&self) -> bool {
        self.over.is_empty()
    }

    /// A key is there: the connections that have nothing left to wait for.
    pub(super) fn key_is_there(&mut self, key: &[u8]) -> Vec<ConnId> {
        let Some(waiters) = self.keys.remove(key) else { return Vec::new() };
        let all = waiters.into_all().into_iter();
        all.filter(|(number, conn)| self.has_one_less(*number, *conn)).map(|(_, conn)| conn).collect()
    }

    /// A queue has got an element: the first connection that has nothing left to wait for. Those before it have one key
    /// less to wait for.
    pub(super) fn queue_has_one_more(&mut self, key: &[u8]) -> Option<ConnId> {
        loop {
            let (number, conn) = match self.keys.get(key)? {
                Waiters::One(number, conn) => (*number, *conn),
                Waiters::Many(all) => *all.front()?,
            };
            if self.keys.get_mut(key).is_some_and(|waiters| waiters.remove(number)) {
                self.keys.remove(key);
            }
            if self.has_one_less(number, conn) {
                return Some(conn);
            }
        }
    }

    /// A barrier's count has grown: the connections that have passed it.
    pub(super) fn barrier_reached(&mut self, key: &[u8], count: i64) -> Vec<ConnId> {
        let Some(waits) = self.barriers.get_mut(key) else { return Vec::new() };
        let mut passed = Vec::new();
        while let Some(first) = waits.first_entry().filter(|first| first.key().0 <= count) {
            passed.push(first.remove());
        }
        if waits.is_empty() {
            self.barriers.remove(key);
        }
        for conn in &passed {
            self.waits.remove(conn);
        }
        passed
    }

    /// Whether that was the last key that a connection waited for.
    fn has_one_less(&mut self, number: u64, conn: ConnId) -> bool {
        match self.waits.get_mut(&conn) {
            Some((current, Wait::Keys { missing, is_open, .. })) if *current == number => {
                *missing -= 1;
                *missing == 0 && !*is_open && self.end(conn)
            }
            Some(_) | None => false,
        }
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
