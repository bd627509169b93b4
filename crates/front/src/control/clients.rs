//! The connections: requests in, answers out.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use memchr::memchr;
use rankrun_core::control::{Answer, Line, MAX_REQUEST, Request, SOCKET, VERSION, Version};
use rankrun_core::gang::Requester;
use rankrun_core::job::ClientId;
use rankrun_sys::listener::Listener;
use rankrun_sys::poll::{Ready, Registry};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::socket;

/// Clients that wait for an end which nobody knows: of the job, or of a restart. Each has a descriptor and some KiB.
const MOST_WAITERS: usize = 512;
/// The fewest, and the part of the descriptors of this process that they may take: the job needs the others.
const LEAST_WAITERS: usize = 32;
const PART_OF_FILES: u64 = 4;
/// Connections for short requests, beside those: however many wait, a job can be asked and stopped. A new one beyond all of them takes the
/// place of the one that has been idle for the longest.
const SHORT: usize = 64;
/// What one is told for which none makes room.
const FULL: &str = "it serves as many requests as it can already";
/// Connections that the kernel keeps until they are taken.
const BACKLOG: i32 = 64;
/// Connections taken in a time, at most: a process that makes one after the other must not keep the loop from the job.
const TAKEN: usize = 128;
const WINDOW: Duration = Duration::from_millis(100);
/// How often to look whether the socket is where clients find it.
const LOOK_STEP: Duration = Duration::from_secs(1);
/// How long a connection may be without a request.
const IDLE_BOUND: Duration = Duration::from_secs(10);

/// What the tokens of the loop stand for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ours {
    Listener,
    Client(ClientId),
}

/// What a client waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaits {
    /// Nothing: the next request is its turn.
    Nothing,
    /// The states of the ranks.
    States,
    /// Where the ranks are.
    Stacks,
    /// What the ranks were seen to do for some seconds.
    Profile,
    /// The end of the job.
    End,
    /// Which attempt its restart begins, and then that all ranks of that attempt run.
    Restart,
    /// That there is a transcript.
    Opening,
    /// The end of the job: it looks at the transcript meanwhile.
    Transcript,
    /// That the job has left its terminal.
    Detach,
    /// That the ranks have read what it has typed.
    Input,
    /// That all ranks of this attempt run.
    Attempt(rankrun_core::Attempt),
}

/// A client that has gone while something was done for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// It waited for a profile.
    Profiler(ClientId),
    /// It waited until the ranks read what it has typed.
    Typist(ClientId),
}

#[derive(Debug)]
struct Client {
    conn: Conn,
    by: Requester,
    /// Bytes that are not a whole line, or wait until the request before them is answered.
    pending: Vec<u8>,
    awaits: Awaits,
    idle_since: Duration,
    /// It is closed when its answer is sent.
    is_last: bool,
    /// It sends no more requests, and reads its answers.
    is_half_closed: bool,
    /// It has asked for the end of the job.
    has_stopped: bool,
}

/// The socket, where it is, and what tells it from another file there.
#[derive(Debug)]
struct Place {
    listener: Listener,
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Place {
    /// Whether clients that look for the socket still find it.
    fn is_there(&self) -> bool {
        self.identity.is_some() && identity(&self.path) == self.identity
    }
}

/// Device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The socket and its connections.
#[derive(Debug)]
pub(crate) struct Control {
    registry: Registry,
    token: fn(Ours) -> u64,
    place: Option<Place>,
    /// Where it is to listen: a rank may have removed that directory before the first time.
    directory: Option<PathBuf>,
    clients: BTreeMap<ClientId, Client>,
    next: u32,
    /// How many clients may wait for an unknown time.
    most_waiters: OnceCell<usize>,
    /// The clients that have had an answer, and may have sent the next request before.
    answered: Vec<ClientId>,
    /// The clients that have gone, and for which something is being done.
    gone: Vec<Gone>,
    /// Answers that may not leave yet.
    held: Option<Vec<(ClientId, Bytes)>>,
    /// When to look whether the socket is where clients find it, since when it is not, and whether that was said.
    next_look: Duration,
    lost_since: Option<Duration>,
    is_loss_told: bool,
}

impl Control {
    pub(crate) fn new(registry: Registry, token: fn(Ours) -> u64) -> Control {
        Control {
            registry,
            token,
            place: None,
            directory: None,
            clients: BTreeMap::new(),
            next: 0,
            most_waiters: OnceCell::new(),
            answered: Vec::new(),
            gone: Vec::new(),
            held: None,
            next_look: Duration::ZERO,
            lost_since: None,
            is_loss_told: false,
        }
    }

