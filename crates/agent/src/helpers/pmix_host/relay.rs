//! Moves bytes between the ranks and libpmix's own socket.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rankrun_sys::poll::{Ready, Registry};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::socket;

/// Bytes read at a time.
const READ: usize = 64 * 1024;
/// What may wait for a side that does not read. libpmix and its clients read all the time, so that one beyond it is broken.
const MAX_WAITING: usize = 256 << 20;

/// One side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Rank,
    Library,
}

/// A rank's connection, and ours to libpmix for it.
#[derive(Debug)]
struct Pair {
    rank: Conn,
    library: Conn,
    /// The first bytes of the rank, until its name has been read from them.
    first: Option<Vec<u8>>,
}

/// All connections.
#[derive(Debug)]
pub(super) struct Relay {
    registry: Registry,
    port: u16,
    /// The first token that is the relay's.
    base: u64,
    pairs: BTreeMap<u64, Pair>,
    next: u64,
}

impl Relay {
    /// Relays to this port of 127.0.0.1, with tokens from `base` on.
    pub(super) fn new(registry: Registry, port: u16, base: u64) -> Relay {
        Relay { registry, port, base, pairs: BTreeMap::new(), next: 0 }
    }

    /// A rank's connection from now on. `already`: bytes that were read from it. Returns its number.
    pub(super) fn add(&mut self, rank: OwnedFd, already: &[u8]) -> io::Result<u64> {
        let library = socket::connect_local(self.port)?;
        let number = self.next;
        self.next += 1;
        let token = self.base + 2 * number;
        let mut library = Conn::of_socket(&self.registry, token + 1, library)?;
        library.send([Bytes::copy_from_slice(already)])?;
        let rank = Conn::of_socket(&self.registry, token, rank)?;
        self.pairs.insert(number, Pair { rank, library, first: Some(already.to_vec()) });
        Ok(number)
    }

    /// The rank of a connection is known, or will not be.
    pub(super) fn named(&mut self, number: u64) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.first = None;
        }
    }

    /// Moves what there is. Returns the connection's number and its first bytes if its rank is not known yet.
    pub(super) fn ready(&mut self, event: Ready) -> Option<(u64, Vec<u8>)> {
        let number = (event.token - self.base) / 2;
        let side = if (event.token - self.base).is_multiple_of(2) { Side::Rank } else { Side::Library };
        let pair = self.pairs.get_mut(&number)?;
        match pair.turn(side, event) {
            Ok(true) => {}
            // One side has closed, or is broken: so is the other for its peer.
            Ok(false) | Err(_) => {
                let first = self.pairs.remove(&number)?.first;
                return first.map(|first| (number, first));
            }
        }
        let first = self.pairs.get(&number)?.first.clone()?;
        (side == Side::Rank && !first.is_empty()).then_some((number, first))
    }
}

impl Pair {
    /// Whether the connection goes on.
    fn turn(&mut self, side: Side, event: Ready) -> io::Result<bool> {
        let (from, to) = match side {
            Side::Rank => (&mut self.rank, &mut self.library),
            Side::Library => (&mut self.library, &mut self.rank),
        };
        if event.writable {
            from.flush()?;
        }
        if !event.readable {
            return Ok(true);
        }
        let mut room = vec![0; READ];
        match from.read(&mut room)? {
            Incoming::Bytes(count) => {
                if let (Side::Rank, Some(first)) = (side, &mut self.first) {
                    let more = super::origin::FIRST_BYTES.saturating_sub(first.len()).min(count);
                    first.extend_from_slice(&room[..more]);
                }
                room.truncate(count);
                to.send([Bytes::from(room)])?;
                Ok(to.unsent() <= MAX_WAITING)
            }
            Incoming::Nothing => Ok(true),
            Incoming::End => Ok(false),
        }
    }
}
