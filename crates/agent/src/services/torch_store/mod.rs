//! torch's store at `MASTER_PORT`: moves bytes between its clients and the sans-IO server, which is here or, if it is relayed, on the node of
//! the first rank.
//!
//! The socket is bound once for the life of the job, so that no other program can take the port, and each attempt finds the store empty. It
//! listens on the loopback interface, or in a job on several nodes without a relay at the address that these reach. The protocol cannot
//! authenticate: a client of this machine is taken if its socket belongs to the user of the job or to root, another one if it comes from the
//! address of a node.

mod far;
mod service;

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Buf, Bytes};
use rankrun_core::relay::Parcel;
use rankrun_core::{Attempt, NodeId};
use rankrun_sys::listener::Listener;
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::{diag, limits, memory, socket};
use rankrun_wire::ToFront;
use rankrun_wireup::tcpstore::{ConnId, Effect, News, Violation};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use self::service::Service;
use crate::driver::token::Token;

/// All ranks may connect at once. The kernel takes less if `net.core.somaxconn` is less; clients then try again.
const BACKLOG: i32 = 4096;
/// How long the listener rests where no connection can be taken.
const WINDOW: Duration = Duration::from_millis(20);
/// Connections taken per wake-up: the workers wait meanwhile.
const ACCEPTS: usize = 64;
/// Bytes read from a client per wake-up, for the same reason.
const READ: usize = 64 * 1024;
/// Bytes written to a client per wake-up.
const WRITE: usize = 256 * 1024;
/// Replies given to the kernel with one call.
const REPLIES: usize = 64;
/// When the store holds so many bytes less than before, its memory is given back to the kernel, which the allocator may not do by itself.
const GIVEN_BACK: usize = 16 << 20;
/// Notes in a job.
const MAX_NOTES: usize = 10;
/// Descriptors that may be open if there is no limit.
const MAX_FILES: u64 = 1 << 20;

/// Where ranks find the store.
#[derive(Debug)]
pub(crate) enum Place {
    /// The clients of all nodes find it at this address, at one of these ports.
    Here(IpAddr, RangeInclusive<u16>),
    /// It is here too, for the clients of this node alone. Those of other nodes have theirs relayed.
    Relayed(RangeInclusive<u16>),
    /// It is on another node, and relayed.
    There,
}

impl Place {
    fn is_at(&self, listens: IpAddr) -> bool {
        match self {
            Place::Here(address, _) => *address == listens,
            Place::Relayed(_) | Place::There => listens.is_loopback(),
        }
    }
}

struct Client {
    socket: OwnedFd,
    out: VecDeque<Bytes>,
    /// It is polled for room to write, and not read until its replies are sent and its requests are served.
    awaits: Interest,
    /// The store has closed it: it ends when its replies are sent.
    is_ending: bool,
}

/// The store and its clients.
#[derive(Default)]
pub(crate) struct TorchStore {
    listener: Option<(Listener, SocketAddr)>,
    attempt: Attempt,
    /// Connections of the attempt before that are still to be accepted, and closed.
    stale: u32,
    service: Service,
    clients: HashMap<ConnId, Client>,
    /// Clients that have not sent the magic number. The first is the oldest.
    strangers: BTreeSet<ConnId>,
    /// The job's other nodes, whose sockets nobody here can check.
    open_to: Vec<IpAddr>,
    next: u32,
    /// Clients at a time, known when the first one comes.
    max_clients: OnceCell<usize>,
    /// The most that it has held since memory was given back.
    peak: usize,
    /// What is read goes here first.
    room: Vec<u8>,
    /// For the user: why clients were turned away.
    notes: Vec<String>,
    noted: usize,
}

