//! The worker socket's connections: who has connected, for which worker, and what was received (docs/failures.md).
//!
//! A client is identified by the kernel: by the peer's pid, and the worker of that process. A client that is gone before it
//! can be looked up is identified by the tag that it sends, which only one worker has in its environment. A process that was
//! forked from another speaker, or started by `multiprocessing`, is a helper of its rank: its messages do not count for the
//! rank. Of a client that is gone nobody knows whether it was a helper: its messages count.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::result::ResultPiece;
use rankrun_core::testimony::Testimony;
use rankrun_core::{Pid, WorkerId};
use rankrun_sys::listener::Listener;
use rankrun_sys::poll::{Interest, Poller};
use rankrun_sys::process::ProcessId;
use rankrun_sys::{proc, socket};
use rankrun_wireup::worker::{Client, ClientError, Said, When};

use super::hook::{self, Hook};
use super::results::Room;
use crate::children::Children;
use crate::driver::token::Token;

/// The name of the worker socket in the job's directory.
const NAME: &str = "worker.sock";
/// Connections at a time. Each rank may start many interpreters; a job of 512 ranks has 512 of them at least.
const MAX_CLIENTS: usize = 8192;
/// How long the listener rests where too many connect, and the time in which they are counted.
const WINDOW: Duration = Duration::from_millis(20);
/// Connections taken per wake-up, for the same reason as [`READ`].
const ACCEPTS: usize = 32;
/// Connections taken in a time, at least; two of each rank may come at once, when all fail together. A rank that makes one
/// for each of its thousands of notes then waits in the backlog, at no cost to others, and for less than the time-out of a
/// client (0.25 s).
const TAKEN: usize = 40;
/// Bytes read from a client per wake-up: a rank that floods us waits for the others.
const READ: usize = 64 * 1024;
/// Reads of a client after its rank has ended: what it sent before its end.
const LAST_READS: usize = 8;
/// Notes, asides and complaints of a rank that are passed on each second; the rest is dropped here.
const NOTES_PER_SECOND: u32 = 20;

/// Who a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(crate) worker: WorkerId,
    /// `None` for a process that was gone before it could be looked up.
    pub(crate) process: Option<ProcessId>,
    pub(crate) pid: Pid,
    pub(crate) may_testify: bool,
}

/// What was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    Hello(Peer),
    Testimony(Peer, Testimony, When),
    Result(Peer, ResultPiece),
    /// It sent a line that is not part of the protocol.
    Nonsense(Peer, String),
    Closed(Peer),
}

impl Received {
    /// Who has sent it.
    pub(crate) fn peer(&self) -> Peer {
        match self {
            Received::Hello(peer)
            | Received::Testimony(peer, ..)
            | Received::Result(peer, _)
            | Received::Nonsense(peer, _)
            | Received::Closed(peer) => *peer,
        }
    }
}

struct Connection {
    socket: OwnedFd,
    client: Client,
    pid: i32,
    /// For a process that could not be looked up, `None` until it names a worker.
    peer: Option<Peer>,
    /// Whether the peer may report for its worker is known, and not only assumed.
    is_known: bool,
    /// It has sent a piece of a result: it waits while there is no room for more.
    sends_results: bool,
}

/// All of them.
#[derive(Default)]
pub(crate) struct WorkerSocket {
    listener: Option<Listener>,
    /// The device and the inode of its name.
    name: Option<(u64, u64)>,
    /// What the first attempt was told.
    opened: Option<Opened>,
    hook: Option<Hook>,
    connections: BTreeMap<usize, Connection>,
    next: usize,
    /// Looked-up clients, with whether they only help their worker: a client may make a connection for each message.
    known: HashMap<ProcessId, (WorkerId, bool)>,
    /// Notes handed on in the present second, by worker.
    notes: HashMap<WorkerId, (u64, u32)>,
    results: Room,
}

/// Where the socket is and, if it could be laid out, the interpreter hook.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opened {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) hook: Option<PathBuf>,
    /// Why there is no socket or no hook. The job runs without: the ranks report nothing then, and are still watched.
    pub(crate) complaint: Option<String>,
}

impl WorkerSocket {
    /// Listens, and lays out the hook if it is wanted: once for all attempts.
    pub(crate) fn open(&mut self, runtime_dir: &Path, with_hook: bool, poller: &Poller) -> Opened {
        if let Some(opened) = &self.opened {
            return Opened { complaint: None, ..opened.clone() };
        }
        let opened = self.open_first(runtime_dir, with_hook, poller);
        self.opened = Some(opened.clone());
        opened
    }

