//! The process that waits for the end of a front which another one may follow, and then starts that one.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use rankrun_agent::tidy::{Places, RuntimeDir};
use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::poll::pause;
use rankrun_sys::process::Child;
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{name, signal, socket};
use rustix::fs::FlockOperation;

use crate::ledger::LEDGER;

/// The front has come to its end by itself.
const DONE: u8 = 1;
/// This program, also where its file was replaced meanwhile.
const OWN: &str = "/proc/self/exe";
/// How long the process may take to end, and how often to look.
const END_BOUND: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(1);

/// The process, as the front sees it.
#[derive(Debug)]
pub(crate) struct Heir {
    child: Child,
    pipe: File,
}

impl Heir {
    /// Starts it. The directory of the job stays locked as long as it lives: there is somebody who goes on. The calling process must have
    /// one thread.
    ///
    /// # Errors
    ///
    /// There is no room for a process.
    pub(crate) fn start(job: &JobId, directory: &RuntimeDir) -> io::Result<Heir> {
        let (theirs, ours) = socket::pipe()?;
        match fork::fork()? {
            Side::Parent { child } => Ok(Heir { child: Child::unreaped(child), pipe: ours.into() }),
            Side::Child => {
                drop(ours);
                let pipe = File::from(theirs);
                let lock = directory.lock();
                fork::run_with_only(&[pipe.as_fd(), lock], || wait_for_end(job, &pipe, lock))
            }
        }
    }
}

impl Drop for Heir {
    /// Nobody is to follow this front: it ends by itself.
    fn drop(&mut self) {
        // It may have been killed.
        let _ = self.pipe.write_all(&[DONE]);
        let steps = END_BOUND.as_millis() / STEP.as_millis();
        for _ in 0..steps {
            if wait::reap(self.child.pid()) != Look::Nothing {
                return;
            }
            pause(STEP);
        }
        // It has ended meanwhile, or is killed.
        let _ = self.child.signal(signal::SIGKILL);
    }
}

/// Waits for the end of the front. If it was killed, this process becomes one that starts another.
fn wait_for_end(job: &JobId, mut pipe: &File, lock: BorrowedFd<'_>) -> u8 {
    signal::block_only(&[]);
    // The name is for whoever looks at the processes.
    let _ = name::set("rankrun-heir", &format!("rankrun: heir of job {job}"));
    let mut byte = [0];
    loop {
        match pipe.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => return ExitCode::SUCCESS.0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return ExitCode::INTERNAL.0,
        }
    }
    let places = Places::of(job);
    if !places.is_anywhere(LEDGER) && rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
        // Nothing of the job had begun.
        places.remove();
        return ExitCode::SUCCESS.0;
    }
    // The next front has the lock too, before it has come so far as to lock the directory itself.
    let _ = rustix::io::fcntl_setfd(lock, rustix::io::FdFlags::empty());
    let error = Command::new(OWN).arg("resume").arg(&job.0).exec();
    // Nobody hears why: the job can be resumed by hand.
    drop(error);
    ExitCode::INTERNAL.0
}
