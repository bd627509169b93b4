//! Shared memory files of /dev/shm (K-8).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;

/// Where POSIX shared memory is.
pub const DIRECTORY: &str = "/dev/shm";

/// What is there now: paths and inodes.
pub fn names() -> HashMap<OsString, u64> {
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    entries.map(|entry| (entry.path().into_os_string(), entry.ino())).collect()
}

/// Unlinks a file below /dev/shm that belongs to us. Returns whether it was there and is gone.
pub fn unlink(path: &OsStr) -> bool {
    let path = Path::new(path);
    let Ok(name) = path.strip_prefix(DIRECTORY) else {
        return false;
    };
    if name.as_os_str().is_empty() || name.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return false;
    }
    std::fs::remove_file(path).is_ok()
}

/// Whether any process that we can look into maps the file or has it open.
pub fn in_use(path: &OsStr) -> bool {
    crate::proc::all().iter().any(|process| crate::proc::shared_memory_of(process.pid).iter().any(|name| name == path))
}

/// The files of this user that were made in /dev/shm since a time, where the kernel says when a file was made.
pub fn made_since(since: SystemTime) -> Vec<OsString> {
    let uid = rustix::process::geteuid().as_raw();
    std::fs::read_dir(DIRECTORY)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry.metadata().is_ok_and(|meta| {
                meta.is_file() && meta.uid() == uid && meta.created().is_ok_and(|created| created >= since)
            })
        })
        .map(|entry| entry.path().into_os_string())
        .collect()
}