    fn open_first(&mut self, runtime_dir: &Path, with_hook: bool, poller: &Poller) -> Opened {
        let path = runtime_dir.join(NAME);
        if let Err(error) = self.listen(&path, poller) {
            return Opened { complaint: Some(complaint("listen on", &path, &error)), ..Opened::default() };
        }
        let mut opened = Opened { socket: Some(path), ..Opened::default() };
        if with_hook {
            match hook::lay_out(runtime_dir) {
                Ok(hook) => {
                    opened.hook = Some(hook.directory.clone());
                    self.hook = Some(hook);
                }
                Err((directory, error)) => {
                    opened.complaint = Some(complaint("lay out Python's hook in", &directory, &error));
                }
            }
        }
        opened
    }

    fn listen(&mut self, path: &Path, poller: &Poller) -> io::Result<()> {
        let listener = socket::listen(path)?;
        self.listener = Some(Listener::new(poller.registry(), Token::WorkerSocket.encode(), listener, WINDOW)?);
        self.name = name_of(path);
        Ok(())
    }

    /// Before another attempt: makes the socket again if the job has removed it. Returns what was missing.
    ///
    /// # Errors
    ///
    /// Why it cannot be made again, for the user. The ranks are started without.
    pub(crate) fn restore(&mut self, poller: &Poller) -> Result<Vec<&'static str>, String> {
        let mut missing = Vec::new();
        let Some(opened) = &self.opened else { return Ok(missing) };
        if let Some(path) = opened.socket.clone()
            && name_of(&path).is_none_or(|name| Some(name) != self.name)
        {
            missing.push("worker socket");
            let removed = std::fs::remove_file(&path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            });
            removed.and_then(|()| self.listen(&path, poller)).map_err(|error| complaint("listen on", &path, &error))?;
        }
        Ok(missing)
    }

    /// The same for the hook. Returns a note for the user, if it was missing, or cannot be made again.
    pub(crate) fn restore_hook(&mut self, runtime_dir: &Path) -> Option<String> {
        self.hook.as_ref()?;
        match hook::lay_out(runtime_dir) {
            Ok(hook) => {
                let text = format!(
                    "a process has changed Python's hook in \"{}\": it was made again",
                    hook.directory.display()
                );
                let text = hook.is_new.then_some(text);
                self.hook = Some(hook);
                text
            }
            Err((directory, error)) => Some(complaint("lay out Python's hook in", &directory, &error)),
        }
    }

    /// These workers are over: what the processes that they have released (`--descendants leave`) send is for no worker.
    pub(crate) fn forget(&mut self, is_over: impl Fn(WorkerId) -> bool) {
        self.known.retain(|_, (worker, _)| !is_over(*worker));
        self.notes.retain(|worker, _| !is_over(*worker));
        for connection in self.connections.values_mut() {
            connection.peer.take_if(|peer| is_over(peer.worker));
        }
    }

    /// When [`WorkerSocket::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.listener.as_ref()?.deadline()
    }

    /// Takes connections again after a rest.
    pub(crate) fn tick(&mut self, now: Duration) {
        self.listener.iter_mut().for_each(|listener| listener.tick(now));
    }

    /// The listener is readable: takes connections, as many as there may be in a time.
    pub(crate) fn accept(&mut self, now: Duration, children: &Children, ranks: usize, poller: &Poller) {
        let is_over_limit = |listener: &mut Listener| listener.taken(now) >= TAKEN.max(2 * ranks);
        let is_full = self.listener.as_mut().is_some_and(is_over_limit);
        let (taken, has_failed) = if is_full { (0, false) } else { self.accept_some(children, poller) };
        if let Some(listener) = &mut self.listener {
            listener.count(taken);
            if is_full || has_failed {
                listener.rest(now);
            }
        }
    }

    /// Takes connections that wait. Returns how many, and whether one could not be taken (there are no descriptors left).
    fn accept_some(&mut self, children: &Children, poller: &Poller) -> (usize, bool) {
        for taken in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return (taken, false) };
            let socket = match socket::accept(listener.socket()) {
                Ok(socket) => socket,
                Err(error) => return (taken, error.kind() != io::ErrorKind::WouldBlock),
            };
            if self.connections.len() >= MAX_CLIENTS || socket::set_nonblocking(&socket).is_err() {
                continue;
            }
            let Some(pid) = socket::peer_pid(&socket) else { continue };
            let index = self.next;
            self.next += 1;
            if poller.add(&socket, Token::WorkerClient(index).encode(), Interest::Read).is_ok() {
                let (peer, is_known) = self.identify(pid, children).unzip();
                let is_known = is_known.unwrap_or(true);
                let (client, sends_results) = (Client::new(), false);
                let connection = Connection { socket, client, pid, peer, is_known, sends_results };
                self.connections.insert(index, connection);
            }
        }
        (ACCEPTS, false)
    }

    /// The worker that a process belongs to, and whether it may report for it; and whether that is known for good: a process that does
    /// not let itself be read now may not.
    fn identify(&mut self, pid: i32, children: &Children) -> Option<(Peer, bool)> {
        let Some(process) = proc::process(pid).filter(|process| process.state != 'Z') else {
            // A leader is known by its pid until it is reaped, and its last report is often read after its end.
            let worker = children.worker_of_leader(pid)?;
            return Some((Peer { worker, process: None, pid: Pid(pid), may_testify: true }, true));
        };
        let id = process.id();
        let (worker, is_helper) = match self.known.get(&id) {
            Some((worker, is_helper)) => (*worker, Some(*is_helper)),
            None => {
                let (worker, is_helper) = (children.worker_of(&process)?, children.is_helper(&process));
                if self.known.len() >= MAX_CLIENTS {
                    self.known.clear();
                }
                self.known.extend(is_helper.map(|is_helper| (id, (worker, is_helper))));
                (worker, is_helper)
            }
        };
        let may_testify = is_helper == Some(false);
        Some((Peer { worker, process: Some(id), pid: Pid(pid), may_testify }, is_helper.is_some()))
    }

    /// Asks again whether a client may report for its worker, if that was not known.
    fn ask_again(&mut self, index: usize, children: &Children) {
        let is_open = |connection: &&Connection| !connection.is_known && connection.peer.is_some();
        let Some(pid) = self.connections.get(&index).filter(is_open).map(|connection| connection.pid) else { return };
        let Some((peer, is_known)) = self.identify(pid, children) else { return };
        if let Some(connection) = self.connections.get_mut(&index)
            && connection.peer.is_some_and(|before| (before.worker, before.process) == (peer.worker, peer.process))
        {
            (connection.peer, connection.is_known) = (Some(peer), is_known);
        }
    }

    /// A connection is readable.
    pub(crate) fn read(&mut self, index: usize, now: Duration, children: &Children, poller: &Poller) -> Vec<Received> {
        let mut received = Vec::new();
        if !self.must_wait(index, poller) {
            self.read_once(index, now, children, poller, &mut received);
        }
        received
    }

    /// Leaves a client alone that sends a result, if there is no room for it. Returns whether it waits.
    fn must_wait(&mut self, index: usize, poller: &Poller) -> bool {
        let sends = self.connections.get(&index).filter(|connection| connection.sends_results);
        // One that cannot be taken out of the set is read.
        let waits = sends.is_some_and(|it| self.results.is_full() && poller.remove(&it.socket).is_ok());
        if waits {
            self.results.wait(index);
        }
        waits
    }

    /// The front has written, or dropped, pieces of results that cost so much.
    pub(crate) fn results_taken(&mut self, cost: u64, poller: &Poller) {
        let clients = self.results.written(cost);
        self.read_again(clients, poller);
    }

    /// The front is lost: results are read and forgotten, so that no rank waits for that on its way out.
    pub(crate) fn drop_results(&mut self, poller: &Poller) {
        let clients = self.results.lift();
        self.read_again(clients, poller);
    }

    fn read_again(&mut self, clients: impl IntoIterator<Item = usize>, poller: &Poller) {
        for index in clients {
            // One that is gone has been read to its end with its rank.
            let Some(connection) = self.connections.get(&index) else { continue };
            if poller.add(&connection.socket, Token::WorkerClient(index).encode(), Interest::Read).is_err() {
                // It would wait for ever: it sees that its result is lost.
                self.connections.remove(&index);
            }
        }
    }

    /// Reads a connection, and appends what was received. Returns whether there may be more to read.
    fn read_once(
        &mut self,
        index: usize,
        now: Duration,
        children: &Children,
        poller: &Poller,
        all: &mut Vec<Received>,
    ) -> bool {
        let mut bytes = [0u8; READ];
        self.ask_again(index, children);
        let Some(connection) = self.connections.get_mut(&index) else { return false };
        let (mut messages, mut received) = (Vec::new(), Vec::new());
        let (mut nonsense, mut is_empty) = (None, false);
        let open = match rustix::io::read(&connection.socket, &mut bytes) {
            Ok(0) => false,
            Ok(count) => match connection.client.received(&bytes[..count], &mut messages) {
                Ok(()) => true,
                Err(error) => {
                    nonsense = Some(error);
                    false
                }
            },
            Err(rustix::io::Errno::INTR) => true,
            Err(rustix::io::Errno::AGAIN) => {
                is_empty = true;
                true
            }
            Err(_) => false,
        };
        for message in messages {
            match message {
                Said::Hello { tag, .. } => {
                    if connection.peer.is_none() {
                        let (worker, pid) = (tag.and_then(|tag| children.worker_of_tag(&tag)), connection.pid);
                        // It ended by itself before it was looked up, as every short process may on a busy machine. One that lives and
                        // belongs to no worker has been released.
                        let may_testify = proc::has_ended(pid);
                        connection.peer =
                            worker.map(|worker| Peer { worker, process: None, pid: Pid(pid), may_testify });
                    }
                    received.extend(connection.peer.filter(|peer| peer.may_testify).map(Received::Hello));
                }
                Said::Testimony(testimony, when) => {
                    let peer = connection.peer.filter(|peer| may_send(*peer, &testimony));
                    received.extend(peer.map(|peer| Received::Testimony(peer, testimony, when)));
                }
                Said::Result(piece) => {
                    if let Some(peer) = connection.peer {
                        connection.sends_results = true;
                        self.results.take(&piece);
                        received.push(Received::Result(peer, piece));
                    }
                }
            }
        }
        let peer = connection.peer;
        received.extend(
            peer.zip(nonsense).map(|(peer, error): (Peer, ClientError)| Received::Nonsense(peer, error.to_string())),
        );
        if !open && let Some(connection) = self.connections.remove(&index) {
            // Closing it takes it out of the set, too.
            let _ = poller.remove(&connection.socket);
            received.extend(peer.map(Received::Closed));
        }
        received.retain(|received| match received {
            Received::Testimony(peer, Testimony::Note { .. } | Testimony::Aside { .. } | Testimony::Progress, _)
            | Received::Nonsense(peer, _) => self.notes.entry(peer.worker).or_default().is_within(now),
            Received::Hello(_) | Received::Testimony(..) | Received::Result(..) | Received::Closed(_) => true,
        });
        all.append(&mut received);
        open && !is_empty
    }

    /// All that a worker's processes sent before its end.
    pub(crate) fn read_last(
        &mut self,
        worker: WorkerId,
        now: Duration,
        children: &Children,
        poller: &Poller,
    ) -> Vec<Received> {
        self.accept_some(children, poller);
        // One that could not be looked up may belong to this worker.
        let may_be = |connection: &Connection| connection.peer.is_none_or(|peer| peer.worker == worker);
        let of_worker = self.connections.iter().filter(|(_, connection)| may_be(connection));
        let indices: Vec<usize> = of_worker.map(|(index, _)| *index).collect();
        let mut received = Vec::new();
        for index in indices {
            for _ in 0..LAST_READS {
                // A read may end within a line, or bring only lines that do not count.
                if !self.read_once(index, now, children, poller, &mut received) {
                    break;
                }
            }
        }
        received
    }
}

