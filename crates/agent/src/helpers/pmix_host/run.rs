//! The host's start, and its loop.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rankrun_core::{GroupId, Pid, Rank, Stream, pmix};
use rankrun_sys::pmix::{Completion, LogText, Published, Server, Upcall, Who, status};
use rankrun_sys::poll::{Interest, Poller, Ready, Waker};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::{diag, fork, reason};
use rankrun_wireup::messages::{Decoder, encode};
use rankrun_wireup::pmix::{Answer, FromHost, Namespace, Participants, Request, Setup, ToHost};

use super::namespaces::Namespaces;
use super::origin::{self, FIRST_BYTES, claimed_rank, holder};
use super::relay::Relay;
use super::search;
use super::spawning;
use crate::helpers::control::{Control, own_end};
use crate::streams::null;

const CONTROL: u64 = 0;
const LISTENER: u64 = 1;
const UPCALLS: u64 = 2;
const RELAY: u64 = 16;

/// How long a client may take to name its rank, before the library is looked for.
const FIRST_CLIENT: Duration = Duration::from_secs(2);

/// Runs the host until its agent is gone. Returns the exit code.
pub fn serve() -> u8 {
    let outcome = take_descriptors().and_then(|(control, listener)| {
        let (decoder, leaders, begun) = (Decoder::default(), HashMap::new(), Vec::new());
        let mut host = Start { control, listener, decoder, leaders, begun, first: 1 };
        match host.set_up() {
            Ok((server, namespaces, client)) => Host::new(host, server, namespaces, client)?.run(),
            Err(reason) => {
                host.send(&FromHost::Failed { reason })?;
                Ok(1)
            }
        }
    });
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // The agent reads our stderr.
            let _ = io::Write::write_all(&mut io::stderr(), format!("{}\n", reason(&error)).as_bytes());
            1
        }
    }
}

/// Descriptors 0 and 1 are ours; libpmix finds /dev/null in their place.
fn take_descriptors() -> io::Result<(OwnedFd, TcpListener)> {
    let control = own_end()?;
    let listener = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let null = null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok((control, TcpListener::from(listener)))
}

/// A client that has connected before there was a server.
struct FirstClient {
    stream: TcpStream,
    bytes: Vec<u8>,
    pid: Option<i32>,
}

/// The host before it has a server. It has nothing to do but to get one, and may block.
struct Start {
    control: OwnedFd,
    listener: TcpListener,
    decoder: Decoder,
    leaders: HashMap<Rank, Pid>,
    /// Groups that have begun meanwhile.
    begun: Vec<Namespace>,
    /// The number of the first request.
    first: u64,
}

impl Start {
    fn set_up(&mut self) -> Result<(Server, Namespaces, FirstClient), String> {
        let setup = self.receive_setup().map_err(|error| format!("cannot read from the agent: {}", reason(&error)))?;
        let client =
            self.first_client(&setup.namespace).map_err(|error| format!("cannot accept: {}", reason(&error)))?;
        let pid = client.pid;
        let library = search::load(setup.library.as_deref(), pid, &setup.programs)?;
        let waker = Waker::new().map_err(|error| reason(&error))?;
        // libpmix uses its own files as far as it is told where.
        let mut server =
            Server::start(library, pmix::SERVER_NAME, &setup.directory, waker).map_err(|error| error.to_string())?;
        // Of all ranks: they are in containers of one kind, or in none.
        let owner = origin::owner(pid.unwrap_or(std::process::id() as i32));
        let Setup { namespace, directory, nodes, node, groups, first, .. } = setup;
        self.first = first;
        let namespaces = Namespaces { base: namespace, directory, nodes, node, owner };
        for group in groups.into_iter().chain(std::mem::take(&mut self.begun)) {
            namespaces.register(&mut server, &group)?;
        }
        Ok((server, namespaces, client))
    }