    /// Listens in the job's directory, which is removed with all that is in it by whoever is the last of the job. An agent may
    /// name it again.
    pub(crate) fn listen(&mut self, now: Duration, directory: &Path) -> io::Result<()> {
        self.next_look = now + LOOK_STEP;
        if self.directory.as_deref() != Some(directory) {
            self.directory = Some(directory.to_owned());
        }
        if self.place.as_ref().is_some_and(Place::is_there) {
            return Ok(());
        }
        let path = directory.join(SOCKET);
        let socket = socket::listen_for_owner(&path, BACKLOG)?;
        let listener = Listener::new(self.registry.clone(), (self.token)(Ours::Listener), socket, WINDOW)?;
        self.place = Some(Place { identity: identity(&path), listener, path });
        Ok(())
    }

    /// Whether it is known if the job can be asked.
    pub(crate) fn has_tried(&self) -> bool {
        self.directory.is_some()
    }

    /// Listens again if a process has removed the socket, or its directory, which may have been made again since. Returns what the user is
    /// to be told, once: there is no such directory, or another file in the socket's place. A guard removes both too, when its agent is
    /// lost, which is known a moment later.
    pub(crate) fn restore(&mut self, now: Duration) -> Option<String> {
        let directory = self.directory.clone();
        let Err(error) = directory.map_or(Ok(()), |directory| self.listen(now, &directory)) else {
            (self.lost_since, self.is_loss_told) = (None, false);
            return None;
        };
        let is_over = now >= *self.lost_since.get_or_insert(now) + LOOK_STEP;
        let is_news = is_over && !std::mem::replace(&mut self.is_loss_told, is_over);
        let why = rankrun_sys::reason(&error);
        is_news.then(|| {
            format!("a process has removed the control socket: rankrun status, stop and restart cannot reach this job ({why})")
        })
    }

    /// When to look whether the socket is still there, if there is one.
    pub(crate) fn look_due(&self) -> Option<Duration> {
        self.directory.is_some().then_some(self.next_look)
    }

    /// When [`Control::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let idle = self.clients.values().filter(|client| client.awaits == Awaits::Nothing);
        let rest = self.place.as_ref().and_then(|place| place.listener.deadline());
        idle.map(|client| client.idle_since + IDLE_BOUND).chain(rest).min()
    }

    /// Closes idle connections, and takes new ones again after a rest.
    pub(crate) fn tick(&mut self, now: Duration) {
        self.clients.retain(|_, client| client.awaits != Awaits::Nothing || now < client.idle_since + IDLE_BOUND);
        if let Some(place) = &mut self.place {
            place.listener.tick(now);
        }
    }

