//! Sets an agent up: it acquires all it needs before it reports that it is ready.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rankrun_core::interface::is_loopback_name;
use rankrun_core::job::{About, AgentEvent};
use rankrun_core::{ExitCode, JobId, Pid};
use rankrun_sys::cgroup::JobCgroup;
use rankrun_sys::limits::{self, Limits};
use rankrun_sys::poll::{Interest, Poller, Waker};
use rankrun_sys::process::signal_parent;
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::{cpus, fork, kernel, network, watched};
use rankrun_wire::ToFront;
use rankrun_wire::message::Hello;

use super::clock::Clock;
use super::io::IoThread;
use super::run::{Loop, Wakers};
use super::terms::Terms;
use super::token::Token;
use crate::binding::Binder;
use crate::children::{Boundary, Children, Interpreters, Libraries};
use crate::guard::lease::{Lease, Word};
use crate::services::fork_servers::ForkServers;
use crate::services::looker::Looker;
use crate::services::meter::Meter;
use crate::services::profiler::Profiler;
use crate::services::torch_store::TorchStore;
use crate::services::worker_socket::WorkerSocket;
use crate::staff::{FRONT_LIVES, Role};
use crate::streams::Link;
use crate::team::{Hands, Inherited, Site, Spawners};
use crate::tidy::shm::SharedMemory;
use crate::tidy::{Places, RuntimeDir, remove};
use serde::{Deserialize, Serialize};

/// An agent's settings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// The tier of containment to use instead of the best one: `subreaper`.
    pub containment: Option<String>,
    /// The front is on another node; this is a relay's.
    pub is_away: bool,
    /// How long the agent may do nothing at all before the guard ends it.
    pub patience: Duration,
}

/// Where an agent sits. Signals to the front's process group are not for it, from the first moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seat {
    /// In a session of its own, which the ranks share (docs/adr/0010-one-session.md).
    OwnSession,
    /// In the front's session: only a process of the terminal's session can make it a rank's terminal.
    FrontsSession,
}

/// The agent of one node.
pub(crate) struct Agent {
    job: JobId,
    places: Places,
    stream: OwnedFd,
    session: NonZeroU64,
    lease: Lease,
    inherited: Inherited,
    limits: Limits,
    containment: Option<String>,
    is_away: bool,
    /// The pid of the guard.
    guard: i32,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("job", &self.job).finish_non_exhaustive()
    }
}

/// Why an agent cannot start.
struct Refusal {
    what: String,
    source: io::Error,
}

fn cannot(what: &str) -> impl FnOnce(io::Error) -> Refusal {
    move |source| Refusal { what: format!("cannot {what}"), source }
}

impl Agent {
    /// An agent in a fresh fork of the front, which has one thread and the front's descriptors.
    pub(crate) fn new(
        job: &JobId,
        places: Places,
        (stream, session, null): (OwnedFd, NonZeroU64, OwnedFd),
        lease: Lease,
        (options, seat): (Options, Seat),
    ) -> io::Result<Agent> {
        match seat {
            Seat::OwnSession => fork::new_session()?,
            Seat::FrontsSession => fork::new_process_group()?,
        }
        fork::become_subreaper()?;
        if options.is_away {
            Role::Agent.take_name(job);
            // They are the relay's: whoever waits for their end must not wait for us.
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(&null)?;
        }
        // The guard's fork has all blocked.
        signal::block_only(&[
            signal::SIGINT,
            signal::SIGQUIT,
            signal::SIGHUP,
            signal::SIGTERM,
            signal::SIGTSTP,
            signal::SIGTTIN,
            signal::SIGTTOU,
            signal::SIGUSR1,
            signal::SIGUSR2,
            signal::SIGWINCH,
            signal::SIGCONT,
        ]);
        if options.is_away {
            // The ranks do not get what sshd or srun ignores, and what a relay does, but what the front's caller ignores.
            signal::restore_all();
        }
        Ok(Agent {
            job: job.clone(),
            places,
            stream,
            session,
            lease,
            inherited: Inherited::take(&null)?,
            // If the limit cannot be raised, fewer ranks fit.
            limits: limits::raise_open_files().unwrap_or_default(),
            containment: options.containment,
            is_away: options.is_away,
            guard: fork::parent_pid(),
        })
    }

    /// Runs until the front sends `End`, or the front is lost and no process of the job is left. Returns the exit
    /// code.
    pub(crate) fn run(self) -> u8 {
        match self.serve() {
            Ok(()) => ExitCode::SUCCESS.0,
            // There is no stream to report it on.
            Err(_) => ExitCode::INTERNAL.0,
        }
    }

