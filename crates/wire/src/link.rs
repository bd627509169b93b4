//! A session over a connection, for front and agent.

use std::io;
use std::num::NonZeroU64;

use bytes::Bytes;
use rankrun_sys::reactor::Incoming;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::frame::{Frame, OutputHead, WireError};
use crate::session::Session;
use crate::transport::{Carrier, Transport};

/// Why a stream failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the stream between front and agent has ended")]
    Ended,
    #[error("cannot read or write the stream between front and agent")]
    Io(#[source] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Where a link stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    pub session: NonZeroU64,
    /// Bytes that were sent in all, those that the other side has, and those of whole frames that were read.
    pub sent: u64,
    pub acknowledged: u64,
    pub received: u64,
    /// Frames that were sent, and read.
    pub frames: (u64, u64),
}

/// A session, and the connection that carries it now.
#[derive(Debug)]
pub struct Link {
    /// `None` while the session is suspended.
    conn: Option<Transport>,
    session: Session,
    /// Bytes read in one turn of the loop at most.
    budget: usize,
}

impl Link {
    /// `budget` is how many bytes are read in one turn of the loop: one link must not keep the loop from the others.
    pub fn new(conn: impl Into<Transport>, session: Session, budget: usize) -> Link {
        Link { conn: Some(conn.into()), session, budget }
    }

    /// Takes bytes that came over the connection before the session was made.
    pub fn received(&mut self, bytes: &[u8]) {
        self.session.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.session.filled(bytes.len());
    }

    /// Sends a message, as far as the kernel has room now.
    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<(), LinkError> {
        self.message(message)?;
        self.flush()
    }

    /// Queues a message for the next [`Link::flush`].
    pub fn message<M: Serialize>(&mut self, message: &M) -> Result<(), LinkError> {
        Ok(self.session.message(message)?)
    }

    /// Queues output for the next [`Link::flush`].
    pub fn output(&mut self, head: OutputHead, bytes: Bytes) -> Result<(), LinkError> {
        Ok(self.session.output(head, bytes)?)
    }

    /// Sends what is queued, as far as the kernel has room now. The connection wakes the loop for the rest.
    pub fn flush(&mut self) -> Result<(), LinkError> {
        match &mut self.conn {
            Some(conn) => conn.send(self.session.pieces()).map_err(LinkError::Io),
            None => Ok(()),
        }
    }

    /// Bytes for which the kernel had no room.
    pub fn unsent(&self) -> usize {
        self.conn.as_ref().map_or(0, Transport::unsent)
    }

    /// Whether output may be sent: see [`Session::has_room`].
    pub fn has_room(&self) -> bool {
        self.conn.is_some() && self.session.has_room()
    }

    /// Reads once. Then take the frames with [`Link::next_frame`], also before handling an error.
    pub fn fill(&mut self) -> Result<(), LinkError> {
        let Some(conn) = &mut self.conn else { return Ok(()) };
        loop {
            match conn.read(self.session.room_up_to(self.budget)) {
                Ok(Incoming::Bytes(count)) => self.session.filled(count),
                Ok(Incoming::Nothing) => {}
                Ok(Incoming::End) => return Err(LinkError::Ended),
                Err(error) => return Err(LinkError::Io(error)),
            }
            // At most one record of TLS more than the budget.
            if !conn.has_more() {
                return Ok(());
            }
        }
    }

    /// The next received frame. After the last one, acknowledgements are sent.
    pub fn next_frame<M: DeserializeOwned>(&mut self) -> Result<Option<Frame<'_, M>>, LinkError> {
        let Some(cut) = self.session.advance()? else {
            self.flush()?;
            return Ok(None);
        };
        Ok(Some(self.session.open(&cut)?))
    }

    // A link that another process can go on with ([`Transport::lasting`]).

    /// What was sent since it was last released, and where it stands.
    pub fn held(&self) -> Option<(&[Bytes], Place)> {
        let (new, pipe) = self.conn.as_ref()?.held()?;
        let (frames, open) = self.session.standing();
        let (sent, acknowledged) = (pipe.sent(), pipe.sent() - pipe.unacknowledged());
        let place =
            Place { session: self.session.id(), sent, acknowledged, received: pipe.received() - open as u64, frames };
        Some((new, place))
    }

    /// Lets go what is held.
    pub fn release(&mut self) -> Result<(), LinkError> {
        let (_, open) = self.session.standing();
        self.conn.as_mut().map_or(Ok(()), |conn| conn.release(open)).map_err(LinkError::Io)
    }

    /// Nothing more is wanted from the other side.
    pub fn finish(&mut self) {
        self.conn.iter_mut().for_each(Transport::finish);
    }

    /// Whether the other side has all that was sent.
    pub fn has_all(&self) -> bool {
        self.conn.as_ref().is_some_and(|conn| conn.is_connected() && conn.unsent() == 0 && conn.unacknowledged() == 0)
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.conn.as_ref().is_some_and(Transport::is_connected)
    }

    /// Goes on over another connection, on which these bytes have come.
    pub fn connect(&mut self, conn: impl Into<Carrier>, received: &[u8]) -> Result<(), LinkError> {
        let Some(transport) = &mut self.conn else { return Ok(()) };
        transport.connect(conn, received.to_owned()).map_err(LinkError::Io)?;
        self.fill()
    }

    /// Closes the connection, and keeps the session for another one. `false`: the session ends with it.
    pub fn suspend(&mut self) -> bool {
        self.conn = None;
        self.session.suspend();
        self.session.can_resume()
    }

    /// Resumes over another connection.
    pub fn resume(&mut self, conn: impl Into<Transport>) -> Result<(), LinkError> {
        self.session.resume()?;
        self.conn = Some(conn.into());
        self.flush()
    }
}
