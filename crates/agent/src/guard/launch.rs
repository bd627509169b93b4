//! Starting guard and agent on this node.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::process::Child;
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{cgroup, shm, signal, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::lease::Lease;
use super::note::GuardNote;
use super::watch::Guard;
use crate::driver::{Agent, Options, Terms};
use crate::tidy::Places;

/// How long guard and agent of a job that is refused may take to end.
const DISMISS_BOUND: Duration = Duration::from_secs(5);
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

/// A guard and an agent that wait for their job. Nothing of it is on the machine yet: no directory, no cgroup, no rank. If they are
/// dropped, both end, and that is waited for.
#[derive(Debug)]
pub struct Prepared {
    // They are dropped in this order: the end of the stream ends the agent, and the guard with it.
    launched: Launched,
    end: AwaitsEnd,
}

#[derive(Debug)]
struct AwaitsEnd(Child);

impl Drop for AwaitsEnd {
    fn drop(&mut self) {
        dismiss(self.0);
    }
}

impl Prepared {
    /// The job that they were made for.
    pub fn job(&self) -> &JobId {
        &self.launched.job
    }

    /// The agent sets itself up, and reports that it is ready.
    pub fn begin(self, terms: Terms) -> Launched {
        let Prepared { launched, end } = self;
        std::mem::forget(end);
        // An agent that is gone is found where all lost agents are.
        let _ = rustix::net::send(&launched.stream, &[terms.encode()], SendFlags::NOSIGNAL);
        launched
    }
}

/// The stream to the agent is closed: waits until agent and guard have ended.
pub fn dismiss(guard: Child) {
    let bound = Instant::now() + DISMISS_BOUND;
    let handle = Pid::from_raw(guard.pid()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    while let Look::Nothing = wait::reap(guard.pid()) {
        let rest = bound.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            // Somebody else has stopped it. The agent ends when both of us are gone. An error means that it has ended.
            let _ = guard.signal(signal::SIGKILL);
            return;
        }
        // A failed or interrupted wait is repeated.
        let step = rest.min(if handle.is_some() { rest } else { DISMISS_STEP });
        let step = Timespec { tv_sec: step.as_secs() as i64, tv_nsec: i64::from(step.subsec_nanos()) };
        let _ = match &handle {
            Some(handle) => poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&step)),
            None => poll(&mut [], Some(&step)),
        };
    }
}

/// Forks the guard, which forks the agent. Nothing of the job is on the machine before all three are there. The calling
/// process must have one thread.
pub fn launch(job: &JobId, options: Options, terms: Terms) -> io::Result<Launched> {
    Ok(prepare(job, options)?.begin(terms))
}

/// The same, with a session that the front has chosen.
pub fn launch_in(job: &JobId, session: NonZeroU64, options: Options, terms: Terms) -> io::Result<Launched> {
    Ok(prepare_in(job, session, options)?.begin(terms))
}

/// Forks guard and agent for a job whose plan is still being made. The calling process must have one thread.
pub fn prepare(job: &JobId, options: Options) -> io::Result<Prepared> {
    prepare_in(job, random()?, options)
}

fn prepare_in(job: &JobId, session: NonZeroU64, options: Options) -> io::Result<Prepared> {
    let (stream, agents_end) = socket::pair()?;
    // If we have no cgroup, the job gets none: the agent reports why.
    let cgroup = cgroup::own_directory().ok().map(|own| own.join(format!("rankrun-{job}")));
    let places = Places::of(job);
    let (note, since) = (GuardNote::new()?, shm::now());
    match fork::fork_blocked()? {
        Side::Child => {
            // The end of the stream must be seen when the front is gone.
            drop(stream);
            let stream = (agents_end, session);
            let code =
                become_guard(job, stream, (cgroup, places), (note, since), options).unwrap_or(ExitCode::INTERNAL.0);
            fork::exit_now(code)
        }
        Side::Parent { child } => {
            // Where the kernel keeps it on our CPU, it would wait for our time slice to end, and its agent with it.
            rustix::thread::sched_yield();
            let (guard, job) = (Child::unreaped(child), job.clone());
            let launched = Launched { guard, stream, session, cgroup, places, note, job, since };
            Ok(Prepared { launched, end: AwaitsEnd(guard) })
        }
    }
}

/// Runs the guard, after its fork.
fn become_guard(
    job: &JobId,
    stream: (OwnedFd, NonZeroU64),
    (cgroup, places): (Option<PathBuf>, Places),
    (note, since): (GuardNote, SystemTime),
    options: Options,
) -> io::Result<u8> {
    fork::become_subreaper()?;
    let (lease, guards_end) = Lease::new()?;
    match fork::fork()? {
        Side::Child => {
            drop(guards_end);
            let agent = Agent::new(job, places, stream, lease, options);
            fork::exit_now(agent.map_or(ExitCode::INTERNAL.0, Agent::run))
        }
        Side::Parent { child } => {
            drop((lease, stream));
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
