//! The interpreter hook, laid out in the job's directory (docs/adr/0020-interpreter-hook.md).
//!
//! Python compiles it at its first start, which takes longer than all else that the hook does, and would do so in every
//! job. All jobs of a user with the same hook therefore share one bytecode directory.

use std::fs::{DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::tidy;

/// The directory of the hook in the job's directory.
const DIRECTORY: &str = "hook";
const NAME: &str = "sitecustomize.py";
/// It is laid out anew for each job, so that it fits this binary.
const SOURCE: &str = include_str!("sitecustomize.py");
/// What the hook runs when a program imports JAX, which is part of the Python package too.
const JAX_CLUSTER: (&str, &str) = ("jax_cluster.py", include_str!("jax_cluster.py"));
/// Python takes bytecode for that of a source by the source's size and time. The time is the same in every job;
/// different hooks have different directory names.
const TIME: Duration = Duration::from_secs(1_000_000_000);

/// Lays the hook out. Returns its directory.
pub(crate) fn lay_out(runtime_dir: &Path) -> io::Result<PathBuf> {
    let directory = runtime_dir.join(DIRECTORY);
    std::fs::create_dir(&directory)?;
    let mut file = File::create_new(directory.join(NAME))?;
    file.write_all(SOURCE.as_bytes())?;
    file.set_modified(SystemTime::UNIX_EPOCH + TIME)?;
    File::create_new(directory.join(JAX_CLUSTER.0))?.write_all(JAX_CLUSTER.1.as_bytes())?;
    // Without it Python only compiles more often.
    let _ = share_bytecode(runtime_dir, &directory);
    Ok(directory)
}

/// Whether the hook in the job's directory is as it was laid out.
pub(crate) fn is_laid_out(runtime_dir: &Path) -> bool {
    let directory = runtime_dir.join(DIRECTORY);
    [(NAME, SOURCE), JAX_CLUSTER].into_iter().all(|(name, source)| {
        let file = std::fs::symlink_metadata(directory.join(name));
        file.is_ok_and(|file| file.is_file() && file.len() == source.len() as u64)
    })
}

/// Lays the hook out again, over what is left of it.
pub(crate) fn lay_out_again(runtime_dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(runtime_dir.join(DIRECTORY)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    lay_out(runtime_dir).map(drop)
}

fn share_bytecode(runtime_dir: &Path, hook: &Path) -> io::Result<()> {
    let Some(base) = runtime_dir.parent() else { return Ok(()) };
    // Without a base directory of ours the job's directory is in one that everybody can write to: anybody could plant
    // bytecode there.
    tidy::check(base)?;
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let shared = base.join(format!("bytecode-{:016x}", hasher.finish()));
    match DirBuilder::new().mode(0o700).create(&shared) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    std::os::unix::fs::symlink(shared, hook.join("__pycache__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_jobs_share_what_python_compiles() {
        let base = tempfile::tempdir().expect("a directory");
        let jobs = ["0a0a0a0a", "0b0b0b0b"].map(|job| base.path().join(job));
        let hooks = jobs.map(|job| {
            std::fs::create_dir(&job).expect("a directory");
            let hook = lay_out(&job).expect("the hook");
            assert!(is_laid_out(&job));
            std::fs::remove_file(hook.join(NAME)).expect("it is there");
            assert!(!is_laid_out(&job));
            lay_out_again(&job).expect("the hook");
            assert!(is_laid_out(&job));
            hook
        });
        let times = hooks.each_ref().map(|hook| std::fs::metadata(hook.join(NAME)).expect("a file").modified().ok());
        assert_eq!(times[0], times[1]);
        std::fs::write(hooks[0].join("__pycache__/compiled"), "").expect("written through the link");
        assert!(hooks[1].join("__pycache__/compiled").exists());
        std::fs::remove_dir_all(&hooks[0]).expect("the job ends");
        assert!(hooks[1].join("__pycache__/compiled").exists());
    }
}
