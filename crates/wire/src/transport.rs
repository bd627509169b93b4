//! The byte stream under a session: a connection of the loop, as it is or in TLS.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use rankrun_sys::reactor::{Conn, Incoming};

use crate::identity::Tls;

/// Bytes of TLS that are read from the kernel at a time: some records of the largest size (16 KiB).
const READ: usize = 64 * 1024;

/// A byte stream.
#[derive(Debug)]
pub struct Transport {
    conn: Conn,
    tls: Option<Secured>,
}

#[derive(Debug)]
struct Secured {
    tls: Box<Tls>,
    /// The last read has left something that has arrived.
    has_more: bool,
}

impl Secured {
    /// As [`Transport::read`]. Apart from it, since it needs much of the stack.
    #[inline(never)]
    fn read(&mut self, conn: &mut Conn, room: &mut [u8]) -> io::Result<Incoming> {
        let Secured { tls, has_more } = self;
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
        conn.send([answer])?;
        Ok(match count {
            0 if is_ended => Incoming::End,
            0 => end,
            count => Incoming::Bytes(count),
        })
    }
}

impl From<Conn> for Transport {
    fn from(conn: Conn) -> Transport {
        Transport { conn, tls: None }
    }
}

impl Transport {
    /// A connection whose peer is known. It may have received bytes already, for which the loop is not woken: read it once.
    pub fn secured(conn: Conn, tls: Tls) -> Transport {
        Transport { conn, tls: Some(Secured { tls: Box::new(tls), has_more: true }) }
    }

    /// Reads once, up to the length of `room`. If [`Transport::has_more`] then, read again: the loop is not woken for
    /// what has arrived already.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<Incoming> {
        match &mut self.tls {
            None => self.conn.read(room),
            Some(secured) => secured.read(&mut self.conn, room),
        }
    }

    /// More may have arrived than the last read had room for.
    pub fn has_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|secured| secured.has_more)
    }

    /// Sends these pieces after all others, as far as the kernel has room now. The rest waits here.
    pub fn send(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> io::Result<()> {
        let Some(Secured { tls, .. }) = &mut self.tls else { return self.conn.send(pieces) };
        for piece in pieces {
            tls.write(&piece)?;
        }
        self.conn.send([tls.take_output()])
    }

    /// Sends what waits here, as far as the kernel has room now.
    pub fn flush(&mut self) -> io::Result<()> {
        self.conn.flush()
    }

    /// Bytes that wait here.
    pub fn unsent(&self) -> usize {
        self.conn.unsent()
    }
}

impl AsFd for Transport {
    /// The descriptor that is read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.conn.as_fd()
    }
}
