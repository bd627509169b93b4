//! Requests that name many keys, and answers that list them: they are served in parts, so that others have their turn, and
//! no more of an answer is made than [`MAX_UNREAD`].

use bytes::Bytes;

use super::names::Names;
use super::request::Keys;
use super::server::{COPIED, ConnId, Effect, MAX_UNREAD, Server};

const STOP_WAITING: &[u8] = &[0];
const READY: &[u8] = &[0];
const NOT_READY: &[u8] = &[1];

/// What is left of a request that is served in parts.
#[derive(Debug)]
pub(super) enum Task {
    /// The keys, as they were on the wire.
    LookUp { what: Lookup, keys: Bytes },
    /// The names that there were, and how many of them were listed.
    List { names: Names, listed: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lookup {
    Check,
    Wait,
    MultiGet,
}

impl Task {
    /// Whether a part of its answer may have been sent.
    fn is_being_answered(&self) -> bool {
        match self {
            Task::LookUp { what, .. } => *what == Lookup::MultiGet,
            Task::List { .. } => true,
        }
    }

    /// The bytes that it holds, besides names that the store has anyway.
    pub(super) fn held(&self) -> usize {
        match self {
            Task::LookUp { keys, .. } => keys.len(),
            Task::List { .. } => 0,
        }
    }
}

impl Server {
    /// The next part of a task.
    pub(super) fn resume(&mut self, id: ConnId, task: Task, effects: &mut Vec<Effect>) {
        match task {
            Task::LookUp { what, keys } => self.look_up(id, what, Keys::of_rest(&keys), Some(&keys), effects),
            Task::List { names, listed } => self.list(id, names, listed, Vec::new(), effects),
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.task.is_none() && std::mem::take(&mut conn.is_woken) {
            self.send(id, Bytes::from_static(STOP_WAITING), effects);
        }
    }

    /// Looks up the next keys of a list. What is left is a task.
    pub(super) fn look_up(
        &mut self,
        id: ConnId,
        what: Lookup,
        mut keys: Keys<'_>,
        whole: Option<&Bytes>,
        effects: &mut Vec<Effect>,
    ) {
        let mut reply = Vec::new();
        // Each part has one key at least, and so there is a last part.
        loop {
            let Some(key) = keys.next() else { return self.looked_up(id, what, reply, effects) };
            match what {
                Lookup::Check if self.map.has(key) => {}
                Lookup::Check => return self.send(id, Bytes::from_static(NOT_READY), effects),
                Lookup::Wait if self.map.has(key) => {}
                Lookup::Wait => self.waiting.add(id, key),
                Lookup::MultiGet => {
                    let value = self.map.get(key).cloned().unwrap_or_default();
                    reply.extend_from_slice(&(value.len() as u64).to_le_bytes());
                    if value.len() <= COPIED {
                        reply.extend_from_slice(&value);
                    } else {
                        self.send(id, std::mem::take(&mut reply).into(), effects);
                        self.send(id, value, effects);
                    }
                }
            }
            if !self.goes_on(id, reply.len()) {
                break;
            }
        }
        if keys.rest().is_empty() {
            return self.looked_up(id, what, reply, effects);
        }
        self.send(id, reply.into(), effects);
        let keys = whole.map_or_else(|| Bytes::copy_from_slice(keys.rest()), |whole| whole.slice_ref(keys.rest()));
        self.put_off(id, Task::LookUp { what, keys });
    }

    /// All keys of a list were looked up.
    fn looked_up(&mut self, id: ConnId, what: Lookup, reply: Vec<u8>, effects: &mut Vec<Effect>) {
        match what {
            Lookup::Check => self.send(id, Bytes::from_static(READY), effects),
            Lookup::Wait if self.waiting.is_over(id) => self.wake(id, effects),
            Lookup::Wait => {}
            Lookup::MultiGet => self.send(id, reply.into(), effects),
        }
    }

    pub(super) fn list_keys(&mut self, id: ConnId, effects: &mut Vec<Effect>) {
        let names = self.map.names();
        let count = (names.len() as i64).to_le_bytes();
        self.list(id, names, 0, count.into(), effects);
    }

    fn list(&mut self, id: ConnId, names: Names, mut listed: usize, mut reply: Vec<u8>, effects: &mut Vec<Effect>) {
        let mut goes_on = true;
        while goes_on && let Some(name) = names.get(listed) {
            reply.extend_from_slice(&(name.len() as u64).to_le_bytes());
            reply.extend_from_slice(name);
            listed += 1;
            goes_on = self.goes_on(id, reply.len());
        }
        self.send(id, reply.into(), effects);
        if listed < names.len() {
            self.put_off(id, Task::List { names, listed });
        }
    }

    /// Whether a request may go on after one more key, or its client's turn is over.
    fn goes_on(&mut self, id: ConnId, reply: usize) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0 && self.conns.get(&id).is_some_and(|conn| conn.unread + reply <= MAX_UNREAD)
    }

    fn put_off(&mut self, id: ConnId, task: Task) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.task = Some(task);
        }
    }

    /// What a client has waited for is there. It is not told so within another answer.
    pub(super) fn wake(&mut self, id: ConnId, effects: &mut Vec<Effect>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.task.as_ref().is_some_and(Task::is_being_answered) {
            conn.is_woken = true;
        } else {
            self.send(id, Bytes::from_static(STOP_WAITING), effects);
        }
    }
}