impl TorchStore {
    /// An attempt begins: empties the store, and listens, if it does not yet. Returns where.
    ///
    /// It takes the connections of this machine, and of the nodes that it is open to.
    ///
    /// # Errors
    ///
    /// There is no network, or no port is free.
    pub(crate) fn begin(
        &mut self,
        attempt: Attempt,
        place: Place,
        open_to: Vec<IpAddr>,
        poller: &Poller,
    ) -> io::Result<SocketAddr> {
        self.end_attempt(poller);
        // Nothing of the attempt before is seen by the next one.
        self.service = match place {
            Place::Here(..) | Place::Relayed(_) => Service::default(),
            Place::There => Service::relay(),
        };
        self.give_back();
        self.attempt = attempt;
        self.open_to = open_to;
        if let Some((listener, address)) = self.listener.take() {
            if place.is_at(address.ip()) {
                self.listener = Some((listener, address));
                return Ok(address);
            }
            // The nodes reach this one at another address now.
            let _ = poller.remove(listener.socket());
            self.stale = 0;
        }
        let (listener, address) = match place {
            Place::Here(address, ports) => socket::listen_at(Some(address), ports, BACKLOG)?,
            Place::Relayed(ports) => listen_on_loopback(&ports)?,
            Place::There => listen_on_loopback(&(0..=0))?,
        };
        let listener = Listener::new(poller.registry(), Token::TorchStore.encode(), listener, WINDOW)?;
        self.listener = Some((listener, address));
        Ok(address)
    }

    /// Closes all connections of the attempt before.
    fn end_attempt(&mut self, poller: &Poller) {
        self.strangers.clear();
        for (_, client) in self.clients.drain() {
            // Closing it takes it out of the set, too.
            let _ = poller.remove(&client.socket);
        }
        if let Some((listener, _)) = &self.listener {
            // Connections that nobody has taken yet come before those of the new attempt.
            let waiting = socket::local_address(listener.socket()).and_then(diag::tcp_backlog);
            self.stale = waiting.unwrap_or_else(|_| {
                // This kernel does not tell how many.
                (0..BACKLOG).take_while(|_| socket::accept_tcp(listener.socket()).is_ok()).for_each(drop);
                0
            });
        }
    }

    /// Gives memory back, where much less is held than before.
    fn give_back(&mut self) {
        let held = self.service.held();
        self.peak = self.peak.max(held);
        if self.peak - held >= GIVEN_BACK {
            memory::give_back();
            self.peak = held;
        }
    }

    /// How often its content has changed in this attempt.
    pub(crate) fn changes(&self) -> u64 {
        self.service.changes()
    }

