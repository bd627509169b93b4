//! Where nodes connect: takes connections, and turns away those that are not of the job's nodes (S-1, S-2).
//!
//! It is a part of the caller's loop: it has no thread, and waits for nothing. What strangers can take from the job is
//! bounded by [`Limits`].

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::contact::longest_silence;
use rankrun_sys::poll::{Interest, Ready, Registry, Timer};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::socket;

use crate::identity::acceptor::{AcceptError, Acceptor, Claimed, Door};
use crate::transport::Carrier;

/// The kernel keeps so many connections for us, if `net.core.somaxconn` allows it: all nodes may connect at once.
const BACKLOG: i32 = 4096;
/// Connections taken in a turn of the loop: the job's own work waits meanwhile.
const ACCEPTS: usize = 64;
/// Bytes read from a connection in a turn of the loop.
const READ: usize = 4096;
/// How long no connection is taken when there are no descriptors left.
const REST: Duration = Duration::from_millis(20);

/// What peers that are not admitted yet may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections that have not knocked. A node knocks as soon as it is connected: the oldest makes room for the newest.
    pub strangers: usize,
    /// Connections that have, and are not admitted: the same.
    pub enrolling: usize,
    /// How long it may take from the connection to the claim.
    pub patience: Duration,
    /// Connections taken in a second. One costs about 20 µs; the kernel keeps the others.
    pub rate: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { strangers: 256, enrolling: 1024, patience: Duration::from_secs(10), rate: 4000 }
    }
}

/// A connection that is not admitted yet. The number of a later one is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u64);

/// The tokens under which the loop polls.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    pub listener: u64,
    pub peer: fn(PeerId) -> u64,
}

/// What has happened on a connection.
#[derive(Debug)]
pub enum ListenerEvent {
    /// A node that knows the secret: [`Listener::admit`] it, or [`Listener::refuse`] it.
    Arrived(Arrival),
    /// A connection was closed.
    TurnedAway { from: SocketAddr, error: AcceptError },
}

/// A node that knows the secret.
#[derive(Debug)]
pub struct Arrival {
    pub id: PeerId,
    pub from: SocketAddr,
    pub claimed: Claimed,
}

#[derive(Debug)]
struct HalfOpen {
    conn: Conn,
    from: SocketAddr,
    acceptor: Acceptor,
    until: Duration,
}

/// A listening socket, and the connections that are not admitted yet.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: SocketAddr,
    registry: Registry,
    tokens: Tokens,
    limits: Limits,
    door: Door,
    strangers: BTreeMap<PeerId, HalfOpen>,
    enrolling: BTreeMap<PeerId, HalfOpen>,
    next: u64,
    bucket: Bucket,
    /// The socket is out of the poll set until the timer is ready, which is in the same set: every loop that polls takes connections
    /// again, whatever it waits for.
    is_resting: bool,
    timer: Timer,
}

impl Listener {
    /// `socket` is from [`socket::listen_at`].
    pub fn new(
        socket: (OwnedFd, SocketAddr),
        registry: Registry,
        tokens: Tokens,
        limits: Limits,
        door: Door,
    ) -> io::Result<Listener> {
        let (socket, address) = socket;
        registry.add(&socket, tokens.listener, Interest::Read)?;
        let timer = Timer::new()?;
        registry.add(&timer, tokens.listener, Interest::Read)?;
        Ok(Listener {
            socket,
            address,
            registry,
            tokens,
            limits,
            door,
            strangers: BTreeMap::new(),
            enrolling: BTreeMap::new(),
            next: 0,
            bucket: Bucket::new(limits.rate),
            is_resting: false,
            timer,
        })
    }

