//! What the front sends of stdin, copied to every rank that reads it.

use bytes::{Buf, Bytes};
use rankrun_core::Slot;
use rankrun_sys::poll::Interest;
use rankrun_wire::ToFront;

use super::{Hands, Team};
use crate::driver::token::Token;

impl Team {
    /// A piece of stdin for every rank, or its end.
    pub(crate) fn stdin_bytes(&mut self, hands: &mut Hands, bytes: Option<Vec<u8>>) {
        let bytes = bytes.map(Bytes::from);
        self.stdin_owed = true;
        self.has_stdin_ended |= bytes.is_none();
        self.stdin_read |= bytes.is_none();
        for index in 0..self.slots.len() {
            // An empty piece in the queue is the end.
            let piece = bytes.clone().unwrap_or_default();
            let slot = &mut self.slots[index];
            match &mut slot.stdin {
                Some(stdin) => stdin.queue.push_back(piece),
                // A rank that is not started yet gets it then, or its successor; one that has closed its stdin, or is gone, never.
                None if slot.awaits_start || self.machine.is_undecided(Slot(index as u32)) => {
                    slot.stdin_backlog.push_back(piece)
                }
                None => {}
            }
            if slot.started && slot.stdin.as_ref().is_some_and(|stdin| stdin.queue.len() == 1) {
                self.write_stdin(hands, index);
            }
        }
        self.report_stdin_taken(hands);
    }

    /// A rank has been started: what came before it is for it, too.
    pub(crate) fn stdin_started(&mut self, hands: &mut Hands, index: usize) {
        if self.slots[index].stdin.as_ref().is_some_and(|stdin| !stdin.queue.is_empty()) {
            self.write_stdin(hands, index);
        }
    }

    /// Begins to write what waits for a rank.
    fn write_stdin(&mut self, hands: &mut Hands, index: usize) {
        if let Some(stdin) = &self.slots[index].stdin {
            match hands.poller.add(&stdin.pipe, Token::Stdin(self.place(Slot(index as u32))).encode(), Interest::Write)
            {
                Ok(()) => self.stdin_ready(hands, index),
                Err(error) => {
                    // Nobody would tell us when there is room: an early end is better than a rank that waits for ever.
                    let (rank, reason) = (self.slots[index].rank(), rankrun_sys::reason(&error));
                    self.slots[index].stdin = None;
                    hands.outbox.push(ToFront::Note(format!("rank {rank}: its stdin ends early: {reason}")));
                }
            }
        }
        self.report_stdin_taken(hands);
    }

    /// A rank's stdin can be written.
    pub(crate) fn stdin_ready(&mut self, hands: &mut Hands, index: usize) {
        let Some(stdin) = &mut self.slots[index].stdin else { return };
        while let Some(bytes) = stdin.queue.front_mut() {
            if bytes.is_empty() {
                self.close_stdin(hands, index);
                return;
            }
            match rustix::io::write(&stdin.pipe, bytes) {
                Ok(count) => {
                    bytes.advance(count);
                    if bytes.is_empty() {
                        stdin.queue.pop_front();
                        self.stdin_read = true;
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                // The rank has closed its stdin, or is gone: the others go on.
                Err(_) => {
                    self.close_stdin(hands, index);
                    return;
                }
            }
        }
        // It is open and in the set, so this cannot fail.
        drop(hands.poller.remove(&stdin.pipe));
        self.report_stdin_taken(hands);
    }

    fn close_stdin(&mut self, hands: &mut Hands, index: usize) {
        if let Some(stdin) = self.slots[index].stdin.take() {
            // It is closed now, which takes it out of the set too.
            drop(hands.poller.remove(&stdin.pipe));
        }
        self.report_stdin_taken(hands);
    }

    /// The slowest rank decides when the front may send more.
    pub(crate) fn report_stdin_taken(&mut self, hands: &mut Hands) {
        let waiting = self.slots.iter().zip(self.machine.slots()).any(|(slot, place)| {
            let awaits = slot.awaits_start || self.machine.is_undecided(place);
            (awaits && !slot.stdin_backlog.is_empty())
                || slot.stdin.as_ref().is_some_and(|stdin| !stdin.queue.is_empty())
        });
        if !waiting && std::mem::take(&mut self.stdin_owed) {
            let is_read = std::mem::take(&mut self.stdin_read);
            hands.outbox.push(ToFront::StdinTaken { group: self.group(), is_read });
        }
    }
}
