//! The interpreter hook (docs/adr/0020-interpreter-hook.md), laid out beside the directories of a user's jobs.
//!
//! All jobs of a user with the same hook share it, with what Python has compiled of it: that takes longer than all else that the hook does.
//! Each job looks whether it is there as this binary has it.

use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::tidy;

/// The directory of the hook in that of a job, where nothing can be shared.
const DIRECTORY: &str = "hook";
const NAME: &str = "sitecustomize.py";
const SOURCE: &str = include_str!("sitecustomize.py");
/// What the hook runs when a program imports JAX, which is part of the Python package too.
const JAX_CLUSTER: (&str, &str) = ("jax_cluster.py", include_str!("jax_cluster.py"));
/// What makes of an interpreter one that ranks are forked from.
const FORK_SERVER: (&str, &str) = ("fork_server.py", include_str!("fork_server.py"));
const FORK_IMPORTS: (&str, &str) = ("fork_imports.py", include_str!("fork_imports.py"));
const FORK_SEEDS: (&str, &str) = ("fork_seeds.py", include_str!("fork_seeds.py"));
const FILES: [(&str, &str); 5] = [(NAME, SOURCE), JAX_CLUSTER, FORK_SERVER, FORK_IMPORTS, FORK_SEEDS];
/// Different hooks have different directories.
const HASH: u64 = hash_of_all(FILES);

const fn hash_of_all<const N: usize>(files: [(&str, &str); N]) -> u64 {
    let (mut all, mut at) = (0xcbf2_9ce4_8422_2325, 0);
    while at < N {
        all = hash(files[at].1.as_bytes(), all);
        at += 1;
    }
    all
}
/// Python takes bytecode for that of a source by the source's size and time. So the time is the same wherever it is laid out: one in 2033, so
/// that nobody removes it as old.
const TIME: Duration = Duration::from_secs(2_000_000_000);
/// Where Python keeps bytecode.
const BYTECODE: &str = "__pycache__";

/// FNV-1a.
const fn hash(bytes: &[u8], mut hash: u64) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    hash
}

/// The hook of a job.
#[derive(Debug)]
pub(crate) struct Hook {
    pub(crate) directory: PathBuf,
    /// Something of it was missing.
    pub(crate) is_new: bool,
    /// As long as it is held, those who clean /tmp of what is old (tmpfiles.d(5)) leave the directory alone.
    _lock: OwnedFd,
}

/// Lays the hook out where it is not.
///
/// # Errors
///
/// With the directory.
pub(crate) fn lay_out(runtime_dir: &Path) -> Result<Hook, (PathBuf, io::Error)> {
    let directory = place(runtime_dir);
    let laid_out = (|| {
        let lock = match tidy::keep(&directory) {
            Ok(lock) => lock,
            Err(_) => {
                make_directory(&directory);
                tidy::keep(&directory)?
            }
        };
        let is_new = !is_laid_out(&directory);
        if is_new {
            // It may be of what was here before. There may be none.
            let _ = std::fs::remove_dir_all(directory.join(BYTECODE));
            make(&directory, runtime_dir)?;
        }
        Ok((is_new, lock))
    })();
    match laid_out {
        Ok((is_new, lock)) => Ok(Hook { directory, is_new, _lock: lock }),
        Err(error) => Err((directory, error)),
    }
}

/// Where the hook of a job is. Without a base directory of the user's, the job's directory is in one that everybody can write to: anybody
/// could plant a hook there.
fn place(runtime_dir: &Path) -> PathBuf {
    tidy::base_of(runtime_dir)
        .map_or_else(|| runtime_dir.join(DIRECTORY), |base| base.join(format!("hook-{HASH:016x}")))
}

/// Whether the hook is there as we have it.
fn is_laid_out(directory: &Path) -> bool {
    let user = rankrun_sys::kernel::user();
    let is_ours = |file: &Metadata, source: &str| {
        file.is_file()
            && file.uid() == user
            && file.len() == source.len() as u64
            && file.mtime() == TIME.as_secs() as i64
    };
    let is_there =
        |(name, source)| std::fs::symlink_metadata(directory.join(name)).is_ok_and(|file| is_ours(&file, source));
    FILES.into_iter().all(is_there)
}

/// Makes the directory. An error shows when it is opened.
fn make_directory(directory: &Path) {
    let made = DirBuilder::new().mode(0o700).create(directory);
    // What a job has put in the place of a directory is none of ours.
    if made.is_err() && !std::fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir()) {
        let _ = std::fs::remove_file(directory).and_then(|()| DirBuilder::new().mode(0o700).create(directory));
    }
}

/// Makes the files, each at once: other jobs may use them now. The job's name is in those that are not ready.
fn make(directory: &Path, runtime_dir: &Path) -> io::Result<()> {
    let job = runtime_dir.file_name().unwrap_or_default().to_string_lossy();
    for (name, source) in FILES {
        let new = directory.join(format!(".{name}-{job}"));
        let written = (|| {
            let mut file = File::create(&new)?;
            file.write_all(source.as_bytes())?;
            file.set_modified(SystemTime::UNIX_EPOCH + TIME)?;
            std::fs::rename(&new, directory.join(name))
        })();
        if written.is_err() {
            // The reason is that of the first error.
            let _ = std::fs::remove_file(&new);
        }
        written?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_another_is_made_again() {
        let top = tempfile::tempdir().expect("a directory");
        // No base of this user's.
        let hook = place(top.path());
        let damages: [&dyn Fn(); 6] = [
            &|| {},
            &|| std::fs::remove_file(hook.join(NAME)).expect("it is there"),
            &|| std::fs::remove_dir_all(&hook).expect("it is there"),
            &|| std::fs::write(hook.join(JAX_CLUSTER.0), "pass\n").expect("it is ours"),
            &|| {
                std::fs::remove_dir_all(&hook).expect("it is there");
                std::os::unix::fs::symlink("/", &hook).expect("a link");
            },
            // It has the same size.
            &|| std::fs::write(hook.join(NAME), SOURCE.replacen('a', "b", 1)).expect("it is ours"),
        ];
        for (number, damage) in damages.iter().enumerate() {
            damage();
            assert!(!is_laid_out(&hook), "{number}");
            let laid_out = lay_out(top.path()).expect("it is made again");
            assert!(laid_out.is_new && laid_out.directory == hook && is_laid_out(&hook), "{number}");
            assert!(!lay_out(top.path()).expect("it is there").is_new, "{number}");
            let entries = std::fs::read_dir(&hook).expect("a directory").count();
            assert_eq!(entries, FILES.len(), "{number}");
            let source = std::fs::read_to_string(hook.join(NAME)).expect("a file");
            assert_eq!(source, SOURCE, "{number}");
        }
    }

    #[test]
    fn only_jobs_in_a_directory_of_the_users_share_it() {
        let user = rankrun_sys::kernel::user();
        let shared = place(Path::new(&format!("/tmp/rankrun-{user}/0a0a0a0a")));
        assert_eq!(shared, Path::new(&format!("/tmp/rankrun-{user}/hook-{HASH:016x}")));
        let lone = format!("/tmp/rankrun-{user}-0a0a0a0a");
        assert_eq!(place(Path::new(&lone)), Path::new(&lone).join("hook"));
    }
}
