//! Notification of new names in a directory (`F_NOTIFY`, fcntl(2)).
//!
//! inotify reports more, but its descriptor takes 10 ms and more to close: the kernel waits for an RCU grace period, and
//! so do those who wait for the process that had it. This descriptor is closed like any other.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The signal of a notification. It goes to the watching thread, which must have it blocked, and reads it from a
/// [`crate::signal::SignalFd`]. It means that a name is new in one of its directories, not which.
pub const TOLD: i32 = libc::SIGIO;

/// Made in the directory, or moved to where it is (`linux/fcntl.h`).
const DN_CREATE: i32 = 0x4;
const DN_MULTISHOT: i32 = i32::MIN;
/// The receiver of the signal is a thread (`asm-generic/fcntl.h`).
const F_SETOWN_EX: i32 = 15;
const F_OWNER_TID: i32 = 0;

#[repr(C)]
struct Owner {
    kind: i32,
    id: i32,
}

/// Whether this thread has a notification that it has not read.
pub fn is_told() -> bool {
    // SAFETY: the kernel writes the set of pending signals into it.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut pending) == 0 && libc::sigismember(&pending, TOLD) == 1
    }
}

/// A directory that is watched until this is dropped.
#[derive(Debug)]
pub struct Watched {
    _directory: OwnedFd,
}

impl Watched {
    /// Begins to watch. Fails where the kernel was built without it.
    pub fn new(directory: &Path) -> io::Result<Watched> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let owner = Owner { kind: F_OWNER_TID, id: rustix::thread::gettid().as_raw_nonzero().get() };
        // SAFETY: the first call takes a number; the second reads `owner`, which has the kernel's layout and lives on.
        // The owner comes second, since the first call makes the process the owner.
        let result = unsafe {
            match libc::fcntl(directory.as_raw_fd(), libc::F_NOTIFY, DN_CREATE | DN_MULTISHOT) {
                0 => libc::fcntl(directory.as_raw_fd(), F_SETOWN_EX, &raw const owner),
                failed => failed,
            }
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Watched { _directory: directory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::SignalFd;

    #[test]
    fn a_name_that_is_made_or_moved_in_is_told_and_one_that_goes_is_not() {
        let top = tempfile::tempdir().expect("a directory");
        let watched = top.path().join("watched");
        std::fs::create_dir(&watched).expect("a directory");
        std::fs::write(top.path().join("outside"), "").expect("a file");
        let signals = SignalFd::new(&[TOLD]).expect("a descriptor");
        let notified = || std::iter::from_fn(|| signals.next()).any(|(number, _)| number == TOLD);
        let watch = Watched::new(&watched).expect("a watch");
        assert!(!notified());
        assert!(!is_told());
        std::fs::write(watched.join("made"), "").expect("a file");
        assert!(is_told() && notified() && !is_told());
        std::fs::rename(top.path().join("outside"), watched.join("moved")).expect("moved");
        assert!(notified());
        std::fs::remove_file(watched.join("made")).expect("removed");
        assert!(!notified());
        drop(watch);
        std::fs::write(watched.join("late"), "").expect("a file");
        assert!(!notified());
    }
}
