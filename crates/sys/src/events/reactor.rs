//! A connection of a loop: bytes out and in over one socket, or over two descriptors such as the stdio of `ssh`.
//!
//! The connection sets itself what it waits for. It keeps bytes for which the kernel has no room, and from then on the
//! loop is woken when there is room. No caller can forget that.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::{Buf, Bytes};
use rustix::io::Errno;

use crate::poll::{Interest, Registry};
use crate::socket;

/// Bytes written in one turn of the loop at most: one connection must not keep the loop from the others. What is left is
/// written in the next turn, since the connection is polled for room as long as something is left.
const WRITE_BUDGET: usize = 1 << 20;
/// Pieces given to the kernel in one call.
const PIECES: usize = 64;

/// What a read found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incoming {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The peer will send nothing more.
    End,
}

/// A connection in a poll set. It leaves the set when it is dropped.
///
/// Writing to a peer that is gone is not an error: its last messages may still be unread, followed by the end of the
/// stream. SIGPIPE must be ignored, as Rust's runtime has it from the start of a program on.
#[derive(Debug)]
pub struct Conn {
    registry: Registry,
    token: u64,
    reader: OwnedFd,
    /// `None`: `reader` is a socket, and takes what is written.
    writer: Option<OwnedFd>,
    out: VecDeque<Bytes>,
    unsent: usize,
    watch: Watch,
    /// Its input has ended, or is of no interest.
    is_deaf: bool,
}

/// What the writing side waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    Nothing,
    /// Room for what is unsent.
    Room,
    /// The reader is gone. The loop is woken at once, to read the end.
    Broken,
}

impl Conn {
    /// A connection over one socket, from now on polled for reading under `token`.
    pub fn of_socket(registry: &Registry, token: u64, socket: OwnedFd) -> io::Result<Conn> {
        Conn::new(registry, token, socket, None)
    }

    /// A connection over two descriptors. Neither may be shared with others, since both become non-blocking.
    pub fn of_pair(registry: &Registry, token: u64, reader: OwnedFd, writer: OwnedFd) -> io::Result<Conn> {
        Conn::new(registry, token, reader, Some(writer))
    }

    fn new(registry: &Registry, token: u64, reader: OwnedFd, writer: Option<OwnedFd>) -> io::Result<Conn> {
        socket::set_nonblocking(&reader)?;
        if let Some(writer) = &writer {
            socket::set_nonblocking(writer)?;
        }
        registry.add(&reader, token, Interest::Read)?;
        let registry = registry.clone();
        Ok(Conn {
            registry,
            token,
            reader,
            writer,
            out: VecDeque::new(),
            unsent: 0,
            watch: Watch::Nothing,
            is_deaf: false,
        })
    }

    /// From now on it is polled under another token.
    pub fn rename(&mut self, token: u64) -> io::Result<()> {
        self.token = token;
        let (reader, writer) = match (&self.writer, self.watch) {
            (None, Watch::Room) => (Interest::ReadWrite, None),
            (_, Watch::Nothing) | (None, Watch::Broken) => (Interest::Read, None),
            (Some(writer), Watch::Room) => (Interest::Read, Some((writer, Interest::Write))),
            (Some(writer), Watch::Broken) => (Interest::Read, Some((writer, Interest::Hangup))),
        };
        self.registry.change(&self.reader, token, reader)?;
        writer.map_or(Ok(()), |(writer, interest)| self.registry.change(writer, token, interest))
    }

    /// Leaves its poll set for another one.
    pub fn move_to(mut self, registry: &Registry, token: u64) -> io::Result<Conn> {
        let (reader, writer) = (self.reader.try_clone()?, self.writer.as_ref().map(OwnedFd::try_clone).transpose()?);
        let (out, unsent) = (std::mem::take(&mut self.out), self.unsent);
        // Its own descriptors leave the old set here.
        drop(self);
        let mut conn = Conn::new(registry, token, reader, writer)?;
        (conn.out, conn.unsent) = (out, unsent);
        conn.flush()?;
        Ok(conn)
    }

