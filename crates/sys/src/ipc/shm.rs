//! Shared memory files of /dev/shm (K-8).

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

use crate::bounded::Bounded;
use crate::{kernel, proc};

/// Where POSIX shared memory is.
pub const DIRECTORY: &str = "/dev/shm";

/// A file there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    pub inode: u64,
    pub owner: u32,
    pub is_directory: bool,
}

/// What is there now, by path.
pub fn files() -> HashMap<OsString, File> {
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    // It was removed between the two calls.
    entries.filter_map(|entry| Some((entry.path().into_os_string(), file(&entry.metadata().ok()?)))).collect()
}

/// The time that the kernel dates files by: it runs a few milliseconds behind the exact one.
pub fn now() -> SystemTime {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    SystemTime::UNIX_EPOCH + Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// What has appeared since a time, whoever owns it. Where the kernel does not say when a file was made (tmpfs before Linux 5.18),
/// those that have changed since.
pub fn appeared_since(since: SystemTime) -> HashMap<OsString, File> {
    let changed = |meta: &Metadata| {
        SystemTime::UNIX_EPOCH + Duration::new(meta.ctime().unsigned_abs(), meta.ctime_nsec().unsigned_abs() as u32)
    };
    let is_new = |meta: &Metadata| meta.created().unwrap_or_else(|_| changed(meta)) >= since;
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let new = entries.filter_map(|entry| Some((entry.path().into_os_string(), entry.metadata().ok().filter(is_new)?)));
    new.map(|(path, meta)| (path, file(&meta))).collect()
}

/// What is at a path now.
pub fn file_at(path: &OsStr) -> Option<File> {
    std::fs::symlink_metadata(path).ok().as_ref().map(file)
}

/// Whether a file with no bytes is at a path now.
pub fn is_empty(path: &OsStr) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 0)
}

fn file(meta: &Metadata) -> File {
    File { inode: meta.ino(), owner: meta.uid(), is_directory: meta.is_dir() }
}

/// How a process holds a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The path by which it was opened; empty if that is gone. It may have another: glibc's `sem_open` makes a file, gives it its name
    /// by a link, and removes the first name.
    pub path: OsString,
    pub inode: u64,
    /// It may write to it: the creator of a file can, and most processes that only read it cannot.
    pub writable: bool,
}

/// The files of our /dev/shm that a process maps or has open; `None` where we may not look. In another mount namespace a
/// process may have another /dev/shm with the same names: the device number differs.
pub fn held_by(pid: i32) -> Option<Vec<Held>> {
    let device = std::fs::metadata(DIRECTORY).ok()?.dev();
    let maps = kernel::read(format!("/proc/{pid}/maps")).ok()?;
    let mut held: Vec<Held> = maps.split(|&byte| byte == b'\n').filter_map(|line| mapping(line, device)).collect();
    // A process that ends meanwhile has closed all.
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        if let Ok(target) = std::fs::read_link(entry.path())
            && let Some(path) = path_of(target.as_os_str().as_bytes())
            && let Some((at, inode)) = place_of(&entry.path())
            && at == device
        {
            let info = kernel::piece_text(format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy()));
            let flags = info.ok().and_then(|info| {
                let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
                i32::from_str_radix(flags.trim(), 8).ok()
            });
            let writable = flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY);
            held.push(Held { path, inode, writable });
        }
    }
    Some(held)
}

