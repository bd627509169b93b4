//! Starting guard and agent on this node.

use std::io;
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
    /// The stream to the agent.
    pub stream: OwnedFd,
    /// Where the job's cgroup is, if the agent could make one.
    pub cgroup: Option<PathBuf>,
    /// Where the job's directory may be.
    pub places: Places,
}

/// Forks the guard, which forks the agent. Nothing of the job is on the machine before all three are there. The calling
/// process must have one thread. `lends_terminal`: a rank is to get the terminal of the calling process.
pub fn launch(job: &JobId, lends_terminal: bool) -> io::Result<Launched> {
    let (stream, agents_end) = socket::pair()?;
    let cgroup = cgroup::own_directory().ok().map(|own| own.join(format!("rankrun-{job}")));
    let places = Places::of(job);
    match fork::fork()? {
        Side::Child => {
            // The end of the stream must be seen when the front is gone.
            drop(stream);
            let code = become_guard(job, agents_end, cgroup, places, lends_terminal).unwrap_or(ExitCode::INTERNAL.0);
            fork::exit_now(code)
        }
        Side::Parent { child: guard } => Ok(Launched { guard, stream, cgroup, places }),
    }
}

/// The guard's life, after its fork.
fn become_guard(
    job: &JobId,
    stream: OwnedFd,
    cgroup: Option<PathBuf>,
    places: Places,
    lends_terminal: bool,
) -> io::Result<u8> {
    fork::become_subreaper()?;
    let (lease, guards_end) = Lease::new()?;
    match fork::fork()? {
        Side::Child => {
            drop(guards_end);
            let agent = Agent::new(job, places, stream, lease, lends_terminal);
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