    /// What the user is to know, since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// When [`TorchStore::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.listener {
            _ if self.service.is_due() => Some(Duration::ZERO),
            Some((listener, _)) => listener.deadline(),
            None => None,
        }
    }

    /// A parcel from a node whose clients have their store here.
    pub(crate) fn parcel_of_node(&mut self, node: NodeId, parcel: Parcel, poller: &Poller) {
        if parcel.attempt == self.attempt {
            let effects = self.service.parcel_of_node(node, parcel, &mut self.next);
            self.perform(effects, poller);
            self.give_back();
        }
    }

    /// A parcel from the node that has the store.
    pub(crate) fn parcel_of_store(&mut self, parcel: Parcel, poller: &Poller) {
        if parcel.attempt != self.attempt {
            return;
        }
        for news in self.service.parcel_of_store(parcel) {
            let (News::Opened(conn) | News::Bytes(conn, _) | News::Read(conn) | News::Closed(conn)) = news;
            let id = ConnId(conn);
            let Some(client) = self.clients.get_mut(&id) else { continue };
            match news {
                News::Bytes(_, bytes) => client.out.push_back(bytes.into()),
                News::Closed(_) => client.is_ending = true,
                News::Opened(_) | News::Read(_) => {}
            }
            let is_open = client.awaits == Interest::Write || self.write(id);
            let is_over = self.clients.get(&id).is_some_and(|client| client.is_ending && client.out.is_empty());
            if !is_open || is_over || !self.poll(id, poller) {
                self.close(id, poller);
            }
        }
    }

    /// A node is lost, and the ranks of the others run on: its clients are gone, or all of ours, if it had the store.
    pub(crate) fn without(&mut self, node: NodeId, had_store: bool, poller: &Poller) {
        let effects = self.service.without(node, had_store);
        if !self.service.is_there() {
            for client in self.clients.keys().copied().collect::<Vec<_>>() {
                self.close(client, poller);
            }
        }
        self.perform(effects, poller);
    }

    /// What is to be told to other nodes.
    pub(crate) fn parcels(&mut self, outbox: &mut Vec<ToFront>) {
        self.service.parcels(self.attempt, outbox);
    }

    /// Takes connections again after a rest, and frees what is no longer needed.
    pub(crate) fn tick(&mut self, now: Duration, poller: &Poller) {
        if self.service.is_due() {
            let effects = self.service.turn();
            self.perform(effects, poller);
        }
        self.listener.iter_mut().for_each(|(listener, _)| listener.tick(now));
    }

    /// The listener is readable: takes connections.
    pub(crate) fn accept(&mut self, now: Duration, poller: &Poller) {
        for _ in 0..ACCEPTS {
            let Some((listener, _)) = &mut self.listener else { return };
            match socket::accept_tcp(listener.socket()) {
                Ok(_) if self.stale > 0 => self.stale -= 1,
                Ok((client, peer)) => {
                    if is_ours(&client, peer) || self.open_to.contains(&peer.ip()) {
                        self.add(client, poller);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer is gone already.
                Err(error) if error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => {
                    self.stale = self.stale.saturating_sub(1);
                }
                Err(_) => return listener.rest(now),
            }
        }
    }

    fn add(&mut self, socket: OwnedFd, poller: &Poller) {
        if !self.service.is_there() {
            return;
        }
        if self.clients.len() >= *self.max_clients.get_or_init(max_clients) {
            // A client that has said nothing yet makes room. One that is turned away tries again.
            let Some(oldest) = self.strangers.first().copied() else { return };
            self.close(oldest, poller);
        }
        let id = ConnId(self.next);
        self.next = self.next.wrapping_add(1);
        if poller.add(&socket, Token::TorchClient(id.0 as usize).encode(), Interest::Read).is_ok() {
            self.strangers.insert(id);
            self.service.opened(id);
            let (out, awaits, is_ending) = (VecDeque::new(), Interest::Read, false);
            self.clients.insert(id, Client { socket, out, awaits, is_ending });
        }
    }

    /// A client's socket is ready. It gets a part of its replies, or has a part of its requests served; the next part is for the
    /// next wake-up: others have their turn.
    pub(crate) fn ready(&mut self, client: usize, event: Ready, poller: &Poller) {
        let id = ConnId(client as u32);
        let mut effects = Vec::new();
        if event.writable && !self.write(id) {
            self.forget(id, poller, &mut effects);
        }
        match self.clients.get(&id) {
            Some(client) if !client.out.is_empty() => {}
            Some(client) if client.is_ending => self.forget(id, poller, &mut effects),
            Some(_) if self.service.is_behind(id) => self.service.continue_with(id, &mut effects),
            Some(_) if event.readable => self.read(id, poller, &mut effects),
            Some(_) | None => {}
        }
        self.perform(effects, poller);
        if !self.poll(id, poller) {
            // Without a reply it would wait for ever.
            self.close(id, poller);
        }
        self.give_back();
    }

    fn read(&mut self, id: ConnId, poller: &Poller, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        self.room.clear();
        self.room.reserve_exact(READ);
        let room = rustix::buffer::spare_capacity(&mut self.room);
        match rustix::io::read(&client.socket, room) {
            Ok(count) if count > 0 => {
                if self.service.received(id, &self.room, effects) {
                    self.strangers.remove(&id);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => self.forget(id, poller, effects),
        }
    }

    /// Sends the replies, and closes what is to be closed. Either may end other connections.
    fn perform(&mut self, mut effects: Vec<Effect>, poller: &Poller) {
        while !effects.is_empty() {
            let mut addressed = Vec::new();
            for effect in std::mem::take(&mut effects) {
                match effect {
                    Effect::Send { conn, bytes } => {
                        let Some(bytes) = self.service.send_far(conn, bytes) else { continue };
                        if let Some(client) = self.clients.get_mut(&conn) {
                            client.out.push_back(bytes);
                            if addressed.last() != Some(&conn) {
                                addressed.push(conn);
                            }
                        }
                    }
                    Effect::Close { conn, violation } => {
                        // torch's client only says that its connection was reset. A stranger is not worth a line.
                        let is_stranger = violation == Violation::NoMagic && self.strangers.contains(&conn);
                        if !is_stranger && self.noted < MAX_NOTES {
                            self.noted += 1;
                            self.notes
                                .push(format!("torch's store has closed the connection of a client: {violation}"));
                        }
                        self.service.close_far(conn);
                        // The replies to what it sent before.
                        self.write(conn);
                        self.forget(conn, poller, &mut effects);
                    }
                }
            }
            for conn in addressed {
                // What does not find room now is for later wake-ups.
                let is_open =
                    self.clients.get(&conn).is_none_or(|client| client.awaits == Interest::Write) || self.write(conn);
                if !is_open || !self.poll(conn, poller) {
                    self.forget(conn, poller, &mut effects);
                }
            }
        }
    }

    /// Writes a part of the replies. Returns whether the connection is open.
    fn write(&mut self, id: ConnId) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return true };
        let mut room = WRITE;
        while !client.out.is_empty() && room > 0 {
            let mut left = room;
            let slices: Vec<IoSlice<'_>> = client
                .out
                .iter()
                .take(REPLIES)
                .map_while(|bytes| {
                    let part = &bytes[..bytes.len().min(left)];
                    left -= part.len();
                    (!part.is_empty()).then(|| IoSlice::new(part))
                })
                .collect();
            match sendmsg(&client.socket, &slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Ok(count) => {
                    room -= count;
                    client.wrote(count);
                    self.service.wrote(id, count);
                }
                Err(Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        true
    }

    /// Polls a client for what it is to do next. Returns whether that is possible.
    fn poll(&mut self, id: ConnId, poller: &Poller) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return true };
        let interest = match self.service.has_room(id) {
            _ if !client.out.is_empty() || self.service.is_behind(id) => Interest::Write,
            true => Interest::Read,
            false => Interest::Hangup,
        };
        if std::mem::replace(&mut client.awaits, interest) == interest {
            return true;
        }
        poller.change(&client.socket, Token::TorchClient(id.0 as usize).encode(), interest).is_ok()
    }

    fn close(&mut self, id: ConnId, poller: &Poller) {
        let mut effects = Vec::new();
        self.forget(id, poller, &mut effects);
        self.perform(effects, poller);
    }

    fn forget(&mut self, id: ConnId, poller: &Poller, effects: &mut Vec<Effect>) {
        self.strangers.remove(&id);
        if let Some(client) = self.clients.remove(&id) {
            // Closing it takes it out of the set, too.
            let _ = poller.remove(&client.socket);
            self.service.closed(id, client.out.iter().map(Bytes::len).sum(), effects);
        }
    }
}

impl Client {
    /// So many bytes of its replies are written.
    fn wrote(&mut self, mut count: usize) {
        while let Some(first) = self.out.front_mut() {
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.out.pop_front();
        }
    }
}

/// IPv4 where this machine has it.
fn listen_on_loopback(ports: &RangeInclusive<u16>) -> io::Result<(OwnedFd, SocketAddr)> {
    let listen = |address: IpAddr| socket::listen_at(Some(address), ports.clone(), BACKLOG);
    listen(Ipv4Addr::LOCALHOST.into()).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Err(error),
        _ => listen(Ipv6Addr::LOCALHOST.into()),
    })
}

