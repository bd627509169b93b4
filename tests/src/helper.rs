//! Where the programs under test are.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory in which cargo put the helper programs: the one above that of the test.
fn build_directory() -> PathBuf {
    let test = env::current_exe().expect("a running test has a file");
    let mut directory = test.parent().unwrap_or(Path::new("/"));
    if directory.ends_with("deps") {
        directory = directory.parent().unwrap_or(directory);
    }
    directory.to_owned()
}

/// A directory that every user of the machine can read, with a copy of rankrun and of the helper programs.
///
/// The build directory may be below a home that other users cannot enter, and the tests run rankrun as other users too.
/// A copy has the modification time of its program, and is made again when that differs.
pub fn shared_directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let user = rustix::process::geteuid().as_raw();
        let key: String = build_directory().display().to_string().replace('/', "-");
        let directory = env::temp_dir().join(format!("rr-tests-{user}{key}"));
        fs::create_dir_all(&directory).expect("the temporary directory can be written");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("the directory is ours");
        directory
    })
}

/// Makes the names of unfinished copies differ between the threads of one process.
static COPIES: AtomicU32 = AtomicU32::new(0);

/// The copy of `file` in the shared directory, brought up to date.
fn shared(file: &Path) -> PathBuf {
    let name = file.file_name().expect("a program has a name");
    let copy = shared_directory().join(name);
    let stamp = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let source = stamp(file).unwrap_or_else(|| panic!("{} has not been built", file.display()));
    // Another rankrun is another program, also where it is an older one.
    if stamp(&copy) != Some(source) {
        // Another test may be doing the same, or may be running the old copy: a rename is safe in both cases.
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let fresh = format!("{}.{}-{number}", name.to_string_lossy(), std::process::id());
        let fresh = shared_directory().join(fresh);
        fs::copy(file, &fresh).expect("a program can be copied");
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).expect("the copy is ours");
        let written = fs::File::options().write(true).open(&fresh).expect("the copy is ours");
        written.set_modified(source).expect("the copy is ours");
        drop(written);
        fs::rename(&fresh, &copy).expect("both are in one directory");
    }
    copy
}

/// The rankrun under test: `$RANKRUN_BIN`, else the one that was built beside the tests.
///
/// # Panics
/// If there is none.
pub fn rankrun() -> PathBuf {
    match env::var_os("RANKRUN_BIN") {
        Some(path) => shared(Path::new(&path)),
        None => shared(&build_directory().join("rankrun")),
    }
}

/// A helper program of `tests/src/bin`.
///
/// # Panics
/// If it has not been built.
pub fn helper(name: &str) -> String {
    let path = shared(&build_directory().join(name));
    path.into_os_string().into_string().expect("the path of the build directory is text")
}