    /// Listens at a port of this range.
    pub fn bind(
        address: Option<std::net::IpAddr>,
        ports: std::ops::RangeInclusive<u16>,
        registry: Registry,
        tokens: Tokens,
        door: Door,
    ) -> io::Result<Listener> {
        let socket = socket::listen_at(address, ports, BACKLOG)?;
        Listener::new(socket, registry, tokens, Limits::default(), door)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Connections that are not admitted.
    pub fn half_open(&self) -> usize {
        self.strangers.len() + self.enrolling.len()
    }

    /// When [`Listener::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        let first = |peers: &BTreeMap<PeerId, HalfOpen>| peers.first_key_value().map(|(_, peer)| peer.until);
        [first(&self.strangers), first(&self.enrolling)].into_iter().flatten().min()
    }

    /// Closes connections that took too long.
    pub fn tick(&mut self, now: Duration) {
        for peers in [&mut self.strangers, &mut self.enrolling] {
            // They are in the order in which they came, and all have the same time.
            while peers.first_key_value().is_some_and(|(_, peer)| peer.until <= now) {
                peers.pop_first();
            }
        }
    }

    /// The listening socket is readable, or its rest is over: takes connections.
    pub fn accept(&mut self, now: Duration) {
        if self.is_resting {
            self.timer.clear();
            if self.registry.add(&self.socket, self.tokens.listener, Interest::Read).is_err() {
                // A timer that is open can be set.
                let _ = self.timer.set(REST);
                return;
            }
            self.is_resting = false;
        }
        for _ in 0..ACCEPTS {
            if let Some(wait) = self.bucket.take(now) {
                return self.rest(wait);
            }
            match socket::accept_at(&self.socket) {
                Ok((socket, from)) => self.add(now, socket, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer is gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return self.rest(REST),
            }
        }
    }

    fn rest(&mut self, time: Duration) {
        if self.timer.set(time).is_ok() {
            self.is_resting = self.registry.remove(&self.socket).is_ok();
        }
    }

    fn add(&mut self, now: Duration, socket: OwnedFd, from: SocketAddr) {
        let id = PeerId(self.next);
        self.next += 1;
        if self.strangers.len() >= self.limits.strangers {
            self.strangers.pop_first();
        }
        // Without memory for its entry the connection is closed; a node tries again.
        let Ok(conn) = Conn::of_socket(&self.registry, (self.tokens.peer)(id), socket) else { return };
        let until = now + self.limits.patience;
        self.strangers.insert(id, HalfOpen { conn, from, acceptor: Acceptor::default(), until });
    }

    /// A connection is ready.
    pub fn ready(&mut self, id: PeerId, event: Ready) -> Option<ListenerEvent> {
        let mut peer = self.strangers.remove(&id).or_else(|| self.enrolling.remove(&id))?;
        if event.writable && peer.conn.flush().is_err() {
            return None;
        }
        if !event.readable {
            self.keep(id, peer);
            return None;
        }
        let mut room = [0; READ];
        let count = match peer.conn.read(&mut room) {
            Ok(Incoming::Bytes(count)) => count,
            Ok(Incoming::Nothing) => 0,
            Ok(Incoming::End) | Err(_) => return None,
        };
        let step = peer.acceptor.receive(&mut self.door, &room[..count]);
        let is_sent = peer.conn.send([peer.acceptor.take_output()]).is_ok();
        let from = peer.from;
        match step {
            Err(error) => Some(ListenerEvent::TurnedAway { from, error }),
            Ok(claimed) if is_sent => {
                self.keep(id, peer);
                claimed.map(|claimed| ListenerEvent::Arrived(Arrival { id, from, claimed }))
            }
            Ok(_) => None,
        }
    }

    fn keep(&mut self, id: PeerId, peer: HalfOpen) {
        if !peer.acceptor.has_knocked() {
            self.strangers.insert(id, peer);
            return;
        }
        if self.enrolling.len() >= self.limits.enrolling {
            self.enrolling.pop_first();
        }
        self.enrolling.insert(id, peer);
    }

    /// Admits a node: this session begins or goes on over its connection, which is polled under `token` from now on. The
    /// node gets its admission with the first bytes that are sent to it.
    pub fn admit(&mut self, id: PeerId, node: NodeId, session: NonZeroU64, token: u64) -> io::Result<Carrier> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let HalfOpen { mut conn, mut acceptor, .. } = self.enrolling.remove(&id).ok_or_else(gone)?;
        socket::watch_peer(&conn, longest_silence(self.door.node_timeout()))?;
        let tls = acceptor.admit(&self.door, node, session).map_err(io::Error::other)?;
        conn.rename(token)?;
        Ok(Carrier::secured(conn, tls, acceptor.take_output()))
    }

