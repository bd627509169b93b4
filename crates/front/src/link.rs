//! The front's end of the stream to an agent.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use rankrun_sys::poll::Registry;
use rankrun_sys::reactor::Conn;
use rankrun_wire::{Frame, Retain, Session, ToAgent, ToFront};

pub(crate) use rankrun_wire::LinkError;

/// Bytes read in a turn of the loop: several frames of output.
const READ: usize = 256 * 1024;

/// The stream.
#[derive(Debug)]
pub(crate) struct Link(rankrun_wire::Link);

impl Link {
    /// A link to an agent of this machine: the socket cannot be reconnected, so nothing is kept for sending again.
    pub(crate) fn new(registry: &Registry, token: u64, socket: OwnedFd, session: NonZeroU64) -> io::Result<Link> {
        let conn = Conn::of_socket(registry, token, socket)?;
        Ok(Link(rankrun_wire::Link::new(conn, Session::new(session, Retain::No), READ)))
    }

    /// Sends a message: now as far as the socket has room, the rest later.
    pub(crate) fn send(&mut self, message: &ToAgent) -> Result<(), LinkError> {
        self.0.send(message)
    }

    /// Sends what waits, as far as the socket has room.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        self.0.flush()
    }

    /// Reads once. Then take the frames with [`Link::next`], also before handling an error.
    pub(crate) fn fill(&mut self) -> Result<(), LinkError> {
        self.0.fill()
    }

    /// The next whole frame that has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_, ToFront>>, LinkError> {
        self.0.next_frame()
    }
}
