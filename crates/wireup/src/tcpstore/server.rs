//! The server: bytes of connections go in, replies come out.

use std::collections::HashMap;

use bytes::Bytes;

use super::map::Map;
use super::request::{self, MAGIC, MOST, Parsed, Request, Seen, Violation};
use super::tasks::{Lookup, Task};
use super::waiting::Waiting;

/// Replies that a connection has not read, in bytes: none of its requests is served beyond them. A request that is served
/// may exceed them, since its client waits for the reply.
pub const MAX_UNREAD: usize = 256 << 10;
/// The bytes of an unfinished request get as much room as they have, but at least this.
const FIRST_ROOM: usize = 4 << 10;
/// A value is copied into its reply up to this; a larger one is shared with it.
pub(super) const COPIED: usize = 4 << 10;
/// Requests, and keys of a request, that are served to a client before the others have their turn: less than a millisecond.
const TURN: usize = 1 << 10;
/// A client that has added this part (1 / n) of what the store may hold, or less, may still add when it is full.
const MODEST: usize = 1 << 10;
/// Such clients together may add this part.
const RESERVE: usize = 1 << 6;

const WAIT_CANCELED: &[u8] = &[1];

/// A connection, as its driver names it. No name is used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u32);

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send these bytes.
    Send { conn: ConnId, bytes: Bytes },
    /// Close the connection, which the server has forgotten.
    Close { conn: ConnId, violation: Violation },
}

#[derive(Default, Debug)]
pub(super) struct Conn {
    is_valid: bool,
    /// The beginning of a request.
    partial: Vec<u8>,
    seen: Seen,
    /// Pairs of a `MULTI_SET` that are still to come.
    pairs: u64,
    /// Bytes sent to it that it may not have read.
    pub(super) unread: usize,
    /// The request of many keys that is being served.
    pub(super) task: Option<Task>,
    /// What it has waited for is there. It is told so when its task is done.
    pub(super) is_woken: bool,
    /// Bytes that are not served until it has read what was sent, and the task is done.
    backlog: Vec<u8>,
    /// What its requests take, as it is counted.
    counted: usize,
    /// What it has made the store hold more, in all.
    added: usize,
    /// The queue of which it was told that there is something in it, and from which it has not taken it yet.
    called: Option<Box<[u8]>>,
}

/// torch's store.
#[derive(Debug)]
pub struct Server {
    pub(super) conns: HashMap<ConnId, Conn>,
    pub(super) map: Map,
    pub(super) waiting: Waiting,
    /// Requests and keys of a turn.
    pub(super) turn: usize,
    /// Those that are left to the client that is being served.
    pub(super) left: usize,
    /// The memory of requests that are unfinished or not served.
    unserved: usize,
    /// What all may take.
    pub(super) most: usize,
}

impl Default for Server {
    fn default() -> Server {
        let (conns, map, waiting) = Default::default();
        Server { conns, map, waiting, turn: TURN, left: 0, unserved: 0, most: MOST }
    }
}

impl Server {
    pub fn new() -> Server {
        Server::default()
    }

    /// A client has connected.
    pub fn opened(&mut self, conn: ConnId) {
        self.conns.insert(conn, Conn::default());
    }

    /// Bytes arrived from a client that has read all but `unread` bytes of what was sent to it; they may begin and end anywhere in a
    /// request. Effects are appended.
    pub fn received(&mut self, id: ConnId, bytes: &[u8], unread: usize, effects: &mut Vec<Effect>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.is_behind() {
            conn.backlog.extend_from_slice(bytes);
            return self.count(id);
        }
        conn.unread = unread;
        self.serve(id, bytes, effects);
    }

    /// Counts anew what the requests of a client take.
    fn count(&mut self, id: ConnId) {
        let held = self.held(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            self.unserved = self.unserved + held - std::mem::replace(&mut conn.counted, held);
        }
    }

    /// Whether requests of a client wait until it has read its replies, or others have had their turn. The driver calls
    /// [`Server::continue_with`] then.
    pub fn is_behind(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(Conn::is_behind)
    }

    /// It is the turn of a client that has read all but `unread` bytes, [`MAX_UNREAD`] or less.
    pub fn continue_with(&mut self, id: ConnId, unread: usize, effects: &mut Vec<Effect>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.unread = unread;
        let backlog = std::mem::take(&mut conn.backlog);
        self.serve(id, &backlog, effects);
    }

