//! Starting guard and agent on this node.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rankrun_core::{ExitCode, JobId};
use rankrun_sys::cgroup::JobCgroup;
use rankrun_sys::fork::{self, Side};
use rankrun_sys::poll::{pause, wait_for};
use rankrun_sys::process::Child;
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{errand, proc, shm, signal, socket};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::lease::Lease;
use super::note::GuardNote;
use super::watch::Guard;
use super::watchdog::is_stopped;
use crate::driver::{Agent, Options, Seat, Terms};
use crate::tidy::{Places, remove};

/// How long guard and agent of a job that is refused may take to end.
const DISMISS_BOUND: Duration = Duration::from_secs(5);
/// And one that was killed.
const KILL_BOUND: Duration = Duration::from_secs(1);
/// How often to look whether they have, where a process has no descriptor, and whether somebody has stopped them, where it has one.
const DISMISS_STEP: Duration = Duration::from_millis(1);
const STOPPED_STEP: Duration = Duration::from_millis(50);

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
        end(self.guard);
        // An agent that its guard has not reaped is our child now. It tidies up, unless somebody has stopped it.
        let agent = self.note.agent();
        proc::own_children().into_iter().filter(|pid| Some(*pid) == agent).for_each(|pid| end(Child::unreaped(pid)));
        remove(self.cgroup.as_deref(), &self.places);
    }
}

/// A guard and an agent that wait for their job. Nothing of it is on the machine yet: no directory, no cgroup, no rank. If they are
/// dropped, both end, and that is waited for.
#[derive(Debug)]
pub struct Prepared {
    job: JobId,
    /// The children that this process had before.
    strangers: Vec<i32>,
    /// `None` once the job has begun.
    launched: Option<Launched>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(Launched { guard, stream, .. }) = self.launched.take() {
            // That ends the agent, and the guard with it.
            drop(stream);
            end(guard);
            // An agent that its guard has not reaped is our child now.
            let is_known = |pid: &i32| self.strangers.contains(pid) || errand::staying().contains(pid);
            proc::own_children().into_iter().filter(|pid| !is_known(pid)).for_each(|pid| end(Child::unreaped(pid)));
        }
    }
}

impl Prepared {
    /// The children that this process had before.
    pub fn strangers(&self) -> &[i32] {
        &self.strangers
    }

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

/// Waits for a child to end, and ends it if it does not.
fn end(child: Child) {
    if !has_ended(child, DISMISS_BOUND) {
        // An error means that it has ended.
        let _ = child.signal(signal::SIGKILL);
        has_ended(child, KILL_BOUND);
    }
}

/// Waits for a child to end, and reaps it. Returns early where somebody has stopped it.
fn has_ended(child: Child, bound: Duration) -> bool {
    let bound = Instant::now() + bound;
    let handle = Pid::from_raw(child.pid()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    while let Look::Nothing = wait::reap(child.pid()) {
        let rest = bound.saturating_duration_since(Instant::now());
        if rest.is_zero() || is_stopped(child.pid()) {
            return false;
        }
        let step = rest.min(if handle.is_some() { STOPPED_STEP } else { DISMISS_STEP });
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
    let cgroup = JobCgroup::path_of(&job.0);
    let places = Places::of(job);
    let (note, since) = (GuardNote::new()?, shm::now());
    let strangers = proc::own_children();
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
            Ok(Prepared { job: launched.job.clone(), strangers, launched: Some(launched) })
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
            note.agent_is(std::process::id() as i32);
            let lease = Lease::new(agents_end, note);
            let agent = Agent::new(job, places, (stream, session, null), lease, (options, seat));
            fork::exit_now(agent.map_or(ExitCode::INTERNAL.0, Agent::run))
        }
        Side::Parent { child } => {
            drop((agents_end, stream, null));
            // It may be stopped before it has said so itself.
            note.agent_is(child);
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
