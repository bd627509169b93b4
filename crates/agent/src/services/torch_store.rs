//! torch's store at `MASTER_PORT`: moves bytes between its clients and the sans-IO server.
//!
//! The socket is bound once for the life of the job, on the loopback interface, so that no other program can take the port
//! and no other machine can reach it. Each attempt finds the store empty. The protocol cannot authenticate; a client is
//! taken if its socket belongs to the user of the job or to root.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Buf, Bytes};
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::{diag, limits, socket};
use rankrun_wireup::tcpstore::{ConnId, Effect, Server};
use rustix::io::Errno;

use crate::driver::Token;

/// All ranks may connect at once. The kernel takes less if `net.core.somaxconn` is less; clients then try again.
const BACKLOG: i32 = 4096;
/// Connections taken per wake-up: the workers wait meanwhile.
const ACCEPTS: usize = 64;
/// Bytes read from a client per wake-up, for the same reason.
const READ: usize = 64 * 1024;
/// How long no connection is taken when there are no descriptors left.
const REST: Duration = Duration::from_millis(20);
/// Notes in a job.
const MAX_NOTES: usize = 10;
/// Descriptors that may be open if there is no limit.
const MAX_FILES: u64 = 1 << 20;

struct Client {
    socket: OwnedFd,
    out: VecDeque<Bytes>,
    /// It is polled for room to write, and not read until its replies are sent.
    awaits_room: bool,
}

/// The store and its clients.
#[derive(Default)]
pub(crate) struct TorchStore {
    listener: Option<(OwnedFd, u16)>,
    server: Server,
    clients: HashMap<ConnId, Client>,
    /// Clients that have not sent the magic number. The first is the oldest.
    strangers: BTreeSet<ConnId>,
    next: u32,
    /// Clients at a time. The rest of the descriptors is for the ranks.
    max_clients: usize,
    /// The listener is out of the poll set until then.
    rests_until: Option<Duration>,
    /// What is read goes here first.
    room: Vec<u8>,
    /// For the user: why clients were turned away.
    notes: Vec<String>,
    noted: usize,
}

impl TorchStore {
    /// An attempt begins: empties the store, and listens, if it does not yet. Returns the port; `None` where there is no
    /// network.
    pub(crate) fn begin(&mut self, poller: &Poller) -> Option<u16> {
        match &self.listener {
            Some(_) => self.new_attempt(poller),
            None => {
                let (listener, port) = socket::listen_local(BACKLOG).ok()?;
                poller.add(&listener, Token::TorchStore.encode(), Interest::Read).ok()?;
                let files = limits::open_files().0.unwrap_or(MAX_FILES).min(MAX_FILES);
                self.max_clients = (files - files / 4) as usize;
                self.room = vec![0; READ];
                self.listener = Some((listener, port));
            }
        }
        self.listener.as_ref().map(|(_, port)| *port)
    }

    /// Empties the store and closes all connections: nothing of the attempt before is seen by the next one.
    pub(crate) fn new_attempt(&mut self, poller: &Poller) {
        self.server.clear();
        self.strangers.clear();
        for (_, client) in self.clients.drain() {
            // Closing it takes it out of the set, too.
            let _ = poller.remove(&client.socket);
        }
        if let Some((listener, _)) = &self.listener {
            // Connections that nobody has taken yet. Their processes are gone.
            while socket::accept_tcp(listener).is_ok() {}
        }
    }

