//! What is stored: values by key, and queues by key. Both are kept in as many bytes as they have.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::names::{Name, Names};
use super::request::Violation;
use super::table::Table;

/// A value that is appended to gets room for a sixteenth of its length, so that many appends do not each copy it.
const ROOM_SHARE: usize = 16;

/// The memory that a key or an element of a queue takes besides its bytes, about.
const ENTRY: usize = 128;

/// The values and queues.
#[derive(Default, Debug)]
pub(super) struct Map {
    values: Table<Value>,
    /// Of the values.
    names: Names,
    /// None is empty.
    queues: HashMap<Box<[u8]>, VecDeque<Bytes>>,
    /// How often something was stored or taken out.
    changes: u64,
    /// What all of it takes, in bytes.
    held: usize,
}

#[derive(Debug)]
struct Value {
    bytes: Bytes,
    /// Of its name in the list.
    place: usize,
}

impl Map {
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn set(&mut self, key: &[u8], bytes: Bytes) {
        self.changes += 1;
        self.held += bytes.len();
        match self.values.get_mut(key) {
            Some(present) => {
                self.held -= present.bytes.len();
                present.bytes = bytes;
            }
            None => {
                self.held += key.len() + ENTRY;
                let name = Name::from(key);
                let place = self.names.push(Name::clone(&name));
                self.values.insert(name, Value { bytes, place });
            }
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Bytes> {
        self.values.get(key).map(|value| &value.bytes)
    }

    /// Whether a wait for the key is over: it has a value, or a queue with something in it.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.values.get(key).is_some() || self.queues.contains_key(key)
    }

    pub(super) fn has_queue(&self, key: &[u8]) -> bool {
        self.queues.contains_key(key)
    }

    /// Adds to the decimal number under the key; a key without a value counts from 0.
    pub(super) fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, Violation> {
        let present = match self.get(key) {
            Some(value) => {
                let text = std::str::from_utf8(value).map_err(|_| Violation::NotANumber)?;
                text.trim_ascii_start().parse().map_err(|_| Violation::NotANumber)?
            }
            None => 0i64,
        };
        let sum = present.checked_add(delta).ok_or(Violation::NotANumber)?;
        self.set(key, Bytes::copy_from_slice(sum.to_string().as_bytes()));
        Ok(sum)
    }

    pub(super) fn append(&mut self, key: &[u8], more: &[u8]) {
        self.changes += 1;
        match self.values.get_mut(key) {
            Some(value) => {
                self.held += more.len();
                // Not copied, unless a reply that was not yet sent shares it.
                let mut bytes = Vec::from(std::mem::take(&mut value.bytes));
                if bytes.capacity() - bytes.len() < more.len() {
                    bytes.reserve_exact(more.len() + bytes.len() / ROOM_SHARE);
                }
                bytes.extend_from_slice(more);
                value.bytes = bytes.into();
            }
            None => self.set(key, Bytes::copy_from_slice(more)),
        }
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.changes += 1;
        self.held -= key.len() + ENTRY + value.bytes.len();
        if let Some(moved) = self.names.swap_remove(value.place)
            && let Some(other) = self.values.get_mut(&moved)
        {
            other.place = value.place;
        }
        true
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The names of all values, as they are now.
    pub(super) fn names(&self) -> Names {
        self.names.clone()
    }

    pub(super) fn push(&mut self, key: &[u8], value: Bytes) {
        self.changes += 1;
        self.held += value.len() + ENTRY;
        match self.queues.get_mut(key) {
            Some(queue) => queue.push_back(value),
            None => {
                self.held += key.len() + ENTRY;
                self.queues.insert(key.into(), VecDeque::from([value]));
            }
        }
    }

    /// The first of a queue, and how many there were.
    pub(super) fn pop(&mut self, key: &[u8]) -> (usize, Option<Bytes>) {
        let Some(queue) = self.queues.get_mut(key) else { return (0, None) };
        let length = queue.len();
        let first = queue.pop_front();
        self.changes += 1;
        self.held -= first.as_ref().map_or(0, |first| first.len() + ENTRY);
        if queue.is_empty() {
            self.queues.remove(key);
            self.held -= key.len() + ENTRY;
        } else if queue.len() < queue.capacity() / 4 {
            queue.shrink_to(2 * queue.len());
        }
        (length, first)
    }

    pub(super) fn queue_len(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// The memory that keys and values take, about.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// The same, counted anew.
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        let items = |queue: &VecDeque<Bytes>| queue.len() * ENTRY;
        let entries = (self.values.len() + self.queues.len()) * ENTRY;
        self.bytes() + entries + self.queues.values().map(items).sum::<usize>()
    }

    /// Bytes of all keys and values.
    pub(super) fn bytes(&self) -> usize {
        let values = self.values.iter().map(|(key, value)| key.len() + value.bytes.len());
        let queues = self.queues.iter().map(|(key, queue)| key.len() + queue.iter().map(Bytes::len).sum::<usize>());
        values.sum::<usize>() + queues.sum::<usize>()
    }
}
