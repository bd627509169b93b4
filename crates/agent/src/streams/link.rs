//! The agent's end of the stream to the front: messages first, output as far as credits go.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use rankrun_core::Stream;
use rankrun_output::Record;
use rankrun_sys::poll::Registry;
use rankrun_sys::reactor::Conn;
use rankrun_wire::frame::OutputHead;
use rankrun_wire::{Frame, Retain, Session, ToAgent, ToFront};

use crate::INITIAL_CREDIT;

/// Bytes that are made ready for the socket at a time: enough for one large write, little enough that a message does not
/// wait long behind output.
const BATCH: usize = 256 * 1024;
/// What a frame counts for in a batch beside its bytes: a batch of tiny pieces is not endless.
const FRAME_COST: usize = 32;
/// Bytes taken from the front in a turn of the loop. Its messages are small, but for the job itself.
const READ: usize = 64 * 1024;

/// The stream to the front.
pub(crate) struct Link {
    wire: rankrun_wire::Link,
    credit: Credit,
}

/// How many bytes of each stream's output the front still takes. A record goes if there is any credit, and may cost more
/// than that: the debt is paid by the next grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Credit([i64; 2]);

impl Credit {
    fn grant(&mut self, stream: Stream, bytes: u64) {
        let credit = &mut self.0[stream.index()];
        *credit = credit.saturating_add_unsigned(bytes);
    }

    fn spend(&mut self, stream: Stream, bytes: usize) {
        let credit = &mut self.0[stream.index()];
        *credit = credit.saturating_sub_unsigned(bytes as u64);
    }

    fn is_left(self, stream: Stream) -> bool {
        self.0[stream.index()] > 0
    }
}

impl Link {
    /// A link to the front of this machine: nobody could connect the socket again, so nothing is retained.
    pub(crate) fn new(registry: &Registry, token: u64, socket: OwnedFd, session: NonZeroU64) -> io::Result<Link> {
        let conn = Conn::of_socket(registry, token, socket)?;
        let wire = rankrun_wire::Link::new(conn, Session::new(session, Retain::No), READ);
        Ok(Link { wire, credit: Credit([INITIAL_CREDIT as i64; 2]) })
    }

    /// Sends a message at once, as far as the socket takes it.
    pub(crate) fn say(&mut self, message: &ToFront) -> Result<(), LinkError> {
        Ok(self.wire.send(message)?)
    }

    /// Makes a message ready to be sent with the next [`Link::send_output`].
    pub(crate) fn queue(&mut self, message: &ToFront) -> Result<(), LinkError> {
        Ok(self.wire.message(message)?)
    }

    /// Sends messages, as far as the socket takes them now.
    pub(crate) fn send_messages(&mut self, messages: impl Iterator<Item = ToFront>) -> Result<(), LinkError> {
        for message in messages {
            self.queue(&message)?;
        }
        Ok(self.wire.flush()?)
    }

    pub(crate) fn grant(&mut self, stream: Stream, bytes: u64) {
        self.credit.grant(stream, bytes);
    }

    /// Whether something waits for the socket to become writable.
    pub(crate) fn wants_write(&self) -> bool {
        self.wire.unsent() > 0
    }

    /// Reads what the front has sent, up to the budget of a turn. `Ok(false)` is the end of the stream.
    pub(crate) fn receive(&mut self, messages: &mut Vec<ToAgent>) -> Result<bool, LinkError> {
        let filled = self.wire.fill();
        while let Some(frame) = self.wire.next_frame()? {
            match frame {
                Frame::Message(message) => messages.push(message),
                // The front has no output to send us.
                Frame::Output(..) => return Err(LinkError::Unexpected),
            }
        }
        match filled {
            Ok(()) => Ok(true),
            Err(rankrun_wire::LinkError::Ended) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the messages that are ready, and then output: records that `next` has for streams with credit, and whether
    /// there is more of the stream. They go to `sent`, when they are on their way behind the messages.
    pub(crate) fn send_output<E>(
        &mut self,
        mut next: impl FnMut([bool; 2]) -> Result<Option<(Record, bool)>, E>,
        mut sent: impl FnMut(&Record),
    ) -> Result<(), LinkError>
    where
        LinkError: From<E>,
    {
        loop {
            self.wire.flush()?;
            if self.wire.unsent() > 0 {
                return Ok(());
            }
            let mut batch = 0;
            while batch < BATCH && self.wire.has_room() {
                let Some((record, more)) = next(Stream::ALL.map(|stream| self.credit.is_left(stream)))? else { break };
                batch += record.bytes.len() + FRAME_COST;
                self.credit.spend(record.stream, record.bytes.len());
                sent(&record);
                let head = OutputHead { worker: record.worker, stream: record.stream, at: record.time, more };
                self.wire.output(head, record.bytes)?;
            }
            if batch == 0 {
                return Ok(());
            }
        }
    }
}

/// Why the stream to the front is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Wire(#[from] rankrun_wire::LinkError),
    #[error("the front has sent output")]
    Unexpected,
    #[error(transparent)]
    Spool(#[from] rankrun_output::SpoolError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_overdraws_its_credit_is_a_debt() {
        let mut credit = Credit([100, 100]);
        credit.spend(Stream::Stdout, 65_536);
        assert!(!credit.is_left(Stream::Stdout) && credit.is_left(Stream::Stderr));
        credit.grant(Stream::Stdout, 65_436);
        assert!(!credit.is_left(Stream::Stdout), "the debt is paid, and nothing more");
        credit.grant(Stream::Stdout, 1);
        assert!(credit.is_left(Stream::Stdout));
        credit.grant(Stream::Stderr, u64::MAX);
        assert!(credit.is_left(Stream::Stderr));
    }
}
