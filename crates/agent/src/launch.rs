//! Starting guard and agent on this node.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::{cgroup, socket};

use crate::agent::Agent;
use crate::guard::Guard;
use crate::lease::Lease;
use crate::runtime::Places;

/// What the front holds of a node that it has started.
#[derive(Debug)]
pub struct Launched {
    pub guard: i32,
    /// The stream to the agent, and its session.
    pub stream: OwnedFd,
    pub session: NonZeroU64,
    /// Where the job's cgroup is, if the agent could make one.
    pub cgroup: Option<PathBuf>,
    /// Where the job's directory may be.
    pub places: Places,
}

/// Forks the guard, which forks the agent. Nothing of the job is on the machine before all three are there. The calling
/// process must have one thread.
pub fn launch(job: &JobId) -> io::Result<Launched> {
    let (stream, agents_end) = socket::pair()?;
    let session = random()?;
    let cgroup = cgroup::own_directory().ok().map(|own| own.join(format!("rankrun-{job}")));
    let places = Places::of(job);
    match fork::fork()? {
        Side::Child => {
            // The end of the stream must be seen when the front is gone.
            drop(stream);
            let code = become_guard(job, agents_end, session, cgroup, places).unwrap_or(ExitCode::INTERNAL.0);
            fork::exit_now(code)
        }
        Side::Parent { child: guard } => Ok(Launched { guard, stream, session, cgroup, places }),
    }
}

/// The guard's life, after its fork.
fn become_guard(
    job: &JobId,
    stream: OwnedFd,
    session: NonZeroU64,
    cgroup: Option<PathBuf>,
    places: Places,
) -> io::Result<u8> {
    fork::become_subreaper()?;
    let (lease, guards_end) = Lease::new()?;
    match fork::fork()? {
        Side::Child => {
            drop(guards_end);
            let agent = Agent::new(job, places, stream, session, lease);
            fork::exit_now(agent.map_or(ExitCode::INTERNAL.0, Agent::run))
        }
        Side::Parent { child: agent } => {
            drop((lease, stream));
            let guard = Guard { agent, lease: guards_end, cgroup, places, job: job.0.clone() };
            // Descriptors of this frame are closed by the guard, behind the backs of their owners: it never comes back.
            fork::exit_now(guard.run())
        }
    }
}

fn random() -> io::Result<NonZeroU64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(NonZeroU64::new(u64::from_ne_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
}
