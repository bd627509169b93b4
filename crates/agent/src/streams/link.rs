//! The agent's end of the stream to the front: control first, output as far as credits go.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rankrun_core::{GroupId, Stream};
use rankrun_output::{Record, Spool};
use rankrun_wire::frame::OutputHead;
use rankrun_wire::{Decoder, Encoder, Frame, ToAgent, ToFront, WireError};

use crate::INITIAL_CREDIT;

/// Bytes that are made ready for the socket at a time: enough for one large write, little enough that a control frame
/// does not wait long behind output.
const BATCH: usize = 256 * 1024;
/// Bytes taken from the front at a time. Its messages are small, but for the job itself.
const READ: usize = 64 * 1024;

/// The stream to the front.
pub(crate) struct Link {
    socket: OwnedFd,
    encoder: Encoder,
    decoder: Decoder,
    /// Encoded bytes that the socket has not taken yet, from `sent` on.
    wire: Vec<u8>,
    sent: usize,
    /// Messages that go before any output.
    urgent: VecDeque<ToFront>,
    credit: [u64; 2],
    /// Output beyond its credit must not hold up the other stream's.
    held: [VecDeque<Record>; 2],
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Link> {
        rankrun_sys::socket::set_nonblocking(&socket)?;
        Ok(Link {
            socket,
            encoder: Encoder::new(0),
            decoder: Decoder::new(),
            wire: Vec::new(),
            sent: 0,
            urgent: VecDeque::new(),
            credit: [INITIAL_CREDIT; 2],
            held: [VecDeque::new(), VecDeque::new()],
        })
    }

    pub(crate) fn say(&mut self, message: ToFront) {
        self.urgent.push_back(message);
    }

    pub(crate) fn grant(&mut self, stream: Stream, bytes: u64) {
        self.credit[stream.index()] = self.credit[stream.index()].saturating_add(bytes);
    }

    /// Whether something waits for the socket to become writable.
    pub(crate) fn wants_write(&self) -> bool {
        self.sent < self.wire.len() || !self.urgent.is_empty()
    }

    /// Whether messages were given to [`Link::say`] that [`Link::send`] has not looked at yet.
    pub(crate) fn has_unsent_messages(&self) -> bool {
        !self.urgent.is_empty() && self.sent == self.wire.len()
    }

    /// Reads what the front has sent. `Ok(false)` is the end of the stream.
    pub(crate) fn receive(&mut self, messages: &mut Vec<ToAgent>) -> Result<bool, LinkError> {
        loop {
            let room = self.decoder.room(READ);
            let read = match rustix::io::read(&self.socket, room) {
                Ok(0) => {
                    self.decoder.filled(READ, 0);
                    return Ok(false);
                }
                Ok(read) => read,
                Err(rustix::io::Errno::AGAIN) => {
                    self.decoder.filled(READ, 0);
                    return Ok(true);
                }
                Err(error) => return Err(LinkError::Io(error.into())),
            };
            self.decoder.filled(READ, read);
            while let Some(frame) = self.decoder.next_frame::<ToAgent>()? {
                match frame {
                    Frame::Message(message) => messages.push(message),
                    // The front has no output to send us.
                    Frame::Output(..) => return Err(LinkError::Unexpected),
                }
            }
            if read < READ {
                return Ok(true);
            }
        }
    }

    /// Sends what can be sent: messages first, then output from the spool within its credit. Calls `done` with each
    /// record that has been handed to the socket.
    pub(crate) fn send(&mut self, spool: &mut Spool, mut done: impl FnMut(&Record)) -> Result<(), LinkError> {
        loop {
            if self.sent < self.wire.len() {
                match rustix::net::send(&self.socket, &self.wire[self.sent..], rustix::net::SendFlags::NOSIGNAL) {
                    Ok(count) => self.sent += count,
                    Err(rustix::io::Errno::AGAIN) => return Ok(()),
                    Err(error) => return Err(LinkError::Io(error.into())),
                }
                continue;
            }
            self.wire.clear();
            self.sent = 0;
            let ack = self.decoder.received();
            while let Some(message) = self.urgent.pop_front() {
                self.encoder.message(ack, &message, &mut self.wire)?;
            }
            while self.wire.len() < BATCH {
                let Some(record) = self.next_record(spool)? else { break };
                let head = OutputHead { group: GroupId(0), rank: record.rank, stream: record.stream, at: record.time };
                self.encoder.output(ack, head, record.bytes.len(), &mut self.wire)?;
                self.wire.extend_from_slice(&record.bytes);
                done(&record);
            }
            if self.wire.is_empty() {
                return Ok(());
            }
        }
    }

    /// The next record whose stream has credit. The other stream's are set aside, a few at most.
    fn next_record(&mut self, spool: &mut Spool) -> Result<Option<Record>, LinkError> {
        /// Records set aside for a stream without credit before the spool is no longer looked into: 16 × 64 KiB.
        const HELD: usize = 16;
        for stream in Stream::ALL {
            let index = stream.index();
            if self.credit[index] > 0
                && let Some(record) = self.held[index].pop_front()
            {
                self.spend(&record);
                return Ok(Some(record));
            }
        }
        loop {
            if self.credit.iter().all(|credit| *credit == 0) || self.held.iter().any(|held| held.len() >= HELD) {
                return Ok(None);
            }
            let Some(record) = spool.pop().map_err(LinkError::Spool)? else { return Ok(None) };
            if self.credit[record.stream.index()] > 0 {
                self.spend(&record);
                return Ok(Some(record));
            }
            self.held[record.stream.index()].push_back(record);
        }
    }

    /// A record may overdraw its credit by less than its own length; the next grants make up for it.
    fn spend(&mut self, record: &Record) {
        let credit = &mut self.credit[record.stream.index()];
        *credit = credit.saturating_sub(record.bytes.len() as u64);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Why the stream to the front is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("cannot read or write the stream to the front")]
    Io(#[source] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the front has sent output")]
    Unexpected,
    #[error(transparent)]
    Spool(rankrun_output::SpoolError),
}
