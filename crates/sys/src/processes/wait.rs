//! Peek, then reap (K-2). Only one place in a process may call these: it reaps all children.

use std::io;

/// What a child did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Exited { code: u8 },
    Signaled { signal: i32, core_dumped: bool },
    Stopped { signal: i32 },
    Continued,
}

/// A child, and what it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child {
    pub pid: i32,
    pub change: Change,
}

/// The outcome of a look at the children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    Found(Child),
    /// There are children, and none has changed.
    Nothing,
    /// There is no child at all: the proof of emptiness in the fallback tier (K-4).
    NoChildren,
}

/// Whether children can be waited for here: a sandbox may refuse it, which would look as if there were none.
pub fn check() -> io::Result<()> {
    // SAFETY: `info` is written by the kernel, and nobody reads it. No child is reaped.
    let result = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL)
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ECHILD | libc::EINTR) => Ok(()),
        Some(_) | None => Err(error),
    }
}

/// Looks for a child that has ended, without reaping it: its pid and process group stay its own. The same child is
/// found again until it is reaped.
pub fn peek() -> Look {
    look(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL)
}

/// Checks whether this child has ended, without reaping it.
pub fn peek_at(pid: i32) -> Look {
    look(libc::P_PID, pid as libc::id_t, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL)
}

/// The next child that was stopped or continued. Each change is reported once.
pub fn stop_news() -> Look {
    look(libc::P_ALL, 0, libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG)
}

/// Reaps this child, if it has ended.
pub fn reap(pid: i32) -> Look {
    look(libc::P_PID, pid as libc::id_t, libc::WEXITED | libc::WNOHANG | libc::__WALL)
}

fn look(kind: libc::idtype_t, id: libc::id_t, options: i32) -> Look {
    loop {
        // SAFETY: `info` is written by the kernel; zeroed, it reads as "nothing" if the kernel leaves it alone.
        let (result, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::waitid(kind, id, &mut info, options), info)
        };
        if result != 0 {
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::ECHILD) => return Look::NoChildren,
                // A sandbox that refuses the call proves nothing: jobs are refused there ([`check`]).
                _ => return Look::Nothing,
            }
        }
        // SAFETY: waitid has filled in the SIGCHLD members of the union.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return Look::Nothing;
        }
        let change = match info.si_code {
            libc::CLD_EXITED => Change::Exited { code: status as u8 },
            libc::CLD_KILLED => Change::Signaled { signal: status, core_dumped: false },
            libc::CLD_DUMPED => Change::Signaled { signal: status, core_dumped: true },
            libc::CLD_CONTINUED => Change::Continued,
            _ => Change::Stopped { signal: status },
        };
        return Look::Found(Child { pid, change });
    }
}
