//! Starting guard and agent on this node.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rankrun_core::{ExitCode, JobId};
use rankrun_sys::cgroup::{self, GuardedCgroup};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::poll::{pause, wait_for};
use rankrun_sys::proc::{self, ChildList};
use rankrun_sys::process::Child;
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{shm, signal, socket};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::lease::Lease;
use super::note::GuardNote;
use super::watch::Guard;
use crate::driver::{Agent, Options, Seat, Terms};
use crate::tidy::{Places, Readers, Remains};

/// How long guard and agent of a job that is refused may take to end.
const DISMISS_BOUND: Duration = Duration::from_secs(5);
/// And one that was killed.
const KILL_BOUND: Duration = Duration::from_secs(1);
/// How often to look whether they have, where a process has no descriptor.
const DISMISS_STEP: Duration = Duration::from_millis(1);

/// The front's handles to a node that it has started.
#[derive(Debug)]
pub struct Launched {
    /// The guard, a child of the front.
    pub guard: Child,
    /// The stream to the agent, and its session.
    pub stream: OwnedFd,
    pub session: NonZeroU64,
    /// Where the job's cgroup is, if the agent could make one.
    pub cgroup: Option<PathBuf>,
    /// Where the job's directory may be.
    pub places: Places,
    pub note: GuardNote,
    /// The job, with the number of the node where there are several.
    pub job: JobId,
    /// When: what appears in /dev/shm from here on is new.
    pub since: SystemTime,
}

impl Launched {
    /// Gives it to what holds it from here on. If that cannot be made, both are ended, and nothing that the agent has made is left.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn hand_over<T, E>(self, make: impl FnOnce(Launched) -> Result<T, E>) -> Result<T, E> {
        let Launched { guard, cgroup, places, note, .. } = &self;
        let dismissal = Dismissal { guard: *guard, note: note.clone(), cgroup: cgroup.clone(), places: places.clone() };
        make(self).inspect_err(|_| dismissal.perform())
    }
}

/// Ends guard and agent of a job that is refused. The agent may have made the job's directory and its cgroup: the guard removes them, or, if
/// somebody has killed it, we do.
struct Dismissal {
    guard: Child,
    note: GuardNote,
    cgroup: Option<PathBuf>,
    places: Places,
}

impl Dismissal {
    /// The stream to the agent is closed.
    fn perform(&self) {
        dismiss(self.guard, self.note.agent());
        Remains {
            cgroup: self.cgroup.as_deref().and_then(|path| GuardedCgroup::open(path).ok()),
            children: ChildList::open(),
            places: self.places.clone(),
            search: None,
            readers: Readers::default(),
        }
        .tidy();
    }
}

/// A guard and an agent that wait for their job. Nothing of it is on the machine yet: no directory, no cgroup, no rank. If they are
/// dropped, both end, and that is waited for.
#[derive(Debug)]
pub struct Prepared {
    job: JobId,
    /// `None` once the job has begun.
    launched: Option<Launched>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(Launched { guard, stream, note, .. }) = self.launched.take() {
            // That ends the agent, and the guard with it.
            drop(stream);
            dismiss(guard, note.agent());
        }
    }
}

impl Prepared {
    /// The job that they were made for.
    pub fn job(&self) -> &JobId {
        &self.job
    }

    /// The agent sets itself up, and reports that it is ready.
    ///
    /// # Panics
    /// Never: a job begins once.
    pub fn begin(mut self, terms: Terms) -> Launched {
        let launched = self.launched.take().expect("it has not begun");
        // An agent that is gone is found where all lost agents are.
        let _ = rustix::net::send(&launched.stream, &[terms.encode()], SendFlags::NOSIGNAL);
        launched
    }
}

/// The stream to the agent is closed: waits until agent and guard have ended, and ends them if somebody else has stopped them.
fn dismiss(guard: Child, agent: Option<i32>) {
    if !has_ended(guard, DISMISS_BOUND) {
        // An error means that it has ended.
        let _ = guard.signal(signal::SIGKILL);
        has_ended(guard, KILL_BOUND);
    }
    // An agent that its guard has not reaped is our child now.
    for pid in proc::own_children().into_iter().filter(|pid| Some(*pid) == agent) {
        let agent = Child::unreaped(pid);
        // As above.
        let _ = agent.signal(signal::SIGKILL);
        has_ended(agent, KILL_BOUND);
    }
}

