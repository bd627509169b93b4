//! The front's stdin, copied to every rank (`--stdin all`).

use bytes::{Buf, Bytes};
use rankrun_sys::poll::{Interest, Poller};
use rankrun_wire::ToFront;

use crate::node::Node;
use crate::token::Token;

impl Node {
    /// A piece of stdin for every rank, or its end.
    pub(crate) fn stdin_bytes(&mut self, bytes: Option<Vec<u8>>, poller: &Poller) {
        let bytes = bytes.map(Bytes::from);
        for index in 0..self.slots.len() {
            let Some(stdin) = &mut self.slots[index].stdin else { continue };
            // An empty piece in the queue is the end.
            stdin.queue.push_back(bytes.clone().unwrap_or_default());
            if stdin.queue.len() > 1 {
                continue;
            }
            match poller.add(&stdin.pipe, Token::Stdin(index).encode(), Interest::Write) {
                Ok(()) => self.stdin_ready(index, poller),
                Err(error) => {
                    // Nobody would tell us when there is room: an early end is better than a rank that waits for ever.
                    let (rank, reason) = (self.slots[index].rank(), rankrun_sys::reason(&error));
                    self.slots[index].stdin = None;
                    self.outbox.push(ToFront::Note(format!("rank {rank}: its stdin ends early: {reason}")));
                }
            }
        }
        self.tell_stdin_taken();
    }

    /// A rank's stdin can be written.
    pub(crate) fn stdin_ready(&mut self, index: usize, poller: &Poller) {
        let Some(stdin) = &mut self.slots[index].stdin else { return };
        while let Some(bytes) = stdin.queue.front_mut() {
            if bytes.is_empty() {
                self.close_stdin(index, poller);
                return;
            }
            match rustix::io::write(&stdin.pipe, bytes) {
                Ok(count) => {
                    bytes.advance(count);
                    if bytes.is_empty() {
                        stdin.queue.pop_front();
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                // The rank has closed its stdin, or is gone: the others go on.
                Err(_) => {
                    self.close_stdin(index, poller);
                    return;
                }
            }
        }
        // It is open and in the set, so this cannot fail.
        drop(poller.remove(&stdin.pipe));
        self.tell_stdin_taken();
    }

    fn close_stdin(&mut self, index: usize, poller: &Poller) {
        if let Some(stdin) = self.slots[index].stdin.take() {
            // It is closed now, which takes it out of the set too.
            drop(poller.remove(&stdin.pipe));
        }
        self.tell_stdin_taken();
    }

    /// The slowest rank decides when the front may send more.
    fn tell_stdin_taken(&mut self) {
        let waiting = self.slots.iter().filter_map(|slot| slot.stdin.as_ref()).any(|stdin| !stdin.queue.is_empty());
        if !waiting {
            self.outbox.push(ToFront::StdinTaken(0));
        }
    }
}
