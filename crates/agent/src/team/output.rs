//! The way of the ranks' output through the agent: read, spooled, sent as far as the front's credits go.

use std::os::fd::AsFd;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::job::{AgentEvent, WorkerEvent};
use rankrun_core::{Slot, Stream, WorkerId};
use rankrun_output::{Completion, Record, SpoolError};
use rankrun_sys::poll::{Interest, Poller};
use rankrun_wire::ToFront;
use rankrun_wire::frame::MAX_OUTPUT;

use super::{Hands, Team};
use crate::driver::clock::wall;
use crate::driver::io::{IoThread, Job};
use crate::driver::token::{Place, Token};
use crate::streams::{Link, LinkError, Read};

/// Reads from one capture per wake-up: one busy rank must not keep the loop from the others.
const READS: usize = 4;
/// Reads from a worker that is gone: what its pipe can hold, and no more if somebody who was let go still writes.
const LAST_READS: usize = 64;
/// Records that wait in front of a full spool, beyond which a text of an MPI library is dropped: such a rank does not wait for room.
const MAX_OVERFLOW: usize = 4096;

impl Team {
    /// A capture is readable.
    pub(crate) fn read_output(&mut self, hands: &mut Hands, slot: Slot, stream: Stream) {
        self.take_in(hands, slot, stream, READS);
    }

    fn take_in(&mut self, hands: &mut Hands, slot: Slot, stream: Stream, reads: usize) {
        for _ in 0..reads {
            if reads == READS && !self.output.overflow[stream.index()].is_empty() {
                self.stall(stream, &hands.poller);
                return;
            }
            let worker = &mut self.slots[slot.index()];
            let Some(capture) = &worker.captures[stream.index()] else { return };
            match capture.read(&mut self.output.buffer) {
                Read::Bytes(_) if self.output.is_discarding => {}
                Read::Bytes(bytes) => {
                    worker.under_way[stream.index()] += 1;
                    self.output.push(Record { worker: worker.id, stream, time: wall(), bytes });
                }
                Read::Empty => return,
                Read::End => {
                    self.close_capture(slot, stream, &hands.poller);
                    let now = hands.clock.now();
                    self.report_closed(&mut hands.outbox, now, slot);
                    return;
                }
            }
        }
    }

    /// Takes in a text that a rank wrote through its MPI library, behind what it wrote to its own descriptor before.
    pub(crate) fn take_text(&mut self, hands: &mut Hands, slot: Slot, stream: Stream, text: &[u8]) {
        self.take_in(hands, slot, stream, LAST_READS);
        let worker = &mut self.slots[slot.index()];
        if worker.captures[stream.index()].is_none() {
            // The rank writes to the terminal itself, or has closed its end.
            let text = String::from_utf8_lossy(text);
            let lines = text.lines().map(|line| ToFront::Note(format!("rank {}: {line}", worker.id.rank)));
            return hands.outbox.extend(lines);
        }
        if self.output.is_discarding || self.output.overflow[stream.index()].len() > MAX_OVERFLOW {
            return;
        }
        for piece in text.chunks(MAX_OUTPUT) {
            worker.under_way[stream.index()] += 1;
            let bytes = Bytes::copy_from_slice(piece);
            self.output.push(Record { worker: worker.id, stream, time: wall(), bytes });
        }
    }

    fn close_capture(&mut self, slot: Slot, stream: Stream, poller: &Poller) {
        let slot = &mut self.slots[slot.index()];
        if let Some(capture) = slot.captures[stream.index()].take()
            && slot.polled[stream.index()]
        {
            // It is closed now, which takes it out of the set too.
            drop(poller.remove(&capture));
            slot.polled[stream.index()] = false;
        }
    }

    /// Takes in what a worker that is gone has left in its pipes. No end of file is waited for (K-6).
    pub(crate) fn drain(&mut self, hands: &mut Hands, slot: Slot) {
        for stream in Stream::ALL {
            self.take_in(hands, slot, stream, LAST_READS);
            self.close_capture(slot, stream, &hands.poller);
        }
    }

    /// Reports each stream that has ended and whose bytes have all been sent.
    pub(crate) fn report_closed(&mut self, outbox: &mut Vec<ToFront>, at: Duration, slot: Slot) {
        let slot = &mut self.slots[slot.index()];
        for stream in Stream::ALL {
            let index = stream.index();
            if slot.captures[index].is_none() && slot.under_way[index] == 0 && !slot.closed[index] {
                slot.closed[index] = true;
                outbox.push(ToFront::Event(AgentEvent::Worker {
                    worker: slot.id,
                    at,
                    event: WorkerEvent::Closed(stream),
                }));
            }
        }
    }

