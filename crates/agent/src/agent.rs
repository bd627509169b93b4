//! The agent's loop: every source becomes an event of the node, or of the agent itself.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rankrun_core::job::CleanShm;
use rankrun_core::worker::{Stop, StopWhy};
use rankrun_core::{ExitCode, JobId, Pid};
use rankrun_sys::limits::{self, Limits};
use rankrun_sys::poll::{Interest, Poller, Ready, Waker};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::{fork, watched};
use rankrun_wire::message::Hello;
use rankrun_wire::{ToAgent, ToFront};

use crate::boundary::Boundary;
use crate::clock::Clock;
use crate::io::IoThread;
use crate::lease::{self, Lease, RENEWAL};
use crate::link::{Link, LinkError};
use crate::node::{Node, Threads};
use crate::prepare::Inherited;
use crate::runtime::Places;
use crate::spawner::SpawnerThread;
use crate::token::Token;

/// The agent of one node.
pub struct Agent {
    job: JobId,
    places: Places,
    stream: OwnedFd,
    session: NonZeroU64,
    lease: Lease,
    inherited: Inherited,
    limits: Limits,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("job", &self.job).finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent in a fresh fork of the front, which has one thread and the front's descriptors.
    pub fn new(job: &JobId, places: Places, stream: OwnedFd, session: NonZeroU64, lease: Lease) -> io::Result<Agent> {
        fork::become_subreaper()?;
        // ^C is for the front; the agent stays in its session, so that it can give the terminal to a rank.
        let _ = fork::new_process_group();
        for ignored in
            [signal::SIGINT, signal::SIGHUP, signal::SIGTERM, signal::SIGTSTP, signal::SIGTTIN, signal::SIGTTOU]
        {
            signal::ignore(ignored);
        }
        Ok(Agent {
            job: job.clone(),
            places,
            stream,
            session,
            lease,
            inherited: Inherited::take()?,
            limits: limits::raise_open_files().unwrap_or_default(),
        })
    }

    /// Runs until the front has said good-bye, or is lost and nothing of the job is left. Returns the exit code.
    pub fn run(self) -> u8 {
        match self.serve() {
            Ok(()) => ExitCode::SUCCESS.0,
            Err(_) => ExitCode::INTERNAL.0,
        }
    }

    fn serve(self) -> io::Result<()> {
        let poller = Poller::new()?;
        let mut link = Link::new(&poller.registry(), Token::Front.encode(), self.stream, self.session)?;
        link.say(&ToFront::Hello(Hello::ours())).map_err(io::Error::other)?;
        let runtime = match self.places.create() {
            Ok(runtime) => runtime,
            Err(error) => {
                // The socket is new: it takes a message, unless the front is gone.
                let refused = ToFront::Refused { what: error.to_string(), source: error.source.to_string() };
                return link.say(&refused).map_err(io::Error::other);
            }
        };
        let forced = std::env::var("RANKRUN_CONTAINMENT").ok();
        let boundary = Boundary::choose(&self.job, forced.as_deref());
        if boundary.cgroup().is_some() {
            self.lease.say(lease::CGROUP);
        }
        let signals = SignalFd::new(&[signal::SIGCHLD, watched::TOLD])?;
        let waker = Waker::new()?;
        let io_waker = Waker::new()?;
        let threads =
            Threads { spawner: SpawnerThread::start(waker.handle()?)?, io: IoThread::start(io_waker.handle()?)? };
        poller.add(&signals, Token::Signals.encode(), Interest::Read)?;
        poller.add(&waker, Token::Spawner.encode(), Interest::Read)?;
        poller.add(&io_waker, Token::Io.encode(), Interest::Read)?;
        poller.add(&self.lease, Token::Lease.encode(), Interest::Hangup)?;
        let ready = ToFront::Ready { pid: Pid(std::process::id() as i32), containment: boundary.containment() };
        link.say(&ready).map_err(io::Error::other)?;
        let node = Node::new(self.job, self.places, runtime, boundary, threads, self.inherited, self.limits);
        Loop {
            poller,
            link: Some(link),
            signals,
            waker,
            io_waker,
            lease: self.lease,
            next_renewal: Instant::now(),
            clock: Clock::default(),
            node,
            end: false,
            guard_lost: false,
        }
        .run()
    }
}

/// The running loop.
struct Loop {
    poller: Poller,
    /// `None` once the front is lost.
    link: Option<Link>,
    signals: SignalFd,
    waker: Waker,
    io_waker: Waker,
    lease: Lease,
    next_renewal: Instant,
    clock: Clock,
    node: Node,
    /// The front has said good-bye.
    end: bool,
    guard_lost: bool,
}