    /// The listener is ready: takes a connection.
    pub(crate) fn accept(&mut self, now: Duration) {
        let Some(Place { listener, .. }) = &mut self.place else { return };
        let accepted = (listener.taken(now) < TAKEN).then(|| socket::accept(listener.socket()));
        match accepted {
            Some(Ok(accepted)) => {
                listener.count(1);
                self.admit(now, accepted);
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Too many in this time, or there are no descriptors left: the others wait in the backlog.
            Some(Err(_)) | None => listener.rest(now),
        }
    }

    fn admit(&mut self, now: Duration, accepted: OwnedFd) {
        let Ok((pid, user)) = socket::peer(&accepted) else { return };
        let own = rustix::process::geteuid().as_raw();
        if user != own && user != 0 {
            return;
        }
        if self.clients.len() >= self.most_waiters() + SHORT {
            let idle = self.clients.iter().filter(|(_, client)| client.awaits == Awaits::Nothing);
            let Some((&longest, _)) = idle.min_by_key(|(_, client)| client.idle_since) else {
                return refuse(&accepted);
            };
            self.clients.remove(&longest);
        }
        let id = ClientId(self.next);
        self.next = self.next.wrapping_add(1);
        // Without memory for it in the kernel, the client sees the end of its connection.
        if let Ok(conn) = Conn::of_socket(&self.registry, (self.token)(Ours::Client(id)), accepted) {
            let by = Requester { pid, is_root: user != own };
            let client = Client {
                conn,
                by,
                pending: Vec::new(),
                awaits: Awaits::Nothing,
                idle_since: now,
                is_last: false,
                is_half_closed: false,
                has_stopped: false,
            };
            self.clients.insert(id, client);
        }
    }

    /// A connection is ready: reads it, and returns its next request if its turn has come.
    pub(crate) fn ready(&mut self, now: Duration, id: ClientId, ready: Ready) -> Option<(Requester, Request)> {
        let client = self.clients.get_mut(&id)?;
        if ready.writable && client.conn.flush().is_err() {
            self.remove(id);
            return None;
        }
        if ready.readable {
            let mut room = [0; MAX_REQUEST];
            match client.conn.read(&mut room) {
                Ok(Incoming::Bytes(count)) if client.pending.len() + count <= 2 * MAX_REQUEST => {
                    client.pending.extend_from_slice(&room[..count]);
                }
                Ok(Incoming::Nothing) => {}
                // If it is gone, and has not only said all, that is reported next.
                Ok(Incoming::End) if !client.is_half_closed && client.conn.ignore_input().is_ok() => {
                    client.is_half_closed = true;
                }
                // A client that sends ever more, or is gone.
                Ok(Incoming::Bytes(_) | Incoming::End) | Err(_) => {
                    self.remove(id);
                    return None;
                }
            }
        }
        self.next_request(now, id)
    }

    fn remove(&mut self, id: ClientId) {
        match self.clients.remove(&id).map(|client| client.awaits) {
            Some(Awaits::Profile) => self.gone.push(Gone::Profiler(id)),
            Some(Awaits::Input) => self.gone.push(Gone::Typist(id)),
            _ => {}
        }
    }

    /// A client that has gone, and for which something is being done.
    pub(crate) fn next_gone(&mut self) -> Option<Gone> {
        self.gone.pop()
    }

    /// The next request of a client, if it has sent one and awaits no answer.
    fn next_request(&mut self, now: Duration, id: ClientId) -> Option<(Requester, Request)> {
        let has_most_waiters = self.has_most_waiters();
        let client = self.clients.get_mut(&id)?;
        if client.awaits != Awaits::Nothing {
            return None;
        }
        if client.conn.unsent() > 0 {
            return None;
        }
        if client.is_last {
            self.clients.remove(&id);
            return None;
        }
        let end = memchr(b'\n', &client.pending);
        if end.is_none() && client.is_half_closed {
            self.clients.remove(&id);
            return None;
        }
        if end.is_none_or(|end| end >= MAX_REQUEST) {
            if client.pending.len() >= MAX_REQUEST {
                let error = format!("a request is longer than {MAX_REQUEST} bytes");
                self.refuse(now, id, error);
            }
            return None;
        }
        let line: Vec<u8> = client.pending.drain(..=end?).collect();
        client.idle_since = now;
        match parse(&line) {
            // Who has stopped the job waits for no longer than the grace.
            Ok(request) if is_long(&request) && !client.has_stopped && has_most_waiters => {
                self.refuse(now, id, format!("{} others wait for it already", self.most_waiters()));
                None
            }
            Ok(request) => {
                client.has_stopped |= matches!(request, Request::Stop { .. });
                Some((client.by, request))
            }
            Err(error) => {
                self.refuse(now, id, error);
                None
            }
        }
    }

    /// Whether no more clients may wait for an unknown time.
    /// Known when the first client comes.
    fn most_waiters(&self) -> usize {
        *self.most_waiters.get_or_init(|| most_waiters(rankrun_sys::limits::open_files()))
    }

    fn has_most_waiters(&self) -> bool {
        let is_waiter = |awaits| {
            matches!(
                awaits,
                Awaits::End
                    | Awaits::Restart
                    | Awaits::Opening
                    | Awaits::Transcript
                    | Awaits::Input
                    | Awaits::Attempt(_)
            )
        };
        let waiters = self.clients.values().filter(|client| is_waiter(client.awaits) && !client.has_stopped);
        waiters.count() >= self.most_waiters()
    }

    /// Answers what is no request, or one that there is no room for, and closes the connection.
    fn refuse(&mut self, now: Duration, id: ClientId, error: String) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_last = true;
            client.pending.clear();
        }
        self.answer(now, id, &Answer::Refused { error, hint: None });
        if self.clients.get(&id).is_some_and(|client| client.conn.unsent() == 0) {
            self.clients.remove(&id);
        }
    }

    /// The client gets its answer later.
    pub(super) fn wait(&mut self, id: ClientId, awaits: Awaits) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.awaits = awaits;
        }
    }

    /// What a client waits for.
    pub(super) fn awaits(&self, id: ClientId) -> Awaits {
        self.clients.get(&id).map_or(Awaits::Nothing, |client| client.awaits)
    }

    /// Whether a client looks at the transcript.
    pub(crate) fn is_watched(&self) -> bool {
        self.clients.values().any(|client| matches!(client.awaits, Awaits::Opening | Awaits::Transcript))
    }

    /// The clients that wait for something.
    pub(super) fn waiting(&self) -> Vec<(ClientId, Awaits)> {
        let all = self.clients.iter().map(|(id, client)| (*id, client.awaits));
        all.filter(|(_, awaits)| *awaits != Awaits::Nothing).collect()
    }

    /// Sends an answer, as far as the socket has room; the rest when there is room.
    pub(crate) fn answer(&mut self, now: Duration, id: ClientId, answer: &Answer) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.awaits = Awaits::Nothing;
        client.idle_since = now;
        let sent = serde_json::to_vec(&Line::new(answer)).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            match &mut self.held {
                Some(held) => held.push((id, Bytes::from(line))),
                None => client.conn.send([Bytes::from(line)])?,
            }
            Ok(())
        });
        match sent {
            Ok(()) => self.answered.push(id),
            Err(_) => drop(self.clients.remove(&id)),
        }
    }

    /// From now on answers wait for [`Control::release`]. The clients are numbered from here on.
    pub(crate) fn hold(&mut self, first: u32) {
        self.next = self.next.max(first);
        self.held.get_or_insert_default();
    }

    /// Sends the answers that wait.
    pub(crate) fn release(&mut self) {
        for (id, line) in self.held.as_mut().map(std::mem::take).unwrap_or_default() {
            let sent = self.clients.get_mut(&id).map(|client| client.conn.send([line]));
            if let Some(Err(_)) = sent {
                self.clients.remove(&id);
            }
        }
    }

    /// The request that a client had sent before its last answer.
    pub(crate) fn next(&mut self, now: Duration) -> Option<(ClientId, Requester, Request)> {
        while let Some(client) = self.answered.pop() {
            if let Some((by, request)) = self.next_request(now, client) {
                return Some((client, by, request));
            }
        }
        None
    }
}