    /// Whether the driver is to call [`Server::tidy`] when others have had their turn.
    pub fn is_tidy(&self) -> bool {
        self.waiting.is_tidy()
    }

    /// Frees some of the memory of waits that are over.
    pub fn tidy(&mut self) {
        self.waiting.tidy(self.turn);
    }

    /// A client is gone.
    pub fn closed(&mut self, id: ConnId, effects: &mut Vec<Effect>) {
        self.waiting.cancel(id);
        let gone = self.conns.remove(&id);
        self.unserved -= gone.as_ref().map_or(0, |conn| conn.counted);
        self.call_another(gone.and_then(|conn| conn.called), effects);
    }

    /// Whether a client has sent the magic number.
    pub fn is_valid(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.is_valid)
    }

    /// How often something was stored or taken out since the store was empty: a client that only asks changes nothing.
    pub fn changes(&self) -> u64 {
        self.map.changes()
    }

    /// Bytes of all keys and values.
    pub fn stored(&self) -> usize {
        self.map.bytes()
    }

    /// The memory that all of it takes, about, with the requests that are not served.
    pub fn held_in_all(&self) -> usize {
        self.map.held() + self.unserved
    }

    /// Clients that wait for a key or in a barrier.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Keys and barriers that somebody waits for.
    #[cfg(test)]
    pub(super) fn awaited(&self) -> usize {
        self.waiting.awaited()
    }

    /// The bytes of memory that a client's unfinished and unserved requests take.
    pub fn held(&self, id: ConnId) -> usize {
        self.conns.get(&id).map_or(0, |conn| {
            let task = conn.task.as_ref().map_or(0, Task::held);
            conn.partial.capacity() + conn.backlog.capacity() + task
        })
    }

    fn serve(&mut self, id: ConnId, mut bytes: &[u8], effects: &mut Vec<Effect>) {
        let before = self.held_in_all();
        let mut served = self.requests(id, &mut bytes, effects);
        if let Some(conn) = self.conns.get_mut(&id).filter(|_| !bytes.is_empty()) {
            conn.backlog = bytes.to_vec();
        }
        self.count(id);
        let added = self.held_in_all().saturating_sub(before);
        let has_added = self.conns.get_mut(&id).map_or(0, |conn| {
            conn.added = conn.added.saturating_add(added);
            conn.added
        });
        // What one client has filled is no reason to end those that add little: they have a reserve.
        let most = if has_added <= self.most / MODEST { self.most + self.most / RESERVE } else { self.most };
        if self.held_in_all() > most && added > 0 {
            // Whoever adds nothing is served on: it may be about to delete.
            served = served.and(Err(Violation::Full));
        }
        if let Err(violation) = served {
            self.closed(id, effects);
            effects.push(Effect::Close { conn: id, violation });
        }
    }

    /// Serves each whole request while the client reads its replies, and keeps the beginning of the last.
    fn requests(&mut self, id: ConnId, bytes: &mut &[u8], effects: &mut Vec<Effect>) -> Result<(), Violation> {
        self.left = self.turn;
        // As much as this turn may add.
        self.tidy();
        if let Some(task) = self.conns.get_mut(&id).and_then(|conn| conn.task.take()) {
            self.resume(id, task, effects);
        }
        while let Some(conn) = self.conns.get_mut(&id) {
            if bytes.is_empty() || self.left == 0 || conn.unread > MAX_UNREAD || conn.task.is_some() {
                break;
            }
            let in_pairs = conn.pairs > 0;
            if conn.partial.is_empty() {
                match conn.parse(bytes, in_pairs)? {
                    Parsed::Whole(request, length) => {
                        *bytes = &bytes[length..];
                        self.request(id, request, None, effects)?;
                    }
                    Parsed::Needs(length) => conn.keep(bytes, length),
                }
                continue;
            }
            let mut partial = std::mem::take(&mut conn.partial);
            let mut seen = conn.seen;
            let needs = match request::parse(&partial, in_pairs, &mut seen)? {
                Parsed::Needs(length) => length,
                // It was not whole when it was kept.
                Parsed::Whole(_, length) => length,
            };
            conn.seen = seen;
            let more = bytes.len().min(needs.saturating_sub(partial.len()));
            extend(&mut partial, &bytes[..more], needs);
            *bytes = &bytes[more..];
            if partial.len() < needs {
                conn.partial = partial;
                continue;
            }
            let whole = Bytes::from(partial);
            match conn.parse(&whole, in_pairs)? {
                Parsed::Whole(request, _) => self.request(id, request, Some(&whole), effects)?,
                Parsed::Needs(_) => conn.partial = whole.into(),
            }
        }
        Ok(())
    }

    /// Serves one request. Its bytes are `whole`, if they came in parts.
    fn request(
        &mut self,
        id: ConnId,
        request: Request<'_>,
        whole: Option<&Bytes>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if !conn.is_valid {
            conn.is_valid = request == Request::Validate(MAGIC);
            return if conn.is_valid { Ok(()) } else { Err(Violation::NoMagic) };
        }
        self.left = self.left.saturating_sub(1);
        conn.pairs = conn.pairs.saturating_sub(1);
        if conn.called.is_some() && !matches!(request, Request::QueuePop { .. }) {
            // It has timed out, and does something else now.
            let called = conn.called.take();
            self.call_another(called, effects);
        }
        match request {
            Request::Validate(_) => return Err(Violation::UnknownOperation(0)),
            Request::Ping(nonce) => self.send(id, Bytes::copy_from_slice(&nonce), effects),
            Request::Set { key, value } => {
                self.map.set(key, owned(value, whole));
                self.key_is_there(key, effects);
            }
            Request::CompareSet { key, expected, desired } => {
                self.compare_set(id, key, expected, desired, whole, effects);
            }
            Request::Get { key } => {
                let value = self.map.get(key).cloned().unwrap_or_default();
                self.send_value(id, None, value, effects);
            }
            Request::Add { key, delta } => {
                let sum = self.map.add(key, delta)?;
                self.key_is_there(key, effects);
                self.send(id, Bytes::copy_from_slice(&sum.to_le_bytes()), effects);
            }
            Request::Check(keys) => self.look_up(id, Lookup::Check, keys, whole, effects),
            Request::Wait(keys) => {
                self.waiting.begin(id);
                self.look_up(id, Lookup::Wait, keys, whole, effects);
            }
            Request::NumKeys => self.send_count(id, self.map.len(), effects),
            Request::Delete { key } => {
                let deleted = self.map.delete(key);
                self.send_count(id, deleted.into(), effects);
            }
            Request::Append { key, value } => {
                self.map.append(key, value);
                self.key_is_there(key, effects);
            }
            Request::MultiGet(keys) => self.look_up(id, Lookup::MultiGet, keys, whole, effects),
            Request::MultiSet { pairs } => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.pairs = pairs;
                }
            }
            Request::CancelWait => {
                self.waiting.cancel(id);
                self.send(id, Bytes::from_static(WAIT_CANCELED), effects);
            }
            Request::QueuePush { key, value } => {
                self.map.push(key, owned(value, whole));
                self.call(key, effects);
            }
            Request::QueuePop { key } => self.pop(id, key, effects),
            Request::QueueLen { key } => self.send_count(id, self.map.queue_len(key), effects),
            Request::ListKeys => self.list_keys(id, effects),
            Request::Barrier { key, world_size } => {
                let count = self.map.add(key, 1)?;
                self.key_is_there(key, effects);
                self.waiting.begin_barrier(id, key, world_size);
                let passed = self.waiting.barrier_reached(key, count);
                self.stop_waiting(passed, effects);
            }
        }
        Ok(())
    }

    fn compare_set(
        &mut self,
        id: ConnId,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        whole: Option<&Bytes>,
        effects: &mut Vec<Effect>,
    ) {
        let reply = match self.map.get(key) {
            Some(present) if present != expected => present.clone(),
            // As torch: nothing is stored, and the client is told the value that it has expected.
            None if !expected.is_empty() => Bytes::copy_from_slice(expected),
            Some(_) | None => {
                let value = owned(desired, whole);
                self.map.set(key, value.clone());
                self.key_is_there(key, effects);
                value
            }
        };
        self.send_value(id, None, reply, effects);
    }

    fn pop(&mut self, id: ConnId, key: &[u8], effects: &mut Vec<Effect>) {
        let called = self.conns.get_mut(&id).and_then(|conn| conn.called.take());
        let (length, first) = self.map.pop(key);
        let length = (length as i64).to_le_bytes();
        match first {
            Some(first) => self.send_value(id, Some(length), first, effects),
            None => self.send(id, Bytes::copy_from_slice(&length), effects),
        }
        // It may have taken from another queue than the one that it was called for.
        self.call_another(called.filter(|called| **called != *key), effects);
    }

    fn key_is_there(&mut self, key: &[u8], effects: &mut Vec<Effect>) {
        let woken = self.waiting.key_is_there(key);
        self.stop_waiting(woken, effects);
    }

    fn stop_waiting(&mut self, conns: Vec<ConnId>, effects: &mut Vec<Effect>) {
        self.left = self.left.saturating_sub(conns.len());
        for conn in conns {
            self.wake(conn, effects);
        }
    }

    /// There is something in a queue: wakes the first that waits for it.
    fn call(&mut self, key: &[u8], effects: &mut Vec<Effect>) {
        if let Some(conn) = self.waiting.queue_has_one_more(key) {
            if let Some(conn) = self.conns.get_mut(&conn) {
                conn.called = Some(key.into());
            }
            self.wake(conn, effects);
        }
    }

    /// Somebody was woken for a queue and did not take from it: wakes another one, if there is still something in it.
    fn call_another(&mut self, called: Option<Box<[u8]>>, effects: &mut Vec<Effect>) {
        if let Some(key) = called.filter(|key| self.map.has_queue(key)) {
            self.call(&key, effects);
        }
    }

    fn send_count(&mut self, id: ConnId, count: usize, effects: &mut Vec<Effect>) {
        self.send(id, Bytes::copy_from_slice(&(count as i64).to_le_bytes()), effects);
    }

    /// Sends a value behind its length, and behind what comes before it.
    fn send_value(&mut self, id: ConnId, before: Option<[u8; 8]>, value: Bytes, effects: &mut Vec<Effect>) {
        let is_small = value.len() <= COPIED;
        let mut head = Vec::with_capacity(16 + if is_small { value.len() } else { 0 });
        head.extend(before.into_iter().flatten());
        head.extend_from_slice(&(value.len() as u64).to_le_bytes());
        if is_small {
            head.extend_from_slice(&value);
            self.send(id, head.into(), effects);
        } else {
            self.send(id, head.into(), effects);
            self.send(id, value, effects);
        }
    }

    pub(super) fn send(&mut self, id: ConnId, bytes: Bytes, effects: &mut Vec<Effect>) {
        if let Some(conn) = self.conns.get_mut(&id).filter(|_| !bytes.is_empty()) {
            conn.unread += bytes.len();
            effects.push(Effect::Send { conn: id, bytes });
        }
    }
}

