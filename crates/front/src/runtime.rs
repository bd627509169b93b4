//! The private directory of a job: `/tmp/rankrun-UID/JOB`, for its socket, its spool and its notes.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rankrun_agent::clean::remove_runtime_dir;
use rankrun_core::JobId;

/// The directory, and the locked file in it that says that the job is alive.
#[derive(Debug)]
pub(crate) struct RuntimeDir {
    pub(crate) path: PathBuf,
    /// The lock belongs to the open file, which front, guard and agent share: it is free when all three are gone.
    pub(crate) alive: OwnedFd,
}

/// Why no directory can be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a private directory for the job in {}", list(tried))]
pub(crate) struct RuntimeDirError {
    pub(crate) tried: Vec<PathBuf>,
    pub(crate) source: io::Error,
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("\"{}\"", path.display())).collect::<Vec<_>>().join(", ")
}

impl RuntimeDir {
    /// Makes the directory below the first of the usual places that will have it.
    pub(crate) fn create(job: &JobId) -> Result<RuntimeDir, RuntimeDirError> {
        let uid = rustix::process::geteuid().as_raw();
        let mut bases = vec![PathBuf::from(format!("/tmp/rankrun-{uid}"))];
        if let Some(directory) = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
            bases.push(PathBuf::from(directory).join("rankrun"));
        }
        bases.push(PathBuf::from(format!("/dev/shm/rankrun-{uid}")));
        let mut first = None;
        for base in &bases {
            match create_in(base, job, uid) {
                Ok(directory) => return Ok(directory),
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        let source = first.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        Err(RuntimeDirError { tried: bases, source })
    }
}

fn create_in(base: &Path, job: &JobId, uid: u32) -> io::Result<RuntimeDir> {
    match std::fs::DirBuilder::new().mode(0o700).create(base) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    // Others may have been here first: in a directory of theirs our socket would be theirs to replace.
    let meta = std::fs::symlink_metadata(base)?;
    if !meta.is_dir() || meta.uid() != uid {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to somebody else"));
    }
    if meta.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(base, std::fs::Permissions::from_mode(0o700))?;
    }
    let path = base.join(&job.0);
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    let locked = std::fs::File::create(path.join("alive")).and_then(|alive| {
        alive.try_lock().map_err(io::Error::from)?;
        Ok(alive)
    });
    match locked {
        Ok(alive) => Ok(RuntimeDir { path, alive: alive.into() }),
        Err(error) => {
            remove_runtime_dir(&path);
            Err(error)
        }
    }
}