/// Whether a connection is from this machine, and its peer's socket is our user's or root's.
fn is_ours(client: &OwnedFd, peer: SocketAddr) -> bool {
    let Ok(local) = socket::local_address(client) else { return false };
    if !peer.ip().is_loopback() && peer.ip() != local.ip() {
        return false;
    }
    let own = rustix::process::geteuid().as_raw();
    match diag::tcp_owner(peer, local) {
        // A socket that its process has closed has no inode, and root's number in older kernels. torch's client waits for
        // an answer.
        Ok(owner) => owner.inode != 0 && (owner.uid == own || owner.uid == 0),
        // This kernel does not answer such questions.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// How many clients may be there at a time. The rest of the descriptors is for the ranks.
fn max_clients() -> usize {
    let files = limits::open_files().0.unwrap_or(MAX_FILES).min(MAX_FILES);
    (files - files / 4) as usize
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn clients_of_this_machine_are_taken_over_either_family() {
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            // A machine may lack IPv6.
            if TcpListener::bind((address, 0)).is_err() {
                continue;
            }
            let poller = Poller::new().expect("a poller");
            let mut store = TorchStore::default();
            let mut begin = || {
                let begun = store.begin(Attempt(0), Place::Here(address, 0..=0), Vec::new(), &poller);
                begun.expect("a port")
            };
            let address = begin();
            let stale = TcpStream::connect(address).expect("it listens");
            assert_eq!(begin(), address, "the same port");
            let client = TcpStream::connect(address).expect("it listens");
            store.accept(Duration::ZERO, &poller);
            assert_eq!(store.clients.len(), 1, "{address}: that of the attempt before is closed");
            drop((stale, client));
        }
    }
}
