//! Shared memory files of /dev/shm (K-8).

use std::ffi::OsStr;
use std::path::Path;

/// Unlinks a file below /dev/shm that belongs to us. Returns whether it was there and is gone.
pub fn unlink(path: &OsStr) -> bool {
    let path = Path::new(path);
    let Ok(name) = path.strip_prefix("/dev/shm") else {
        return false;
    };
    if name.as_os_str().is_empty()
        || name
            .components()
            .any(|part| !matches!(part, std::path::Component::Normal(_)))
    {
        return false;
    }
    std::fs::remove_file(path).is_ok()
}

/// Whether any process that we can look into maps the file.
pub fn mapped_by_anyone(path: &OsStr) -> bool {
    crate::proc::all().iter().any(|process| {
        crate::proc::mapped_shared_memory(process.pid)
            .iter()
            .any(|name| name == path)
    })
}