    /// Reads once, up to the length of `room`.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<Incoming> {
        loop {
            return match rustix::io::read(&self.reader, &mut *room) {
                Ok(0) if !room.is_empty() => Ok(Incoming::End),
                Ok(count) => Ok(Incoming::Bytes(count)),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if self.watch == Watch::Broken => Ok(Incoming::End),
                Err(Errno::AGAIN) => Ok(Incoming::Nothing),
                Err(Errno::CONNRESET) => Ok(Incoming::End),
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Reads no more, so that the end of the input does not wake the loop. Whether the other end is gone is still reported.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be polled.
    pub fn ignore_input(&mut self) -> io::Result<()> {
        self.is_deaf = true;
        self.registry.change(&self.reader, self.token, self.interest(self.watch))
    }

    fn interest(&self, watch: Watch) -> Interest {
        match (watch == Watch::Room && self.writer.is_none(), self.is_deaf) {
            (true, false) => Interest::ReadWrite,
            (true, true) => Interest::Write,
            (false, false) => Interest::Read,
            (false, true) => Interest::Hangup,
        }
    }

    /// Sends these pieces after all others, as far as the kernel has room now. The rest waits here.
    pub fn send(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> io::Result<()> {
        for piece in pieces {
            if !piece.is_empty() {
                self.unsent += piece.len();
                self.out.push_back(piece);
            }
        }
        self.flush()
    }

    /// Sends what waits here, as far as the kernel has room now. Call it when the descriptor is writable.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut budget = WRITE_BUDGET;
        while self.unsent > 0 && budget > 0 {
            if self.watch == Watch::Broken {
                self.forget();
                break;
            }
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let count = self.out.len().min(PIECES);
            for (piece, bytes) in pieces.iter_mut().zip(&self.out) {
                *piece = IoSlice::new(bytes);
            }
            match rustix::io::writev(self.writer.as_ref().unwrap_or(&self.reader), &pieces[..count]) {
                Ok(count) => {
                    self.sent(count);
                    budget = budget.saturating_sub(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    self.forget();
                    return self.watch(Watch::Broken);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match self.watch {
            Watch::Broken => Ok(()),
            Watch::Nothing | Watch::Room => self.watch(if self.unsent > 0 { Watch::Room } else { Watch::Nothing }),
        }
    }

    /// Bytes that wait here.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    fn sent(&mut self, mut count: usize) {
        self.unsent -= count;
        while let Some(first) = self.out.front_mut() {
            if first.len() > count {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.out.pop_front();
        }
    }

    fn forget(&mut self) {
        self.out.clear();
        self.unsent = 0;
    }

    fn watch(&mut self, watch: Watch) -> io::Result<()> {
        if watch == self.watch {
            return Ok(());
        }
        match &self.writer {
            None => self.registry.change(&self.reader, self.token, self.interest(watch))?,
            Some(writer) => match (self.watch, watch) {
                (Watch::Nothing, Watch::Room) => self.registry.add(writer, self.token, Interest::Write)?,
                // A pipe without a reader is reported with any interest.
                (Watch::Nothing, _) => self.registry.add(writer, self.token, Interest::Hangup)?,
                (_, Watch::Nothing) => self.registry.remove(writer)?,
                (_, Watch::Room) => self.registry.change(writer, self.token, Interest::Write)?,
                (_, Watch::Broken) => self.registry.change(writer, self.token, Interest::Hangup)?,
            },
        }
        self.watch = watch;
        Ok(())
    }
}

impl AsFd for Conn {
    /// The descriptor that is read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // Both are in the set, and are closed now. An error only means that they were removed already.
        drop(self.registry.remove(&self.reader));
        if let Some(writer) = self.writer.as_ref().filter(|_| self.watch != Watch::Nothing) {
            drop(self.registry.remove(writer));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::poll::{Poller, Ready};

    const TOKEN: u64 = 5;

    fn wait(poller: &mut Poller) -> Vec<Ready> {
        let mut ready = Vec::new();
        poller.wait(Some(Duration::from_secs(5)), &mut ready).expect("an epoll set can be waited for");
        ready
    }

    /// A connection over a pair of sockets, or over two pipes; and the peer's (reading, writing) ends.
    fn connections(poller: &Poller) -> [(Conn, OwnedFd, OwnedFd); 2] {
        let (ours, theirs) = socket::pair().expect("a pair of sockets");
        let again = theirs.try_clone().expect("a duplicate");
        let socket = Conn::of_socket(&poller.registry(), TOKEN, ours).expect("a connection");
        let ((read, peer_writes), (peer_reads, write)) =
            (socket::pipe().expect("a pipe"), socket::pipe().expect("a pipe"));
        let pipes = Conn::of_pair(&poller.registry(), TOKEN, read, write).expect("a connection");
        [(socket, theirs, again), (pipes, peer_reads, peer_writes)]
    }

    #[test]
    fn what_the_kernel_does_not_take_is_sent_when_there_is_room() {
        let mut poller = Poller::new().expect("a poller");
        for (mut conn, peer, _writer) in connections(&poller) {
            let sent: Vec<u8> = (0..3_000_000u32).map(|number| number as u8).collect();
            let pieces: Vec<Bytes> = sent.chunks(70_001).map(Bytes::copy_from_slice).collect();
            conn.send(pieces).expect("the peer is there");
            assert!(conn.unsent() > 0, "no kernel buffer is so large");
            let reader = std::thread::spawn(move || {
                let (mut got, mut room) = (Vec::new(), [0; 10_000]);
                while got.len() < 3_000_000 {
                    let count = rustix::io::read(&peer, &mut room).expect("bytes");
                    got.extend_from_slice(&room[..count]);
                }
                got
            });
            while conn.unsent() > 0 {
                let ready = wait(&mut poller);
                assert!(ready.iter().any(|ready| ready.writable && ready.token == TOKEN), "nobody would wake the loop");
                conn.flush().expect("the peer is there");
            }
            assert!(reader.join().expect("the reader") == sent);
            let mut ready = Vec::new();
            poller.wait(Some(Duration::ZERO), &mut ready).expect("an epoll set can be waited for");
            assert!(ready.is_empty(), "the loop is not woken for nothing: {ready:?}");
        }
    }

    #[test]
    fn the_last_words_of_a_peer_that_is_gone_are_read_before_its_end() {
        let mut poller = Poller::new().expect("a poller");
        for (mut conn, peer_reads, peer_writes) in connections(&poller) {
            rustix::io::write(&peer_writes, b"bye").expect("there is room");
            drop((peer_reads, peer_writes));
            conn.send([Bytes::from_static(b"lost")]).expect("no error: there may be something to read");
            let mut room = [0; 100];
            assert!(wait(&mut poller).iter().any(|ready| ready.readable));
            assert_eq!(conn.read(&mut room).expect("bytes"), Incoming::Bytes(3));
            assert!(wait(&mut poller).iter().any(|ready| ready.readable));
            assert_eq!(conn.read(&mut room).expect("the end"), Incoming::End);
            conn.send([Bytes::from_static(b"lost")]).expect("no error");
            assert_eq!(conn.unsent(), 0);
        }
    }

    #[test]
    fn a_renamed_connection_wakes_the_loop_under_its_new_token() {
        let mut poller = Poller::new().expect("a poller");
        for (mut conn, _peer, writes) in connections(&poller) {
            conn.send([Bytes::from(vec![0; 3_000_000])]).expect("the peer is there");
            assert!(conn.unsent() > 0);
            conn.rename(TOKEN + 1).expect("it is in the set");
            rustix::io::write(&writes, b"x").expect("there is room");
            let ready = wait(&mut poller);
            assert!(!ready.is_empty() && ready.iter().all(|ready| ready.token == TOKEN + 1), "{ready:?}");
        }
    }

    #[test]
    fn a_connection_moves_to_another_set_with_what_waits_in_it() {
        let (mut first, mut second) = (Poller::new().expect("a poller"), Poller::new().expect("a poller"));
        for (mut conn, peer, _writes) in connections(&first) {
            conn.send([Bytes::from(vec![7; 3_000_000])]).expect("the peer is there");
            let mut conn = conn.move_to(&second.registry(), TOKEN).expect("it can be added");
            let mut got = 0;
            while got < 3_000_000 {
                let count = rustix::io::read(&peer, &mut [0; 1 << 16]).expect("bytes");
                got += count;
                second.wait(Some(Duration::ZERO), &mut Vec::new()).expect("an epoll set can be waited for");
                conn.flush().expect("the peer is there");
            }
            let mut ready = Vec::new();
            first.wait(Some(Duration::ZERO), &mut ready).expect("an epoll set can be waited for");
            assert!(ready.is_empty(), "it is in the old set still: {ready:?}");
        }
    }

    #[test]
    fn a_peer_that_no_longer_reads_is_an_end_although_it_could_still_write() {
        let mut poller = Poller::new().expect("a poller");
        let [_, (mut conn, peer_reads, _peer_writes)] = connections(&poller);
        drop(peer_reads);
        conn.send([Bytes::from_static(b"lost")]).expect("no error");
        assert!(wait(&mut poller).iter().any(|ready| ready.readable));
        assert_eq!(conn.read(&mut [0; 10]).expect("the end"), Incoming::End);
    }
}
