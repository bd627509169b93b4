//! Starting guard and agent on this node.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::{cgroup, socket};

use crate::agent::Agent;
use crate::guard::Guard;
use crate::lease::Lease;

/// What the front holds of a node that it has started.
#[derive(Debug)]
pub struct Launched {
    pub guard: i32,
    /// The stream to the agent.
    pub stream: OwnedFd,
    /// Where the job's cgroup is, if the agent could make one.
    pub cgroup: Option<PathBuf>,
}

/// The name of the socket in the job's directory at which the agent listens.
pub const AGENT_SOCKET: &str = "agent.sock";

/// Forks the guard, which forks the agent, and connects to it. The calling process must have one thread. `alive` is the
/// locked file that says that the job lives.
pub fn launch(job: &JobId, runtime_dir: &Path, alive: &OwnedFd) -> io::Result<Launched> {
    let path = runtime_dir.join(AGENT_SOCKET);
    let listener = socket::listen(&path)?;
    let cgroup = cgroup::own_directory().ok().map(|own| own.join(format!("rankrun-{job}")));
    match fork::fork()? {
        Side::Child => {
            let code = become_guard(job, runtime_dir, alive, listener, cgroup).unwrap_or(ExitCode::INTERNAL.0);
            fork::exit_now(code)
        }
        Side::Parent { child: guard } => {
            // Only the agent may answer.
            drop(listener);
            let stream = socket::connect(&path)?;
            Ok(Launched { guard, stream, cgroup })
        }
    }
}

/// The guard's life, after its fork.
fn become_guard(
    job: &JobId,
    runtime_dir: &Path,
    alive: &OwnedFd,
    listener: OwnedFd,
    cgroup: Option<PathBuf>,
) -> io::Result<u8> {
    fork::become_subreaper()?;
    let (lease, guards_end) = Lease::new()?;
    match fork::fork()? {
        Side::Child => {
            drop(guards_end);
            let agent = Agent::new(job, runtime_dir, listener, lease);
            fork::exit_now(agent.map_or(ExitCode::INTERNAL.0, Agent::run))
        }
        Side::Parent { child: agent } => {
            drop(lease);
            let alive = alive.try_clone()?;
            let runtime_dir = runtime_dir.to_owned();
            let guard = Guard { agent, lease: guards_end, cgroup, runtime_dir, alive, job: job.0.clone() };
            // Descriptors of this frame are closed by the guard, behind the backs of their owners: it never comes back.
            fork::exit_now(guard.run())
        }
    }
}
