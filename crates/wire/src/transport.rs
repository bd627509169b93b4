//! The byte stream under a session: a connection of the loop, as it is, in TLS, or one after the other ([`crate::pipe`]).

use std::io;

use bytes::Bytes;
use rankrun_sys::reactor::{Conn, Incoming};

use crate::identity::Tls;
use crate::pipe::Pipe;

/// Bytes of TLS that are read from the kernel at a time: some records of the largest size (16 KiB).
const READ: usize = 64 * 1024;

/// A byte stream.
#[derive(Debug)]
pub struct Transport(Way);

#[derive(Debug)]
enum Way {
    Direct(Carrier),
    Lasting(Box<Lasting>),
}

/// A connection.
#[derive(Debug)]
pub struct Carrier(Connection);

#[derive(Debug)]
enum Connection {
    Plain(Conn),
    Secured(Conn, Secured),
}

impl From<Conn> for Carrier {
    fn from(conn: Conn) -> Carrier {
        Carrier(Connection::Plain(conn))
    }
}

impl Carrier {
    /// A connection whose peer is known. It may have received bytes already, for which the loop is not woken: read it once. `first` leaves
    /// before all that is sent, and with it.
    pub fn secured(conn: Conn, tls: Tls, first: Bytes) -> Carrier {
        Carrier(Connection::Secured(conn, Secured { tls: Box::new(tls), has_more: true, first }))
    }

    fn conn(&self) -> &Conn {
        match &self.0 {
            Connection::Plain(conn) | Connection::Secured(conn, _) => conn,
        }
    }

