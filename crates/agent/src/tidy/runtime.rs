//! The private directory of a job on a node: `/tmp/rankrun-UID/JOB`, for its sockets, its notes and its spool.
//!
//! The agent makes it after guard and front have started: if any two of them are killed, the third removes it. The
//! agent holds a lock on it as long as it lives; `rankrun clean` recognises the directories of dead jobs by the missing
//! lock.
//!
//! Any user can make any name below `/tmp`. If another user has made `/tmp/rankrun-UID`, a job makes
//! `/tmp/rankrun-UID-JOB` instead: a job's id is random, so that nobody can make it first.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rankrun_core::JobId;
use rankrun_sys::shm;
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::mounts::is_away;

/// How often to make a directory again if `rankrun clean` has removed it before it was locked.
const TRIES: u32 = 10;
/// Symbolic links that are followed on the way to a directory, as many as the kernel follows.
const MAX_LINKS: u32 = 40;
/// Where the shared memory is noted, one path a line.
pub(super) const SHARED_MEMORY: &str = "shm";

/// Directories in which every user of the machine may make others.
const PUBLIC: [&str; 2] = ["/tmp", "/dev/shm"];

/// The directories of this user's jobs on this machine, in the order in which a job tries them.
pub fn bases() -> Vec<PathBuf> {
    let uid = rankrun_sys::kernel::user();
    let [tmp, shm] = PUBLIC.map(|public| Path::new(public).join(format!("rankrun-{uid}")));
    // A path that is not absolute is to be ignored, and the directory must be on a local file system (XDG Base Directory
    // Specification): one that does not answer would hold whoever removes the job's directory.
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = session.filter(|directory| directory.is_absolute() && !is_away(directory));
    [Some(tmp), session.map(|directory| directory.join("rankrun")), Some(shm)].into_iter().flatten().collect()
}

/// The directory of this user's jobs in which that of a job is. `None`: it is alone in a directory in which everybody can make files.
pub(crate) fn base_of(runtime_dir: &Path) -> Option<&Path> {
    runtime_dir.parent().filter(|base| bases().iter().any(|known| known == base))
}

/// Keeps those who clean /tmp of what is old (tmpfiles.d(5)) from a directory, as long as the descriptor is open.
pub(crate) fn keep(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::fs::flock(&directory, FlockOperation::LockShared)?;
    Ok(directory)
}

/// The directories of single jobs of this user that found no base: each with the job's id.
pub fn lone_directories() -> Vec<(String, PathBuf)> {
    let prefix = format!("rankrun-{}-", rankrun_sys::kernel::user());
    let mut found = Vec::new();
    for public in PUBLIC {
        // We could have made nothing in a directory that we cannot read.
        for entry in std::fs::read_dir(public).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(job) = name.strip_prefix(&prefix).filter(|_| check_owner(&entry.path()).is_ok()) {
                found.push((job.to_owned(), entry.path()));
            }
        }
    }
    found
}

/// Where a job's directory can be. Known before it is made, so that guard and front know what to remove.
#[derive(Clone, Debug)]
pub struct Places {
    bases: Vec<PathBuf>,
    /// The job's directories if no base can be made.
    lone: Vec<PathBuf>,
    job: JobId,
}

impl Places {
    /// Those of a job.
    pub fn of(job: &JobId) -> Places {
        let uid = rankrun_sys::kernel::user();
        let lone = PUBLIC.map(|public| Path::new(public).join(format!("rankrun-{uid}-{job}")));
        Places { bases: bases(), lone: lone.into(), job: job.clone() }
    }

    /// Each of them alone, with the directory above: whoever waits for one that does not answer can name it.
    pub fn each(&self) -> impl Iterator<Item = (&Path, Places)> {
        let alone = |bases: Vec<PathBuf>, lone: Vec<PathBuf>| Places { bases, lone, job: self.job.clone() };
        let bases = self.bases.iter().map(move |base| (base.as_path(), alone(vec![base.clone()], Vec::new())));
        bases.chain(self.lone.iter().map(move |path| (path.as_path(), alone(Vec::new(), vec![path.clone()]))))
    }

    /// The job's directory in each of the user's, whether it is there or not.
    pub(super) fn in_bases(&self) -> impl Iterator<Item = PathBuf> {
        self.bases.iter().map(|base| base.join(&self.job.0))
    }

