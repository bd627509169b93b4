//! The front's end of the stream to an agent.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rankrun_core::NodeId;
use rankrun_sys::poll::Registry;
use rankrun_sys::reactor::Conn;
use rankrun_wire::pipe::{Pipe, Standing};
use rankrun_wire::{Carrier, Frame, Place, Retain, Session, ToAgent, ToFront, Transport};

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

    /// A link over a connection on which these bytes of it have come. `lasts`: another front can go on with it, and nothing leaves before
    /// [`Link::release`].
    pub(crate) fn over(
        conn: impl Into<Carrier>,
        session: NonZeroU64,
        received: &[u8],
        lasts: bool,
    ) -> io::Result<Link> {
        if lasts {
            return Link::lasting(conn.into(), session, received);
        }
        let mut link = rankrun_wire::Link::new(conn.into(), Session::new(session, Retain::No), READ);
        link.received(received);
        Ok(Link(link))
    }

    fn lasting(conn: Carrier, session: NonZeroU64, received: &[u8]) -> io::Result<Link> {
        let mut transport = Transport::lasting(Pipe::new(session.get()));
        transport.hold();
        transport.connect(conn, received.to_owned())?;
        let mut link = Link(rankrun_wire::Link::new(transport, Session::new(session, Retain::No), READ));
        // The rest of what has come wakes no loop.
        link.fill().map_err(io::Error::other)?;
        Ok(link)
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

    // A link that another front can go on with.

    /// One that stands there, after these bytes were sent. It has no connection yet.
    pub(crate) fn standing(place: Place, sent: impl IntoIterator<Item = Vec<u8>>) -> Link {
        let kept: VecDeque<Bytes> = sent.into_iter().map(Bytes::from).collect();
        let acknowledged = place.sent - kept.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let pipe = Pipe::at(place.session.get(), Standing { acknowledged, kept, safe: place.received });
        let mut transport = Transport::lasting(pipe);
        transport.hold();
        Link(rankrun_wire::Link::new(transport, Session::at(place.session, place.frames), READ))
    }

    /// It goes on over this connection, on which these bytes have come.
    pub(crate) fn connect(&mut self, conn: impl Into<Carrier>, received: &[u8]) -> Result<(), LinkError> {
        self.0.connect(conn, received)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    /// Whether it is one.
    pub(crate) fn is_lasting(&self) -> bool {
        self.0.held().is_some()
    }

    /// Its session, if it is one.
    pub(crate) fn session(&self) -> Option<NonZeroU64> {
        self.0.held().map(|(_, place)| place.session)
    }

    /// For the ledger: what was sent since the last release, and where it stands.
    pub(crate) fn held(&self) -> Option<(Vec<u8>, Place)> {
        self.0.held().map(|(new, place)| (new.concat(), place))
    }

    /// Lets go what was sent.
    pub(crate) fn release(&mut self) -> Result<(), LinkError> {
        self.0.release()
    }

    /// Nothing more is wanted from the agent.
    pub(crate) fn finish(&mut self) {
        self.0.finish();
    }

    /// Reads once, and drops what has come.
    pub(crate) fn skip(&mut self) -> Result<(), LinkError> {
        let filled = self.0.fill();
        while self.next()?.is_some() {}
        filled
    }

    /// Whether the other side has all that was sent.
    pub(crate) fn has_all(&self) -> bool {
        self.0.has_all()
    }

    /// The next whole frame that has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_, ToFront>>, LinkError> {
        self.0.next_frame()
    }
}

/// Sends a message to all nodes: one that is lost does not keep it from the others. Returns those that were lost.
pub(crate) fn send_to_all<'a>(
    links: impl Iterator<Item = (NodeId, &'a mut Link)>,
    message: &ToAgent,
) -> Vec<(NodeId, LinkError)> {
    links.filter_map(|(node, link)| Some((node, link.send(message).err()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use rankrun_sys::poll::Poller;

    use rankrun_core::GroupId;

    use super::*;

    #[test]
    fn a_node_that_is_lost_does_not_keep_a_message_from_those_behind_it() {
        let poller = Poller::new().expect("a poller");
        let session = NonZeroU64::new(7).expect("not zero");
        let (mut links, mut agents) = (Vec::new(), Vec::new());
        // What is sent to node 0 is refused, with an error other than that of a stream whose end is still to be read.
        let (refused, _) = UnixDatagram::pair().expect("a pair");
        links.push(Link::new(&poller.registry(), 0, refused.into(), session).expect("a link"));
        for node in 1..3 {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            ours.set_nonblocking(true).expect("ours");
            theirs.set_nonblocking(true).expect("theirs");
            links.push(Link::new(&poller.registry(), node, ours.into(), session).expect("a link"));
            agents.push(theirs);
        }
        let lost = send_to_all((0..).map(NodeId).zip(&mut links), &ToAgent::Stdin { group: GroupId(0), bytes: None });
        assert!(matches!(lost[..], [(NodeId(0), _)]), "{lost:?}");
        for agent in &mut agents {
            assert!(agent.read(&mut [0; 64]).is_ok_and(|count| count > 0), "the message has arrived");
        }
    }
}