    fn conn_mut(&mut self) -> &mut Conn {
        match &mut self.0 {
            Connection::Plain(conn) | Connection::Secured(conn, _) => conn,
        }
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<Incoming> {
        match &mut self.0 {
            Connection::Plain(conn) => conn.read(room),
            Connection::Secured(conn, secured) => secured.read(conn, room),
        }
    }

    fn has_more(&self) -> bool {
        matches!(&self.0, Connection::Secured(_, secured) if secured.has_more)
    }

    fn send(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> io::Result<()> {
        match &mut self.0 {
            Connection::Plain(conn) => conn.send(pieces),
            Connection::Secured(conn, Secured { tls, first, .. }) => {
                for piece in pieces {
                    tls.write(&piece)?;
                }
                conn.send([std::mem::take(first), tls.take_output()])
            }
        }
    }
}

/// A stream that outlives its connections.
#[derive(Debug)]
struct Lasting {
    pipe: Pipe,
    /// `None` while there is no connection.
    conn: Option<Carrier>,
    /// What has come over the connection before it was ours.
    early: Vec<u8>,
    /// Until they are released: what was sent since the last time, and what goes over the connection for it.
    held: Option<Held>,
}

#[derive(Debug, Default)]
struct Held {
    new: Vec<Bytes>,
    out: Vec<Bytes>,
}

impl Lasting {
    fn read(&mut self, room: &mut [u8]) -> io::Result<Incoming> {
        let mut bytes = vec![0; room.len().min(READ)];
        loop {
            let Some(conn) = &mut self.conn else { return Ok(Incoming::Nothing) };
            let arrived = match self.early.len().min(bytes.len()) {
                0 => match conn.read(&mut bytes)? {
                    Incoming::Bytes(arrived) => arrived,
                    other => return Ok(other),
                },
                count => {
                    bytes[..count].copy_from_slice(&self.early[..count]);
                    self.early.drain(..count);
                    count
                }
            };
            let (mut received, mut out) = (Vec::with_capacity(arrived), Vec::new());
            self.pipe.receive(&bytes[..arrived], &mut received, &mut out).map_err(io::Error::other)?;
            self.put(out)?;
            if !received.is_empty() {
                // A chunk is longer than what it carries.
                room[..received.len()].copy_from_slice(&received);
                return Ok(Incoming::Bytes(received.len()));
            }
            if !self.has_more() {
                return Ok(Incoming::Nothing);
            }
        }
    }

    fn has_more(&self) -> bool {
        !self.early.is_empty() || self.conn.as_ref().is_some_and(Carrier::has_more)
    }

    fn send(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> io::Result<()> {
        let mut out = Vec::new();
        for piece in pieces {
            if let Some(held) = &mut self.held {
                held.new.push(piece.clone());
            }
            self.pipe.send(piece, &mut out);
        }
        self.put(out)
    }

    fn put(&mut self, out: Vec<Bytes>) -> io::Result<()> {
        match (&mut self.held, &mut self.conn) {
            (Some(held), _) => held.out.extend(out),
            (None, Some(conn)) => conn.send(out)?,
            (None, None) => {}
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Secured {
    tls: Box<Tls>,
    /// The last read has left something that has arrived.
    has_more: bool,
    first: Bytes,
}

impl Secured {
    /// As [`Transport::read`]. Apart from it, since it needs much of the stack.
    #[inline(never)]
    fn read(&mut self, conn: &mut Conn, room: &mut [u8]) -> io::Result<Incoming> {
        let Secured { tls, has_more, first } = self;
        let mut count = tls.read(room)?;
        let mut end = Incoming::Nothing;
        if count == 0 {
            let mut bytes = [0; READ];
            end = conn.read(&mut bytes[..room.len().clamp(1, READ)])?;
            if let Incoming::Bytes(arrived) = end {
                tls.received(&bytes[..arrived]);
                count = tls.read(room)?;
                end = Incoming::Nothing;
            }
        }
        *has_more = count == room.len() && !room.is_empty();
        // Answers of TLS itself: a key update.
        let answer = tls.take_output();
        let is_ended = tls.is_ended();
        if !answer.is_empty() {
            conn.send([std::mem::take(first), answer])?;
        }
        Ok(match count {
            0 if is_ended => Incoming::End,
            0 => end,
            count => Incoming::Bytes(count),
        })
    }
}

impl<C: Into<Carrier>> From<C> for Transport {
    fn from(carrier: C) -> Transport {
        Transport(Way::Direct(carrier.into()))
    }
}

impl Transport {
    /// A stream that outlives its connections. There is none yet.
    pub fn lasting(pipe: Pipe) -> Transport {
        Transport(Way::Lasting(Box::new(Lasting { pipe, conn: None, early: Vec::new(), held: None })))
    }

    /// Reads once, up to the length of `room`. If [`Transport::has_more`] then, read again: the loop is not woken for
    /// what has arrived already.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<Incoming> {
        match &mut self.0 {
            Way::Direct(carrier) => carrier.read(room),
            Way::Lasting(lasting) => lasting.read(room),
        }
    }

    /// More may have arrived than the last read had room for.
    pub fn has_more(&self) -> bool {
        match &self.0 {
            Way::Direct(carrier) => carrier.has_more(),
            Way::Lasting(lasting) => lasting.has_more(),
        }
    }

    /// Sends these pieces after all others, as far as the kernel has room now. The rest waits here.
    pub fn send(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> io::Result<()> {
        match &mut self.0 {
            Way::Direct(carrier) => carrier.send(pieces),
            Way::Lasting(lasting) => lasting.send(pieces),
        }
    }

    /// Sends what waits here, as far as the kernel has room now.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Way::Direct(carrier) => carrier.conn_mut().flush(),
            Way::Lasting(lasting) => lasting.conn.as_mut().map_or(Ok(()), |carrier| carrier.conn_mut().flush()),
        }
    }

    /// Bytes that wait here.
    pub fn unsent(&self) -> usize {
        match &self.0 {
            Way::Direct(carrier) => carrier.conn().unsent(),
            Way::Lasting(lasting) => lasting.conn.as_ref().map_or(0, |carrier| carrier.conn().unsent()),
        }
    }

    fn lasting_mut(&mut self) -> Option<&mut Lasting> {
        match &mut self.0 {
            Way::Lasting(lasting) => Some(lasting),
            Way::Direct(_) => None,
        }
    }

    // Of a stream that outlives its connections. On others these do nothing.

    /// The stream goes on over a connection, on which nothing of it has gone, and these bytes have come: read once.
    pub fn connect(&mut self, conn: impl Into<Carrier>, early: Vec<u8>) -> io::Result<()> {
        let mut conn = conn.into();
        let Some(lasting) = self.lasting_mut() else { return Ok(()) };
        let hello = lasting.pipe.connect();
        match &mut lasting.held {
            // What was held for the old connection goes with the other side's hello.
            Some(held) => held.out = vec![hello],
            None => conn.send([hello])?,
        }
        (lasting.conn, lasting.early) = (Some(conn), early);
        Ok(())
    }

    /// Nothing more is wanted from the other side, which need not wait for another connection.
    pub fn finish(&mut self) {
        if let Some(lasting) = self.lasting_mut() {
            lasting.pipe.finish();
        }
    }

    /// Whether the other side has said so.
    pub fn is_finished(&self) -> bool {
        matches!(&self.0, Way::Lasting(lasting) if lasting.pipe.is_finished())
    }

    /// The connection is gone. Returns whether the stream can go on over another one.
    pub fn disconnect(&mut self) -> bool {
        let Some(lasting) = self.lasting_mut() else { return false };
        lasting.conn = None;
        lasting.pipe.disconnect();
        lasting.held.iter_mut().for_each(|held| held.out.clear());
        !lasting.pipe.is_finished()
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        !matches!(&self.0, Way::Lasting(lasting) if lasting.conn.is_none())
    }

    /// Bytes that the other side may lack, also after they have left.
    pub fn unacknowledged(&self) -> u64 {
        match &self.0 {
            Way::Lasting(lasting) => lasting.pipe.unacknowledged(),
            Way::Direct(_) => 0,
        }
    }

    /// All that was read is safe, but for the last `open` bytes: the other side need not keep it.
    pub fn is_safe(&mut self, open: usize) -> io::Result<()> {
        let Some(lasting) = self.lasting_mut() else { return Ok(()) };
        let mut out = Vec::new();
        lasting.pipe.is_safe(lasting.pipe.received() - open as u64, &mut out);
        lasting.put(out)
    }

    /// From now on nothing leaves before [`Transport::release`].
    pub fn hold(&mut self) {
        if let Some(lasting) = self.lasting_mut() {
            lasting.held.get_or_insert_default();
        }
    }

    /// What was sent since it was last released, and where it stands.
    pub fn held(&self) -> Option<(&[Bytes], &Pipe)> {
        match &self.0 {
            Way::Lasting(lasting) => Some((&lasting.held.as_ref()?.new, &lasting.pipe)),
            Way::Direct(_) => None,
        }
    }

    /// Lets go what is held. What was read is safe, but for the last `open` bytes.
    pub fn release(&mut self, open: usize) -> io::Result<()> {
        self.is_safe(open)?;
        let Some(lasting) = self.lasting_mut() else { return Ok(()) };
        let Some(held) = &mut lasting.held else { return Ok(()) };
        let Held { mut out, .. } = std::mem::take(held);
        lasting.pipe.say_finished(&mut out);
        lasting.conn.as_mut().map_or(Ok(()), |conn| conn.send(out))
    }
}
