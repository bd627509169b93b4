//! The process that waits for the end of a front which another one may follow. If the front was killed, the heir becomes the next one, and
//! its child is the heir of that: there is somebody who goes on at every moment.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rankrun_agent::tidy::{Places, RuntimeDir};
use rankrun_core::{ExitCode, JobId, Purpose};
use rankrun_sys::exec::OWN;
use rankrun_sys::fork::{self, Side};
use rankrun_sys::poll::pause;
use rankrun_sys::process::Child;
use rankrun_sys::wait::{self, Change, Look};
use rankrun_sys::{name, signal, socket};
use rustix::fs::FlockOperation;

use crate::job::succession::FAILURE;
use crate::ledger::LEDGER;
use crate::parent::Parent;

/// The front has come to its end by itself.
const DONE: u8 = 1;
/// How long the process may take to end, and how often to look.
const END_BOUND: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(1);

/// So many fronts may follow each other in so short a time: one that cannot live is not started for ever.
const MOST_IN_RUSH: usize = 100;
const RUSH: Duration = Duration::from_secs(10);

/// An heir that ends by itself is started again so often.
const MOST_EXITS: u32 = 3;
/// How long it waits before it tries again what has failed: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The process, as the front sees it.
#[derive(Debug)]
pub(crate) struct Heir {
    job: JobId,
    child: Child,
    /// It is closed when this process ends, or by [`Heir::dismiss`].
    pipe: ManuallyDrop<File>,
    /// How long the ranks go on without a front.
    patience: Duration,
    /// How often one has ended by itself.
    exits: u32,
}

impl Heir {
    /// Starts it. The directory of the job stays locked as long as it lives: there is somebody who goes on. The calling process must have
    /// one thread. `patience`: how long the ranks go on without a front. `parent`: who waits until all ranks run.
    ///
    /// # Errors
    ///
    /// There is no room for a process.
    pub(crate) fn start(
        job: &JobId,
        patience: Duration,
        directory: &RuntimeDir,
        parent: Option<&Parent>,
    ) -> io::Result<Heir> {
        let (theirs, ours) = socket::pipe()?;
        match fork::fork()? {
            Side::Parent { child } => Ok(Heir::new(job, patience, child, ours.into())),
            Side::Child => {
                let (pipe, lock) = (File::from(theirs), directory.lock());
                let mut keep = vec![pipe.as_fd(), lock];
                // It is for the front that this process may become. Without it nobody is told.
                keep.extend(parent.map(|parent| {
                    let _ = rustix::stdio::dup2_stdout(parent.pipe());
                    rustix::stdio::stdout()
                }));
                fork::run_with_only(&keep, || wait_for_end(job, patience, &pipe, lock))
            }
        }
    }

    fn new(job: &JobId, patience: Duration, child: i32, pipe: File) -> Heir {
        Heir { job: job.clone(), child: Child::unreaped(child), pipe: ManuallyDrop::new(pipe), patience, exits: 0 }
    }

    /// The one that was started by the process which has become this front. `words` are the job, its number, and the patience.
    ///
    /// # Errors
    ///
    /// Nobody but an heir has written these words.
    pub(crate) fn inherited(words: &[OsString]) -> io::Result<Heir> {
        let [job, child, patience] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
        let (job, patience) = read(job, patience).ok_or(io::ErrorKind::InvalidInput)?;
        let child = child.to_str().and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
        let pipe = rustix::stdio::stdin().try_clone_to_owned()?;
        rustix::stdio::dup2_stdin(rankrun_sys::null()?)?;
        Ok(Heir::new(&job, patience, child, pipe.into()))
    }

