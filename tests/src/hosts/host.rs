//! One host.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use super::network;
use super::relay::Relay;
use crate::helper::helper;
use crate::leftovers;
use crate::processes::{self, Process};
use crate::time::wait_until;

/// Until a process of a job is there, when things go well.
const APPEARS: Duration = Duration::from_secs(120);

/// The last byte of the front's address.
pub(super) const FRONT: u8 = 250;

/// The address of a host: the front is number 0, `node0` is number 1.
pub(super) fn address(index: usize) -> Ipv4Addr {
    let last = if index == 0 { FRONT } else { u8::try_from(index).unwrap_or(u8::MAX) };
    Ipv4Addr::new(10, 99, 0, last)
}

/// The same in a bench of IPv6.
pub(super) fn address_6(index: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, u16::from(address(index).octets()[3]))
}

/// How a host loses its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The cable is pulled: the other end of the host's link goes down. Connections live on and hear nothing.
    Link,
    /// Everything is dropped on its way, with the links up: a partition, or a host without power.
    Silent,
    /// Every TCP packet, in or out, is answered by a reset: a firewall that closes connections. A side that sends nothing hears nothing.
    Reset,
}

/// A host with namespaces, an address, a name and files of its own.
#[derive(Debug)]
pub struct Host {
    pub(super) index: usize,
    name: String,
    /// The process that holds the namespaces.
    pub(super) holder: i32,
    /// The process that holds the bridge.
    pub(super) switch: i32,
    directory: PathBuf,
    cgroup: Option<PathBuf>,
    relay: Mutex<Option<Relay>>,
    /// Processes that belong to the bench, beside the holder and `sshd`.
    daemons: Mutex<Vec<i32>>,
}

impl Host {
    pub(super) fn new(
        index: usize,
        name: &str,
        holder: i32,
        switch: i32,
        directory: &Path,
        cgroup: Option<PathBuf>,
    ) -> Host {
        let (name, directory) = (name.to_owned(), directory.to_owned());
        Host { index, name, holder, switch, directory, cgroup, relay: Mutex::new(None), daemons: Mutex::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> Ipv4Addr {
        address(self.index)
    }

    /// Where a test sees a file of this host, such as one in `/tmp` or in its home.
    pub fn file(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        Path::new("/proc").join(self.holder.to_string()).join("root").join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The home of root on this host, as the host sees it.
    pub fn home(&self) -> &Path {
        Path::new(super::setup::HOME)
    }

    /// A directory that all hosts see under the same path, for the files of jobs.
    pub fn jobs_directory(&self) -> PathBuf {
        self.directory.join("jobs")
    }

    /// The words before a command that make it one of this host. The pid of the command is that of the first word.
    pub fn entrance(&self) -> Vec<OsString> {
        let cgroup = self.cgroup.as_deref().map_or(OsStr::new("-"), Path::as_os_str);
        vec![helper("hosts").into(), "enter".into(), self.holder.to_string().into(), cgroup.to_owned()]
    }

    /// A command that runs on this host without ssh: what an operator types at its console.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let words = self.entrance();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// Starts a command of this host that belongs to the bench.
    pub(super) fn spawn_daemon(&self, mut command: Command) -> Child {
        let child = command.spawn().expect("a daemon can be started");
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner).push(child.id().cast_signed());
        child
    }

    /// Takes every process that there is now as one of the bench.
    pub(super) fn adopt_all(&self) {
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner).extend(self.pids());
    }

    /// Runs a line of shell on this host, at its console.
    ///
    /// # Panics
    /// If there is no shell.
    pub fn run(&self, line: &str) -> Output {
        self.command("sh").args(["-c", line]).output().expect("a host has a shell")
    }

    /// What `sshd` has logged.
    pub fn sshd_log(&self) -> String {
        fs::read_to_string(self.directory.join(&self.name).join("sshd.log")).unwrap_or_default()
    }

    /// Whether a process of this host listens on a TCP port.
    pub fn listens_on(&self, port: u16) -> bool {
        let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{}/net/{table}", self.holder)));
        let listening = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // Local address and state, where 0A is LISTEN: proc(5).
            fields.len() > 3 && fields[3] == "0A" && fields[1].ends_with(&format!(":{port:04X}"))
        };
        tables.iter().flatten().any(|table| table.lines().any(listening))
    }

    /// Every process on this host.
    pub fn pids(&self) -> Vec<i32> {
        in_network_of(self.holder)
    }