fn complaint(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} \"{}\": {}", path.display(), rankrun_sys::reason(error))
}

/// The device and the inode of a socket's name.
fn name_of(path: &Path) -> Option<(u64, u64)> {
    let name = std::fs::symlink_metadata(path).ok().filter(|name| name.file_type().is_socket())?;
    Some((name.dev(), name.ino()))
}

/// Counts what is passed on in a second.
trait Throttle {
    fn is_within(&mut self, now: Duration) -> bool;
}

impl Throttle for (u64, u32) {
    fn is_within(&mut self, now: Duration) -> bool {
        if self.0 != now.as_secs() {
            *self = (now.as_secs(), 0);
        }
        self.1 += 1;
        self.1 <= NOTES_PER_SECOND
    }
}

/// Whether a client may send this for its worker.
fn may_send(peer: Peer, testimony: &Testimony) -> bool {
    match testimony {
        Testimony::Uncaught(_) | Testimony::Exiting { .. } | Testimony::Leaving { .. } | Testimony::Aside { .. } => {
            peer.may_testify
        }
        Testimony::Abort { .. }
        | Testimony::Note { .. }
        | Testimony::Progress
        | Testimony::Ready
        | Testimony::ErrorFile(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use rankrun_core::result::RESULTS_ROOM;
    use rankrun_core::{Attempt, GroupId, JobId, Rank};

    use super::*;
    use crate::children::Boundary;

    const WORKER: WorkerId = WorkerId { rank: Rank(0), attempt: Attempt(0) };

    /// A worker socket, and this process as the leader of rank 0.
    struct Bench {
        /// Is removed when it is dropped.
        directory: tempfile::TempDir,
        poller: Poller,
        children: Children,
        workers: WorkerSocket,
        path: PathBuf,
    }

    fn bench() -> Bench {
        let directory = tempfile::tempdir().expect("a directory");
        let poller = Poller::new().expect("a poller");
        let boundary = Boundary::choose(&JobId("test".to_owned()), Some("subreaper"));
        let mut children = Children::new(JobId("test".to_owned()), boundary);
        children.begin(WORKER, "tag");
        children.add_leader(WORKER, std::process::id() as i32);
        let mut workers = WorkerSocket::default();
        let path = workers.open(directory.path(), false, &poller).socket.expect("a socket");
        Bench { directory, poller, children, workers, path }
    }

    #[test]
    fn the_last_words_behind_much_that_does_not_count_are_read() {
        let Bench { directory: _directory, poller, children, mut workers, path } = bench();
        let mut client = UnixStream::connect(path).expect("it listens");
        let filler = format!("{{\"type\":\"of the future\",\"x\":\"{}\"}}\n", "x".repeat(60_000));
        client.write_all(filler.repeat(2).as_bytes()).expect("a socket takes 200 KiB");
        client.write_all(b"{\"type\":\"abort\",\"code\":3}\n").expect("a socket takes 200 KiB");
        let received = workers.read_last(WORKER, Duration::ZERO, &children, &poller);
        let abort = Testimony::Abort { code: 3, message: None };
        assert!(matches!(&received[..], [Received::Testimony(_, testimony, _)] if *testimony == abort), "{received:?}");
    }

    /// What a process of rank 0 can still say when workers are forgotten.
    fn said_after(is_over: impl Fn(WorkerId) -> bool) -> Vec<Received> {
        let Bench { directory: _directory, poller, children, mut workers, path } = bench();
        let abort = b"{\"type\":\"abort\",\"code\":3}\n";
        let mut early = UnixStream::connect(&path).expect("it listens");
        early.write_all(abort).expect("it is read");
        let received = workers.read_last(WORKER, Duration::ZERO, &children, &poller);
        assert!(matches!(&received[..], [Received::Testimony(..)]), "{received:?}");
        let mut released =
            Children::new(JobId("test".to_owned()), Boundary::choose(&JobId("test".to_owned()), Some("subreaper")));
        let next = WorkerId { attempt: Attempt(1), ..WORKER };
        released.begin(next, "another");
        workers.forget(is_over);
        early.write_all(abort).expect("it is read");
        let mut late = UnixStream::connect(&path).expect("it listens");
        late.write_all(abort).expect("it is read");
        workers.read_last(WORKER, Duration::ZERO, &released, &poller)
    }

    #[test]
    fn a_process_that_a_worker_has_released_does_not_testify_for_the_successor() {
        assert_eq!(said_after(|worker| worker == WORKER), []);
        assert_eq!(said_after(|worker| worker.rank == Rank(1)).len(), 2, "that of another worker still does");
        assert_eq!(said_after(|worker| worker.group() == GroupId(1)).len(), 2, "and so does that of another group");
    }

    #[test]
    fn a_large_result_waits_in_its_rank_until_the_front_has_written_what_came_before() {
        const PIECES: usize = 400;
        let Bench { directory: _directory, mut poller, children, mut workers, path } = bench();
        let client = std::thread::spawn(move || {
            let mut client = UnixStream::connect(path).expect("it listens");
            let data = "A".repeat(60_000);
            for _ in 0..PIECES {
                let line = format!("{{\"type\":\"result\",\"data\":\"{data}\"}}\n");
                client.write_all(line.as_bytes()).expect("it is read");
            }
        });
        let (mut pieces, mut unwritten, mut most) = (0, 0, 0);
        let mut ready = Vec::new();
        while pieces < PIECES {
            // Nothing is ready while the only client waits: now the front has written all.
            poller.wait(Some(Duration::from_millis(50)), &mut ready).expect("a poller");
            if ready.is_empty() && unwritten >= RESULTS_ROOM {
                workers.results_taken(std::mem::take(&mut unwritten), &poller);
            }
            for event in &ready {
                match Token::decode(event.token) {
                    Some(Token::WorkerSocket) => workers.accept(Duration::ZERO, &children, 1, &poller),
                    Some(Token::WorkerClient(index)) => {
                        for received in workers.read(index, Duration::ZERO, &children, &poller) {
                            let Received::Result(_, piece) = received else { continue };
                            (pieces, unwritten) = (pieces + 1, unwritten + piece.cost());
                        }
                        most = most.max(unwritten);
                    }
                    _ => {}
                }
            }
        }
        client.join().expect("all of it was read");
        assert!(most < RESULTS_ROOM + 2 * READ as u64, "{most} bytes at a time");
    }

    #[test]
    fn what_a_rank_sent_of_a_result_before_its_end_is_read_though_there_is_no_room() {
        let Bench { directory: _directory, poller, children, mut workers, path } = bench();
        let mut client = UnixStream::connect(path).expect("it listens");
        let data = "A".repeat(RESULTS_ROOM as usize);
        workers.results.take(&ResultPiece { is_error: false, data, is_first: true, is_last: false });
        client.write_all(b"{\"type\":\"result\",\"data\":\"AA\"}\n").expect("it is read");
        let received = workers.read_last(WORKER, Duration::ZERO, &children, &poller);
        assert!(matches!(&received[..], [Received::Result(..)]), "{received:?}");
        let index = *workers.connections.keys().next().expect("it is open");
        assert_eq!(workers.read(index, Duration::ZERO, &children, &poller), []);
        client.write_all(b"{\"type\":\"abort\",\"code\":3}\n").expect("it is read");
        let received = workers.read_last(WORKER, Duration::ZERO, &children, &poller);
        assert!(matches!(&received[..], [Received::Testimony(..)]), "{received:?}");
        drop(client);
        assert!(matches!(workers.read_last(WORKER, Duration::ZERO, &children, &poller)[..], [Received::Closed(_)]));
        workers.results_taken(u64::MAX, &poller);
        assert!(workers.connections.is_empty());
    }

    #[test]
    fn a_client_that_ends_before_it_is_looked_up_testifies_for_the_worker_of_its_tag() {
        let Bench { directory: _directory, poller, children, mut workers, path } = bench();
        let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.sendall(sys.argv[2].encode())";
        let said = |tag: &str| {
            format!(
                "{{\"type\":\"hello\",\"tag\":\"{tag}\"}}\n{{\"type\":\"uncaught\",\"exception\":\"ValueError\"}}\n"
            )
        };
        for (tag, count) in [("tag", 1), ("another", 0)] {
            let done = std::process::Command::new("python3").args(["-c", script]).arg(&path).arg(said(tag)).status();
            assert!(done.expect("Python").success());
            let received = workers.read_last(WORKER, Duration::ZERO, &children, &poller);
            let of_gone = |it: &&Received| matches!(it, Received::Testimony(peer, Testimony::Uncaught(_), _) if peer.process.is_none());
            assert_eq!(received.iter().filter(of_gone).count(), count, "{received:?}");
        }
    }

    #[test]
    fn a_client_that_cannot_be_read_may_not_testify_until_it_can() {
        let Bench { directory: _directory, poller, mut children, mut workers, path } = bench();
        // This process is not the leader but below it.
        let own = proc::process(std::process::id() as i32).expect("it runs");
        children.begin(WORKER, "tag");
        children.reap(WORKER, rankrun_sys::process::Child::unreaped(own.pid));
        children.add_leader(WORKER, own.parent);
        let (release, locked) = std::sync::mpsc::sync_channel::<()>(1);
        assert_eq!(children.lockable.read(own.id(), move || locked.recv().is_ok()), None, "its memory is locked");

        let mut client = UnixStream::connect(path).expect("it listens");
        let mut say = |line: &str| {
            client.write_all(line.as_bytes()).expect("it is read");
            workers.read_last(WORKER, Duration::ZERO, &children, &poller)
        };
        assert_eq!(say("{\"type\":\"exiting\",\"code\":3}\n"), []);
        let received = say("{\"type\":\"abort\",\"code\":3}\n");
        assert!(matches!(&received[..], [Received::Testimony(..)]), "any process of a rank may abort it: {received:?}");
        drop(release);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while say("{\"type\":\"exiting\",\"code\":3}\n").is_empty() {
            assert!(std::time::Instant::now() < until, "it may never testify");
            std::thread::yield_now();
        }
    }
}
