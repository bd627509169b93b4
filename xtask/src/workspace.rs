//! Where things are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Where `cargo build --release` puts programs.
pub(crate) fn release() -> PathBuf {
    target().join("release")
}

/// The cargo that runs us, without what it tells us of our own package: build scripts that read the same variables (ring's does) would be out of
/// date whenever cargo is called here and by a shell in turn, and all crates above them would be built again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from));
    let is_of_package =
        |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|start| name.starts_with(start));
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_package) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether this is a continuous integration run, in which nothing may be skipped.
pub(crate) fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// A program on PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file())
}
