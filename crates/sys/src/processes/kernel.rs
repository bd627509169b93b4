//! Files of the kernel's own, in /proc and /sys: read with as few calls as possible, and what does not change once a process.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags};

/// The length of what is read with one call: the kernel gives out no more of a list at a time.
const PAGE: usize = 4096;

/// All of a file.
///
/// # Errors
///
/// It cannot be opened or read.
pub fn read(path: impl rustix::path::Arg) -> io::Result<Vec<u8>> {
    read_at(CWD, path)
}

/// All of a file in a directory.
///
/// # Errors
///
/// As of [`read`].
pub fn read_at(directory: impl AsFd, path: impl rustix::path::Arg) -> io::Result<Vec<u8>> {
    let file = rustix::fs::openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(PAGE);
    while read_once(&file, &mut bytes)? > 0 {}
    Ok(bytes)
}

/// A file that the kernel makes as one piece: one call reads it. What is read in pieces may have changed between two of them.
/// A list is not one piece (`maps`, `mountinfo`, `children`, `cgroup.procs`): a piece of it is shorter than a page, and more follows.
///
/// # Errors
///
/// As of [`read`].
pub fn read_piece(path: impl rustix::path::Arg) -> io::Result<Vec<u8>> {
    read_piece_at(CWD, path)
}

/// The same, in a directory.
///
/// # Errors
///
/// As of [`read`].
pub fn read_piece_at(directory: impl AsFd, path: impl rustix::path::Arg) -> io::Result<Vec<u8>> {
    let file = rustix::fs::openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(PAGE);
    // One that is longer than a page is read to its end all the same.
    if read_once(&file, &mut bytes)? == PAGE {
        while read_once(&file, &mut bytes)? > 0 {}
    }
    Ok(bytes)
}

/// Reads once, a page or more. Returns how much.
fn read_once(file: impl AsFd, bytes: &mut Vec<u8>) -> io::Result<usize> {
    bytes.reserve(PAGE);
    let before = bytes.len();
    rustix::io::retry_on_intr(|| rustix::io::read(file.as_fd(), rustix::buffer::spare_capacity(bytes)))?;
    Ok(bytes.len() - before)
}

/// All of a file, as text.
///
/// # Errors
///
/// As of [`read`], or it is not UTF-8.
pub fn text(path: impl rustix::path::Arg) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(io::Error::other)
}

/// A file of one piece, as text.
///
/// # Errors
///
/// As of [`read`], or it is not UTF-8.
pub fn piece_text(path: impl rustix::path::Arg) -> io::Result<String> {
    String::from_utf8(read_piece(path)?).map_err(io::Error::other)
}

/// The user of this process, which does not change.
pub fn user() -> u32 {
    static USER: OnceLock<u32> = OnceLock::new();
    *USER.get_or_init(|| rustix::process::geteuid().as_raw())
}

/// What is mounted where, as it was when this process, or the one that it is a fork of, first asked: `/proc/self/mountinfo`
/// (proc_pid_mountinfo(5)). Empty where it cannot be read.
pub fn mounts() -> &'static [u8] {
    static MOUNTS: OnceLock<Vec<u8>> = OnceLock::new();
    MOUNTS.get_or_init(|| read("/proc/self/mountinfo").unwrap_or_default())
}

/// The cgroups of this process, as they were when it, or the one that it is a fork of, first asked: `/proc/self/cgroup` (cgroups(7)).
/// Empty where it cannot be read.
pub fn cgroups() -> &'static [u8] {
    static CGROUPS: OnceLock<Vec<u8>> = OnceLock::new();
    CGROUPS.get_or_init(|| read("/proc/self/cgroup").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_length_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        for size in [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE + 7] {
            let path = directory.path().join("file");
            let text: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            std::fs::write(&path, &text).expect("a file");
            assert_eq!(read(&path).expect("it is there"), text, "{size}");
            assert_eq!(read_piece(&path).expect("it is there"), text, "{size}");
        }
        assert_eq!(read_piece("/no/such").expect_err("there is none").kind(), io::ErrorKind::NotFound);
        assert!(!mounts().is_empty() && !cgroups().is_empty());
    }
}
