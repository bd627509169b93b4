//! Starting guard and agent on this node.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rankrun_core::lease::Lapse;
use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::process::Child;
use rankrun_sys::shared::SharedNote;
use rankrun_sys::{cgroup, shm, socket};
use rankrun_wire::Memory;

use crate::driver::Agent;
use crate::guard::lease::Lease;
use crate::guard::watch::Guard;
use crate::tidy::Places;

/// An agent's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// A rank gets the terminal of the front. Only a process of the terminal's session can give it.
    pub lends_terminal: bool,
    /// The tier of containment to use instead of the best one: `subreaper`.
    pub containment: Option<String>,
    /// The front is on another node; this is a relay's.
    pub is_away: bool,
    /// How long the agent may do nothing at all before the guard ends it.
    pub patience: Duration,
}

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

/// Bytes of names of files in a guard's note. The memory has room for a little more.
const NAMES_MOST: usize = 31 * 1024;

/// Memory in which a guard leaves what its exit code has no room for. It outlives guard and agent.
#[derive(Debug)]
pub struct GuardNote(SharedNote);

impl GuardNote {
    /// Why the guard has ended the agent, if it has.
    pub fn lapse(&self) -> Option<Lapse> {
        Lapse::from_number(self.0.number())
    }

    pub(crate) fn leave(&self, lapse: Lapse) {
        self.0.set_number(lapse as u32);
    }

    /// What the guard has found in /dev/shm, if it has looked in place of its agent.
    pub fn memory(&self) -> Option<Memory> {
        Memory::of_word(std::str::from_utf8(&self.0.text()?).ok()?)
    }

    pub(crate) fn leave_memory(&self, memory: &Memory) {
        self.0.set_text(memory.clone().within(NAMES_MOST).word().as_bytes());
    }
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
    let (note, since) = (GuardNote(SharedNote::new()?), shm::now());
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_note_about_many_files_names_whole_files_and_counts_the_others() {
        let created: Vec<OsString> = (0..3000).map(|number| format!("/dev/shm/file-{number:05}").into()).collect();
        let note = GuardNote(SharedNote::new().expect("a page"));
        note.leave_memory(&Memory { created: created.clone(), ..Memory::default() });
        let Memory { created: named, doubtful, more_created, .. } = note.memory().expect("it was left");
        assert!(named.len() > 1000 && created.starts_with(&named), "{:?}", named.last());
        assert_eq!((doubtful.len(), more_created as usize), (0, created.len() - named.len()));
    }
}