    pub(crate) fn job(&self) -> &JobId {
        &self.job
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Starts another one if it has ended, or somebody has killed it.
    ///
    /// # Errors
    ///
    /// There is no room for a process.
    pub(crate) fn renew(&mut self, parent: Option<&Parent>) -> io::Result<()> {
        let Look::Found(wait::Child { change, .. }) = wait::reap(self.pid()) else { return Ok(()) };
        if !matches!(change, Change::Signaled { .. }) {
            self.exits += 1;
            if self.exits > MOST_EXITS {
                return Err(io::Error::other("the process that is to start it ends by itself"));
            }
        }
        let (theirs, ours) = socket::pipe()?;
        let mut command = Command::new(OWN);
        command.args([Purpose::Heir.argument(), &self.job.0, &self.patience.as_millis().to_string()]);
        let waits = parent.map(|parent| parent.pipe().try_clone_to_owned()).transpose()?;
        command.stdin(theirs).stdout(waits.map_or(Stdio::null(), Stdio::from)).stderr(Stdio::null());
        self.child = Child::unreaped(command.spawn()?.id() as i32);
        // Nobody reads the other one any more.
        *self.pipe = ours.into();
        Ok(())
    }

    /// Nobody is to follow this front: it ends by itself.
    pub(crate) fn dismiss(mut self) {
        self.end();
    }

    fn end(&mut self) {
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

impl Drop for Heir {
    /// A front that could not begin leaves what there is to its heir: that tries again.
    fn drop(&mut self) {
        if !Places::of(&self.job).is_anywhere(LEDGER) {
            self.end();
        }
    }
}

/// A job and a patience, as words.
fn read(job: &OsStr, patience: &OsStr) -> Option<(JobId, Duration)> {
    let patience = patience.to_str()?.parse().ok()?;
    Some((JobId(job.to_str()?.to_owned()), Duration::from_millis(patience)))
}

/// Waits for the end of the front that has started this process in place of another one. `words` are the job and the patience.
pub fn run_heir(words: &[OsString]) -> u8 {
    let [job, patience] = words else { return ExitCode::USAGE.0 };
    let Some((job, patience)) = read(job, patience) else { return ExitCode::USAGE.0 };
    let (Ok(directory), Ok(pipe)) = (Places::of(&job).adopt(), rustix::stdio::stdin().try_clone_to_owned()) else {
        return ExitCode::INTERNAL.0;
    };
    wait_for_end(&job, patience, &pipe.into(), directory.lock())
}

/// What the fronts have come to that were there until now.
#[derive(Default)]
struct Past {
    /// When they have ended, of late.
    followed: Vec<Instant>,
    /// Since when none could begin, and how long to wait before the next one.
    failing: Option<(Instant, Duration)>,
}

impl Past {
    /// Another front is to begin. `has_failed`: the last one could not. Returns how long to wait before; `None`: there have been enough.
    fn next(&mut self, now: Instant, has_failed: bool, patience: Duration) -> Option<Duration> {
        self.followed.retain(|at| now < *at + RUSH);
        self.followed.push(now);
        if !has_failed {
            self.failing = None;
            return (self.followed.len() <= MOST_IN_RUSH).then_some(Duration::ZERO);
        }
        let (since, pause) = *self.failing.get_or_insert((now, FIRST_PAUSE));
        self.failing = Some((since, (2 * pause).min(LONGEST_PAUSE)));
        (now < since + patience).then_some(pause)
    }
}

/// Waits for the end of the front. If it was killed, this process becomes the next one, and a child of it waits for the end of that.
fn wait_for_end(job: &JobId, patience: Duration, pipe: &File, lock: BorrowedFd<'_>) -> u8 {
    signal::block_only(&[]);
    // The name is for whoever looks at the processes.
    let _ = name::set("rankrun-heir", &format!("rankrun: heir of job {job}"));
    // Of the present front, if it is not the first one.
    let mut next_pipe: Option<File> = None;
    let mut past = Past::default();
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
        // What has no room now may have room soon.
        let mut has_failed = places.is_anywhere(FAILURE);
        loop {
            let Some(wait) = past.next(Instant::now(), has_failed, patience) else { return ExitCode::INTERNAL.0 };
            pause(wait);
            match fork_heir() {
                Ok((None, theirs)) => {
                    next_pipe = Some(theirs);
                    break;
                }
                Ok((Some(child), ours)) => return become_front(Heir::new(job, patience, child, ours)),
                Err(_) => has_failed = true,
            }
        }
    }
}

/// Forks the next heir. In this process: the heir, and the end of the pipe that tells it the end of the front. In the heir: the other end.
fn fork_heir() -> io::Result<(Option<i32>, File)> {
    let (theirs, ours) = socket::pipe()?;
    Ok(match fork::fork()? {
        Side::Parent { child } => (Some(child), ours.into()),
        Side::Child => (None, theirs.into()),
    })
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

/// Returns only if that is not possible: then the next heir tries.
fn become_front(heir: Heir) -> u8 {
    let heir = ManuallyDrop::new(heir);
    let (child, patience) = (heir.pid().to_string(), heir.patience.as_millis().to_string());
    let Ok(pipe) = heir.pipe.try_clone() else { return ExitCode::INTERNAL.0 };
    let mut front = Command::new(OWN);
    front.arg0("rankrun").args([Purpose::Successor.argument(), &heir.job.0, &child, &patience]).stdin(pipe);
    drop(front.exec());
    ExitCode::INTERNAL.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fronts_that_cannot_begin_are_tried_as_long_as_the_ranks_wait() {
        let (mut past, begun, patience) = (Past::default(), Instant::now(), Duration::from_secs(60));
        let mut now = begun;
        let mut tries = 0;
        while let Some(pause) = past.next(now, true, patience) {
            assert!(pause >= FIRST_PAUSE && pause <= LONGEST_PAUSE);
            now += pause;
            tries += 1;
        }
        assert!(now >= begun + patience && (60..80).contains(&tries), "{tries}");
        // One that has begun, and is killed after that, is followed at once.
        assert_eq!(past.next(now, false, patience), Some(Duration::ZERO));
        assert_eq!(past.next(now, true, patience), Some(FIRST_PAUSE));
    }

    #[test]
    fn fronts_that_are_killed_one_after_the_other_are_followed_up_to_a_bound() {
        let (mut past, now) = (Past::default(), Instant::now());
        for _ in 0..MOST_IN_RUSH {
            assert_eq!(past.next(now, false, RUSH), Some(Duration::ZERO));
        }
        assert_eq!(past.next(now, false, RUSH), None);
        assert_eq!(past.next(now + RUSH, false, RUSH), Some(Duration::ZERO));
    }
}