    /// Sends messages and output, and takes the captures up again when there is room.
    pub(crate) fn send(&mut self, hands: &mut Hands, link: &mut Link) -> Result<(), LinkError> {
        let mut sent: Vec<(WorkerId, Stream)> = Vec::new();
        loop {
            for message in hands.outbox.drain(..) {
                link.queue(&message)?;
            }
            let output = &mut self.output;
            link.send_output(|credit| output.next(credit), |record| sent.push((record.worker, record.stream)))?;
            let moved = self.output.refill();
            for (worker, stream) in sent.drain(..) {
                let Some(slot) = self.machine.slot_of(worker.rank) else { continue };
                let under_way = &mut self.slots[slot.index()].under_way[stream.index()];
                // A spool file that another program has changed may repeat a record.
                *under_way = under_way.saturating_sub(1);
                let now = hands.clock.now();
                self.report_closed(&mut hands.outbox, now, slot);
            }
            if !moved && hands.outbox.is_empty() {
                break;
            }
        }
        for stream in Stream::ALL {
            if self.output.is_stalled(stream) && self.output.has_room(stream) {
                self.resume(stream, &hands.poller);
            }
        }
        Ok(())
    }

    /// Gives the I/O thread what is to be done with files. While it has no room, the spool fills up in memory, and then
    /// the captures are left alone.
    pub(crate) fn start_io(&mut self, io: &mut IoThread, now: Duration) {
        self.output.due = None;
        while io.has_room()
            && let Some(request) = self.output.spool.next_request(now)
        {
            if let Err(Job::Spool(_, refused)) = io.submit(Job::Spool(self.group(), request)) {
                // The thread is gone, as only a fault of ours could make it: the file is lost, and the spool is told so.
                self.output.spool.complete(refused.refuse());
                return;
            }
        }
        // A thread without room wakes the loop when it has some.
        self.output.due = self.output.spool.deadline().filter(|_| io.has_room());
    }

    /// The I/O thread has done something.
    pub(crate) fn spooled(&mut self, completion: Completion) {
        self.output.spool.complete(completion);
    }

    /// The spool has no room for a stream: its pipes fill up, and the ranks wait.
    fn stall(&mut self, stream: Stream, poller: &Poller) {
        let stalled = &mut self.output.is_stalled[stream.index()];
        if std::mem::replace(stalled, true) {
            return;
        }
        for slot in &mut self.slots {
            if slot.polled[stream.index()]
                && let Some(capture) = &slot.captures[stream.index()]
            {
                // What cannot be taken out is read as before: a capture reads nothing while its stream is stalled.
                slot.polled[stream.index()] = poller.remove(capture).is_err();
            }
        }
    }

    fn resume(&mut self, stream: Stream, poller: &Poller) {
        self.output.is_stalled[stream.index()] = false;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if !slot.polled[stream.index()]
                && let Some(capture) = &slot.captures[stream.index()]
                && slot.started
            {
                let place = Place { group: slot.id.group(), slot: Slot(index as u32) };
                let token = Token::Output(place, stream).encode();
                slot.polled[stream.index()] = poller.add(capture.as_fd(), token, Interest::Read).is_ok();
            }
        }
    }

    /// What waits in the spool cannot be read again. The front is told, and what comes is read and forgotten: the ranks do not
    /// wait for a disk that is broken.
    pub(crate) fn lose_output(&mut self, hands: &mut Hands, error: &SpoolError) {
        let text = format!("{error}: {}", rankrun_sys::reason(&error.source));
        hands.outbox.push(ToFront::OutputLost(text));
        self.drop_output(hands);
        for slot in self.machine.slots() {
            self.slots[slot.index()].under_way = [0, 0];
            let now = hands.clock.now();
            self.report_closed(&mut hands.outbox, now, slot);
        }
    }

    /// The front is lost. The ranks' output is read and forgotten, so that none of them blocks on its way out.
    pub(crate) fn drop_output(&mut self, hands: &mut Hands) {
        self.output.is_discarding = true;
        self.output.clear();
        for stream in Stream::ALL {
            if self.output.is_stalled(stream) {
                self.resume(stream, &hands.poller);
            }
        }
    }
}
