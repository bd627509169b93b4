//! The identity of a process, and sending signals to it.
//!
//! A pid alone is no identity: the kernel reuses the number once the process has been reaped. A signal can therefore
//! only be sent to one of these:
//! * a [`Child`] of ours that we have not reaped: its pid, and its process group if it leads one, stay its own;
//! * a [`ProcessRef`]: pid and start time, held by a pidfd if the kernel gives us one.
//!
//! Nothing else in rankrun can send a signal to a pid.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::proc;

/// Which process: a pid, and the time of its start in clock ticks since boot. Two processes that had the same pid one
/// after the other differ in the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId {
    pub pid: i32,
    pub started: u64,
}

impl ProcessId {
    /// The process that has this pid now; `None` if there is none.
    pub fn of(pid: i32) -> Option<ProcessId> {
        proc::process(pid).map(|process| process.id())
    }
}

/// A process that can be signalled safely, however long ago it was found: if it has ended, no other process gets the
/// signal.
#[derive(Debug)]
pub struct ProcessRef {
    id: ProcessId,
    /// `None` where pidfds are refused (seccomp): the start time is then compared before each signal.
    pidfd: Option<OwnedFd>,
}

impl ProcessRef {
    /// A reference to the process that has this pid now.
    pub fn open(pid: i32) -> Option<ProcessRef> {
        ProcessRef::open_if(pid, |_| true)
    }

    /// A reference to a process that was seen before, if it still exists.
    pub fn of(id: ProcessId) -> Option<ProcessRef> {
        ProcessRef::open_if(id.pid, |process| process.id() == id)
    }

    /// A reference to the process that has this pid now, if its entry in the process table matches.
    ///
    /// The descriptor is opened first. If the process ends and its pid is reused before the entry is read, the
    /// descriptor belongs to the ended process, and signals reach no process.
    pub fn open_if(pid: i32, is_right: impl FnOnce(&proc::Process) -> bool) -> Option<ProcessRef> {
        if pid <= 1 {
            return None;
        }
        let pidfd = open_pidfd(pid);
        let process = proc::process(pid).filter(|process| is_right(process))?;
        Some(ProcessRef { id: process.id(), pidfd })
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    pub fn pid(&self) -> i32 {
        self.id.pid
    }

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// ESRCH: the process has ended and has been reaped. EPERM: it has become another user's (setuid).
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let Some(pidfd) = &self.pidfd else {
            return if self.exists() { kill(self.id.pid, signal) } else { Err(gone()) };
        };
        // SAFETY: the descriptor is a pidfd of ours; no siginfo is passed.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                pidfd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0u32,
            )
        };
        if result == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // pidfd_open is allowed and this is not.
            error if error.raw_os_error() == Some(libc::ENOSYS) && self.exists() => kill(self.id.pid, signal),
            error => Err(error),
        }
    }

    /// Sends a signal to the process group that this process leads, if it still has its pid.
    pub fn signal_group(&self, signal: i32) -> io::Result<()> {
        if self.exists() { kill(-self.id.pid, signal) } else { Err(gone()) }
    }

    /// Whether it has its pid still: alive, or ended and not reaped.
    pub fn exists(&self) -> bool {
        proc::process(self.id.pid).is_some_and(|process| process.id() == self.id)
    }

    /// It is readable when the process has ended. `None` where the kernel gives no pidfd.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(OwnedFd::as_fd)
    }

    /// Waits until it has ended, for so long at most, and not at all where the kernel gives no pidfd.
    pub fn wait(&self, bound: Duration) {
        let Some(pidfd) = &self.pidfd else { return };
        // A signal may end the wait too early: the caller looks what has become of the process.
        crate::poll::wait_for(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(bound));
    }

    /// Whether it has not ended yet.
    pub fn is_alive(&self) -> bool {
        proc::process(self.id.pid).is_some_and(|process| process.id() == self.id && process.state != 'Z')
    }
}

/// A child that this process has started or adopted and has not reaped, so that no other process can have its pid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Child(i32);

impl Child {
    /// `pid` is that of a child of this process. Drop every copy of this before reaping it.
    pub fn unreaped(pid: i32) -> Child {
        debug_assert!(pid > 1, "a child with pid {pid}");
        Child(pid)
    }

    pub fn pid(self) -> i32 {
        self.0
    }

    /// Sends it a signal.
    pub fn signal(self, signal: i32) -> io::Result<()> {
        if self.0 > 1 { kill(self.0, signal) } else { Err(gone()) }
    }

    /// Sends a signal to the process group that it leads.
    pub fn signal_group(self, signal: i32) -> io::Result<()> {
        if self.0 > 1 { kill(-self.0, signal) } else { Err(gone()) }
    }
}

/// Sends a signal to this process itself.
pub fn signal_self(signal: i32) -> io::Result<()> {
    kill(std::process::id() as i32, signal)
}

/// Sends a signal to the parent of this process: as long as it is our parent, its pid is its own.
pub fn signal_parent(signal: i32) -> io::Result<()> {
    // SAFETY: no memory is touched.
    match unsafe { libc::getppid() } {
        parent if parent > 1 => kill(parent, signal),
        _ => Err(gone()),
    }
}

fn open_pidfd(pid: i32) -> Option<OwnedFd> {
    // SAFETY: the call takes numbers; on success the descriptor is new and ours, and close-on-exec by definition.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0u32) as i32;
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where a pid is signalled, on behalf of those that hold it"
)]
fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill touches no memory of ours.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The parent of this process, its parent, and so on.
pub fn ancestors() -> Vec<i32> {
    const MOST: usize = 256;
    let own = std::process::id().cast_signed();
    let parent = |pid: &i32| crate::proc::process(*pid).map(|process| process.parent).filter(|parent| *parent > 0);
    std::iter::successors(parent(&own), parent).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;

    fn sleeping_child() -> std::process::Child {
        std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts")
    }

    #[test]
    fn a_reference_reaches_its_process_and_nobody_after_it_was_reaped() {
        let mut child = sleeping_child();
        let pid = child.id() as i32;
        let held = ProcessRef::open(pid).expect("it lives");
        assert!(held.is_alive() && held.exists());
        held.signal(libc::SIGKILL).expect("it can be signalled");
        while wait::peek_at(pid) == wait::Look::Nothing {
            std::thread::yield_now();
        }
        assert!(held.exists() && !held.is_alive(), "it is a zombie");
        child.wait().expect("it ended");
        let error = held.signal(libc::SIGKILL).expect_err("it has ended");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        assert_eq!(held.signal_group(libc::SIGKILL).expect_err("nobody").raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn another_start_time_is_another_process() {
        let mut child = sleeping_child();
        let id = ProcessId::of(child.id() as i32).expect("it lives");
        assert!(ProcessRef::of(ProcessId { started: id.started - 1, ..id }).is_none());
        let without_pidfd = ProcessRef { id: ProcessId { started: id.started - 1, ..id }, pidfd: None };
        assert_eq!(without_pidfd.signal(libc::SIGKILL).expect_err("a stranger").raw_os_error(), Some(libc::ESRCH));
        let held = ProcessRef { id, pidfd: None };
        held.signal(libc::SIGKILL).expect("the right one");
        child.wait().expect("it ended");
    }

    #[test]
    fn groups_and_init_are_never_meant() {
        for pid in [-1, 0, 1] {
            assert!(ProcessRef::open(pid).is_none());
        }
    }
}