    /// Makes the directory in the first place where that works.
    pub fn create(&self) -> Result<RuntimeDir, RuntimeDirError> {
        let mut refusals = Vec::new();
        let in_bases = self.bases.iter().map(|base| (base, RuntimeDir::create(base, &self.job)));
        for (place, made) in in_bases.chain(self.lone.iter().map(|path| (path, RuntimeDir::create_at(path)))) {
            match made {
                Ok(directory) => return Ok(directory),
                Err(error) => refusals.push((place.clone(), error)),
            }
        }
        let tried = refusals.iter().map(|(place, _)| place.clone()).collect();
        let first = refusals.into_iter().next();
        let source = first.map_or_else(|| io::Error::from(io::ErrorKind::NotFound), |(_, error)| error);
        Err(RuntimeDirError { tried, source })
    }

    /// The directory that another process has made, which is gone.
    ///
    /// # Errors
    ///
    /// There is none, or that process lives.
    pub fn adopt(&self) -> io::Result<RuntimeDir> {
        let path = self.existing().next().ok_or(io::ErrorKind::NotFound)?;
        let lock = lock(&path)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(RuntimeDir { path, lock })
    }

    /// The shared memory files that the agent has noted.
    pub fn noted_shared_memory(&self) -> HashMap<OsString, shm::File> {
        self.existing().flat_map(|directory| noted_shared_memory(&directory)).collect()
    }

    /// Whether a file of this name is in the directory.
    pub fn is_anywhere(&self, name: &str) -> bool {
        self.existing().any(|directory| directory.join(name).exists())
    }

    /// Removes the directory, wherever it is. It holds only what rankrun made there.
    pub fn remove(&self) {
        for directory in self.existing() {
            // Two of us may remove it at the same time: each gets an error for what the other has just removed, and
            // then tries the rest again.
            for _ in 0..TRIES {
                if std::fs::remove_dir_all(&directory).is_ok() || !directory.exists() {
                    break;
                }
            }
        }
    }

    fn existing(&self) -> impl Iterator<Item = PathBuf> {
        let in_bases = self.bases.iter().map(|base| (base.join(&self.job.0), base.as_path()));
        let places = in_bases.chain(self.lone.iter().map(|path| (path.clone(), path.as_path())));
        let is_there = |place: &Path| std::fs::symlink_metadata(place).is_ok();
        places.filter(move |(place, checked)| is_there(place) && check(checked).is_ok()).map(|(place, _)| place)
    }
}

/// Why a directory must not be used as a base, if so: it belongs to another user, or another user could replace it.
pub fn check(base: &Path) -> io::Result<()> {
    // To root, /tmp is a directory of its own too.
    if check_owner(base)?.mode() & 0o022 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others can write to it"));
    }
    base.parent().map_or(Ok(()), check_way)
}

fn check_owner(directory: &Path) -> io::Result<Metadata> {
    let meta = std::fs::symlink_metadata(directory)?;
    match meta.is_dir() && meta.uid() == rankrun_sys::kernel::user() {
        true => Ok(meta),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user")),
    }
}

/// Checks that no other user can replace this directory: every directory on its path must belong to us or to root, and
/// others may write to it only if it is sticky.
fn check_way(path: &Path) -> io::Result<()> {
    let refuse = |path: &Path, why: &str| {
        let text = format!("\"{}\" {why}", path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    };
    // In a user namespace root's directories show another owner. The owner of "/" can replace everything anyway.
    let owners = [0, rankrun_sys::kernel::user(), std::fs::symlink_metadata("/")?.uid()];
    let mut links = 0;
    let mut done = PathBuf::from("/");
    let mut rest: Vec<PathBuf> = vec![path.to_owned()];
    while let Some(path) = rest.pop() {
        let mut components = path.components();
        let Some(component) = components.next() else { continue };
        rest.push(components.as_path().to_owned());
        match component {
            Component::RootDir | Component::Prefix(_) => done = PathBuf::from("/"),
            Component::CurDir => {}
            Component::ParentDir => {
                done.pop();
            }
            Component::Normal(name) => {
                let next = done.join(name);
                let meta = std::fs::symlink_metadata(&next)?;
                if !owners.contains(&meta.uid()) {
                    return refuse(&next, "belongs to another user");
                }
                if meta.is_symlink() {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(rustix::io::Errno::LOOP.into());
                    }
                    rest.push(std::fs::read_link(&next)?);
                    continue;
                }
                if meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0 {
                    return refuse(&next, "can be written by others and is not sticky");
                }
                done = next;
            }
        }
    }
    Ok(())
}

/// The shared memory files that are noted in a job's directory: the inode and the path, one a line, with a `-` in front
/// where the note is taken back. They belong to the user of the directory.
pub fn noted_shared_memory(directory: &Path) -> HashMap<OsString, shm::File> {
    // Without a list nothing was noted.
    parse_notes(&std::fs::read(directory.join(SHARED_MEMORY)).unwrap_or_default())
}

