//! The Python environments that `cargo xtask env` makes, compilers, and places to write.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::helper::shared_directory;
use crate::skip::skip;

/// A Python environment with an MPI or with torch.
#[derive(Clone, Debug)]
pub struct Environment {
    path: PathBuf,
}

impl Environment {
    /// The environment of this name, or `None` after the calling test has been noted as skipped.
    pub fn find(name: &str) -> Option<Environment> {
        let directory = match env::var_os("RANKRUN_ENV_DIR") {
            Some(directory) => PathBuf::from(directory),
            None => Path::new(&env::var_os("HOME").unwrap_or_default()).join(".cache/rankrun/envs"),
        };
        let path = directory.join(name);
        if !path.join("rankrun-pins").exists() {
            skip(&format!("the Python environment \"{name}\" is not there; cargo xtask env makes it"));
            return None;
        }
        Some(Environment { path })
    }

    /// A program of the environment, such as `python` or `mpicc`.
    pub fn program(&self, name: &str) -> String {
        self.path.join("bin").join(name).to_string_lossy().into_owned()
    }

    /// Where the environment is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory with the environment's shared libraries.
    pub fn libraries(&self) -> PathBuf {
        self.path.join("lib")
    }
}

/// The library of Debian's Open MPI 4.1, or `None` after the calling test has been noted as skipped.
pub fn open_mpi_4() -> Option<String> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let library = Path::new("/usr/lib").join(triplet).join("libmpi.so.40");
    if !library.exists() {
        skip("Debian's package libopenmpi3 is not installed");
        return None;
    }
    Some(library.display().to_string())
}

/// Words before a command that give the command a /dev/shm of its own: for launchers that are not rankrun, which may leave files there. None
/// where only root could.
pub fn with_own_shared_memory() -> &'static [&'static str] {
    const WORDS: [&str; 6] = ["unshare", "-m", "sh", "-c", r#"mount -t tmpfs none /dev/shm && exec "$@""#, "sh"];
    if rustix::process::geteuid().is_root() { &WORDS } else { &[] }
}

/// A new directory that every user may write, below the temporary directory. The caller removes it.
///
/// Its name marks what a job leaves elsewhere, such as in /dev/shm. So it never comes again, also for a process that gets the pid of
/// one that was killed, and is no part of another such name.
///
/// # Panics
/// If it cannot be made.
pub fn scratch() -> PathBuf {
    scratch_in(&env::temp_dir())
}

/// The same below another directory.
pub fn scratch_in(base: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    static BEGAN: LazyLock<u64> =
        LazyLock::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
    let path = base.join(format!("rr-test-{}-{:x}-{number:05}", std::process::id(), *BEGAN));
    fs::create_dir(&path).expect("the directory can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("the directory is ours");
    path
}

/// Compiles a C or C++ program into the directory that all users can read, and returns where it is.
///
/// # Panics
/// If the compiler is missing or refuses it: the programs are ours.
pub fn compile(compiler: &str, arguments: &[&str], source: &Path, name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let fresh = shared_directory().join(format!("{name}.{}-{number}", std::process::id()));
    let output = Command::new(compiler)
        .args(arguments)
        .arg("-o")
        .arg(&fresh)
        .arg(source)
        .output()
        .unwrap_or_else(|error| panic!("cannot start {compiler}: {error}"));
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {}: {messages}", source.display());
    // Another test may be doing the same, or running the old program.
    let program = shared_directory().join(name);
    fs::rename(fresh, &program).expect("both are in one directory");
    program
}
