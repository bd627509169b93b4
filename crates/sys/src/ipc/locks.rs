//! Locks on ranges of a file's bytes, which the kernel releases when their process ends (fcntl(2), "record locks").

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The file. Its locks are of this process, and of none that it forks; they go when it closes any descriptor of the file.
#[derive(Debug)]
pub struct LockFile(OwnedFd);

/// A lock of another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub first: u64,
    pub count: u64,
    /// Its process; 0 where that is in another pid namespace.
    pub pid: i32,
}

impl LockFile {
    /// Of a file that is open for reading and writing.
    pub fn new(file: OwnedFd) -> LockFile {
        LockFile(file)
    }

    /// Locks bytes. Returns whether nobody else has one of them: alone, nobody may have a lock; shared, nobody may have it alone.
    ///
    /// # Errors
    ///
    /// The file system has no locks, or no memory for another one.
    pub fn lock(&self, first: u64, count: u64, is_alone: bool) -> io::Result<bool> {
        let kind = if is_alone { libc::F_WRLCK } else { libc::F_RDLCK };
        let mut lock = request(kind, first, count);
        // SAFETY: the descriptor is ours, and the struct is initialised.
        match unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLK, &raw mut lock) } {
            0 => Ok(true),
            _ => match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
                error => Err(error),
            },
        }
    }

    /// Releases bytes.
    pub fn unlock(&self, first: u64, count: u64) {
        let mut lock = request(libc::F_UNLCK, first, count);
        // SAFETY: as above. A failure leaves the lock, until the process ends.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLK, &raw mut lock) };
    }

    /// A lock of another process on one of these bytes.
    pub fn held(&self, first: u64, count: u64) -> Option<Held> {
        let mut lock = request(libc::F_WRLCK, first, count);
        // SAFETY: as above; the kernel writes what it has found into the struct.
        let is_asked = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLK, &raw mut lock) } == 0;
        if !is_asked || lock.l_type == libc::F_UNLCK as libc::c_short {
            return None;
        }
        let held = (u64::try_from(lock.l_start).ok()?, u64::try_from(lock.l_len).ok()?);
        // A length of 0 is to the end of the file.
        Some(Held { first: held.0, count: if held.1 == 0 { u64::MAX - held.0 } else { held.1 }, pid: lock.l_pid })
    }

    /// All locks of other processes on these bytes. Each call finds one: with a lock for each byte there are three calls for each.
    pub fn all_held(&self, first: u64, count: u64) -> Vec<Held> {
        let mut found = Vec::new();
        let mut rest = vec![(first, first + count)];
        while let Some((first, end)) = rest.pop() {
            let Some(held) = (first < end).then(|| self.held(first, end - first)).flatten() else { continue };
            // The kernel may name one that is not the first.
            rest.push((first, held.first.min(end)));
            rest.push((held.first.saturating_add(held.count).max(first + 1), end));
            found.push(held);
        }
        found.sort_unstable_by_key(|held| held.first);
        found
    }
}

fn request(kind: libc::c_int, first: u64, count: u64) -> libc::flock {
    // SAFETY: zeroes are a valid struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = first as libc::off_t;
    lock.l_len = count as libc::off_t;
    lock
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;

    fn file(path: &std::path::Path) -> LockFile {
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
        LockFile::new(file.expect("it is ours").into())
    }

    #[test]
    fn another_process_sees_locks_until_their_process_ends() {
        let top = tempfile::tempdir().expect("a directory");
        let path = top.path().join("locks");
        let (ready, done) = (crate::socket::pipe().expect("a pipe"), crate::socket::pipe().expect("a pipe"));
        // SAFETY: the child locks bytes, tells so, waits, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let ours = file(&path);
            let locked =
                [(3, 2, true), (7, 1, false), (9, 1, true)].map(|(at, count, alone)| ours.lock(at, count, alone));
            ours.unlock(9, 1);
            let is_locked = locked.iter().all(|locked| matches!(locked, Ok(true)));
            let _ = rustix::io::write(&ready.1, if is_locked { b"y" } else { b"n" });
            drop(done.1);
            let _ = rustix::io::read(&done.0, &mut [0; 1]);
            crate::fork::exit_now(0);
        }
        let mut word = [0; 1];
        rustix::io::read(&ready.0, &mut word).expect("the child writes");
        assert_eq!(&word, b"y");
        let theirs = file(&path);
        let held = |first, count| Held { first, count, pid: child };
        assert_eq!(theirs.all_held(0, 64), [held(3, 2), held(7, 1)]);
        assert_eq!(theirs.all_held(4, 1), [held(3, 2)]);
        let tries = [(4, true), (4, false), (7, true), (7, false), (5, true), (9, true)];
        assert_eq!(
            tries.map(|(at, alone)| theirs.lock(at, 1, alone).expect("locks")),
            [false, false, false, true, true, true]
        );
        drop(done.1);
        while wait::reap(child) == wait::Look::Nothing {
            std::thread::yield_now();
        }
        assert_eq!(theirs.all_held(0, 64), []);
        assert!(theirs.lock(3, 2, true).expect("locks"));
    }
}
