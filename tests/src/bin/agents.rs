//! Many agents in one process, for jobs of more nodes than one machine can play. They have no processes to hold: what they send is
//! what an agent sends whose ranks start at once, run until they are stopped, and leave nothing. The stream, its frames and its
//! messages are those of the product.
//!
//! * `agents serve SOCKET STOP` plays the agents. With STOP `fail`, the last rank exits with 3 once all have been started for a
//!   moment, and the others end when they are told to; with `end`, each rank exits with 0 at once. At the end it prints, in
//!   nanoseconds of the monotonic clock: `connected`, `ready`, `told`, `started`, `failed` and `stopped`, each by its last agent.
//! * `agents ssh SOCKET ... LINE` stands in for ssh (`--ssh-command`): it hands its stdin and stdout to that process, and ends as told.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rankrun_core::grace::StopRecord;
use rankrun_core::rendezvous::Rendezvous;
use rankrun_core::worker::Outcome;
use rankrun_core::{Attempt, Pid, Rank, Stream, WorkerId, WorkerStatus};
use rankrun_sys::poll::{Interest, Poller};
use rankrun_sys::reactor::Conn;
use rankrun_sys::socket;
use rankrun_tests::monotonic;
use rankrun_wire::greeting::Greeting;
use rankrun_wire::message::{About, AgentEvent, Containment, Hello, NodeStart, Order, Summary, WorkerEvent};
use rankrun_wire::{Frame, Link, LinkError, Retain, Session, ToAgent, ToFront};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// The stand-ins of ssh connect here.
const DOOR: u64 = 0;
/// Bytes read in a turn of the loop.
const READ: usize = 256 * 1024;
/// The longest command line of a stand-in.
const LINE: usize = 16 * 1024;
/// How long all ranks run before one fails.
const MOMENT: Duration = Duration::from_millis(300);
/// The code of the rank that fails.
const FAILURE: u8 = 3;
/// No process has it.
const NO_PID: Pid = Pid(i32::MAX);

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let part = arguments.next().unwrap_or_default();
    let socket = PathBuf::from(arguments.next().unwrap_or_default());
    let rest: Vec<OsString> = arguments.collect();
    let result = match part.to_str() {
        Some("serve") => serve(&socket, rest.first().is_some_and(|word| word == "fail")).map(|()| 0),
        Some("ssh") => stand_in(&socket, &rest),
        _ => Err(io::Error::other("usage: agents serve|ssh SOCKET ...")),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(io::stderr(), "agents: {error}");
            ExitCode::from(255)
        }
    }
}

/// What `--ssh-command` starts. The last word is the line for the login shell.
fn stand_in(socket: &std::path::Path, words: &[OsString]) -> io::Result<u8> {
    let line = words.last().and_then(|word| word.to_str()).unwrap_or_default();
    let mut stream = UnixStream::connect(socket)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let both = [stdin.as_fd(), stdout.as_fd()];
    if !files.push(SendAncillaryMessage::ScmRights(&both)) {
        return Err(io::Error::other("no room for two descriptors"));
    }
    rustix::net::sendmsg(&stream, &[IoSlice::new(line.as_bytes())], &mut files, SendFlags::empty())?;
    // Whoever reads what the agent writes must see its end.
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let mut code = [255];
    // If the agents are gone, ssh says 255.
    let _ = stream.read(&mut code)?;
    Ok(code[0])
}

