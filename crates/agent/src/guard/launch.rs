//! Starting guard and agent on this node.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::SystemTime;

use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::process::Child;
use rankrun_sys::{cgroup, shm, socket};

use super::lease::Lease;
use super::note::GuardNote;
use super::watch::Guard;
use crate::driver::{Agent, Options};
use crate::tidy::Places;

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

/// Forks the guard, which forks the agent. Nothing of the job is on the machine before all three are there. The calling
/// process must have one thread.
pub fn launch(job: &JobId, options: Options) -> io::Result<Launched> {
    launch_in(job, random()?, options)
}

/// The same, with a session that the front has chosen.
pub fn launch_in(job: &JobId, session: NonZeroU64, options: Options) -> io::Result<Launched> {
    let (stream, agents_end) = socket::pair()?;
    // If we have no cgroup, the job gets none: the agent reports why.
    let cgroup = cgroup::own_directory().ok().map(|own| own.join(format!("rankrun-{job}")));
    let places = Places::of(job);
    let (note, since) = (GuardNote::new()?, shm::now());
    match fork::fork()? {
        Side::Child => {
            // The end of the stream must be seen when the front is gone.
            drop(stream);
            let stream = (agents_end, session);
            let code =
                become_guard(job, stream, (cgroup, places), (note, since), options).unwrap_or(ExitCode::INTERNAL.0);
            fork::exit_now(code)
        }
        Side::Parent { child } => {
            let (guard, job) = (Child::unreaped(child), job.clone());
            Ok(Launched { guard, stream, session, cgroup, places, note, job, since })
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
