//! cgroup v2: a directory for the job, and in it one for each worker (K-1, K-4).
//!
//! The hierarchy is found through `/proc/self/mountinfo`: it need not be at /sys/fs/cgroup.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::process::ProcessRef;
use crate::{kernel, proc};

/// Why jobs cannot have cgroups here.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("cgroup v2 is not mounted")]
    NotMounted,
    #[error("this process is in no cgroup of the v2 hierarchy")]
    NotAMember,
    #[error("cannot make a cgroup in \"{}\"", path.display())]
    NotWritable { path: PathBuf, source: io::Error },
}

/// The cgroup v2 directory that this process is in.
pub fn own_directory() -> Result<PathBuf, Unavailable> {
    let (root, mount) = parse_mountinfo(kernel::mounts()).ok_or(Unavailable::NotMounted)?;
    let path = kernel::cgroups()
        .split(|&b| b == b'\n')
        .find_map(|line| line.strip_prefix(b"0::"))
        .map(|path| PathBuf::from(OsString::from_vec(path.to_vec())))
        .ok_or(Unavailable::NotAMember)?;
    // The mount may show only a part of the hierarchy (a container's).
    let below = path.strip_prefix(&root).or_else(|_| path.strip_prefix("/")).map_err(|_| Unavailable::NotAMember)?;
    Ok(mount.join(below))
}

/// The root and the mount point of the first cgroup2 mount.
fn parse_mountinfo(mountinfo: &[u8]) -> Option<(PathBuf, PathBuf)> {
    mountinfo.split(|&b| b == b'\n').find_map(|line| {
        let separator = line.windows(3).position(|window| window == b" - ")?;
        let kind = line[separator + 3..].split(|&b| b == b' ').next()?;
        if kind != b"cgroup2" {
            return None;
        }
        let mut fields = line[..separator].split(|&b| b == b' ').skip(3);
        Some((unescape(fields.next()?), unescape(fields.next()?)))
    })
}