    /// The processes on this host that do not belong to the bench: those of jobs, and sessions of `sshd`.
    pub fn survivors(&self) -> Vec<Process> {
        let mut own = self.daemons.lock().unwrap_or_else(PoisonError::into_inner).clone();
        own.push(self.holder);
        own.extend(self.sshd());
        let others = self.pids().into_iter().filter(|pid| !own.contains(pid));
        others.filter_map(processes::process).collect()
    }

    /// The `sshd` that listens. Its children are sessions.
    pub fn sshd(&self) -> Option<i32> {
        fs::read_to_string(self.directory.join(&self.name).join("sshd.pid")).ok()?.trim().parse().ok()
    }

    /// What jobs have left here: processes, shared memory, their directories and cgroups.
    pub fn left(&self) -> Vec<String> {
        let mut left: Vec<String> =
            self.survivors().iter().map(|process| format!("{}: {process:?}", self.name)).collect();
        let files =
            leftovers::below(&self.file("/")).into_iter().chain(self.cgroup.iter().flat_map(|own| directories(own)));
        left.extend(files.map(|path| format!("{}: {}", self.name, path.display())));
        left
    }

    /// Kills the relay of a job on this host, which is waited for, and with it what that holds.
    ///
    /// # Panics
    /// If there is none.
    pub fn kill_relay(&self) {
        let is_relay = |process: &Process| process.name == "rr-relay";
        let relay = wait_until(APPEARS, || self.survivors().into_iter().find(is_relay));
        processes::send(relay.expect("a relay").pid, Signal::KILL);
    }

    /// Ends what only the bench can end: a session of sshd that was stopped, or whose peer is gone without a word.
    pub fn end_sessions(&self) {
        for session in self.survivors().into_iter().filter(|it| it.name.starts_with("sshd")) {
            processes::send(session.pid, Signal::KILL);
        }
    }

    /// Cuts the host off.
    ///
    /// # Panics
    /// If `ip` or `nft` fail.
    pub fn cut(&self, how: Cut) {
        network::cut(self, how);
    }

    /// Undoes every [`cut`](Host::cut).
    ///
    /// # Panics
    /// If `ip` or `nft` fail.
    pub fn heal(&self) {
        network::heal(self);
    }

    /// Limits the host's link to so many bits per second, each way.
    ///
    /// # Panics
    /// If `tc` fails.
    pub fn rate(&self, bits: u64) {
        network::rate(self, bits);
    }

    /// Delays what TCP connections carry from and to other hosts by `delay` each way, without any limit of the rate. Connections that
    /// are there already are not delayed, but those that are follow each change.
    ///
    /// They pass through a relay on this host: to `sshd` it looks as if the host connected to itself, and who connects to a port on which
    /// nobody listens gets a connection that is closed at once.
    ///
    /// # Panics
    /// If `nft` fails, or the relay cannot be started.
    pub fn delay(&self, delay: Duration) {
        let mut relay = self.relay.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *relay {
            Some(relay) => relay.set(delay),
            None => {
                let started = Relay::start(self, delay);
                self.daemons.lock().unwrap_or_else(PoisonError::into_inner).push(started.pid());
                network::redirect(self, started.port());
                *relay = Some(started);
            }
        }
    }

    /// Stops every process of the host, as a hypervisor does: by the freezer of its cgroup, else by SIGSTOP.
    ///
    /// # Panics
    /// If the freezer does not obey.
    pub fn freeze(&self) {
        self.set_frozen(true);
    }

    /// Lets all processes of the host go on.
    ///
    /// # Panics
    /// If the freezer does not obey.
    pub fn thaw(&self) {
        self.set_frozen(false);
    }

    fn set_frozen(&self, frozen: bool) {
        if let Some(cgroup) = &self.cgroup {
            let word = if frozen { "1" } else { "0" };
            fs::write(cgroup.join("cgroup.freeze"), word).expect("the cgroup is ours");
            let reached = crate::time::wait_until(Duration::from_secs(10), || {
                let events = fs::read_to_string(cgroup.join("cgroup.events")).ok()?;
                events.contains(&format!("frozen {word}")).then_some(())
            });
            assert!(reached.is_some(), "{} does not freeze or thaw", self.name);
            return;
        }
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        for pid in self.pids().into_iter().filter(|&pid| pid != self.holder) {
            processes::send(pid, signal);
        }
    }
}

/// The processes in the network namespace of one, itself among them.
pub(super) fn in_network_of(holder: i32) -> Vec<i32> {
    let network = |pid: i32| fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(|meta| meta.ino());
    let Some(own) = network(holder) else { return Vec::new() };
    processes::all().into_iter().map(|process| process.pid).filter(|&pid| network(pid) == Some(own)).collect()
}

/// The directories in a directory.
fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