    /// What the user is to know, since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// When [`TorchStore::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.rests_until
    }

    /// Takes connections again after a rest.
    pub(crate) fn tick(&mut self, now: Duration, poller: &Poller) {
        if self.rests_until.is_some_and(|until| until <= now)
            && let Some((listener, _)) = &self.listener
        {
            // In the set already: nothing is lost.
            let _ = poller.add(listener, Token::TorchStore.encode(), Interest::Read);
            self.rests_until = None;
        }
    }

    /// The listener is readable: takes connections.
    pub(crate) fn accept(&mut self, now: Duration, poller: &Poller) {
        for _ in 0..ACCEPTS {
            let Some((listener, _)) = &self.listener else { return };
            match socket::accept_tcp(listener) {
                Ok((client, peer)) => {
                    if is_ours(&client, peer) {
                        self.add(client, poller);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer is gone already.
                Err(error) if error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => {}
                Err(_) => {
                    if poller.remove(listener).is_ok() {
                        self.rests_until = Some(now + REST);
                    }
                    return;
                }
            }
        }
    }

    fn add(&mut self, socket: OwnedFd, poller: &Poller) {
        if self.clients.len() >= self.max_clients {
            // A client that has said nothing yet makes room. One that is turned away tries again.
            let Some(oldest) = self.strangers.first().copied() else { return };
            self.close(oldest, poller);
        }
        let id = ConnId(self.next);
        self.next = self.next.wrapping_add(1);
        if poller.add(&socket, Token::TorchClient(id.0 as usize).encode(), Interest::Read).is_ok() {
            self.server.opened(id);
            self.strangers.insert(id);
            self.clients.insert(id, Client { socket, out: VecDeque::new(), awaits_room: false });
        }
    }

    /// A client's socket is ready.
    pub(crate) fn ready(&mut self, client: usize, event: Ready, poller: &Poller) {
        let id = ConnId(client as u32);
        if event.writable {
            self.write(id, poller);
        }
        if event.readable {
            self.read(id, poller);
        }
    }

    fn read(&mut self, id: ConnId, poller: &Poller) {
        let Some(client) = self.clients.get(&id) else { return };
        // No requests are read from a client that does not read its replies.
        if client.awaits_room {
            return;
        }
        match rustix::io::read(&client.socket, &mut self.room[..]) {
            Ok(count) if count > 0 => {
                let mut effects = Vec::new();
                self.server.received(id, &self.room[..count], &mut effects);
                if self.server.is_valid(id) {
                    self.strangers.remove(&id);
                }
                self.perform(effects, poller);
                self.catch_up(id, poller);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => self.close(id, poller),
        }
    }

    /// Serves what a client sent while its replies were not written.
    fn catch_up(&mut self, id: ConnId, poller: &Poller) {
        while self.server.is_behind(id) && self.clients.get(&id).is_some_and(|client| client.out.is_empty()) {
            let mut effects = Vec::new();
            self.server.written(id, &mut effects);
            self.perform(effects, poller);
        }
    }

    fn perform(&mut self, effects: Vec<Effect>, poller: &Poller) {
        for effect in effects {
            match effect {
                Effect::Send { conn, bytes } => {
                    if let Some(client) = self.clients.get_mut(&conn) {
                        client.out.push_back(bytes);
                        self.write(conn, poller);
                    }
                }
                Effect::Close { conn, violation } => {
                    // torch's client only says that its connection was reset. A stranger is not worth a line.
                    if !self.strangers.contains(&conn) && self.noted < MAX_NOTES {
                        self.noted += 1;
                        self.notes.push(format!("torch's store has closed the connection of a client: {violation}"));
                    }
                    self.close(conn, poller);
                }
            }
        }
    }

    fn write(&mut self, id: ConnId, poller: &Poller) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut interest = None;
        while let Some(bytes) = client.out.front_mut() {
            match rustix::net::send(&client.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) if count == bytes.len() => drop(client.out.pop_front()),
                Ok(count) => bytes.advance(count),
                Err(Errno::AGAIN) => {
                    interest = (!std::mem::replace(&mut client.awaits_room, true)).then_some(Interest::Write);
                    break;
                }
                Err(_) => {
                    self.close(id, poller);
                    return;
                }
            }
        }
        let is_free = client.out.is_empty() && std::mem::take(&mut client.awaits_room);
        if is_free {
            interest = Some(Interest::Read);
        }
        if let Some(interest) = interest
            && poller.change(&client.socket, Token::TorchClient(id.0 as usize).encode(), interest).is_err()
        {
            // Without a reply it would wait for ever.
            self.close(id, poller);
        } else if is_free {
            self.catch_up(id, poller);
        }
    }

    fn close(&mut self, id: ConnId, poller: &Poller) {
        self.strangers.remove(&id);
        if let Some(client) = self.clients.remove(&id) {
            // Closing it takes it out of the set, too.
            let _ = poller.remove(&client.socket);
            let mut effects = Vec::new();
            self.server.closed(id, &mut effects);
            self.perform(effects, poller);
        }
    }
}

/// Whether a connection is from this machine, and its peer's socket is our user's or root's.
fn is_ours(client: &OwnedFd, peer: SocketAddrV4) -> bool {
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