/// Undoes the octal escapes of mountinfo (`\040` is a space).
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(d) => {
                bytes.push((d[0] - b'0') << 6 | (d[1] - b'0') << 3 | (d[2] - b'0'));
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// How often the members of a leaf are read while they are moved: what is forked meanwhile is in a later list.
const RELEASE_ROUNDS: usize = 16;
/// Cgroups of like names: each may hold a process that cannot be killed at once.
const LIKE_IT: usize = 8;

fn names_like(name: &str) -> impl Iterator<Item = String> {
    (0..LIKE_IT).map(move |number| if number == 0 { name.to_owned() } else { format!("{name}.{number}") })
}

/// The cgroup of a job. Workers' cgroups are made in it.
#[derive(Debug)]
pub struct JobCgroup {
    path: PathBuf,
    directory: OwnedFd,
}

impl JobCgroup {
    /// Makes the directory `rankrun-<name>` in our own cgroup. Making it does not prove that a process may be placed in
    /// it: the first spawn shows that.
    pub fn create(name: &str) -> Result<JobCgroup, Unavailable> {
        let path = own_directory()?.join(format!("rankrun-{name}"));
        let failed = |source: io::Error| Unavailable::NotWritable { path: path.clone(), source };
        rustix::fs::mkdir(&path, Mode::from_raw_mode(0o755)).map_err(|error| failed(error.into()))?;
        match open_directory(rustix::fs::CWD, &path) {
            Ok(directory) if may_kill(&directory) => Ok(JobCgroup { path, directory }),
            Ok(_) => {
                // It is empty, and ours: what keeps it from being removed would have kept it from being made.
                let _ = std::fs::remove_dir(&path);
                Err(failed(io::Error::new(io::ErrorKind::Unsupported, "the kernel has no cgroup.kill (Linux 5.14)")))
            }
            Err(source) => {
                // It is empty, and ours: what keeps it from being removed would have kept it from being made.
                let _ = std::fs::remove_dir(&path);
                Err(failed(source))
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the one of this name is, if there is one; `None` where there can be none.
    pub fn path_of(name: &str) -> Option<PathBuf> {
        own_directory().ok().map(|own| own.join(format!("rankrun-{name}")))
    }

    /// Makes the cgroup of one worker and returns its directory.
    pub fn make_leaf(&self, name: &str) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(&self.directory, name, Mode::from_raw_mode(0o755))?;
        open_directory(self.directory.as_fd(), Path::new(name))
    }

    /// Makes a cgroup of this name, or of one like it if a process that does not end is in that. There are at most [`LIKE_IT`] of them.
    pub fn make_leaf_like(&self, name: &str) -> io::Result<OwnedFd> {
        for like in names_like(name) {
            if !self.remove_leaf(&like)? {
                continue;
            }
            return self.make_leaf(&like);
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "processes that do not end are in all cgroups of this name"))
    }

    /// Removes those cgroups of [`JobCgroup::make_leaf_like`] in which no process is.
    pub fn remove_leaves_like(&self, name: &str) {
        for like in names_like(name) {
            // One that cannot be removed goes with the job's.
            let _ = self.remove_leaf(&like);
        }
    }

    /// Opens a worker's cgroup again.
    pub fn open_leaf(&self, name: &str) -> io::Result<OwnedFd> {
        open_directory(self.directory.as_fd(), Path::new(name))
    }

    /// Whether a worker's cgroup can serve another worker: no process is in it, and no cgroup that a program has made below it.
    pub fn is_leaf_clean(&self, name: &str) -> io::Result<bool> {
        // A directory has a link for each directory in it, and two more.
        let links = rustix::fs::statat(&self.directory, name, AtFlags::empty())?.st_nlink;
        Ok(links == 2 && self.is_leaf_empty(name)?)
    }

    /// Whether no process is in a worker's cgroup or below. One that is gone is empty.
    pub fn is_leaf_empty(&self, name: &str) -> io::Result<bool> {
        populated(self.directory.as_fd(), name).map(|populated| !populated)
    }

    /// Removes a worker's cgroup. `Ok(true)` proves that it was empty; `Ok(false)` says that processes are in it.
    pub fn remove_leaf(&self, name: &str) -> io::Result<bool> {
        remove(self.directory.as_fd(), name)
    }

    /// The pids in a worker's cgroup and below.
    pub fn members(&self, name: &str) -> Vec<i32> {
        let mut pids = Vec::new();
        collect_members(&self.path.join(name), &mut pids);
        pids
    }

    /// Ends every process of a worker's cgroup and below, atomically.
    pub fn kill_leaf(&self, name: &str) -> io::Result<()> {
        write(self.directory.as_fd(), &format!("{name}/cgroup.kill"), b"1")
    }

    /// Freezes or thaws a worker's cgroup.
    pub fn freeze_leaf(&self, name: &str, frozen: bool) -> io::Result<()> {
        write(self.directory.as_fd(), &format!("{name}/cgroup.freeze"), if frozen { b"1" } else { b"0" })
    }

    /// Whether the job's cgroup as a whole is frozen: by somebody else, since we freeze workers' only.
    pub fn is_frozen(&self) -> bool {
        // A directory that is gone is empty.
        has_event(self.directory.as_fd(), "cgroup.events", "frozen 1").unwrap_or(false)
    }

    /// The file that has an exceptional condition (EPOLLPRI) whenever a leaf becomes populated or empty.
    pub fn leaf_events(&self, name: &str) -> io::Result<OwnedFd> {
        let path = format!("{name}/cgroup.events");
        Ok(rustix::fs::openat(&self.directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Moves what is left in a leaf up into our own cgroup, so that it can live on when the leaf is removed. What cannot be moved stays.
    pub fn release_leaf(&self, name: &str) {
        let mut seen = HashSet::new();
        for _ in 0..RELEASE_ROUNDS {
            let fresh: Vec<i32> = self.members(name).into_iter().filter(|pid| seen.insert(*pid)).collect();
            if fresh.is_empty() {
                break;
            }
            for process in fresh.into_iter().filter_map(ProcessRef::open) {
                // Another process may have got the pid since the list was read. The kernel moves by pid only, so that is checked last.
                if self.is_in_leaf(process.pid(), name) && process.exists() {
                    // It has ended meanwhile, or is one that cannot be moved.
                    let _ = write(self.directory.as_fd(), "../cgroup.procs", process.pid().to_string().as_bytes());
                }
            }
        }
    }

    fn is_in_leaf(&self, pid: i32, name: &str) -> bool {
        let job = self.path.file_name().unwrap_or_default().to_string_lossy();
        proc::cgroup_leaf(pid, &job).as_deref() == Some(name)
    }
}

/// The pids in a cgroup and below. It costs one list where nobody has made cgroups below it.
pub fn members_below(cgroup: &Path) -> Vec<i32> {
    let mut pids = Vec::new();
    // A directory has a link for each directory in it, and two more.
    match rustix::fs::stat(cgroup) {
        Ok(stat) if stat.st_nlink == 2 => collect_own_members(cgroup, &mut pids),
        Ok(_) => collect_members(cgroup, &mut pids),
        Err(_) => {}
    }
    pids
}

fn collect_own_members(directory: &Path, pids: &mut Vec<i32>) {
    let text = kernel::text(directory.join("cgroup.procs")).unwrap_or_default();
    pids.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()).filter(|&pid| pid > 0));
}

fn collect_members(directory: &Path, pids: &mut Vec<i32>) {
    collect_own_members(directory, pids);
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_members(&entry.path(), pids);
        }
    }
}

fn open_directory(at: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn may_kill(directory: &OwnedFd) -> bool {
    rustix::fs::accessat(directory, "cgroup.kill", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

fn write(at: BorrowedFd<'_>, path: &str, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::openat(at, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

/// Removes a cgroup and the cgroups below it, if no process is in any of them.
fn remove(at: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    match rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(true),
        Err(rustix::io::Errno::BUSY) => {}
        Err(error) => return Err(error.into()),
    }
    // Busy: either populated, or it has (empty) children that a program made.
    if populated(at, name)? {
        return Ok(false);
    }
    let directory = open_directory(at, Path::new(name))?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&directory)?.flatten() {
        if entry.file_type() == rustix::fs::FileType::Directory {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    for child in names.iter().filter(|child| *child != "." && *child != "..") {
        if !remove(directory.as_fd(), child)? {
            return Ok(false);
        }
    }
    match rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(true),
        Err(rustix::io::Errno::BUSY) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn populated(at: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    has_event(at, &format!("{name}/cgroup.events"), "populated 1")
}

/// Whether a `cgroup.events` file has this line. One that is gone has none.
fn has_event(at: BorrowedFd<'_>, path: &str, wanted: &str) -> io::Result<bool> {
    match kernel::read_piece_at(at, path) {
        Ok(text) => Ok(text.split(|byte| *byte == b'\n').any(|line| line == wanted.as_bytes())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The guard's handle to a job's cgroup: it kills and checks through open files, without allocation.
#[derive(Debug)]
pub struct GuardedCgroup {
    parent: OwnedFd,
    name: String,
    kill: OwnedFd,
    events: OwnedFd,
}

impl GuardedCgroup {
    /// Opens what is needed later. `path` is the job's directory.
    pub fn open(path: &Path) -> io::Result<GuardedCgroup> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let parent = open_directory(rustix::fs::CWD, path.parent().ok_or_else(missing)?)?;
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(missing)?.to_owned();
        let open = |file: &str, flags| rustix::fs::openat(rustix::fs::CWD, path.join(file), flags, Mode::empty());
        Ok(GuardedCgroup {
            kill: open("cgroup.kill", OFlags::WRONLY | OFlags::CLOEXEC)?,
            events: open("cgroup.events", OFlags::RDONLY | OFlags::CLOEXEC)?,
            parent,
            name,
        })
    }

    /// Ends every process in the job's cgroup.
    pub fn kill(&self) {
        let _ = rustix::io::write(&self.kill, b"1");
    }

    /// Whether no process is left in it. A directory that is gone is empty.
    pub fn empty(&self) -> bool {
        let mut text = [0u8; 128];
        match rustix::io::pread(&self.events, &mut text, 0) {
            Ok(length) => text[..length].windows(11).any(|window| window == b"populated 0"),
            Err(rustix::io::Errno::NODEV) => true,
            Err(_) => false,
        }
    }

    /// Removes the job's directory with what is below it. Returns whether it is gone: it stays while a process is in it, and
    /// where the kernel refuses.
    pub fn remove(&self) -> bool {
        remove(self.parent.as_fd(), &self.name).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_end_does_not_keep_its_cgroups_name_from_the_next() {
        let Ok(cgroup) = JobCgroup::create(&format!("test-{}", std::process::id())) else { return };
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let first = cgroup.make_leaf_like("looker").expect("a cgroup");
        let is_in = write(first.as_fd(), "cgroup.procs", sleeper.id().to_string().as_bytes()).is_ok();
        let second = cgroup.make_leaf_like("looker").expect("another cgroup");
        assert_eq!(cgroup.path().join("looker.1").exists(), is_in);
        drop(second);
        sleeper.kill().expect("it lives");
        sleeper.wait().expect("it is a child");
        cgroup.make_leaf_like("looker").expect("the first one is free again");
        cgroup.remove_leaves_like("looker");
        assert!(!cgroup.path().join("looker").exists() && !cgroup.path().join("looker.1").exists());
        std::fs::remove_dir(cgroup.path()).expect("it is empty");
    }

    #[test]
    fn a_process_that_is_not_in_the_leaf_is_not_released_from_it() {
        let top = tempfile::tempdir().expect("a directory");
        let path = top.path().join("rankrun-test");
        std::fs::create_dir_all(path.join("w0")).expect("it is ours");
        let directory = open_directory(rustix::fs::CWD, &path).expect("it is there");
        // As if another process had got a pid of the list.
        std::fs::write(path.join("w0/cgroup.procs"), std::process::id().to_string()).expect("it is ours");
        let procs = top.path().join("cgroup.procs");
        std::fs::write(&procs, "").expect("it is ours");
        JobCgroup { path, directory }.release_leaf("w0");
        assert_eq!(std::fs::read_to_string(procs).expect("it is there"), "");
    }

    #[test]
    fn the_hierarchy_is_found_where_it_is_mounted() {
        let hybrid = b"40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
            41 31 0:38 /a\\040b /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let found = parse_mountinfo(hybrid);
        assert_eq!(found, Some((PathBuf::from("/a b"), PathBuf::from("/sys/fs/cgroup/unified"))));
        assert_eq!(parse_mountinfo(b"22 27 0:21 / /proc rw,relatime - proc proc rw\n"), None);
    }
}
