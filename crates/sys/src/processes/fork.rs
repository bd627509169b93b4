//! Plain forks of rankrun itself: the guard and the agent are the front's own image, so that starting them costs no
//! exec and no second copy in memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::signal::Blocked;

/// This process is a child of [`fork`].
static IS_FORK: AtomicBool = AtomicBool::new(false);

/// Which side of a fork one is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Parent { child: i32 },
    Child,
}

/// Forks. The child must end through [`exit_now`], so that none of the parent's exit handlers and buffers run or are
/// flushed twice.
///
/// # Panics
/// In builds for tests, if the process has more than one thread: the child would inherit locks that nobody releases.
pub fn fork() -> io::Result<Side> {
    debug_assert!(thread_count() <= 1, "fork in a process with several threads");
    // SAFETY: the process has one thread, so that the child has a consistent copy of everything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            IS_FORK.store(true, Ordering::Relaxed);
            Ok(Side::Child)
        }
        child => Ok(Side::Parent { child }),
    }
}

/// Forks a child that has every signal blocked from its first instruction on: one to our process group is not for it.
///
/// # Panics
/// As [`fork`].
pub fn fork_blocked() -> io::Result<Side> {
    let blocked = Blocked::all();
    let side = fork();
    if let Ok(Side::Child) = side {
        std::mem::forget(blocked);
    }
    side
}

/// Ends the process without running exit handlers or flushing what a parent has buffered.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: _exit ends the process; nothing runs after it.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Whether this process has one thread, and may thus fork.
pub fn is_possible() -> bool {
    thread_count() <= 1
}

/// Threads of this process; 1 where /proc cannot be read: the fork is then tried. No memory is allocated: a guard forks when there may be
/// none.
fn thread_count() -> u64 {
    // A directory has a link for each directory in it, and two more (`proc_task_getattr` in the kernel's fs/proc/base.c).
    std::fs::metadata("/proc/self/task").map_or(1, |task| task.nlink().saturating_sub(2).max(1))
}

/// The process becomes the reaper of its orphaned descendants.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: prctl with these arguments reads no memory of ours.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The process gets a signal when the thread of `parent` that started it is gone; at once if that is so already. A process that is
/// stopped before this call, and whose parent then dies, is not ended.
pub fn end_with_parent(parent: i32, signal: i32) -> io::Result<()> {
    // SAFETY: prctl with these arguments reads no memory of ours.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if parent_pid() != parent {
        crate::process::signal_self(signal)?;
    }
    Ok(())
}

/// The pid of the parent; 0 if it is in another pid namespace.
pub fn parent_pid() -> i32 {
    rustix::process::Pid::as_raw(rustix::process::getppid())
}

/// A new session, without a terminal. Fails only in a process group leader.
pub fn new_session() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// A process group of its own in the present session.
pub fn new_process_group() -> io::Result<()> {
    rustix::process::setpgid(None, None)?;
    Ok(())
}

/// Closes all descriptors of a forked child but these, runs `work`, and ends the process with its result. Descriptors 0, 1 and 2 become
/// /dev/null where not kept.
///
/// Owners of other descriptors still exist in the frames of the parent's copy. They are never dropped, since this function does not
/// return. `work` must use none of them.
///
/// # Panics
/// If the process is not a child of [`fork`]: its owners would close descriptors that are not theirs any more.
pub fn run_with_only(keep: &[BorrowedFd<'_>], work: impl FnOnce() -> u8) -> ! {
    assert!(IS_FORK.load(Ordering::Relaxed), "only a fork may close what others own");
    close_all_but(keep);
    exit_now(work())
}

fn close_all_but(keep: &[BorrowedFd<'_>]) {
    let keep = keep.iter().map(AsRawFd::as_raw_fd);
    // SAFETY: no owner of these descriptors is used or dropped any more (`run_with_only`).
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        let limit = libc::sysconf(libc::_SC_OPEN_MAX).clamp(64, 65536) as i32;
        for place in 0..3 {
            if null >= 0 && !keep.clone().any(|kept| kept == place) {
                libc::dup2(null, place);
            }
        }
        let mut sorted: Vec<i32> = keep.filter(|kept| *kept > 2).chain([i32::MAX]).collect();
        sorted.sort_unstable();
        let mut from = 3;
        for fd in sorted {
            if fd > from {
                let last = if fd == i32::MAX { u32::MAX } else { fd as u32 - 1 };
                if libc::syscall(libc::SYS_close_range, from as u32, last, 0u32) != 0 {
                    for each in from..fd.min(limit) {
                        libc::close(each);
                    }
                }
            }
            from = fd.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn all_threads_are_counted() {
        let listed = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) as u64;
        let (release, end) = std::sync::mpsc::sync_channel::<()>(1);
        let thread = std::thread::spawn(move || end.recv().is_ok());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // Other tests begin and end beside this one.
        while thread_count() != listed() {
            assert!(std::time::Instant::now() < until, "{} counted, {} there", thread_count(), listed());
            std::thread::yield_now();
        }
        assert!(thread_count() >= 2);
        drop(release);
        thread.join().expect("it ends");
    }

    #[test]
    #[should_panic(expected = "only a fork may close what others own")]
    fn a_process_that_is_no_fork_keeps_its_descriptors() {
        run_with_only(&[std::io::stdin().as_fd()], || 0);
    }
}