/// The times of a job, each by the last agent.
#[derive(Default)]
struct Times(BTreeMap<&'static str, Duration>);

impl Times {
    fn note(&mut self, what: &'static str) {
        self.0.insert(what, monotonic());
    }
}

/// One agent.
struct Agent {
    link: Option<Link>,
    /// Its stand-in, which waits for its exit code.
    stand_in: UnixStream,
    ranks: Vec<WorkerId>,
    clock: Duration,
}

struct Agents {
    poller: Poller,
    door: OwnedFd,
    agents: Vec<Agent>,
    times: Times,
    /// Ranks that were started, and those of the job.
    started: u32,
    world: Option<u32>,
    fails: bool,
    fail_at: Option<Duration>,
    ended: usize,
}

fn serve(socket: &std::path::Path, fails: bool) -> io::Result<()> {
    let door = socket::listen(socket)?;
    let poller = Poller::new()?;
    poller.add(&door, DOOR, Interest::Read)?;
    let mut all = Agents {
        poller,
        door,
        agents: Vec::new(),
        times: Times::default(),
        started: 0,
        world: None,
        fails,
        fail_at: None,
        ended: 0,
    };
    let mut ready = Vec::new();
    while all.agents.is_empty() || all.ended < all.agents.len() {
        let timeout = all.fail_at.map(|at| at.saturating_sub(monotonic()));
        all.poller.wait(timeout, &mut ready)?;
        for &event in &ready {
            if !all.poller.is_current(event) {
                continue;
            }
            match event.token {
                DOOR => all.accept()?,
                token => {
                    let agent = (token - 1) as usize;
                    let error = all.turn(agent, event.writable, event.readable).err();
                    if error.is_some() {
                        all.end(agent);
                    }
                }
            }
        }
        if all.fail_at.is_some_and(|at| at <= monotonic()) {
            all.fail_at = None;
            all.fail().map_err(io::Error::other)?;
        }
    }
    let mut out = io::stdout().lock();
    for (what, time) in &all.times.0 {
        writeln!(out, "{what} {}", time.as_nanos())?;
    }
    Ok(())
}

impl Agents {
    fn accept(&mut self) -> io::Result<()> {
        let stream = UnixStream::from(socket::accept(&self.door)?);
        // What it sends first comes in one piece, and at once.
        stream.set_nonblocking(false)?;
        let mut line = vec![0; LINE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut files = RecvAncillaryBuffer::new(&mut space);
        let mut room = [IoSliceMut::new(&mut line)];
        let received = rustix::net::recvmsg(&stream, &mut room, &mut files, RecvFlags::CMSG_CLOEXEC)?;
        let count = received.bytes;
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in files.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let [stdin, stdout] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| io::Error::other("two descriptors"))?;
        // `exec sh -c 'exec BINARY relay JOB MARKER ...'`
        let line = String::from_utf8_lossy(&line[..count]).into_owned();
        let mut words = line.split_whitespace().skip_while(|word| *word != "--as=relay").skip(2);
        let marker = words.next().ok_or_else(|| io::Error::other(format!("no marker: {line}")))?;
        let number = self.agents.len() as u64 + 1;
        let session = NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
        let mut conn = Conn::of_pair(&self.poller.registry(), number, stdin, stdout)?;
        conn.send([Greeting::ours(session, "127.0.0.1 1 127.0.0.1 22").line(marker).into()])?;
        let mut link = Link::new(conn, Session::new(session, Retain::No), READ);
        link.message(&ToFront::Hello(Hello::ours())).map_err(io::Error::other)?;
        let ready = ToFront::Ready {
            pid: NO_PID,
            runtime: PathBuf::from("/nonexistent"),
            about: About {
                containment: Containment::Cgroup,
                host: format!("n{number}"),
                is_loopback_name: false,
                machine: String::new(),
                addresses: vec![("lo0".to_owned(), [127, 0, 0, 1].into())],
            },
        };
        link.send(&ready).map_err(io::Error::other)?;
        self.times.0.entry("first").or_insert_with(monotonic);
        self.times.note("connected");
        self.agents.push(Agent { link: Some(link), stand_in: stream, ranks: Vec::new(), clock: monotonic() });
        Ok(())
    }

    fn turn(&mut self, agent: usize, is_writable: bool, is_readable: bool) -> Result<(), LinkError> {
        let Some(mut link) = self.agents[agent].link.take() else { return Ok(()) };
        if is_writable {
            link.flush()?;
        }
        let filled = if is_readable { link.fill() } else { Ok(()) };
        let mut messages = Vec::new();
        while let Some(frame) = link.next_frame::<ToAgent>()? {
            if let Frame::Message(message) = frame {
                messages.push(message);
            }
        }
        self.agents[agent].link = Some(link);
        for message in messages {
            self.take(agent, message)?;
        }
        filled
    }

    fn take(&mut self, number: usize, message: ToAgent) -> Result<(), LinkError> {
        let agent = &mut self.agents[number];
        let at = monotonic().saturating_sub(agent.clock);
        match message {
            ToAgent::Hello(_) => self.times.note("ready"),
            ToAgent::Beat { sent } => agent.send(&ToFront::Event(AgentEvent::Beat { sent, at }))?,
            ToAgent::Start(start) => self.start(number, *start, at)?,
            ToAgent::Order(Order::Stop(_) | Order::Kill) if !agent.ranks.is_empty() => {
                self.times.note("stopped");
                let ranks = std::mem::take(&mut agent.ranks);
                for worker in ranks {
                    agent.end_rank(worker, WorkerStatus::Signaled { signal: 15, core_dumped: false }, at)?;
                }
                agent.end_attempt()?;
            }
            ToAgent::Order(Order::WhoIsAlive) => {
                agent.send(&ToFront::Event(AgentEvent::Alive { workers: Vec::new(), at }))?
            }
            ToAgent::End => return Err(LinkError::Ended),
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, number: usize, start: NodeStart, at: Duration) -> Result<(), LinkError> {
        self.times.0.entry("first-told").or_insert_with(monotonic);
        self.times.note("told");
        let agent = &mut self.agents[number];
        if start.node.0 == 0 {
            let rendezvous = Rendezvous {
                addr: "127.0.0.1".to_owned(),
                master_port: 1,
                agent_store: false,
                jax_port: 2,
                tensorflow_ports: Vec::new(),
                relay: None,
            };
            agent.message(&ToFront::Event(AgentEvent::Meeting(Some(rendezvous))))?;
        }
        let world = start.spec.map.world_size();
        let worker = |rank: Rank| WorkerId { rank, attempt: Attempt(start.spec.attempt.0) };
        agent.ranks = start.spec.map.on_node(start.node).map(|place| worker(place.rank)).collect();
        for &worker in &agent.ranks {
            let started =
                ToFront::Event(AgentEvent::Worker { worker, at, event: WorkerEvent::Started { pid: NO_PID } });
            agent.link.as_mut().map_or(Ok(()), |link| link.message(&started))?;
            self.started += 1;
        }
        if !self.fails {
            for worker in std::mem::take(&mut agent.ranks) {
                agent.end_rank(worker, WorkerStatus::Exited { code: 0 }, at)?;
            }
            agent.end_attempt()?;
        }
        agent.flush()?;
        self.world = Some(world);
        if self.started == world {
            self.times.note("started");
            self.fail_at = self.fails.then(|| monotonic() + MOMENT);
        }
        Ok(())
    }

    /// The last rank exits.
    fn fail(&mut self) -> Result<(), LinkError> {
        let last = Rank(self.world.unwrap_or(1) - 1);
        let Some(agent) = self.agents.iter_mut().find(|agent| agent.ranks.iter().any(|it| it.rank == last)) else {
            return Ok(());
        };
        self.times.note("failed");
        let Some(worker) = agent.ranks.pop() else { return Ok(()) };
        let at = monotonic().saturating_sub(agent.clock);
        agent.end_rank(worker, WorkerStatus::Exited { code: FAILURE }, at)?;
        agent.flush()
    }

    /// The stream of an agent has ended.
    fn end(&mut self, number: usize) {
        let agent = &mut self.agents[number];
        if agent.link.take().is_some() {
            self.ended += 1;
            // A stand-in that was killed needs no code.
            let _ = agent.stand_in.write_all(&[0]);
        }
    }
}

impl Agent {
    fn message(&mut self, message: &ToFront) -> Result<(), LinkError> {
        self.link.as_mut().map_or(Ok(()), |link| link.message(message))
    }

    fn send(&mut self, message: &ToFront) -> Result<(), LinkError> {
        self.message(message)?;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.link.as_mut().map_or(Ok(()), Link::flush)
    }

    fn end_rank(&mut self, worker: WorkerId, status: WorkerStatus, at: Duration) -> Result<(), LinkError> {
        let ended = WorkerEvent::Ended { status, stop: StopRecord::default() };
        let gone = WorkerEvent::Gone { outcome: Outcome::Ended(status), is_left: false };
        let closed = [Stream::Stdout, Stream::Stderr].map(WorkerEvent::Closed);
        for event in [ended, gone].into_iter().chain(closed) {
            self.message(&ToFront::Event(AgentEvent::Worker { worker, at, event }))?;
        }
        Ok(())
    }

    fn end_attempt(&mut self) -> Result<(), LinkError> {
        self.message(&ToFront::Event(AgentEvent::Over(Summary { groups: 1, ..Summary::default() })))?;
        self.send(&ToFront::Event(AgentEvent::Drained))
    }
}