impl Conn {
    fn is_behind(&self) -> bool {
        !self.backlog.is_empty() || self.task.is_some()
    }

    fn parse<'a>(&mut self, bytes: &'a [u8], in_pairs: bool) -> Result<Parsed<'a>, Violation> {
        if !self.is_valid && bytes.first().is_some_and(|operation| *operation != 0) {
            return Err(Violation::NoMagic);
        }
        request::parse(bytes, in_pairs, &mut self.seen)
    }

    /// Keeps the beginning of a request, which needs so many bytes.
    fn keep(&mut self, bytes: &mut &[u8], needs: usize) {
        let mut partial = Vec::new();
        extend(&mut partial, bytes, needs);
        self.partial = partial;
        *bytes = &[];
    }
}

/// Appends to an unfinished request. A client gets no more room than it has filled already, whatever length it announces;
/// a request that is whole has no room left.
fn extend(partial: &mut Vec<u8>, more: &[u8], needs: usize) {
    let length = partial.len() + more.len();
    if partial.capacity() < length {
        let room = needs.min(FIRST_ROOM.max(2 * length)).max(length);
        partial.reserve_exact(room - partial.len());
    }
    partial.extend_from_slice(more);
}

/// The bytes of a value that is stored. A large one that came in parts is not copied again.
fn owned(value: &[u8], whole: Option<&Bytes>) -> Bytes {
    match whole {
        Some(whole) if value.len() > COPIED && value.len() * 20 > whole.len() * 19 => whole.slice_ref(value),
        Some(_) | None => Bytes::copy_from_slice(value),
    }
}
