//! Finding the file that a command names, as `execvp` would.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// The path of the program of this process, also where its file was removed or replaced meanwhile.
pub const OWN: &str = "/proc/self/exe";

/// Why a command cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("command not found")]
    NotFound,
    #[error("not executable")]
    NotExecutable { path: PathBuf, source: io::Error },
    /// Whoever was asked whether to look somewhere has said no.
    #[error("not looked up")]
    Refused,
}

/// Resolves `command` against the PATH of the child's environment, relative to its working directory.
pub fn resolve(command: &OsStr, path: Option<&OsStr>, wdir: &Path) -> Result<PathBuf, ResolveError> {
    resolve_at(command, path, wdir, &mut |_| true)
}

/// The same. Calls `at` with each path before it looks there, which may take long; if that returns false, the look ends.
pub fn resolve_at(
    command: &OsStr,
    path: Option<&OsStr>,
    wdir: &Path,
    at: &mut dyn FnMut(&Path) -> bool,
) -> Result<PathBuf, ResolveError> {
    if command.as_bytes().contains(&b'/') {
        let file = wdir.join(command);
        if !at(&file) {
            return Err(ResolveError::Refused);
        }
        return match check(&file) {
            Ok(()) => Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ResolveError::NotFound),
            Err(source) => Err(ResolveError::NotExecutable { path: file, source }),
        };
    }
    let default = OsString::from("/bin:/usr/bin");
    let mut denied = None;
    for directory in std::env::split_paths(path.unwrap_or(&default)) {
        if command.is_empty() {
            break;
        }
        let file = wdir.join(directory).join(command);
        if !at(&file) {
            return Err(ResolveError::Refused);
        }
        match check(&file) {
            Ok(()) => return Ok(file),
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied && file.is_file() => {
                denied.get_or_insert((file, source));
            }
            Err(_) => {}
        }
    }
    match denied {
        Some((path, source)) => Err(ResolveError::NotExecutable { path, source }),
        None => Err(ResolveError::NotFound),
    }
}

fn check(file: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(file)?;
    if meta.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    // As execve(2) answers for what is not a regular file.
    if !meta.is_file() {
        return Err(rustix::io::Errno::ACCESS.into());
    }
    Ok(rustix::fs::accessat(rustix::fs::CWD, file, Access::EXEC_OK, rustix::fs::AtFlags::EACCESS)?)
}
