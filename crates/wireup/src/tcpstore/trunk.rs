//! Many connections between one node and the store, within the job's own connection.
//!
//! Both ends have a [`Trunk`]. Bytes of a connection wait at their end until the other end has read most of what was sent before: a
//! client that does not read, or a store that is busy with others, holds up its own connection alone. What is under way in all is limited
//! too, since it waits in the memory of whoever passes it on.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use rankrun_core::Attempt;
use rankrun_core::relay::{Parcel, Word};

/// Bytes of one connection that are sent and not read by the other end.
pub const WINDOW: usize = 256 << 10;
/// Bytes of all connections that are sent and have not arrived.
const UNDER_WAY: usize = 1 << 20;
/// Bytes in a parcel, about.
const PARCEL: usize = 64 << 10;
/// Bytes of a connection in a parcel, while others wait.
const TURN: usize = 16 << 10;

/// One end.
#[derive(Default, Debug)]
pub struct Trunk {
    lanes: HashMap<u32, Lane>,
    /// Those that have something to send.
    ready: VecDeque<u32>,
    /// What needs no window, in order.
    words: Vec<(u32, Word)>,
    /// Bytes that were sent, of which the other end has not said that they have arrived.
    under_way: usize,
    /// Bytes that have arrived, of which the other end was not told.
    arrived: usize,
}

/// A connection.
#[derive(Default, Debug)]
struct Lane {
    out: VecDeque<Bytes>,
    /// Bytes in `out`.
    queued: usize,
    /// Bytes that were sent and are not read.
    unread: usize,
    /// Bytes that we have read, of which the other end was not told.
    read: usize,
    is_ready: bool,
    /// The end follows what is in `out`.
    is_closing: bool,
}

/// What the other end has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    Opened(u32),
    /// [`Trunk::read`] is to follow, at once or later.
    Bytes(u32, Vec<u8>),
    /// There are fewer bytes that it has not read.
    Read(u32),
    Closed(u32),
}

impl Trunk {
    /// A client has connected, at our end.
    pub fn open(&mut self, conn: u32) {
        self.lanes.insert(conn, Lane::default());
        self.words.push((conn, Word::Opened));
    }

    /// Sends bytes, as soon as that may be.
    pub fn send(&mut self, conn: u32, bytes: Bytes) {
        let Some(lane) = self.lanes.get_mut(&conn).filter(|lane| !lane.is_closing && !bytes.is_empty()) else { return };
        lane.queued += bytes.len();
        lane.out.push_back(bytes);
        self.is_ready(conn);
    }

    /// We have read so many bytes of the other end's.
    pub fn read(&mut self, conn: u32, count: usize) {
        let Some(lane) = self.lanes.get_mut(&conn) else { return };
        lane.read += count;
        // With less it still has most of its window.
        if lane.read >= WINDOW / 4 {
            self.tell_read(conn);
        }
    }

    /// Ends a connection, after what was sent.
    pub fn close(&mut self, conn: u32) {
        let Some(lane) = self.lanes.get_mut(&conn) else { return };
        lane.is_closing = true;
        self.is_ready(conn);
    }

    /// Bytes that the other end has not read, as far as is known here: those that are to be sent among them.
    pub fn unread(&self, conn: u32) -> usize {
        self.lanes.get(&conn).map_or(0, |lane| lane.queued + lane.unread)
    }

    /// How many more bytes may be sent before they wait here.
    pub fn room(&self, conn: u32) -> usize {
        WINDOW.saturating_sub(self.unread(conn))
    }

    /// Connections that are open.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    fn is_ready(&mut self, conn: u32) {
        if let Some(lane) = self.lanes.get_mut(&conn).filter(|lane| !lane.is_ready && lane.has_something()) {
            lane.is_ready = true;
            self.ready.push_back(conn);
        }
    }

    fn tell_read(&mut self, conn: u32) {
        let read = self.lanes.get_mut(&conn).map_or(0, |lane| std::mem::take(&mut lane.read));
        if read > 0 {
            self.words.push((conn, Word::Read(read as u64)));
        }
    }

    /// The next parcel for the other end; `None` if there is nothing to tell, or nothing that may be sent now.
    pub fn parcel(&mut self, attempt: Attempt) -> Option<Parcel> {
        let mut left = PARCEL;
        while left > 0 {
            let Some(conn) = self.ready.pop_front() else { break };
            let may = left.min(UNDER_WAY.saturating_sub(self.under_way));
            let turn = if self.ready.is_empty() { may } else { may.min(TURN) };
            let Some(lane) = self.lanes.get_mut(&conn) else { continue };
            if turn == 0 && lane.queued > 0 {
                self.ready.push_front(conn);
                break;
            }
            let bytes = lane.take(turn);
            lane.is_ready = false;
            let (is_over, count) = (lane.is_over(), bytes.len());
            if count > 0 {
                self.tell_read(conn);
                self.words.push((conn, Word::Bytes(bytes)));
                self.under_way += count;
                left -= count;
            }
            match is_over {
                true => {
                    self.lanes.remove(&conn);
                    self.words.push((conn, Word::Closed));
                }
                false => self.is_ready(conn),
            }
        }
        if self.words.is_empty() && self.arrived < UNDER_WAY / 4 {
            return None;
        }
        let arrived = std::mem::take(&mut self.arrived) as u64;
        Some(Parcel { attempt, arrived, words: std::mem::take(&mut self.words) })
    }

    /// A parcel of the other end. News are appended.
    pub fn take(&mut self, parcel: Parcel, news: &mut Vec<News>) {
        self.under_way = self.under_way.saturating_sub(parcel.arrived as usize);
        for (conn, word) in parcel.words {
            match word {
                Word::Opened => {
                    self.lanes.insert(conn, Lane::default());
                    news.push(News::Opened(conn));
                }
                Word::Bytes(bytes) => {
                    self.arrived += bytes.len();
                    match self.lanes.get(&conn) {
                        // Nobody reads it: the other end may go on, up to its own end.
                        Some(lane) if lane.is_closing => self.read(conn, bytes.len()),
                        Some(_) => news.push(News::Bytes(conn, bytes)),
                        None => {}
                    }
                }
                Word::Read(count) => {
                    if let Some(lane) = self.lanes.get_mut(&conn) {
                        lane.unread = lane.unread.saturating_sub(count as usize);
                        news.push(News::Read(conn));
                        self.is_ready(conn);
                    }
                }
                Word::Closed => {
                    if self.lanes.remove(&conn).is_some_and(|lane| !lane.is_closing) {
                        news.push(News::Closed(conn));
                    }
                }
            }
        }
    }
}

impl Lane {
    fn has_something(&self) -> bool {
        (self.queued > 0 && self.unread < WINDOW) || self.is_over()
    }

    fn is_over(&self) -> bool {
        self.is_closing && self.queued == 0
    }

    /// Takes what may be sent now, and no more than `most`.
    fn take(&mut self, most: usize) -> Vec<u8> {
        let mut room = most.min(WINDOW.saturating_sub(self.unread)).min(self.queued);
        let mut taken = Vec::with_capacity(room);
        while let Some(first) = self.out.front_mut().filter(|_| room > 0) {
            let part = first.split_to(room.min(first.len()));
            room -= part.len();
            taken.extend_from_slice(&part);
            if first.is_empty() {
                self.out.pop_front();
            }
        }
        self.queued -= taken.len();
        self.unread += taken.len();
        taken
    }
}

#[cfg(test)]
#[path = "trunk_tests.rs"]
mod tests;
