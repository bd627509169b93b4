//! The private directory of a job on a node: `/tmp/rankrun-UID/JOB`, for its socket, its hook, its notes and its spool.
//!
//! The agent makes it, once guard and front are there too: whichever two of them are killed, the third removes it. The
//! agent holds a lock on it as long as it lives, and so `rankrun clean` knows the directories of dead jobs.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rankrun_core::JobId;
use rankrun_sys::shm;
use rustix::fs::FlockOperation;

/// How often a directory is made anew that `rankrun clean` has removed before it was locked.
const TRIES: u32 = 10;
/// Where the shared memory is noted, one path a line.
pub const SHARED_MEMORY: &str = "shm";

/// The directories of this user's jobs on this machine, in the order in which a job tries them.
pub fn bases() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let mut bases = vec![PathBuf::from(format!("/tmp/rankrun-{uid}"))];
    if let Some(directory) = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
        bases.push(PathBuf::from(directory).join("rankrun"));
    }
    bases.push(PathBuf::from(format!("/dev/shm/rankrun-{uid}")));
    bases
}

/// Where a job's directory can be. Known before it is made, so that all who may have to remove it know where to look.
#[derive(Clone, Debug)]
pub struct Places {
    bases: Vec<PathBuf>,
    job: JobId,
}

impl Places {
    /// Those of a job.
    pub fn of(job: &JobId) -> Places {
        Places { bases: bases(), job: job.clone() }
    }

    /// Makes the directory in the first place that will have it.
    pub fn create(&self) -> Result<RuntimeDir, RuntimeDirError> {
        let mut first = None;
        for base in &self.bases {
            match RuntimeDir::create(base, &self.job) {
                Ok(directory) => return Ok(directory),
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        let source = first.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        Err(RuntimeDirError { tried: self.bases.clone(), source })
    }

    /// The shared memory files that the agent has noted.
    pub fn noted_shared_memory(&self) -> HashMap<OsString, shm::File> {
        self.existing().flat_map(|directory| noted_shared_memory(&directory)).collect()
    }

    /// Removes the directory, wherever it is. It holds only what rankrun made there.
    pub fn remove(&self) {
        for directory in self.existing() {
            // Two of us may be at it at once: what the one has just removed is an error to the other, which then goes
            // through the rest again.
            for _ in 0..TRIES {
                if std::fs::remove_dir_all(&directory).is_ok() || !directory.exists() {
                    break;
                }
            }
        }
    }

    fn existing(&self) -> impl Iterator<Item = PathBuf> {
        self.bases.iter().filter(|base| is_ours(base)).map(|base| base.join(&self.job.0)).filter(|place| place.exists())
    }
}

/// The shared memory files that are noted in a job's directory: the inode and the path, one a line, with a `-` in front
/// where the note is taken back. They belong to the user of the directory.
pub fn noted_shared_memory(directory: &Path) -> HashMap<OsString, shm::File> {
    let owner = rustix::process::geteuid().as_raw();
    // Without a list nothing was noted.
    let list = std::fs::read(directory.join(SHARED_MEMORY)).unwrap_or_default();
    let mut noted = HashMap::new();
    for line in list.split(|&byte| byte == b'\n') {
        let (is_taken_back, line) = line.strip_prefix(b"-").map_or((false, line), |line| (true, line));
        let Some(space) = line.iter().position(|&byte| byte == b' ') else { continue };
        let Some(inode) = std::str::from_utf8(&line[..space]).ok().and_then(|inode| inode.parse().ok()) else {
            continue;
        };
        let (path, file) = (OsString::from_vec(line[space + 1..].to_vec()), shm::File { inode, owner });
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
    _lock: OwnedFd,
}

/// Why no directory can be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a private directory for the job in {}", list(tried))]
pub struct RuntimeDirError {
    tried: Vec<PathBuf>,
    pub(crate) source: io::Error,
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("\"{}\"", path.display())).collect::<Vec<_>>().join(", ")
}

impl RuntimeDir {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn create(base: &Path, job: &JobId) -> io::Result<RuntimeDir> {
        match std::fs::DirBuilder::new().mode(0o700).create(base) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        // Others may have been here first: in a directory of theirs our socket would be theirs to replace.
        if !is_ours(base) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to somebody else"));
        }
        if std::fs::symlink_metadata(base)?.permissions().mode() & 0o077 != 0 {
            std::fs::set_permissions(base, std::fs::Permissions::from_mode(0o700))?;
        }
        let path = base.join(&job.0);
        for _ in 0..TRIES {
            std::fs::DirBuilder::new().mode(0o700).create(&path)?;
            match lock(&path) {
                Ok(Some(lock)) => return Ok(RuntimeDir { path, _lock: lock }),
                // `rankrun clean` saw it before it was locked.
                Ok(None) => {}
                Err(error) => {
                    let _ = std::fs::remove_dir(&path);
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

fn is_ours(base: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(base).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(bases: &[&Path]) -> Places {
        Places { bases: bases.iter().map(|base| base.to_path_buf()).collect(), job: JobId("0a1b2c3d".to_owned()) }
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
