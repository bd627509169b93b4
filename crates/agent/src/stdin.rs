//! The front's stdin, copied to every rank (`--stdin all`).

use bytes::Bytes;
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
            if stdin.queue.len() == 1 {
                let _ = poller.add(&stdin.pipe, Token::Stdin(index).encode(), Interest::Write);
                self.stdin_ready(index, poller);
            }
        }
        self.tell_stdin_taken();
    }

    /// A rank's stdin can be written.
    pub(crate) fn stdin_ready(&mut self, index: usize, poller: &Poller) {
        let Some(stdin) = &mut self.slots[index].stdin else { return };
        while let Some(bytes) = stdin.queue.front_mut() {
            if bytes.is_empty() {
                let _ = poller.remove(&stdin.pipe);
                self.slots[index].stdin = None;
                self.tell_stdin_taken();
                return;
            }
            match rustix::io::write(&stdin.pipe, bytes) {
                Ok(count) => {
                    let _ = bytes.split_to(count);
                    if bytes.is_empty() {
                        stdin.queue.pop_front();
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return,
                // The rank has closed its stdin, or is gone: the others go on.
                Err(_) => {
                    let _ = poller.remove(&stdin.pipe);
                    self.slots[index].stdin = None;
                    self.tell_stdin_taken();
                    return;
                }
            }
        }
        let _ = poller.remove(&stdin.pipe);
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
