//! Installs each file of a release in a fresh place, and runs jobs there.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{COMPLETIONS, Dist, VERSION, manifests};
use crate::{process, workspace};

/// What an environment with the wheel must be able to do. A function of `__main__` would not need the installed package.
const LAUNCH: &str = "\
import os, rankrun

def square(x):
    assert rankrun.world_size() == 2
    return x * 10 + rankrun.rank()

if __name__ == '__main__':
    assert rankrun.launch(square, 4, nprocs=2) == [40, 41]
    assert rankrun.__file__.startswith(os.environ['VIRTUAL_ENV']), rankrun.__file__
";

/// Installs a package with dpkg where only this shell and its children see it, uses it, and removes it. The directories that
/// dpkg writes to are overlays; they are gone with the last process of the mount namespace.
const DEBIAN_CHECK: &str = r#"
scratch=$1 package=$2
mount -t tmpfs tmpfs "$scratch"
for tree in usr var etc; do
  mkdir "$scratch/$tree.upper" "$scratch/$tree.work"
  mount -t overlay overlay -o "lowerdir=/$tree,upperdir=$scratch/$tree.upper,workdir=$scratch/$tree.work" "/$tree"
done
# Images of containers leave out manuals.
dpkg --path-include='/usr/share/*' --install "$package"
dpkg --verify rankrun
cd /
[ "$(command -v rankrun)" = /usr/bin/rankrun ]
cmp /usr/bin/rankrun "$3/rankrun"
cmp /usr/share/bash-completion/completions/rankrun "$3/rankrun.bash"
cmp /usr/share/zsh/vendor-completions/_rankrun "$3/_rankrun"
cmp /usr/share/fish/vendor_completions.d/rankrun.fish "$3/rankrun.fish"
[ "$(rankrun -n 2 sh -c 'echo "rank $RANKRUN_RANK of $RANKRUN_WORLD_SIZE"' | sort | tr '\n' ,)" = 'rank 0 of 2,rank 1 of 2,' ]
man rankrun | grep -q -- --nproc
bash -c '. /usr/share/bash-completion/completions/rankrun && complete -p rankrun' >/dev/null
dpkg --purge rankrun
! [ -e /usr/bin/rankrun ] && ! [ -e /usr/share/doc/rankrun ]
"#;

pub(super) fn check(dist: &Dist, files: &[PathBuf; 3]) -> Result<()> {
    let [wheel, tarball, package] = files;
    let checks: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("the checksums are those of the files", &|| checksums(dist)),
        ("the man page has no fault", &|| man_page(&dist.stage.join("rankrun.1"))),
        ("the wheel runs jobs in a fresh environment", &|| check_wheel(dist, wheel)),
        ("the tarball runs jobs where it is unpacked", &|| check_tarball(dist, tarball)),
        ("the Debian package is installed, runs jobs, and is removed", &|| check_package(dist, package)),
        ("cargo publish accepts the crates, and what it packs compiles", &|| manifests::dry_run(&dist.scratch)),
    ];
    for (name, check) in checks {
        check().with_context(|| format!("check failed: {name}"))?;
        println!("ok: {name}");
    }
    println!("{} passed, 0 failed", checks.len());
    Ok(())
}

fn checksums(dist: &Dist) -> Result<()> {
    process::run(Command::new("sha256sum").current_dir(&dist.output).args([
        "--check",
        "--strict",
        "--quiet",
        "SHA256SUMS",
    ]))
}

/// groff warns about text that it cannot show.
fn man_page(file: &Path) -> Result<()> {
    let output = Command::new("man")
        .args(["--warnings", "--local-file"])
        .arg(file)
        .env("LC_ALL", "C.UTF-8")
        .env("MANWIDTH", "80")
        .output()
        .context("cannot start man")?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && complaints.is_empty(), "man: {}: {complaints}", output.status);
    for part in ["NAME", "--nproc", "EXIT STATUS"] {
        ensure!(String::from_utf8_lossy(&output.stdout).contains(part), "the page does not show {part}");
    }
    Ok(())
}