/// The files in such a list.
pub(super) fn parse_notes(list: &[u8]) -> HashMap<OsString, shm::File> {
    let owner = rankrun_sys::kernel::user();
    let mut noted = HashMap::new();
    for line in list.split(|&byte| byte == b'\n') {
        let (is_taken_back, line) = line.strip_prefix(b"-").map_or((false, line), |line| (true, line));
        let Some(space) = line.iter().position(|&byte| byte == b' ') else { continue };
        let Some(inode) = std::str::from_utf8(&line[..space]).ok().and_then(|inode| inode.parse().ok()) else {
            continue;
        };
        let (path, file) =
            (OsString::from_vec(line[space + 1..].to_vec()), shm::File { inode, owner, is_directory: false });
        if !is_taken_back {
            noted.insert(path, file);
        } else if noted.get(&path) == Some(&file) {
            noted.remove(&path);
        }
    }
    noted
}

/// The directory, locked.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    lock: OwnedFd,
}

/// Why no directory could be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a private directory for the job in {}", list(tried))]
pub struct RuntimeDirError {
    tried: Vec<PathBuf>,
    pub source: io::Error,
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("\"{}\"", path.display())).collect::<Vec<_>>().join(", ")
}

impl RuntimeDir {
    /// What locks it: whoever has a copy keeps it locked.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory again if a process of the job has removed it. Returns whether it was missing.
    ///
    /// # Errors
    ///
    /// It cannot be made again, or another process has put something in its place.
    pub fn restore(&mut self) -> io::Result<bool> {
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) => {
                let own = rustix::fs::fstat(&self.lock)?;
                if (found.dev(), found.ino()) == (own.st_dev, own.st_ino) {
                    return Ok(false);
                }
                Err(io::Error::new(io::ErrorKind::AlreadyExists, "it was replaced"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The directory of all jobs of this user may be missing too; a lone directory lies in one of the system's.
                if let Some(base) = self.path.parent().filter(|base| !base.exists()) {
                    RuntimeDir::create_base(base)?;
                }
                *self = RuntimeDir::create_at(&self.path)?;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    fn create(base: &Path, job: &JobId) -> io::Result<RuntimeDir> {
        RuntimeDir::create_base(base)?;
        // Nobody else can replace the base.
        RuntimeDir::make(&base.join(&job.0))
    }

    fn create_base(base: &Path) -> io::Result<()> {
        base.parent().map_or(Ok(()), check_way)?;
        match std::fs::DirBuilder::new().mode(0o700).create(base) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        // Another user may have made it: then that user could replace our socket.
        if check_owner(base)?.permissions().mode() & 0o077 != 0 {
            std::fs::set_permissions(base, std::fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    /// Makes a directory that does not exist yet.
    fn create_at(path: &Path) -> io::Result<RuntimeDir> {
        path.parent().map_or(Ok(()), check_way)?;
        RuntimeDir::make(path)
    }

    /// The same, where the way to it was checked.
    fn make(path: &Path) -> io::Result<RuntimeDir> {
        for _ in 0..TRIES {
            std::fs::DirBuilder::new().mode(0o700).create(path)?;
            match lock(path) {
                Ok(Some(lock)) => return Ok(RuntimeDir { path: path.to_owned(), lock }),
                // `rankrun clean` removed it before it was locked.
                Ok(None) => {}
                Err(error) => {
                    // It is empty, and the job is refused with the reason why it could not be locked.
                    let _ = std::fs::remove_dir(path);
                    return Err(error);
                }
            }
        }
        Err(io::Error::from(io::ErrorKind::ResourceBusy))
    }
}

/// Locks a directory. `None` if it has been removed meanwhile.
fn lock(path: &Path) -> io::Result<Option<OwnedFd>> {
    let directory = match File::open(path) {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    rustix::fs::flock(&directory, FlockOperation::LockShared)?;
    Ok(path.exists().then(|| directory.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(bases: &[&Path]) -> Places {
        Places {
            bases: bases.iter().map(|base| base.to_path_buf()).collect(),
            lone: Vec::new(),
            job: JobId("0a1b2c3d".to_owned()),
        }
    }

    #[test]
    fn the_first_place_that_will_have_it_is_taken_and_left_clean() {
        let top = tempfile::tempdir().expect("a directory");
        let (missing, good) = (top.path().join("missing/base"), top.path().join("base"));
        let places = places(&[&missing, &good]);
        let directory = places.create().expect("a directory for the job");
        assert_eq!(directory.path(), good.join("0a1b2c3d"));
        assert_eq!(std::fs::metadata(&good).expect("the base").permissions().mode() & 0o777, 0o700);
        std::fs::write(
            directory.path().join(SHARED_MEMORY),
            "7 /dev/shm/a\n8 /dev/shm/b c\nx\n9 /dev/shm/c\n-9 /dev/shm/c\n",
        )
        .expect("a list");
        let mut noted: Vec<_> =
            places.noted_shared_memory().into_iter().map(|(path, file)| (file.inode, path)).collect();
        noted.sort();
        assert_eq!(noted, [(7, "/dev/shm/a".into()), (8, "/dev/shm/b c".into())]);
        places.remove();
        assert!(!directory.path().exists() && good.exists());
        places.remove();
    }

    #[test]
    fn a_base_that_is_a_link_is_neither_used_nor_cleaned() {
        let top = tempfile::tempdir().expect("a directory");
        let (link, target) = (top.path().join("link"), top.path().join("target"));
        std::fs::create_dir_all(target.join("0a1b2c3d")).expect("somebody's directory");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        let places = places(&[&link]);
        let error = places.create().expect_err("no place is left");
        assert!(error.to_string().contains(&format!("\"{}\"", link.display())), "{error}");
        places.remove();
        assert!(target.join("0a1b2c3d").exists());
    }

    #[test]
    fn where_no_base_can_be_had_a_job_has_a_directory_of_its_own() {
        let top = tempfile::tempdir().expect("a directory");
        std::fs::write(top.path().join("base"), "in the way").expect("a file");
        let lone = top.path().join("rankrun-1-0a1b2c3d");
        let places = Places { lone: vec![lone.clone()], ..places(&[&top.path().join("base")]) };
        let directory = places.create().expect("a directory for the job");
        assert_eq!(directory.path(), lone);
        assert_eq!(std::fs::metadata(&lone).expect("the directory").permissions().mode() & 0o777, 0o700);
        let error = places.create().expect_err("it exists already, and may be another's");
        assert!(error.to_string().contains(&format!("\"{}\"", lone.display())), "{error}");
        places.remove();
        assert!(!lone.exists());
    }

    #[test]
    fn nobody_else_may_write_to_a_base() {
        let base = tempfile::tempdir().expect("a directory");
        for (mode, expected) in [(0o700, true), (0o755, true), (0o770, false), (0o777, false), (0o1777, false)] {
            std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(mode)).expect("it is ours");
            assert_eq!(check(base.path()).is_ok(), expected, "{mode:o}");
        }
        assert!(check(Path::new("/tmp")).is_err());
    }

    #[test]
    fn the_way_to_a_base_may_not_be_open_to_others() {
        let top = tempfile::tempdir().expect("a directory");
        let (open, below) = (top.path().join("open"), top.path().join("open/below"));
        std::fs::create_dir_all(&below).expect("directories");
        let link = top.path().join("link");
        std::os::unix::fs::symlink("open/../open", &link).expect("a link");
        let allowed = |mode, way: &Path| {
            std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).expect("it is ours");
            check_way(way).is_ok()
        };
        for (mode, expected) in [(0o755, true), (0o775, false), (0o777, false), (0o1777, true)] {
            assert_eq!(allowed(mode, &below), expected, "{mode:o}");
            assert_eq!(allowed(mode, &link.join("below")), expected, "{mode:o} through a link");
        }
        std::os::unix::fs::symlink("loop", top.path().join("loop")).expect("a link");
        assert!(!allowed(0o755, &top.path().join("loop")));
    }

    #[test]
    fn a_directory_that_was_removed_during_the_job_is_made_again_and_locked() {
        let top = tempfile::tempdir().expect("a directory");
        let base = top.path().join("base");
        let places = places(&[&base]);
        let mut directory = places.create().expect("a directory for the job");
        assert!(!directory.restore().expect("it is there"));
        for removed in [directory.path().to_owned(), base] {
            std::fs::remove_dir_all(&removed).expect("removed");
            assert!(directory.restore().expect("made again"));
            assert!(!directory.restore().expect("it is there"));
            let cleaner = File::open(directory.path()).expect("the directory");
            assert!(rustix::fs::flock(&cleaner, FlockOperation::NonBlockingLockExclusive).is_err());
        }
        std::fs::remove_dir_all(directory.path()).expect("removed");
        std::os::unix::fs::symlink("/tmp", directory.path()).expect("a link");
        assert!(directory.restore().is_err());
    }

    #[test]
    fn a_directory_that_was_removed_before_it_was_locked_is_made_again() {
        let top = tempfile::tempdir().expect("a directory");
        let path = top.path().join("job");
        assert!(lock(&path).expect("no error").is_none());
        std::fs::create_dir(&path).expect("a directory");
        let cleaner = File::open(&path).expect("the directory");
        rustix::fs::flock(&cleaner, FlockOperation::NonBlockingLockExclusive).expect("the lock");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || lock(&path)
        });
        std::fs::remove_dir(&path).expect("removed");
        drop(cleaner);
        assert!(waiting.join().expect("the thread").expect("no error").is_none());
    }
}