impl Loop {
    fn run(mut self) -> io::Result<()> {
        let mut ready: Vec<Ready> = Vec::new();
        loop {
            self.renew();
            self.flush();
            if self.is_done() {
                break;
            }
            let timeout = self.timeout();
            self.poller.wait(timeout, &mut ready)?;
            for &event in &ready {
                self.dispatch(event)?;
            }
            if !self.clock.is_paused() {
                let now = self.clock.now();
                self.node.tick(now, &self.poller);
            }
        }
        if self.node.has_released() {
            self.lease.say(lease::LEAVE);
        }
        // Guard and front look after us, if they live so long.
        self.node.tidy();
        if self.link.is_none() && !self.guard_lost {
            // A guard that somebody has stopped would stay for ever, with no front to end it.
            let guard = rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid());
            let _ = signal::send(guard, signal::SIGCONT);
        }
        // The kernel closes and frees faster than we could.
        fork::exit_now(ExitCode::SUCCESS.0)
    }

    fn is_done(&self) -> bool {
        match &self.link {
            // After the last word there is nothing that the front could still want.
            Some(link) => (self.end || self.node.is_drained()) && !link.wants_write(),
            None => self.node.is_over(),
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let renewal = self.next_renewal.saturating_duration_since(Instant::now());
        let node = match self.clock.is_paused() {
            true => None,
            false => self.node.deadline().map(|deadline| deadline.saturating_sub(self.clock.now())),
        };
        Some(node.map_or(renewal, |node| node.min(renewal)))
    }

    fn renew(&mut self) {
        let now = Instant::now();
        if now >= self.next_renewal {
            self.lease.say(lease::ALIVE);
            self.next_renewal = now + RENEWAL;
        }
    }

    fn dispatch(&mut self, event: Ready) -> io::Result<()> {
        if !self.poller.is_current(event) {
            return Ok(());
        }
        let now = self.clock.now();
        match Token::decode(event.token) {
            Token::Front => {
                if event.readable {
                    self.hear_front(now);
                }
            }
            Token::Signals => {
                let mut told = false;
                while let Some((number, _)) = self.signals.next() {
                    told |= number == watched::TOLD;
                }
                if told {
                    self.node.shared_memory_news(now);
                }
                self.node.children(now, &self.poller);
            }
            Token::Spawner => {
                self.waker.clear();
                self.node.children(now, &self.poller);
            }
            Token::Io => {
                self.io_waker.clear();
                self.node.io_results();
            }
            Token::Lease => {
                self.poller.remove(&self.lease)?;
                self.guard_lost = true;
                self.node.outbox.push(ToFront::GuardLost);
                self.node.stop_all(now, Stop { why: StopWhy::GuardLost, grace: self.node.grace() }, &self.poller);
            }
            Token::Output(slot, stream) => self.node.read_output(slot, stream, &self.poller),
            Token::Pmi(slot) => self.node.pmi_ready(now, slot, event, &self.poller),
            Token::Stdin(slot) => self.node.stdin_ready(slot, &self.poller),
            Token::WorkerSocket => self.node.welcome_speakers(now, &self.poller),
            Token::WorkerClient(client) => self.node.hear_speaker(now, client, &self.poller),
            Token::Boundary(slot) => self.node.look_at_boundary(now, slot, &self.poller),
        }
        Ok(())
    }

    fn hear_front(&mut self, now: Duration) {
        let Some(link) = &mut self.link else { return };
        let mut messages = Vec::new();
        let alive = link.receive(&mut messages);
        for message in messages {
            self.obey(now, message);
        }
        match alive {
            Ok(true) => {}
            Ok(false) => self.lose_front(now),
            Err(error) => {
                report(&error);
                self.lose_front(now);
            }
        }
    }

    fn obey(&mut self, now: Duration, message: ToAgent) {
        match message {
            ToAgent::Hello(hello) => {
                if hello.version != rankrun_wire::VERSION {
                    self.node.outbox.push(ToFront::Note(format!("the agent is rankrun {}", Hello::ours().release)));
                    self.end = true;
                }
            }
            ToAgent::Start(spec) => {
                if spec.clean_shm == CleanShm::Job {
                    self.lease.say(lease::CLEAN_SHM);
                }
                self.node.start(now, *spec, &self.poller);
            }
            ToAgent::Stop(stop) => self.node.stop_all(now, stop, &self.poller),
            ToAgent::Kill => self.node.kill_all(now, &self.poller),
            ToAgent::Signal(signal) => self.node.signal_all(signal),
            ToAgent::Pause => {
                self.clock.pause();
                self.node.freeze(true);
                self.node.outbox.push(ToFront::Paused);
            }
            ToAgent::Resume => {
                self.clock.resume();
                self.node.freeze(false);
            }
            ToAgent::Credit { stream, bytes } => {
                if let Some(link) = &mut self.link {
                    link.grant(stream, bytes);
                }
            }
            ToAgent::Stdin(bytes) => self.node.stdin_bytes(Some(bytes), &self.poller),
            ToAgent::StdinEnd => self.node.stdin_bytes(None, &self.poller),
            ToAgent::Window(rows, columns) => self.node.resize((rows, columns)),
            ToAgent::Collective(collective) => self.node.collective_done(now, collective, &self.poller),
            ToAgent::End => self.end = true,
        }
    }

    /// Nobody is left to report to: the workers end, and then we do.
    fn lose_front(&mut self, now: Duration) {
        self.link = None;
        self.clock.resume();
        self.node.freeze(false);
        if self.end {
            return;
        }
        self.node.drop_output(&self.poller);
        self.node.stop_all(now, Stop { why: StopWhy::FrontLost, grace: self.node.grace() }, &self.poller);
    }

    /// Sends what there is to send.
    fn flush(&mut self) {
        match &mut self.link {
            None => self.node.outbox.clear(),
            Some(link) => {
                if let Err(error) = self.node.send(link, &self.poller) {
                    report(&error);
                    let now = self.clock.now();
                    self.lose_front(now);
                }
            }
        }
        self.node.start_io();
    }
}

/// The front cannot be told any more; the agent's stderr is the front's.
fn report(error: &LinkError) {
    use std::io::Write;
    if !matches!(error, LinkError::Wire(rankrun_wire::LinkError::Io(_))) {
        let _ = writeln!(std::io::stderr(), "rankrun: agent: {error}");
    }
}
