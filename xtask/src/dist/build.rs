//! The files of a release: one binary, packed in three ways.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{COMPLETIONS, Dist, VERSION, cargo_deb, copy, source_date};
use crate::{process, workspace};

/// Builds the wheel, and keeps its binary for the other packages.
pub(super) fn wheel(dist: &Dist) -> Result<PathBuf> {
    let built = dist.scratch.join("built");
    // zig links to the glibc of manylinux2014 (2.17), whatever this machine has; maturin looks whether that came true.
    process::run(
        Command::new(dist.tools.join("maturin"))
            .current_dir(workspace::root())
            .args([
                "build",
                "--quiet",
                "--profile",
                "dist",
                "--locked",
                "--zig",
                "--compatibility",
                "manylinux2014",
                "--out",
            ])
            .arg(&built)
            .env("PATH", path_with(&dist.tools)?)
            .env("SOURCE_DATE_EPOCH", source_date()?),
    )?;
    let wheel = only_file(&built)?;
    let unpacked = dist.scratch.join("wheel");
    let mut command = Command::new(dist.tools.join("python"));
    process::run(
        command.args(["-m", "wheel", "unpack", "--dest"]).arg(&unpacked).arg(&wheel).stdout(std::io::stderr()),
    )?;
    let content = unpacked.join(format!("rankrun-{VERSION}"));
    let data = content.join(format!("rankrun-{VERSION}.data"));
    copy(&data.join("scripts/rankrun"), &dist.binary())?;
    make_executable(&dist.binary())?;
    stage(dist)?;
    // An installer puts these below the prefix of the environment, where man and the shells look if its bin is on PATH.
    let share = data.join("data/share");
    copy(&dist.stage.join("rankrun.1"), &share.join("man/man1/rankrun.1"))?;
    let homes = [
        "bash-completion/completions/rankrun",
        "zsh/site-functions/_rankrun",
        "fish/vendor_completions.d/rankrun.fish",
    ];
    for ((_, name), home) in COMPLETIONS.iter().zip(homes) {
        copy(&dist.stage.join(name), &share.join(home))?;
    }
    make_executable(&data.join("scripts/rankrun"))?;
    let mut command = Command::new(dist.tools.join("python"));
    process::run(
        command
            .args(["-m", "wheel", "pack", "--dest-dir"])
            .arg(&dist.output)
            .arg(&content)
            .env("SOURCE_DATE_EPOCH", source_date()?)
            .stdout(std::io::stderr()),
    )?;
    let name = wheel.file_name().context("a wheel has a name")?;
    Ok(dist.output.join(name))
}

/// Writes the man page and the completions that the binary prints.
fn stage(dist: &Dist) -> Result<()> {
    fs::write(dist.stage.join("rankrun.1"), process::read(Command::new(dist.binary()).arg("man"))?)?;
    for (shell, name) in COMPLETIONS {
        let text = process::read(Command::new(dist.binary()).args(["completions", shell]))?;
        fs::write(dist.stage.join(name), text)?;
    }
    Ok(())
}

pub(super) fn tarball(dist: &Dist) -> Result<PathBuf> {
    let name = format!("rankrun-{VERSION}-{ARCH}-linux");
    let tree = dist.scratch.join("tar").join(&name);
    copy(&dist.binary(), &tree.join("bin/rankrun"))?;
    copy(&dist.stage.join("rankrun.1"), &tree.join("share/man/man1/rankrun.1"))?;
    for (_, file) in COMPLETIONS {
        copy(&dist.stage.join(file), &tree.join("share/completions").join(file))?;
    }
    copy(&workspace::root().join("include/rankrun.h"), &tree.join("include/rankrun.h"))?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&workspace::root().join(file), &tree.join(file))?;
    }
    let tarball = dist.name(".tar.gz");
    process::run(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go=rX"])
            .arg(format!("--mtime=@{}", source_date()?))
            // Without it gzip writes the time of packing into the file.
            .args(["--use-compress-program=gzip -9n", "-cf"])
            .arg(&tarball)
            .arg("-C")
            .arg(dist.scratch.join("tar"))
            .arg(&name),
    )?;
    Ok(tarball)
}

/// What is in it, and where, is in `crates/rankrun/Cargo.toml`.
pub(super) fn debian_package(dist: &Dist) -> Result<PathBuf> {
    let built = dist.scratch.join("deb");
    fs::create_dir_all(&built)?;
    process::run(
        workspace::cargo()
            .current_dir(workspace::root())
            .args(["deb", "--quiet", "--locked", "--package", "rankrun", "--no-build", "--no-strip", "--output"])
            .arg(&built)
            .env("PATH", path_with(&cargo_deb()?)?)
            .env("SOURCE_DATE_EPOCH", source_date()?),
    )?;
    let package = only_file(&built)?;
    let name = package.file_name().context("a package has a name")?;
    let target = dist.output.join(name);
    fs::rename(&package, &target)?;
    Ok(target)
}

/// Writes `SHA256SUMS`, which `sha256sum --check` reads.
pub(super) fn checksums(dist: &Dist, files: &[PathBuf]) -> Result<()> {
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = process::read(Command::new("sha256sum").current_dir(&dist.output).args(names))?;
    fs::write(dist.output.join("SHA256SUMS"), sums).context("cannot write SHA256SUMS")
}

/// The PATH with a directory in front of it.
fn path_with(directory: &Path) -> Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(std::iter::once(directory.to_owned()).chain(std::env::split_paths(&path)))?)
}

fn only_file(directory: &Path) -> Result<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        files.push(entry?.path());
    }
    match files.as_slice() {
        [file] => Ok(file.clone()),
        _ => bail!("{} holds {} files, where one was expected", directory.display(), files.len()),
    }
}

fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot chmod {}", file.display()))
}