    fn serve(self) -> io::Result<()> {
        let poller = Poller::new()?;
        let devices = Devices::new(&poller, &self.lease, self.is_away);
        let Some(terms) = Terms::receive(&self.stream, &self.lease)? else {
            // There is no job. A guard that somebody has stopped would stay for ever.
            if fork::parent_pid() == self.guard {
                // It may have ended.
                let _ = signal_parent(signal::SIGCONT);
            }
            return Ok(());
        };
        let mut link = Link::new(&poller.registry(), Token::Front.encode(), self.stream, self.session)?;
        link.say(&ToFront::Hello(Hello::ours())).map_err(io::Error::other)?;
        let runtime = match self.places.create() {
            Ok(runtime) => runtime,
            Err(error) => return refuse(link, error.to_string(), &error.source),
        };
        let (job, places) = (self.job.clone(), self.places.clone());
        let setup = Setup {
            job: self.job,
            terms,
            lease: self.lease,
            inherited: self.inherited,
            limits: self.limits,
            containment: self.containment,
            is_away: self.is_away,
        };
        match devices.and_then(|devices| setup.finish(poller, devices, &mut link, runtime, self.places)) {
            Ok(agent) => agent.run(link),
            Err(refusal) => {
                // The guard does the same, unless it is lost.
                remove(JobCgroup::path_of(&job.0).as_deref(), &places);
                refuse(link, refusal.what, &refusal.source)
            }
        }
    }
}

/// Tells the front why there is no agent.
fn refuse(mut link: Link, what: String, source: &io::Error) -> io::Result<()> {
    // The socket is new: it takes a message, unless the front is gone.
    link.say(&ToFront::Event(AgentEvent::Refused { what, source: source.to_string() })).map_err(io::Error::other)
}

/// What wakes the loop, and the thread that starts ranks: they need not know the job.
struct Devices {
    signals: SignalFd,
    wakers: Wakers,
    spawner: Spawners,
}

impl Devices {
    fn new(poller: &Poller, lease: &Lease, is_away: bool) -> Result<Devices, Refusal> {
        // Where the front is on another machine, it does not get what the processes of this node are sent.
        let told: &[i32] = if is_away { &[signal::SIGTERM, signal::SIGINT, FRONT_LIVES] } else { &[] };
        let signals =
            SignalFd::new(&[&[signal::SIGCHLD, watched::TOLD], told].concat()).map_err(cannot("receive signals"))?;
        let waker = || Waker::new().map_err(cannot("make an event descriptor"));
        let wakers = Wakers { spawner: waker()?, io: waker()?, memory: waker()? };
        let spawner = Spawners::start(wakers.spawner.clone()).map_err(cannot("start a thread"))?;
        let watched = (|| {
            poller.add(&signals, Token::Signals.encode(), Interest::Read)?;
            poller.add(&wakers.spawner, Token::Spawner.encode(), Interest::Read)?;
            poller.add(&wakers.io, Token::Io.encode(), Interest::Read)?;
            poller.add(&wakers.memory, Token::Memory.encode(), Interest::Read)?;
            poller.add(lease, Token::Lease.encode(), Interest::Hangup)
        })();
        watched.map_err(cannot("watch descriptors"))?;
        // Ranks are told of them. Counted while there is time.
        cpus::allowed();
        Ok(Devices { signals, wakers, spawner })
    }
}

struct Setup {
    job: JobId,
    terms: Terms,
    lease: Lease,
    inherited: Inherited,
    limits: Limits,
    containment: Option<String>,
    is_away: bool,
}

impl Setup {
    fn finish(
        self,
        poller: Poller,
        Devices { signals, wakers, spawner }: Devices,
        link: &mut Link,
        runtime: RuntimeDir,
        places: Places,
    ) -> Result<Loop, Refusal> {
        let io = IoThread::start(wakers.io.clone()).map_err(cannot("start a thread"))?;
        let boundary = Boundary::choose(&self.job, self.containment.as_deref());
        if boundary.cgroup().is_some() {
            self.lease.send(Word::Cgroup);
        }
        let children = Children::new(self.job, boundary);
        let libraries = Libraries::new(wakers.io.clone(), children.readers());
        let interpreters = Interpreters::new(wakers.io.clone(), children.readers());
        let memory = SharedMemory::new(runtime.path(), wakers.memory.clone());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let containment = children.boundary().containment();
        let about = match self.terms.is_alone {
            true => About { containment, host, addresses: Vec::new(), machine: String::new(), is_loopback_name: false },
            false => About {
                containment,
                is_loopback_name: std::fs::read_to_string("/etc/hosts")
                    .is_ok_and(|hosts| is_loopback_name(&hosts, &host)),
                host,
                addresses: network::named_addresses(),
                machine: machine(),
            },
        };
        let pid = Pid(std::process::id() as i32);
        let ready = ToFront::Ready { pid, runtime: runtime.path().to_owned(), about };
        link.say(&ready).map_err(|error| Refusal { what: error.to_string(), source: io::Error::other(error) })?;
        let hands = Hands {
            poller,
            clock: Clock::default(),
            outbox: Vec::new(),
            children,
            spawner,
            worker_socket: WorkerSocket::default(),
            torch_store: TorchStore::default(),
            interpreters,
            libraries,
            lease: self.lease,
            binder: Binder::default(),
            site: Site::new(memory),
            inherited: self.inherited,
            looker: Looker::default(),
            meter: Meter::default(),
            profiler: Profiler::default(),
            fork_servers: ForkServers::default(),
            early_changes: HashMap::new(),
            misled: Vec::new(),
            misled_news: Vec::new(),
            pmix: None,
            traffic: None,
            is_away: self.is_away,
        };
        Ok(Loop::new(hands, signals, wakers, io, places, runtime, self.limits))
    }
}

/// What tells this machine, and its network as we see it, from others.
fn machine() -> String {
    let boot = kernel::piece_text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), network.display())
}