/// The device and the inode of an open file. Its file system is not asked: in another mount namespace it may be any, and may not answer.
fn place_of(descriptor: &Path) -> Option<(u64, u64)> {
    let found = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

/// A line of `/proc/PID/maps` (addresses, permissions, offset, device, inode, path), if it is of a file of /dev/shm.
fn mapping(line: &[u8], device: u64) -> Option<Held> {
    let at = line.windows(10).position(|window| window == b" /dev/shm/")? + 1;
    let path = &line[at..];
    let mut fields = line[..at].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let (permissions, numbers, inode) = (fields.nth(1)?, fields.nth(1)?, fields.next()?);
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    let (major, minor) = std::str::from_utf8(numbers).ok()?.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    let own = makedev(number(major)?, number(minor)?) == device;
    let writable = permissions.get(1) == Some(&b'w') && permissions.get(3) == Some(&b's');
    own.then_some(Held { path: path_of(path)?, inode, writable })
}

/// A path below /dev/shm as the kernel shows it; empty if it is gone.
fn path_of(shown: &[u8]) -> Option<OsString> {
    let path = if shown.ends_with(b" (deleted)") { b"" } else { shown };
    shown.starts_with(b"/dev/shm/").then(|| OsStr::from_bytes(path).to_owned())
}

/// The inodes of the files of /dev/shm that any process holds: one walk of the process table. `None`: a process does not answer, and may
/// hold any of them.
fn in_use_with(mut held: impl FnMut(i32) -> Option<Vec<Held>>) -> Option<HashSet<u64>> {
    let mut used = HashSet::new();
    for process in proc::all() {
        used.extend(held(process.pid)?.into_iter().map(|held| held.inode));
    }
    Some(used)
}

/// The inodes of the files of /dev/shm that any process holds that we may look at.
fn in_use() -> HashSet<u64> {
    in_use_with(|pid| Some(held_by(pid).unwrap_or_default())).unwrap_or_default()
}

/// Those of the files that are still the ones that were noted.
pub fn still_there(noted: HashMap<OsString, File>) -> HashMap<OsString, File> {
    noted.into_iter().filter(|(path, file)| file_at(path) == Some(*file)).collect()
}

/// Those whose inodes nobody uses, in order.
pub fn without(files: HashMap<OsString, File>, used: &HashSet<u64>) -> Vec<OsString> {
    let unused = files.into_iter().filter(|(_, file)| !used.contains(&file.inode));
    let mut unused: Vec<OsString> = unused.map(|(path, _)| path).collect();
    unused.sort();
    unused
}

/// Those of the files that are still the ones that were noted and that nobody holds, in order.
pub fn unused(noted: HashMap<OsString, File>) -> Vec<OsString> {
    let files = still_there(noted);
    if files.is_empty() {
        return Vec::new();
    }
    without(files, &in_use())
}

/// The same, for a caller that waits for no process. `None`: one does not answer (`environments.rs`).
pub fn unused_in_time(noted: HashMap<OsString, File>) -> Option<Vec<OsString>> {
    let files = still_there(noted);
    if files.is_empty() {
        return Some(Vec::new());
    }
    let mut calls = Bounded::with_room(1);
    let used = in_use_with(|pid| calls.call_unless_stuck(move || held_by(pid).unwrap_or_default()))?;
    Some(without(files, &used))
}

/// Unlinks a file below /dev/shm that belongs to us. Returns whether it was there and is gone.
pub fn unlink(path: &OsStr) -> bool {
    let path = Path::new(path);
    let Ok(name) = path.strip_prefix(DIRECTORY) else {
        return false;
    };
    let is_one_name =
        name.components().count() == 1 && name.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    is_one_name && std::fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_write_is_told_from_who_reads() {
        let device = rustix::fs::makedev(0, 0x1a);
        let mapping = |line: &[u8]| mapping(line, device);
        let line = b"7f01-7f02 rw-s 00000000 00:1a 7   /dev/shm/a b";
        assert_eq!(mapping(line), Some(Held { path: "/dev/shm/a b".into(), inode: 7, writable: true }));
        let line = b"7f01-7f02 r--s 00000000 00:1a 7   /dev/shm/a";
        assert_eq!(mapping(line), Some(Held { path: "/dev/shm/a".into(), inode: 7, writable: false }));
        let private = b"7f01-7f02 rw-p 00000000 00:1a 7   /dev/shm/a";
        assert_eq!(mapping(private).map(|held| held.writable), Some(false));
        let linked = b"7f01-7f02 rw-s 00000000 00:1a 7   /dev/shm/sem.AbCdEf (deleted)";
        assert_eq!(mapping(linked), Some(Held { path: OsString::new(), inode: 7, writable: true }));
        assert_eq!(mapping(b"7f01-7f02 rw-p 00000000 00:1a 7   /usr/lib/libc.so.6"), None);
        assert_eq!(mapping(b"7f01-7f02 rw-s 00000000 00:1b 7   /dev/shm/a"), None, "in another mount namespace");
        assert_eq!(mapping(b"7f01-7f02 rw-s 00000000 00:1a 7   /srv/dev/shm/a"), None);
    }

    #[test]
    fn a_file_appeared_since_a_time_if_it_was_made_after_it() {
        let path = Path::new(DIRECTORY).join(format!("rankrun-test-appeared-{}", std::process::id()));
        let before = now();
        std::fs::write(&path, "x").expect("the file is made");
        let (found, user) = (file_at(path.as_os_str()), rustix::process::geteuid().as_raw());
        let later = SystemTime::now() + Duration::from_secs(1);
        assert_eq!(appeared_since(before).get(path.as_os_str()).copied(), found);
        assert_eq!(found.map(|file| file.owner), Some(user));
        assert!(!appeared_since(later).contains_key(path.as_os_str()));
        std::fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn only_a_name_of_the_directory_itself_is_unlinked() {
        for path in ["/etc/passwd", "/dev/shm", "/dev/shm/../x", "/dev/shm/a/b"] {
            assert!(!unlink(OsStr::new(path)), "{path}");
        }
    }
}
