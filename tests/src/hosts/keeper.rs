//! `hosts keep`: the parent of all that belongs to a bench.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};

use crate::processes;
use crate::time::{monotonic, pause, wait_until};

/// How long the holders may take to end their hosts.
const ORDERLY: Duration = Duration::from_secs(5);

/// Starts the holders, waits for the end of stdin, and ends everything. `cgroups` is the directory of the hosts' cgroups, or `-`.
///
/// # Errors
/// If a holder cannot be started, or the directory of the bench cannot be removed.
pub fn keep(directory: &Path, cgroups: &str, names: &[String]) -> io::Result<()> {
    // The signals of a terminal, and those that end a test with its process group, are not for us: stdin tells.
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Pid::from_raw(1))?;
    let started = start_holders(directory, cgroups, names);
    super::close_stdout()?;
    let reaper = thread::spawn(reap_all);
    if started.is_ok() {
        let mut nothing = Vec::new();
        io::stdin().lock().read_to_end(&mut nothing)?;
    }
    let result = started.map(drop);
    let since = monotonic();
    while !reaper.is_finished() {
        if result.is_err() || monotonic() - since > ORDERLY {
            for process in processes::descendants(std::process::id().cast_signed()) {
                processes::send(process.pid, Signal::KILL);
            }
        }
        pause(Duration::from_millis(2));
    }
    fs::remove_dir_all(directory)?;
    if cgroups != "-" {
        // A process leaves its cgroup a moment after its namespaces, and not all of them were our descendants.
        let cgroups = Path::new(cgroups);
        let gone = wait_until(ORDERLY, || {
            remove_cgroups(cgroups);
            (!cgroups.exists()).then_some(())
        });
        gone.ok_or_else(|| io::Error::other(format!("{} cannot be removed", cgroups.display())))?;
    }
    result
}

/// The holders' stdins: they stay as long as these are open.
fn start_holders(directory: &Path, cgroups: &str, names: &[String]) -> io::Result<Vec<ChildStdin>> {
    let program = super::own_program()?;
    let mut switch = Command::new("unshare");
    switch.args(["--net", "--"]).arg(&program).arg("switch");
    let mut holders: Vec<Child> = vec![switch.stdin(Stdio::piped()).spawn()?];
    for name in names {
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "--net", "--uts", "--ipc", "--propagation", "private", "--"]);
        holder.arg(&program).arg("hold").arg(directory).arg(name);
        match cgroups {
            "-" => holder.arg("-"),
            base => holder.arg(Path::new(base).join(name)),
        };
        holders.push(holder.stdin(Stdio::piped()).spawn()?);
    }
    Ok(holders.into_iter().filter_map(|holder| holder.stdin).collect())
}

/// Reaps every child, orphans of the hosts among them, until there is none.
fn reap_all() {
    while !matches!(rustix::process::wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {}
}

/// Removes a cgroup and all below it, as far as they are empty.
fn remove_cgroups(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroups(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}
