//! The process that waits for the end of a front which another one may follow. If the front was killed, the heir becomes the next one, and
//! its child is the heir of that: there is somebody who goes on at every moment.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rankrun_agent::tidy::{Places, RuntimeDir};
use rankrun_core::{ExitCode, JobId, Purpose};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::poll::pause;
use rankrun_sys::process::Child;
use rankrun_sys::wait::{self, Change, Look};
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

/// So many fronts may follow each other in so short a time: one that cannot live is not started for ever.
const MOST_IN_RUSH: usize = 100;
const RUSH: Duration = Duration::from_secs(10);

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
                let (pipe, lock) = (File::from(theirs), directory.lock());
                fork::run_with_only(&[pipe.as_fd(), lock], || wait_for_end(job, &pipe, lock))
            }
        }
    }

    /// The one that was started by the process which has become this front. `words` are the job and its number.
    ///
    /// # Errors
    ///
    /// Nobody but an heir has written these words.
    pub(crate) fn inherited(words: &[OsString]) -> io::Result<(JobId, Heir)> {
        let [job, child] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
        let child = child.to_str().and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
        let job = JobId(job.to_str().ok_or(io::ErrorKind::InvalidInput)?.to_owned());
        let pipe = rustix::stdio::stdin().try_clone_to_owned()?;
        rustix::stdio::dup2_stdin(rankrun_sys::null()?)?;
        Ok((job, Heir { child: Child::unreaped(child), pipe: pipe.into() }))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Starts another one if somebody has killed it.
    ///
    /// # Errors
    ///
    /// There is no room for a process.
    pub(crate) fn renew(&mut self, job: &JobId) -> io::Result<()> {
        let Look::Found(wait::Child { change: Change::Signaled { .. }, .. }) = wait::reap(self.pid()) else {
            return Ok(());
        };
        let (theirs, ours) = socket::pipe()?;
        let mut command = Command::new(OWN);
        command.args([Purpose::Heir.argument(), &job.0]).stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn()?.id() as i32;
        *self = Heir { child: Child::unreaped(child), pipe: ours.into() };
        Ok(())
    }
}

impl Drop for Heir {
    /// Nobody is to follow this front: it ends by itself.
    fn drop(&mut self) {
        // It may have been killed.
        let _ = self.pipe.write_all(&[DONE]);
        let steps = END_BOUND.as_millis() / STEP.as_millis();
        for _ in 0..steps {
            if wait::reap(self.pid()) != Look::Nothing {
                return;
            }
            pause(STEP);
        }
        // It has ended meanwhile, or is killed.
        let _ = self.child.signal(signal::SIGKILL);
    }
}

/// Waits for the end of the front that has started this process in place of another one. `words` are the job.
pub fn run_heir(words: &[OsString]) -> u8 {
    let [job] = words else { return ExitCode::USAGE.0 };
    let Some(job) = job.to_str().map(|job| JobId(job.to_owned())) else { return ExitCode::USAGE.0 };
    let (Ok(directory), Ok(pipe)) = (Places::of(&job).adopt(), rustix::stdio::stdin().try_clone_to_owned()) else {
        return ExitCode::INTERNAL.0;
    };
    wait_for_end(&job, &pipe.into(), directory.lock())
}

/// Waits for the end of the front. If it was killed, this process becomes the next one, and a child of it waits for the end of that.
fn wait_for_end(job: &JobId, pipe: &File, lock: BorrowedFd<'_>) -> u8 {
    signal::block_only(&[]);
    // The name is for whoever looks at the processes.
    let _ = name::set("rankrun-heir", &format!("rankrun: heir of job {job}"));
    // Of the present front, if it is not the first one.
    let mut next_pipe: Option<File> = None;
    let mut followed = Vec::new();
    loop {
        // A signal to the group of the front is not for it. A session of its own is more than it needs.
        let _ = fork::new_session();
        match is_done(next_pipe.as_ref().unwrap_or(pipe)) {
            Ok(false) => {}
            Ok(true) => return ExitCode::SUCCESS.0,
            Err(_) => return ExitCode::INTERNAL.0,
        }
        let places = Places::of(job);
        if !places.is_anywhere(LEDGER) && rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Nothing of the job had begun, or all of it was over.
            places.remove();
            return ExitCode::SUCCESS.0;
        }
        let now = Instant::now();
        followed.retain(|at| now < *at + RUSH);
        followed.push(now);
        if followed.len() > MOST_IN_RUSH {
            return ExitCode::INTERNAL.0;
        }
        let Ok((theirs, ours)) = socket::pipe() else { return ExitCode::INTERNAL.0 };
        match fork::fork() {
            Ok(Side::Child) => {
                drop(ours);
                next_pipe = Some(theirs.into());
            }
            Ok(Side::Parent { child }) => {
                drop(theirs);
                return become_front(job, Heir { child: Child::unreaped(child), pipe: ours.into() });
            }
            Err(_) => return ExitCode::INTERNAL.0,
        }
    }
}

/// Whether the front has come to its end by itself, when it has ended.
fn is_done(mut pipe: &File) -> io::Result<bool> {
    let mut byte = [0];
    loop {
        match pipe.read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return Ok(read? > 0),
        }
    }
}

/// Returns only if that is not possible. Nobody hears why: the job can be resumed by hand.
fn become_front(job: &JobId, heir: Heir) -> u8 {
    let Ok(pipe) = heir.pipe.try_clone() else { return ExitCode::INTERNAL.0 };
    let child = heir.pid().to_string();
    let error =
        Command::new(OWN).arg0("rankrun").args([Purpose::Successor.argument(), &job.0, &child]).stdin(pipe).exec();
    drop(error);
    ExitCode::INTERNAL.0
}
