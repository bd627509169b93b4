//! The front's stdin, copied to every rank (`--stdin all`).

use bytes::Bytes;
use rankrun_sys::poll::Interest;
use rankrun_wire::ToFront;

use crate::driver::Token;
use crate::team::{Hands, Team};

impl Team {
    /// A piece of stdin for every rank, or its end.
    pub(crate) fn stdin_bytes(&mut self, hands: &mut Hands, bytes: Option<Vec<u8>>) {
        let bytes = bytes.map(Bytes::from);
        for index in 0..self.slots.len() {
            let Some(stdin) = &mut self.slots[index].stdin else { continue };
            // An empty piece in the queue is the end.
            stdin.queue.push_back(bytes.clone().unwrap_or_default());
            if stdin.queue.len() == 1 {
                let _ = hands.poller.add(&stdin.pipe, Token::Stdin(index).encode(), Interest::Write);
                self.stdin_ready(hands, index);
            }
        }
        self.tell_stdin_taken(hands);
    }

    /// A rank's stdin can be written.
    pub(crate) fn stdin_ready(&mut self, hands: &mut Hands, index: usize) {
        let Some(stdin) = &mut self.slots[index].stdin else { return };
        while let Some(bytes) = stdin.queue.front_mut() {
            if bytes.is_empty() {
                let _ = hands.poller.remove(&stdin.pipe);
                self.slots[index].stdin = None;
                self.tell_stdin_taken(hands);
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
                    let _ = hands.poller.remove(&stdin.pipe);
                    self.slots[index].stdin = None;
                    self.tell_stdin_taken(hands);
                    return;
                }
            }
        }
        let _ = hands.poller.remove(&stdin.pipe);
        self.tell_stdin_taken(hands);
    }

    /// The slowest rank decides when the front may send more.
    fn tell_stdin_taken(&mut self, hands: &mut Hands) {
        let waiting = self.slots.iter().filter_map(|slot| slot.stdin.as_ref()).any(|stdin| !stdin.queue.is_empty());
        if !waiting {
            hands.outbox.push(ToFront::StdinTaken(0));
        }
    }
}