    fn receive_setup(&mut self) -> io::Result<Setup> {
        loop {
            match self.next_message(None)? {
                Some(ToHost::Setup(setup)) => return Ok(*setup),
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// The next message of the agent. `None`: none came in time.
    fn next_message(&mut self, within: Option<Duration>) -> io::Result<Option<ToHost>> {
        let until = within.map(|within| Instant::now() + within);
        loop {
            if let Some(message) = self.decoder.next_message().map_err(io::Error::other)? {
                match &message {
                    ToHost::Leader { of, pid } => drop(self.leaders.insert(*of, *pid)),
                    ToHost::Begin(group) => self.begun.push((**group).clone()),
                    _ => {}
                }
                return Ok(Some(message));
            }
            if !readable(&self.control, until)? {
                return Ok(None);
            }
            let mut bytes = [0; 4096];
            match rustix::io::read(&self.control, &mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.received(&bytes[..count]),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The client for which we were started. Any process of this machine can connect: the host closes a
    /// connection that does not come from a rank, and waits for the next one.
    fn first_client(&mut self, namespace: &str) -> io::Result<FirstClient> {
        let mut was_none = false;
        loop {
            if self.wait_for_connection(Instant::now() + FIRST_CLIENT)?
                && let Ok((stream, SocketAddr::V4(address))) = self.listener.accept()
                && let Some(client) = self.admit(stream, address, namespace)
            {
                if was_none {
                    self.send(&FromHost::Client)?;
                }
                return Ok(client);
            }
            if !was_none {
                self.send(&FromHost::NoClient)?;
                was_none = true;
            }
        }
    }

    /// Waits for a connection, and takes what the agent sends meanwhile. `false`: none came in time.
    fn wait_for_connection(&mut self, until: Instant) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            let timeout = time_until(until);
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [is_client, is_agent] = [0, 1].map(|i: usize| !fds[i].revents().is_empty());
            if is_client {
                return Ok(true);
            }
            if is_agent {
                self.next_message(Some(Duration::ZERO))?;
            }
        }
    }

    /// The client of a connection, with its process if that can be found. `None`: the connection does not come from a rank.
    fn admit(&mut self, mut stream: TcpStream, address: SocketAddrV4, namespace: &str) -> Option<FirstClient> {
        let until = Instant::now() + FIRST_CLIENT;
        let inode = inode_of_ours(&stream, address)?;
        let mut bytes = vec![0; FIRST_BYTES];
        let mut count = 0;
        let rank = loop {
            if let Some(rank) = claimed_rank(&bytes[..count], namespace) {
                break Some(rank);
            }
            if count == bytes.len() || !readable(&stream, Some(until)).ok()? {
                break None;
            }
            match stream.read(&mut bytes[count..]) {
                Ok(0) => return None,
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        };
        bytes.truncate(count);
        let pid = match rank {
            Some(rank) => self.leader(rank, until).and_then(|leader| holder(leader.0, inode)),
            // It speaks in a way that we do not know, or is a stranger of our user.
            None if inode != NO_INODE => {
                let leaders: Vec<Pid> = self.leaders.values().copied().collect();
                Some(leaders.into_iter().find_map(|leader| holder(leader.0, inode))?)
            }
            None => None,
        };
        Some(FirstClient { stream, bytes, pid })
    }

    /// The leader of a rank. The agent may learn of it after the rank has connected.
    fn leader(&mut self, rank: Rank, until: Instant) -> Option<Pid> {
        loop {
            if let Some(leader) = self.leaders.get(&rank) {
                return Some(*leader);
            }
            self.next_message(Some(until.saturating_duration_since(Instant::now()))).ok()??;
        }
    }

    fn send(&self, message: &FromHost) -> io::Result<()> {
        let bytes = encode(message).map_err(io::Error::other)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match rustix::io::write(&self.control, rest) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Waits until there is something to read. `false`: the time has passed.
fn readable(fd: impl std::os::fd::AsFd, until: Option<Instant>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let timeout = until.map(time_until);
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn time_until(until: Instant) -> rustix::time::Timespec {
    let left = until.saturating_duration_since(Instant::now());
    rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
}

/// Writes what libpmix itself logs here, as it would without our function: the agent reads our stderr.
fn write_own(texts: &[LogText]) {
    for text in texts {
        // Nobody can be told.
        let _ = io::Write::write_all(&mut io::stderr(), &[&text.bytes, &b"\n"[..]].concat());
    }
}

/// No socket has this number: it stands for one that the kernel does not tell.
const NO_INODE: u64 = 0;

/// The number of a client's socket, if its owner is our user: libpmix believes each client who it says it is.
fn inode_of_ours(stream: &TcpStream, client: SocketAddrV4) -> Option<u64> {
    let Ok(SocketAddr::V4(server)) = stream.local_addr() else { return None };
    let own = rustix::process::geteuid().as_raw();
    match diag::tcp_owner(client.into(), server.into()) {
        Ok(owner) => (owner.uid == own).then_some(owner.inode),
        // This kernel does not answer such questions.
        Err(error) => (error.kind() != io::ErrorKind::NotFound).then_some(NO_INODE),
    }
}

/// A client's socket whose rank is not known yet.
struct Unnamed {
    inode: u64,
}

/// The running host.
struct Host {
    poller: Poller,
    control: Control,
    listener: TcpListener,
    server: Server,
    namespaces: Namespaces,
    relay: Relay,
    leaders: HashMap<Rank, Pid>,
    unnamed: HashMap<u64, Unnamed>,
    /// The process of each rank that has connected last.
    processes: HashMap<Rank, Pid>,
    /// What libpmix waits for, by the number of the request.
    waiting: HashMap<u64, Completion>,
    next: u64,
    waker: Waker,
}

impl Host {
    fn new(start: Start, server: Server, namespaces: Namespaces, first: FirstClient) -> io::Result<Host> {
        let poller = Poller::new()?;
        let waker = server.waker()?;
        poller.add(&waker, UPCALLS, Interest::Read)?;
        start.listener.set_nonblocking(true)?;
        poller.add(&start.listener, LISTENER, Interest::Read)?;
        let control = Control::new(Conn::of_socket(&poller.registry(), CONTROL, start.control)?, start.decoder);
        let relay = Relay::new(poller.registry(), server.port(), RELAY);
        let mut host = Host {
            poller,
            control,
            listener: start.listener,
            server,
            namespaces,
            relay,
            leaders: start.leaders,
            unnamed: HashMap::new(),
            processes: HashMap::new(),
            waiting: HashMap::new(),
            next: start.first,
            waker,
        };
        let library = host.server.library();
        host.send(&FromHost::Ready { library: library.path().to_owned(), version: library.version() })?;
        let FirstClient { stream, bytes, pid } = first;
        if let (Some(pid), Some(rank)) = (pid, claimed_rank(&bytes, &host.namespaces.base)) {
            host.processes.insert(rank, Pid(pid));
        }
        let number = host.relay.add(stream.into(), &bytes)?;
        host.relay.named(number);
        Ok(host)
    }

    fn run(mut self) -> io::Result<u8> {
        let mut ready: Vec<Ready> = Vec::new();
        // What came while libpmix was set up.
        if !self.handle_messages()? {
            return Ok(0);
        }
        loop {
            self.poller.wait(None, &mut ready)?;
            for &event in &ready {
                if !self.poller.is_current(event) {
                    continue;
                }
                match event.token {
                    CONTROL => {
                        if event.writable {
                            self.control.flush()?;
                        }
                        if event.readable && !self.receive()? {
                            // The agent is gone, or needs us no more. libpmix's threads end with us.
                            fork::exit_now(0)
                        }
                    }
                    LISTENER => {
                        // A group was told of before its ranks were started, which may connect now.
                        if !self.receive()? {
                            fork::exit_now(0)
                        }
                        self.accept()?;
                    }
                    UPCALLS => {
                        self.waker.clear();
                        while let Some(upcall) = self.server.next() {
                            self.upcall(upcall)?;
                        }
                    }
                    _ => {
                        if let Some((number, first)) = self.relay.ready(event) {
                            self.name(number, &first);
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let (stream, address) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The client has gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            let SocketAddr::V4(address) = address else { continue };
            let Some(inode) = inode_of_ours(&stream, address) else { continue };
            // Clients send small messages and wait for each answer.
            stream.set_nodelay(true)?;
            let number = self.relay.add(stream.into(), &[])?;
            self.unnamed.insert(number, Unnamed { inode });
        }
    }

    /// The first bytes of a client: finds its process.
    fn name(&mut self, number: u64, first: &[u8]) {
        let rank = claimed_rank(first, &self.namespaces.base);
        if rank.is_none() && first.len() < FIRST_BYTES {
            return;
        }
        self.relay.named(number);
        let Some(Unnamed { inode }) = self.unnamed.remove(&number) else { return };
        let Some(rank) = rank else { return };
        let leader = self.leaders.get(&rank).copied();
        match leader.and_then(|leader| holder(leader.0, inode)) {
            Some(pid) => drop(self.processes.insert(rank, Pid(pid))),
            None => drop(self.processes.remove(&rank)),
        }
    }

    fn receive(&mut self) -> io::Result<bool> {
        match self.control.read()? {
            Incoming::Bytes(_) => self.handle_messages(),
            Incoming::Nothing => Ok(true),
            Incoming::End => Ok(false),
        }
    }

    fn handle_messages(&mut self) -> io::Result<bool> {
        while let Some(message) = self.control.next_message().map_err(io::Error::other)? {
            match message {
                ToHost::Setup(_) => {}
                ToHost::Begin(group) => {
                    self.namespaces.register(&mut self.server, &group).map_err(io::Error::other)?;
                }
                ToHost::Over { group } => self.over(group),
                ToHost::Leader { of, pid } => drop(self.leaders.insert(of, pid)),
                ToHost::Answer { id, answer } => {
                    if let Some(completion) = self.waiting.remove(&id) {
                        self.complete(completion, answer);
                    }
                }
                ToHost::Lost { ranks } => {
                    let ranks: Vec<Who> = ranks.into_iter().map(|rank| self.who(rank)).collect();
                    self.server.tell_lost(&ranks);
                }
                ToHost::Find { number, of } => {
                    if self.server.find(&self.namespaces.name(of.group()), of.number(), number).is_err() {
                        self.send(&FromHost::Found { number, data: None })?;
                    }
                }
                ToHost::Ping => self.server.ping(),
            }
        }
        Ok(true)
    }

    /// No rank of the group is left on this node.
    fn over(&mut self, group: GroupId) {
        self.leaders.retain(|proc, _| proc.group() != group);
        self.processes.retain(|proc, _| proc.group() != group);
        self.namespaces.forget(&self.server, group);
    }

    fn complete(&self, completion: Completion, answer: Answer) {
        match answer {
            Answer::Done => completion.status(status::SUCCESS),
            Answer::Partly => completion.status(status::PARTIAL_SUCCESS),
            Answer::NotFound => completion.status(status::NOT_FOUND),
            Answer::NotSupported => completion.status(status::NOT_SUPPORTED),
            Answer::Exists => completion.status(status::DUPLICATE_KEY),
            Answer::TimedOut => completion.status(status::TIMEOUT),
            Answer::NotSpawned => completion.status(status::JOB_FAILED_TO_LAUNCH),
            Answer::Spawned(group) => completion.spawned(&self.namespaces.name(group)),
            Answer::Data(data) => completion.data(data),
            Answer::Found(found) => {
                let found: Vec<(Who, Published)> =
                    found.into_iter().map(|(of, key, packed)| (self.who(of), Published { key, packed })).collect();
                completion.found(self.server.library(), &found);
            }
            Answer::Group { context, who, data } => {
                let members: Vec<Who> = who.into_iter().map(|proc| self.who(proc)).collect();
                completion.group(context.map(|context| context as usize), &members, &data);
            }
        }
    }

    fn who(&self, proc: Rank) -> Who {
        self.namespaces.who(proc)
    }

    fn upcall(&mut self, upcall: Upcall) -> io::Result<()> {
        let (request, done) = match upcall {
            Upcall::Found { number, data } => return self.send(&FromHost::Found { number, data }),
            Upcall::Pong => return self.send(&FromHost::Pong),
            Upcall::Connected { who, done } => {
                (self.proc(&who).map(|of| Request::Init { of, pid: self.processes.get(&of).copied() }), done)
            }
            Upcall::Finalized { who, done } => (self.proc(&who).map(|of| Request::Finalize { of }), done),
            Upcall::Aborted { who, code, message, done } => {
                (self.proc(&who).map(|of| Request::Abort { of, code, message }), done)
            }
            Upcall::Fence { procs, data, done } => {
                (self.participants(&procs).map(|who| Request::Fence { who, data }), done)
            }
            Upcall::Fetch { of, done } => (self.proc(&of).map(|of| Request::Fetch { of }), done),
            Upcall::Publish { who, entries, once, done } => {
                let entries = entries.into_iter().map(|entry| (entry.key, entry.packed)).collect();
                (self.proc(&who).map(|of| Request::Publish { of, entries, once }), done)
            }
            Upcall::Lookup { who, keys, wait, timeout, done } => {
                let wait = wait.then(|| timeout.map_or(0, |timeout| timeout.as_secs()));
                (self.proc(&who).map(|of| Request::Lookup { of, keys, wait }), done)
            }
            Upcall::Unpublish { who, keys, done } => (self.proc(&who).map(|of| Request::Unpublish { of, keys }), done),
            Upcall::Spawn { who, commands, done } => {
                let request = Box::new(spawning::request(commands));
                (self.proc(&who).map(|of| Request::Spawn { of, request }), done)
            }
            Upcall::Log { who, texts, others, done } => match self.proc(&who) {
                Some(of) => {
                    let stream = |text: &LogText| if text.is_error { Stream::Stderr } else { Stream::Stdout };
                    let texts = texts.into_iter().map(|text| (stream(&text), text.bytes)).collect();
                    (Some(Request::Log { of, texts, others }), done)
                }
                None => {
                    write_own(&texts);
                    (None, done)
                }
            },
            Upcall::Connect { procs, done } => (self.participants(&procs).map(|who| Request::Connect { who }), done),
            Upcall::Disconnect { procs, done } => {
                (self.participants(&procs).map(|who| Request::Disconnect { who }), done)
            }
            Upcall::Group { procs, wants_context, data, done } => {
                (self.participants(&procs).map(|who| Request::Group { who, wants_context, data }), done)
            }
        };
        // Somebody of another namespace.
        let Some(request) = request else {
            done.status(status::NOT_SUPPORTED);
            return Ok(());
        };
        let id = self.next;
        self.next += 1;
        self.waiting.insert(id, done);
        self.send(&FromHost::Request { id, request })
    }

    fn proc(&self, who: &Who) -> Option<Rank> {
        Some(Rank::of(self.namespaces.group(&who.nspace)?, who.rank?))
    }

    /// `None`: one is of another job.
    fn participants(&self, procs: &[Who]) -> Option<Participants> {
        let named = |who: &Who| Some((self.namespaces.group(&who.nspace)?, who.rank));
        let procs: Vec<_> = procs.iter().map(named).collect::<Option<_>>()?;
        Some(if procs.is_empty() { Participants::all_of(GroupId(0)) } else { Participants::of(procs) })
    }

    fn send(&mut self, message: &FromHost) -> io::Result<()> {
        self.control.send([message])
    }
}