/// Tells a client that there is no room for it. The socket is new: it has room for a line.
fn refuse(socket: &OwnedFd) {
    let answer = Answer::Refused { error: FULL.to_owned(), hint: None };
    if let Ok(mut line) = serde_json::to_vec(&Line::new(&answer)) {
        line.push(b'\n');
        // It sees the end of its connection if it cannot be told.
        let _ = rustix::net::send(socket, &line, rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT);
    }
}

/// How many clients may wait for an unknown time, with this soft and hard limit on open files: the soft one is raised.
fn most_waiters((_, hard): rankrun_sys::limits::Pair) -> usize {
    let part = hard.map_or(MOST_WAITERS as u64, |hard| hard / PART_OF_FILES);
    (part as usize).clamp(LEAST_WAITERS, MOST_WAITERS)
}

/// Whether nobody knows when a request is answered for the last time.
fn is_long(request: &Request) -> bool {
    matches!(request, Request::Wait | Request::Attach | Request::Input { .. } | Request::Restart { wait: true })
}

/// A request, or what is wrong with the line.
fn parse(line: &[u8]) -> Result<Request, String> {
    let Version { rankrun } =
        serde_json::from_slice(line).map_err(|error| format!("this is no request of rankrun: {error}"))?;
    if rankrun != VERSION {
        return Err(format!("version {rankrun} of the protocol is not understood: this job has version {VERSION}"));
    }
    match serde_json::from_slice::<Line<Request>>(line) {
        Ok(line) => Ok(line.message),
        Err(error) => Err(format!("the request is not understood: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use rankrun_sys::poll::Poller;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn token(ours: Ours) -> u64 {
        match ours {
            Ours::Listener => 0,
            Ours::Client(client) => 1 + u64::from(client.0),
        }
    }

    struct Bench {
        poller: Poller,
        control: Control,
        directory: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Bench {
            let poller = Poller::new().expect("a poller");
            let mut control = Control::new(poller.registry(), token);
            let directory = tempfile::tempdir().expect("a directory");
            control.listen(Duration::ZERO, directory.path()).expect("a socket");
            control.listen(Duration::ZERO, directory.path()).expect("the same again");
            Bench { poller, control, directory }
        }

        fn connect(&self) -> UnixStream {
            UnixStream::connect(self.directory.path().join(SOCKET)).expect("it listens")
        }

        /// Handles all that is ready, and returns the requests.
        fn turn(&mut self, now: Duration) -> Vec<(ClientId, Request)> {
            let (mut ready, mut requests) = (Vec::new(), Vec::new());
            loop {
                self.poller.wait(Some(Duration::ZERO), &mut ready).expect("an epoll set");
                if ready.is_empty() {
                    return requests;
                }
                for event in ready.drain(..).filter(|event| self.poller.is_current(*event)).collect::<Vec<_>>() {
                    let id = ClientId((event.token as u32).wrapping_sub(1));
                    match event.token {
                        0 => self.control.accept(now),
                        _ => requests.extend(self.control.ready(now, id, event).map(|(_, request)| (id, request))),
                    }
                }
            }
        }
    }

    fn read(mut stream: &UnixStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the connection is closed");
        text
    }

    #[test]
    fn a_socket_that_was_removed_is_made_again_when_its_directory_is_there() {
        let poller = Poller::new().expect("a poller");
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("job");
        std::fs::create_dir(&directory).expect("it is ours");
        let mut control = Control::new(poller.registry(), token);
        assert_eq!(control.restore(s(0)), None, "nothing is to be restored before the first time");
        control.listen(Duration::ZERO, &directory).expect("a socket");
        let path = directory.join(SOCKET);
        let first = identity(&path);
        assert_eq!(control.restore(s(1)), None, "it is there");
        assert_eq!(identity(&path), first);
        std::fs::remove_dir_all(&directory).expect("it is ours");
        assert_eq!(control.restore(s(2)), None, "its guard may have removed it, and be about to end");
        assert!(control.restore(s(3)).is_some(), "there is no place for it");
        assert_eq!(control.restore(s(4)), None, "it was said");
        std::fs::create_dir(&directory).expect("it is ours");
        assert_eq!(control.restore(s(5)), None, "there is a place again");
        let client = UnixStream::connect(&path);
        client.expect("it listens");
        control.accept(s(1));
        assert_eq!(control.clients.len(), 1);
    }

    #[test]
    fn only_the_owner_may_connect() {
        use std::os::unix::fs::PermissionsExt;
        let bench = Bench::new();
        let mode = std::fs::metadata(bench.directory.path().join(SOCKET)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_request_may_come_in_pieces_and_the_next_one_waits_for_the_answer() {
        let mut bench = Bench::new();
        let mut client = bench.connect();
        client.write_all(b"{\"rankrun\":1,\"requ").expect("there is room");
        assert_eq!(bench.turn(s(0)), []);
        client.write_all(b"est\":\"wait\"}\n{\"rankrun\":1,\"request\":\"restart\"}\n").expect("there is room");
        let [(id, Request::Wait)] = bench.turn(s(1))[..] else { panic!("one request") };
        bench.control.wait(id, Awaits::End);
        assert_eq!(bench.control.next_request(s(2), id), None);
        bench.control.tick(s(1000));
        bench.control.answer(s(1000), id, &Answer::Refused { error: "x".to_owned(), hint: None });
        assert!(matches!(bench.control.next_request(s(1000), id), Some((_, Request::Restart { wait: false }))));
        bench.control.tick(s(1010));
        assert_eq!(read(&client), "{\"rankrun\":1,\"answer\":\"refused\",\"error\":\"x\",\"hint\":null}\n");
    }

    #[test]
    fn a_restart_that_is_waited_for_is_answered_twice_and_the_next_request_waits_for_both() {
        use rankrun_core::Attempt;
        let mut bench = Bench::new();
        let mut client = bench.connect();
        client
            .write_all(b"{\"rankrun\":1,\"request\":\"restart\",\"wait\":true}\n{\"rankrun\":1,\"request\":\"wait\"}\n")
            .expect("there is room");
        let [(id, Request::Restart { wait: true })] = bench.turn(s(0))[..] else { panic!("one request") };
        bench.control.wait(id, Awaits::Restart);
        bench.control.answer_restart(s(1), id, Ok(Attempt(2)));
        assert_eq!(bench.control.next(s(1)), None);
        bench.control.answer_up(s(2), Some(Attempt(1)));
        assert_eq!(bench.control.awaits(id), Awaits::Attempt(Attempt(2)));
        bench.control.answer_up(s(3), Some(Attempt(3)));
        assert!(matches!(bench.control.next(s(3)), Some((_, _, Request::Wait))));
        drop(bench);
        // A later one was up before it.
        let [first, second] = [(2, false), (3, true)].map(|(attempt, is_up)| {
            format!("{{\"rankrun\":1,\"answer\":\"restarting\",\"attempt\":{attempt},\"is_up\":{is_up}}}\n")
        });
        assert_eq!(read(&client), format!("{first}{second}"));
    }

    #[test]
    fn what_is_no_request_is_refused_and_ends_the_connection() {
        for (line, told) in [
            (&b"\xff\n"[..], "this is no request of rankrun"),
            (b"{}\n", "missing field `rankrun`"),
            (b"{\"rankrun\":7,\"request\":\"wait\"}\n", "version 7 of the protocol is not understood"),
            (b"{\"rankrun\":1,\"request\":\"dance\"}\n", "the request is not understood"),
            (&[b'['; MAX_REQUEST], "longer than 16384 bytes"),
        ] {
            let mut bench = Bench::new();
            let mut client = bench.connect();
            client.write_all(line).expect("there is room");
            assert_eq!(bench.turn(s(0)), []);
            let answer = read(&client);
            assert!(answer.contains(told) && answer.ends_with("}\n"), "{answer}");
        }
    }

    /// Clients that wait for the end of the job, as many as may, and one more.
    fn waiters(bench: &mut Bench) -> (Vec<UnixStream>, UnixStream) {
        let wait = |bench: &mut Bench, at: u64| {
            let mut client = bench.connect();
            client.write_all(b"{\"rankrun\":1,\"request\":\"wait\"}\n").expect("there is room");
            // The rate of connections is bounded.
            let now = s(at);
            bench.control.tick(now);
            for (id, request) in bench.turn(now) {
                assert_eq!(request, Request::Wait);
                bench.control.wait(id, Awaits::End);
            }
            client
        };
        bench.control.most_waiters = OnceCell::from(3);
        let all = (0..3).map(|at| wait(bench, at)).collect();
        (all, wait(bench, 3))
    }

    #[test]
    fn however_many_wait_the_job_can_be_asked_and_stopped() {
        let mut bench = Bench::new();
        let (waiting, refused) = waiters(&mut bench);
        let text = "{\"rankrun\":1,\"answer\":\"refused\",\"error\":\"3 others wait for it already\",\"hint\":null}\n";
        assert_eq!(read(&refused), text);
        let mut client = bench.connect();
        let requests = b"{\"rankrun\":1,\"request\":\"status\"}\n{\"rankrun\":1,\"request\":\"stop\"}\n\
                         {\"rankrun\":1,\"request\":\"wait\"}\n";
        client.write_all(requests).expect("there is room");
        let [(id, Request::Status { .. })] = bench.turn(s(4))[..] else { panic!("one request") };
        let stopping = Answer::Refused { error: "x".to_owned(), hint: None };
        bench.control.answer(s(4), id, &stopping);
        assert!(matches!(bench.control.next(s(4)), Some((_, _, Request::Stop { .. }))));
        bench.control.answer(s(4), id, &stopping);
        assert!(
            matches!(bench.control.next(s(4)), Some((_, _, Request::Wait))),
            "it sees the end that it has asked for"
        );
        assert_eq!(waiting.len(), 3);
    }

    #[test]
    fn those_who_wait_leave_descriptors_to_the_job() {
        let most = |hard| most_waiters((Some(1), hard));
        assert_eq!([None, Some(1 << 20), Some(1024), Some(64)].map(most), [512, 512, 256, 32]);
    }

    #[test]
    fn the_longest_idle_connection_makes_room_and_one_that_waits_does_not() {
        let mut bench = Bench::new();
        bench.control.most_waiters = OnceCell::from(1);
        let mut waiting = bench.connect();
        waiting.write_all(b"{\"rankrun\":1,\"request\":\"wait\"}\n").expect("there is room");
        let [(first, _)] = bench.turn(s(0))[..] else { panic!("one request") };
        bench.control.wait(first, Awaits::End);
        let idle: Vec<UnixStream> = (1..=1 + SHORT as u64)
            .map(|number| {
                let client = bench.connect();
                bench.turn(Duration::from_millis(number));
                client
            })
            .collect();
        assert_eq!(bench.control.clients.len(), 1 + SHORT);
        assert!(bench.control.clients.contains_key(&first));
        assert_eq!(read(&idle[0]), "", "it was closed for the last one");
        bench.control.tick(s(11));
        assert_eq!(bench.control.clients.keys().collect::<Vec<_>>(), [&first]);
    }

    #[test]
    fn where_all_connections_wait_a_new_one_is_told_so() {
        let mut bench = Bench::new();
        bench.control.most_waiters = OnceCell::from(0);
        let waiting: Vec<UnixStream> = (0..SHORT as u64)
            .map(|number| {
                let mut client = bench.connect();
                client.write_all(b"{\"rankrun\":1,\"request\":\"stacks\"}\n").expect("there is room");
                let [(id, _)] = bench.turn(s(number))[..] else { panic!("one request") };
                bench.control.wait(id, Awaits::Stacks);
                client
            })
            .collect();
        let client = bench.connect();
        assert_eq!(bench.turn(s(100)), []);
        let refused = format!("{{\"rankrun\":1,\"answer\":\"refused\",\"error\":\"{FULL}\",\"hint\":null}}\n");
        assert_eq!(read(&client), refused);
        assert_eq!((bench.control.clients.len(), waiting.len()), (SHORT, SHORT));
    }

    #[test]
    fn connections_beyond_the_rate_wait_in_the_backlog() {
        let mut bench = Bench::new();
        for _ in 0..TAKEN {
            drop(bench.connect());
            bench.turn(s(1));
        }
        let mut client = bench.connect();
        client.write_all(b"{\"rankrun\":1,\"request\":\"restart\"}\n").expect("there is room");
        assert_eq!(bench.turn(s(1)), []);
        assert_eq!(bench.control.deadline(), Some(s(1) + WINDOW));
        bench.control.tick(s(1) + WINDOW);
        assert!(matches!(bench.turn(s(1) + WINDOW)[..], [(_, Request::Restart { wait: false })]));
    }
}
