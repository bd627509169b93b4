//! The processes that hold namespaces.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, mount, mount_bind, mount_move};
use rustix::process::Signal;

use super::host::in_network_of;
use super::setup::{self, HOME};
use crate::processes;
use crate::time::wait_until;

/// How long what has been killed may take to end.
const LAST: Duration = Duration::from_secs(10);

/// The machine's files that are another one on each host, and those that all hosts share.
const OWN: [&str; 1] = ["hostname"];
const COMMON: [&str; 5] = ["hosts", "nsswitch.conf", "resolv.conf", "passwd", "shadow"];

/// Makes a host of new namespaces that we are already in, reports its pid, and holds it until stdin ends.
///
/// # Errors
/// If a mount or `sshd` cannot be had.
pub fn hold(directory: &Path, name: &str, cgroup: &str) -> io::Result<()> {
    rustix::system::sethostname(name.as_bytes())?;
    mount_own(directory, name)?;
    let own = directory.join(name);
    if own.join("sshd_config").exists() {
        start_sshd(&own, cgroup)?;
    }
    stay(name)
}

/// Holds a network namespace for the bridge until stdin ends.
///
/// # Errors
/// If nobody reads our report.
pub fn switch() -> io::Result<()> {
    stay("switch")
}

/// Reports that this host is there, waits for the end of stdin, and kills every process on the host.
fn stay(name: &str) -> io::Result<()> {
    let own = std::process::id().cast_signed();
    let mut out = io::stdout().lock();
    out.write_all(format!("{name} {own}\n").as_bytes())?;
    out.flush()?;
    drop(out);
    super::close_stdout()?;
    let mut nothing = Vec::new();
    io::stdin().lock().read_to_end(&mut nothing)?;
    let gone = wait_until(LAST, || {
        let others: Vec<i32> = in_network_of(own).into_iter().filter(|&pid| pid != own).collect();
        for &pid in &others {
            processes::send(pid, Signal::KILL);
        }
        others.is_empty().then_some(())
    });
    gone.ok_or_else(|| io::Error::other(format!("{name}: processes cannot be killed")))
}

/// Gives the host file systems of its own where machines have them, and its own view of some files.
fn mount_own(directory: &Path, name: &str) -> io::Result<()> {
    let own = directory.join(name);
    for place in ["/dev/shm", "/run", "/var/log"] {
        mount_tmpfs(Path::new(place))?;
    }
    for place in ["/run/sshd", "/run/lock", "/run/munge", HOME] {
        fs::create_dir(place)?;
    }
    fs::set_permissions(HOME, fs::Permissions::from_mode(0o700))?;
    let shared_home = directory.join("home");
    if shared_home.exists() {
        mount_bind(&shared_home, HOME)?;
    }
    let ssh = Path::new(HOME).join(".ssh");
    fs::create_dir_all(&ssh)?;
    // With a shared home every host writes the same.
    fs::copy(super::ssh::config(directory), ssh.join("config"))?;
    let sources = OWN.map(|file| (own.join(file), file)).into_iter();
    for (common, file) in sources.chain(COMMON.map(|file| (directory.join("etc").join(file), file))) {
        let source = Some(own.join(file)).filter(|own| own.exists()).unwrap_or(common);
        let target = Path::new("/etc").join(file);
        // Not every machine has all of them.
        if target.exists() {
            mount_bind(&source, &target)?;
        }
    }
    // Debian's Slurm looks for its configuration in this place.
    let slurm = directory.join("etc/slurm");
    if slurm.exists() {
        mount_bind(&slurm, "/etc/slurm")?;
    }
    // The new /tmp is complete before it hides the old one, from which parts of it come.
    let stage = own.join("stage");
    mount_tmpfs(&stage)?;
    for path in fs::read_to_string(directory.join("visible"))?.lines().map(PathBuf::from) {
        if let Ok(below) = path.strip_prefix("/tmp") {
            let target = stage.join(below);
            fs::create_dir_all(&target)?;
            mount_bind(&path, &target)?;
        }
    }
    mount_move(&stage, "/tmp")?;
    Ok(())
}

fn mount_tmpfs(place: &Path) -> io::Result<()> {
    mount("tmpfs", place, "tmpfs", MountFlags::empty(), None).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("cannot mount a tmpfs on {}: {error}", place.display()))
    })
}

fn start_sshd(own: &Path, cgroup: &str) -> io::Result<()> {
    let sshd = setup::find_program("sshd").ok_or_else(|| io::Error::other("there is no sshd"))?;
    let log = File::options().append(true).create(true).open(own.join("sshd.log"))?;
    // Our own namespaces, in the cgroup of the host: we are not frozen with it.
    let mut command = Command::new(super::own_program()?);
    command.arg("enter").arg(std::process::id().to_string()).arg(cgroup);
    command.arg(sshd).args(["-D", "-e", "-f"]).arg(own.join("sshd_config"));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // The keeper reaps it, if it outlives us.
    drop(command.spawn()?);
    Ok(())
}