/// Waits for a child to end, and reaps it.
fn has_ended(child: Child, bound: Duration) -> bool {
    let bound = Instant::now() + bound;
    let handle = Pid::from_raw(child.pid()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    while let Look::Nothing = wait::reap(child.pid()) {
        let rest = bound.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return false;
        }
        let step = rest.min(if handle.is_some() { rest } else { DISMISS_STEP });
        match &handle {
            Some(handle) => wait_for(&mut [PollFd::new(handle, PollFlags::IN)], Some(step)),
            None => pause(step),
        }
    }
    true
}

/// Forks the guard, which forks the agent. Nothing of the job is on the machine before all three are there. The calling
/// process must have one thread.
pub fn launch(job: &JobId, options: Options, terms: Terms) -> io::Result<Launched> {
    launch_in(job, random()?, options, terms)
}

/// The same, with a conversation with the front whose number is known.
pub fn launch_in(job: &JobId, session: NonZeroU64, options: Options, terms: Terms) -> io::Result<Launched> {
    Ok(prepare_in(job, session, (options, Seat::OwnSession))?.begin(terms))
}

/// Forks guard and agent for a job whose plan is still being made. The calling process must have one thread.
pub fn prepare(job: &JobId, options: Options, seat: Seat) -> io::Result<Prepared> {
    prepare_in(job, random()?, (options, seat))
}

fn prepare_in(job: &JobId, session: NonZeroU64, options: (Options, Seat)) -> io::Result<Prepared> {
    // The agent has no way to say that there is none.
    let null = rankrun_sys::null()?;
    let (stream, agents_end) = socket::pair()?;
    // If we have no cgroup, the job gets none: the agent reports why.
    let cgroup = cgroup::own_directory().ok().map(|own| own.join(format!("rankrun-{job}")));
    let places = Places::of(job);
    let (note, since) = (GuardNote::new()?, shm::now());
    match fork::fork_blocked()? {
        Side::Child => {
            // The end of the stream must be seen when the front is gone.
            drop(stream);
            let streams = (agents_end, session, null);
            let code =
                become_guard(job, streams, (cgroup, places), (note, since), options).unwrap_or(ExitCode::INTERNAL.0);
            fork::exit_now(code)
        }
        Side::Parent { child } => {
            // Where the kernel keeps it on our CPU, it would wait for our time slice to end, and its agent with it.
            rustix::thread::sched_yield();
            let (guard, job) = (Child::unreaped(child), job.clone());
            let launched = Launched { guard, stream, session, cgroup, places, note, job, since };
            Ok(Prepared { job: launched.job.clone(), launched: Some(launched) })
        }
    }
}

/// Runs the guard, after its fork.
fn become_guard(
    job: &JobId,
    (stream, session, null): (OwnedFd, NonZeroU64, OwnedFd),
    (cgroup, places): (Option<PathBuf>, Places),
    (note, since): (GuardNote, SystemTime),
    (options, seat): (Options, Seat),
) -> io::Result<u8> {
    fork::become_subreaper()?;
    let (agents_end, guards_end) = Lease::pipe()?;
    match fork::fork()? {
        Side::Child => {
            drop(guards_end);
            note.begin_agent();
            let lease = Lease::new(agents_end, note);
            let agent = Agent::new(job, places, (stream, session, null), lease, (options, seat));
            fork::exit_now(agent.map_or(ExitCode::INTERNAL.0, Agent::run))
        }
        Side::Parent { child } => {
            drop((agents_end, stream, null));
            let agent = Child::unreaped(child);
            let job = job.clone();
            let Options { patience, is_away, .. } = options;
            let guard = Guard { agent, lease: guards_end, cgroup, places, job, note, since, patience, is_away };
            guard.run()
        }
    }
}

fn random() -> io::Result<NonZeroU64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(NonZeroU64::new(u64::from_ne_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
}
