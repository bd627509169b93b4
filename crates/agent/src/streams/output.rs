//! The way of the ranks' output through the agent: read, spooled, sent as far as the front's credits go.

use std::os::fd::AsFd;

use rankrun_core::Stream;
use rankrun_output::{Full, Record};
use rankrun_sys::poll::{Interest, Poller};
use rankrun_wire::ToFront;

use super::capture::Read;
use super::{Link, LinkError};
use crate::driver::{Token, wall};
use crate::team::{Hands, Team};

/// Reads from one capture per wake-up: one busy rank must not keep the loop from the others.
const READS: usize = 4;
/// Reads from a worker that is gone: what its pipe can hold, and no more if somebody who was let go still writes.
const LAST_READS: usize = 64;

impl Team {
    /// A capture is readable.
    pub(crate) fn read_output(&mut self, hands: &mut Hands, index: usize, stream: Stream) {
        self.take_in(hands, index, stream, READS);
    }

    fn take_in(&mut self, hands: &mut Hands, index: usize, stream: Stream, reads: usize) {
        for _ in 0..reads {
            if !self.overflow.is_empty() && reads == READS {
                self.stall(&hands.poller);
                return;
            }
            let slot = &mut self.slots[index];
            let Some(capture) = &slot.captures[stream.index()] else { return };
            match capture.read(&mut self.buffer) {
                Read::Bytes(_) if self.is_discarding => {}
                Read::Bytes(bytes) => {
                    slot.under_way[stream.index()] += 1;
                    let record = Record { rank: slot.id.rank, stream, time: wall(), bytes };
                    if let Err(Full { record, .. }) = self.push(record) {
                        self.overflow.push_back(record);
                    }
                }
                Read::Empty => return,
                Read::End => {
                    self.close_capture(index, stream, &hands.poller);
                    self.tell_closed(&mut hands.outbox, index);
                    return;
                }
            }
        }
    }

    fn push(&mut self, record: Record) -> Result<(), Full> {
        if !self.overflow.is_empty() {
            return Err(Full { record, source: None });
        }
        self.spool.push(record)
    }

    fn close_capture(&mut self, index: usize, stream: Stream, poller: &Poller) {
        let slot = &mut self.slots[index];
        if let Some(capture) = slot.captures[stream.index()].take()
            && slot.polled[stream.index()]
        {
            let _ = poller.remove(&capture);
            slot.polled[stream.index()] = false;
        }
    }

    /// Takes in what a worker that is gone has left in its pipes. No end of file is waited for (K-6).
    pub(crate) fn drain(&mut self, hands: &mut Hands, index: usize) {
        for stream in Stream::ALL {
            self.take_in(hands, index, stream, LAST_READS);
            self.close_capture(index, stream, &hands.poller);
        }
    }

    /// Tells the front of each stream that has ended and whose bytes have all been sent.
    pub(crate) fn tell_closed(&mut self, outbox: &mut Vec<ToFront>, index: usize) {
        let slot = &mut self.slots[index];
        for stream in Stream::ALL {
            let at = stream.index();
            if slot.captures[at].is_none() && slot.under_way[at] == 0 && !slot.closed[at] {
                slot.closed[at] = true;
                outbox.push(ToFront::Closed { rank: slot.id.rank, stream });
            }
        }
    }

    /// Sends messages and output, and takes the captures up again when there is room.
    pub(crate) fn send_output(&mut self, hands: &mut Hands, link: &mut Link) -> Result<(), LinkError> {
        let mut sent: Vec<(rankrun_core::Rank, Stream)> = Vec::new();
        loop {
            link.send(&mut self.spool, |record| sent.push((record.rank, record.stream)))?;
            let mut moved = false;
            while self.spool.has_room()
                && let Some(record) = self.overflow.pop_front()
            {
                moved = true;
                if let Err(Full { record, .. }) = self.spool.push(record) {
                    self.overflow.push_front(record);
                    break;
                }
            }
            for (rank, stream) in sent.drain(..) {
                let Some(slot) = self.machine.slot_of(rank) else { continue };
                self.slots[slot.index()].under_way[stream.index()] -= 1;
                self.tell_closed(&mut hands.outbox, slot.index());
            }
            self.tell_drained(&mut hands.outbox);
            for message in hands.outbox.drain(..) {
                link.say(message);
            }
            if !(moved || link.has_unsent_messages()) {
                break;
            }
        }
        if self.is_stalled && self.overflow.is_empty() && self.spool.has_room() {
            self.resume(&hands.poller);
        }
        Ok(())
    }

    /// The spool is full: the ranks' pipes fill up, and the ranks wait.
    fn stall(&mut self, poller: &Poller) {
        if self.is_stalled {
            return;
        }
        self.is_stalled = true;
        for slot in &mut self.slots {
            for stream in Stream::ALL {
                if slot.polled[stream.index()]
                    && let Some(capture) = &slot.captures[stream.index()]
                {
                    let _ = poller.remove(capture);
                    slot.polled[stream.index()] = false;
                }
            }
        }
    }

    fn resume(&mut self, poller: &Poller) {
        self.is_stalled = false;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            for stream in Stream::ALL {
                if !slot.polled[stream.index()]
                    && let Some(capture) = &slot.captures[stream.index()]
                    && slot.started
                {
                    let token = Token::Output(index, stream).encode();
                    slot.polled[stream.index()] = poller.add(capture.as_fd(), token, Interest::Read).is_ok();
                }
            }
        }
    }

    /// The front is lost. The ranks' output is read and forgotten, so that none of them blocks on its way out.
    pub(crate) fn drop_output(&mut self, hands: &mut Hands) {
        self.is_discarding = true;
        self.spool.clear();
        self.overflow.clear();
        if self.is_stalled {
            self.resume(&hands.poller);
        }
    }
}
