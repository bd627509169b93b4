//! `cargo xtask dist`: what people install. A wheel, a tarball and a Debian package with the same binary in each, and their
//! checksums, in `target/dist`.

mod build;
mod check;
pub(crate) mod manifests;

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{environments, packages, process, workspace};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Built from source for its Debian package; the pinned version is kept beside the Python environments.
const CARGO_DEB: &str = "3.8.0";

/// The shells whose completions are installed, and the name of each file.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "rankrun.bash"), ("zsh", "_rankrun"), ("fish", "rankrun.fish")];

/// Where things lie while a release is put together, and the files that it comes to.
struct Dist {
    /// `target/dist`: the files that people download, and their checksums.
    output: PathBuf,
    /// What all packages contain: the binary, the man page, the completions.
    stage: PathBuf,
    scratch: PathBuf,
    /// The `bin` directory of the environment with maturin and zig.
    tools: PathBuf,
}

pub(crate) fn dist(with_check: bool) -> Result<()> {
    packages::install_for_dist()?;
    environments::create(&["dist".to_owned()])?;
    let dist = Dist::prepare()?;
    let wheel = build::wheel(&dist)?;
    let tarball = build::tarball(&dist)?;
    let package = build::debian_package(&dist)?;
    let files = [wheel, tarball, package];
    build::checksums(&dist, &files)?;
    for file in &files {
        println!("{}", file.display());
    }
    if with_check {
        check::check(&dist, &files)?;
    }
    fs::remove_dir_all(&dist.scratch).context("cannot remove the scratch directory")
}

impl Dist {
    fn prepare() -> Result<Dist> {
        let output = workspace::target().join("dist");
        let dist = Dist {
            scratch: output.join("scratch"),
            // cargo-deb replaces `target/release` in the paths of assets by the real target directory.
            stage: workspace::release().join("stage"),
            tools: environments::directory()?.join("dist/bin"),
            output,
        };
        for directory in [&dist.output, &dist.stage] {
            if directory.exists() {
                fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
            }
            fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        }
        fs::create_dir_all(&dist.scratch)?;
        Ok(dist)
    }

    fn name(&self, suffix: &str) -> PathBuf {
        self.output.join(format!("rankrun-{VERSION}-{ARCH}-linux{suffix}"))
    }

    fn binary(&self) -> PathBuf {
        self.stage.join("rankrun")
    }
}

/// The time that all files of a release bear: that of the commit, so that two builds of it are alike.
fn source_date() -> Result<String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(date) => Ok(date),
        Err(_) => {
            let date =
                process::read(Command::new("git").current_dir(workspace::root()).args(["log", "-1", "--format=%ct"]))?;
            Ok(date.trim().to_owned())
        }
    }
}

/// Installs cargo-deb for all checkouts of this user, once, and returns the directory of its program.
fn cargo_deb() -> Result<PathBuf> {
    let environments = environments::directory()?;
    let cache = environments.parent().unwrap_or(&environments);
    let root = cache.join(format!("tools/cargo-deb-{CARGO_DEB}"));
    if !root.join("bin/cargo-deb").exists() {
        println!("cargo-deb {CARGO_DEB}: installing into {}", root.display());
        // It packs one file of some megabytes: optimising it would take longer than it ever runs.
        process::run(
            workspace::cargo()
                .args(["install", "--quiet", "--locked", "--debug", "cargo-deb", "--version", CARGO_DEB])
                .args(["--no-default-features", "--features", "gzip", "--root"])
                .arg(&root),
        )?;
    }
    Ok(root.join("bin"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
