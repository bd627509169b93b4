//! The front's end of the stream to an agent.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rankrun_wire::{Decoder, Encoder, Frame, ToAgent, ToFront, WireError};

/// Bytes read at a time: several frames of output.
const READ: usize = 256 * 1024;

/// Why an agent can no longer be heard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the stream to the agent has ended")]
    Ended,
    #[error("cannot read or write the stream to the agent")]
    Io(#[source] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// The stream.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    encoder: Encoder,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Link> {
        rankrun_sys::socket::set_nonblocking(&socket)?;
        Ok(Link { socket, encoder: Encoder::new(0), decoder: Decoder::new(), out: Vec::new(), sent: 0 })
    }

    /// Queues a message and sends what can be sent at once.
    pub(crate) fn say(&mut self, message: &ToAgent) -> Result<(), LinkError> {
        self.encoder.message(self.decoder.received(), message, &mut self.out)?;
        self.flush()
    }

    /// Sends what is queued, as far as the socket takes it.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        while self.sent < self.out.len() {
            match rustix::net::send(&self.socket, &self.out[self.sent..], rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                // The reason is at the end of what can still be read.
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                    self.sent = self.out.len();
                }
                Err(error) => return Err(LinkError::Io(error.into())),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Reads once. What has arrived is then taken with [`Link::next`], also before an error is acted upon.
    pub(crate) fn fill(&mut self) -> Result<(), LinkError> {
        let room = self.decoder.room(READ);
        match rustix::io::read(&self.socket, room) {
            Ok(0) => {
                self.decoder.filled(READ, 0);
                Err(LinkError::Ended)
            }
            Ok(count) => {
                self.decoder.filled(READ, count);
                Ok(())
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                self.decoder.filled(READ, 0);
                Ok(())
            }
            Err(rustix::io::Errno::CONNRESET) => {
                self.decoder.filled(READ, 0);
                Err(LinkError::Ended)
            }
            Err(error) => {
                self.decoder.filled(READ, 0);
                Err(LinkError::Io(error.into()))
            }
        }
    }

    /// The next whole frame that has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_, ToFront>>, LinkError> {
        Ok(self.decoder.next_frame()?)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