    /// Takes a node that has ended ([`crate::identity::Purpose::Ended`]) out of those with a time limit.
    /// Its token stays: it is ready when the node has gone, and is then to be dropped.
    pub fn hold(&mut self, id: PeerId) -> Option<Waiting> {
        let HalfOpen { conn, acceptor, .. } = self.enrolling.remove(&id)?;
        Some(Waiting { conn, acceptor })
    }

    /// Tells a node that asks ([`crate::identity::Purpose::Alive`]) that the front lives.
    pub fn confirm(&mut self, id: PeerId) {
        if let Some(HalfOpen { mut conn, mut acceptor, .. }) = self.enrolling.remove(&id) {
            acceptor.confirm(&self.door);
            // As in [`Listener::refuse`].
            let _ = conn.send([acceptor.take_output()]);
        }
    }

    /// Refuses a node for now: it gets the reason, and asks again.
    pub fn put_off(&mut self, id: PeerId, reason: &str) {
        if let Some(HalfOpen { mut conn, mut acceptor, .. }) = self.enrolling.remove(&id) {
            acceptor.put_off(&self.door, reason);
            // As in [`Listener::refuse`].
            let _ = conn.send([acceptor.take_output()]);
        }
    }

    /// Refuses a node, which gets the reason.
    pub fn refuse(&mut self, id: PeerId, reason: &str) {
        if let Some(HalfOpen { mut conn, mut acceptor, .. }) = self.enrolling.remove(&id) {
            acceptor.refuse(&self.door, reason);
            // The connection is closed now: the kernel has taken these few bytes, or nobody reads them.
            let _ = conn.send([acceptor.take_output()]);
        }
    }
}

/// A node that has ended, and waits for the end of the job.
#[derive(Debug)]
pub struct Waiting {
    conn: Conn,
    acceptor: Acceptor,
}

impl Waiting {
    /// The job goes on without the node, which may join again.
    pub fn put_off(mut self, door: &Door, reason: &str) {
        self.acceptor.put_off(door, reason);
        // As in [`Listener::refuse`].
        let _ = self.conn.send([self.acceptor.take_output()]);
    }

    /// The job is over: tells the node, which then ends.
    pub fn dismiss(mut self, door: &Door, code: u8, why: &str) {
        self.acceptor.dismiss(door, code, why);
        // As in [`Listener::refuse`].
        let _ = self.conn.send([self.acceptor.take_output()]);
    }
}

/// Allows so many events in a second, and as many at once after a pause.
#[derive(Debug)]
struct Bucket {
    rate: u32,
    left: f64,
    filled_at: Duration,
}

impl Bucket {
    fn new(rate: u32) -> Bucket {
        Bucket { rate, left: f64::from(rate), filled_at: Duration::ZERO }
    }

    /// Takes one, or says how long to wait.
    fn take(&mut self, now: Duration) -> Option<Duration> {
        let rate = f64::from(self.rate);
        let since = now.saturating_sub(self.filled_at).as_secs_f64();
        self.left = (self.left + since * rate).min(rate);
        self.filled_at = now;
        if self.left < 1.0 {
            // A little longer than for one: few wake-ups, each for several.
            return Some(Duration::from_secs_f64(16.0 / rate.max(1.0)));
        }
        self.left -= 1.0;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_allows_a_burst_and_then_its_rate() {
        let mut bucket = Bucket::new(100);
        let mut taken = 0;
        for ms in 0..3_000 {
            while bucket.take(Duration::from_millis(ms)).is_none() {
                taken += 1;
            }
        }
        assert!((399..=400).contains(&taken), "100 at once, and 100 in each of three seconds: {taken}");
    }
}