fn check_wheel(dist: &Dist, wheel: &Path) -> Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    // What an index accepts: not `linux_x86_64`.
    ensure!(name.contains(&format!("manylinux2014_{ARCH}")), "{name}: no wheel for manylinux2014");
    let venv = dist.scratch.join("venv");
    process::run(Command::new(dist.tools.join("python")).args(["-m", "venv"]).arg(&venv))?;
    let python = venv.join("bin/python");
    let options = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"];
    process::run(Command::new(&python).args(options).arg(wheel))?;
    run_jobs(dist, &venv.join("bin/rankrun"))?;
    let script = dist.scratch.join("launch.py");
    fs::write(&script, LAUNCH)?;
    process::run(fresh(dist, &python).arg(&script).env("VIRTUAL_ENV", &venv))?;
    process::run(fresh(dist, &python).args(["-m", "rankrun", "-n", "2", "true"]))?;
    let share = venv.join("share");
    same(&share.join("man/man1/rankrun.1"), &dist.stage.join("rankrun.1"))?;
    let homes = [
        "bash-completion/completions/rankrun",
        "zsh/site-functions/_rankrun",
        "fish/vendor_completions.d/rankrun.fish",
    ];
    for ((_, name), home) in COMPLETIONS.iter().zip(homes) {
        same(&share.join(home), &dist.stage.join(name))?;
    }
    Ok(())
}

fn check_tarball(dist: &Dist, tarball: &Path) -> Result<()> {
    let place = dist.scratch.join("unpacked");
    fs::create_dir_all(&place)?;
    process::run(Command::new("tar").arg("-xzf").arg(tarball).arg("-C").arg(&place))?;
    let tree = place.join(format!("rankrun-{VERSION}-{ARCH}-linux"));
    same(&tree.join("bin/rankrun"), &dist.binary())?;
    run_jobs(dist, &tree.join("bin/rankrun"))?;
    man_page(&tree.join("share/man/man1/rankrun.1"))?;
    for (_, name) in COMPLETIONS {
        same(&tree.join("share/completions").join(name), &dist.stage.join(name))?;
    }
    for name in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md", "include/rankrun.h"] {
        same(&tree.join(name), &workspace::root().join(name))?;
    }
    Ok(())
}

fn check_package(dist: &Dist, package: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        // Only root may mount; the content can be looked at all the same.
        println!("dpkg --install is not checked: that needs root");
        let place = dist.scratch.join("extracted");
        process::run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&place))?;
        same(&place.join("usr/bin/rankrun"), &dist.binary())?;
        return run_jobs(dist, &place.join("usr/bin/rankrun"));
    }
    let mount_point = dist.scratch.join("overlays");
    fs::create_dir_all(&mount_point)?;
    let mut command = fresh(dist, Path::new("unshare"));
    command.args(["--mount", "--propagation", "private", "bash", "-euo", "pipefail", "-c", DEBIAN_CHECK, "check"]);
    let output = command.arg(&mount_point).arg(package).arg(&dist.stage).output().context("cannot start unshare")?;
    if !output.status.success() {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{}\n{stdout}{stderr}", output.status);
    }
    Ok(())
}

/// A job that succeeds and one that fails.
fn run_jobs(dist: &Dist, binary: &Path) -> Result<()> {
    let script = r#"echo "rank $RANKRUN_RANK of $RANKRUN_WORLD_SIZE""#;
    let text = process::read(fresh(dist, binary).args(["-n", "2", "sh", "-c", script]))?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    ensure!(lines == ["rank 0 of 2", "rank 1 of 2"], "the job wrote {text:?}");
    let output =
        fresh(dist, binary).args(["-n", "2", "sh", "-c", "[ $RANKRUN_RANK = 0 ] || exit 3; sleep 60"]).output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(3) && report.contains("rank 1 failed"), "{}: {report}", output.status);
    Ok(())
}

/// A command with a minimal environment, so that nothing of the developer's is used.
fn fresh(dist: &Dist, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", &dist.scratch)
        .env("LC_ALL", "C.UTF-8");
    command
}

fn same(one: &Path, other: &Path) -> Result<()> {
    let read = |file: &Path| fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    ensure!(read(one)? == read(other)?, "{} differs from {}", one.display(), other.display());
    Ok(())
}
