//! Hosts on one machine: real `sshd`s that real links join, of which each can be cut, slowed down, delayed and frozen.
//!
//! Each host has namespaces of its own for the network, for mounts, for the host name and for System V IPC. So it has its own address
//! and name, its own `/tmp`, `/dev/shm`, `/run` and home, and where we may make cgroups a cgroup of its own. All other files are those
//! of the machine, as on a cluster with a shared file system. All hosts have one namespace of pids, so that a test sees every process.
//! The `front` is a host without `sshd`, on which a test runs rankrun ([`Job::at`](crate::Job::at)).
//!
//! ```text
//! the test
//!   └─ hosts keep          the keeper: a subreaper, lives as long as its stdin is open
//!        ├─ hosts switch    holds the network namespace with the bridge
//!        ├─ hosts hold      holds the namespaces of `front`
//!        ├─ hosts hold      holds those of `node0`
//!        │    └─ sshd
//!        └─ ...
//! ```
//!
//! No namespace has a name, and every mount is in the namespace of its host: all of it is gone when the processes are. These end
//! when the test closes the keeper's stdin or is killed, and so do all other processes on the hosts.

mod enter;
mod holder;
mod host;
mod keeper;
mod network;
mod relay;
mod setup;
mod slurm;
mod ssh;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

pub use enter::enter;
pub use holder::{hold, switch};
pub use host::{Cut, Host};
pub use keeper::keep;
pub use relay::relay;
pub use slurm::Slurm;

use crate::environment::scratch;
use crate::helper::helper;
use crate::leftovers;
use crate::skip::{skip, slowness};
use crate::time::wait_until;

/// How long a host may take to come up, and a bench to go.
const BOUND: Duration = Duration::from_secs(30);

/// What a bench of hosts shall be like.
#[derive(Clone, Debug)]
pub struct Plan {
    nodes: usize,
    shell: Option<String>,
    sshd: Vec<String>,
    shared_home: bool,
    slurm: bool,
    names: Names,
    has_second_network: bool,
}

/// What `/etc/hosts` says of the hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Names {
    Ipv4,
    /// Hosts have no other addresses.
    Ipv6,
    /// To each host its own name is 127.0.1.1, as Debian's installer writes it.
    OwnIsLoopback,
}

impl Plan {
    /// `nodes` hosts `node0`, `node1` ... with `sshd`, and one that is called `front`.
    ///
    /// # Panics
    /// If there are more than the network of the bench has addresses for.
    pub fn new(nodes: usize) -> Plan {
        assert!(nodes < usize::from(host::FRONT), "the network of the bench is a /24");
        Plan {
            nodes,
            shell: None,
            sshd: Vec::new(),
            shared_home: false,
            slurm: false,
            names: Names::Ipv4,
            has_second_network: false,
        }
    }

    /// The login shell on every host; that of the machine's root if nothing is said.
    #[must_use]
    pub fn shell(mut self, path: &str) -> Plan {
        self.shell = Some(path.to_owned());
        self
    }

    /// One more line of every `sshd_config`, which comes before the others: `MaxStartups 1`.
    #[must_use]
    pub fn sshd(mut self, line: &str) -> Plan {
        self.sshd.push(line.to_owned());
        self
    }

    /// To each host its own name is 127.0.1.1, as Debian's installer writes it.
    #[must_use]
    pub fn own_name_is_loopback(mut self) -> Plan {
        self.names = Names::OwnIsLoopback;
        self
    }

    /// Hosts have addresses of IPv6 alone.
    #[must_use]
    pub fn ipv6(mut self) -> Plan {
        self.names = Names::Ipv6;
        self.sshd.push("AddressFamily any".to_owned());
        self
    }

    /// A second network: `eth1` with the addresses 10.98.0.N.
    #[must_use]
    pub fn second_network(mut self) -> Plan {
        self.has_second_network = true;
        self
    }

    /// One home directory for all hosts, as on NFS.
    #[must_use]
    pub fn shared_home(mut self) -> Plan {
        self.shared_home = true;
        self
    }

    /// Brings the hosts up, or returns `None` after the calling test has been noted as skipped.
    ///
    /// # Panics
    /// If they do not come up.
    pub fn up(&self) -> Option<Hosts> {
        if let Some(reason) = setup::missing() {
            skip(&reason);
            return None;
        }
        Some(Hosts::start(self))
    }
}

/// Hosts that are up. They end when this is dropped.
#[derive(Debug)]
pub struct Hosts {
    front: Host,
    nodes: Vec<Host>,
    directory: PathBuf,
    keeper: Child,
    /// Closed to end the bench.
    alive: Option<ChildStdin>,
}

impl Hosts {
    /// `nodes` hosts with nothing special, or `None` after the calling test has been noted as skipped.
    ///
    /// # Panics
    /// If they do not come up.
    pub fn up(nodes: usize) -> Option<Hosts> {
        Plan::new(nodes).up()
    }

    fn start(plan: &Plan) -> Hosts {
        let directory = scratch();
        let names = setup::names(plan.nodes);
        setup::write_files(&directory, &names, plan);
        ssh::write_keys(&directory, &names);
        let cgroups = make_cgroups(&directory, &names);
        let mut keeper = Command::new(helper("hosts"));
        keeper.arg("keep").arg(&directory).arg(cgroups.as_deref().unwrap_or(Path::new("-"))).args(&names);
        let mut keeper =
            keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the keeper can be started");
        let alive = keeper.stdin.take();
        let reports = BufReader::new(keeper.stdout.take().expect("it was asked for"));
        // The holders report in any order, and the stream ends when each has reported or failed.
        let mut pids = vec![0; names.len()];
        let mut switch = 0;
        for line in reports.lines().map_while(Result::ok) {
            let (name, pid) = line.split_once(' ').unwrap_or_default();
            let pid = pid.parse().unwrap_or_default();
            match names.iter().position(|known| known == name) {
                Some(index) => pids[index] = pid,
                None => switch = pid,
            }
        }
        assert!(switch != 0 && !pids.contains(&0), "the hosts did not come up; see {}", directory.display());
        let host = |(index, name): (usize, &String)| {
            let cgroup = cgroups.as_ref().map(|base| base.join(name));
            Host::new(index, name, pids[index], switch, &directory, cgroup)
        };
        let mut hosts: Vec<Host> = names.iter().enumerate().map(host).collect();
        network::join(switch, &hosts, plan);
        let front = hosts.remove(0);
        let hosts = Hosts { front, nodes: hosts, directory, keeper, alive };
        for node in &hosts.nodes {
            let up = wait_until(BOUND, || node.listens_on(ssh::PORT).then_some(()));
            assert!(up.is_some(), "sshd of {} does not listen: {}", node.name(), node.sshd_log());
        }
        hosts
    }

    /// The host without `sshd`, for rankrun itself.
    pub fn front(&self) -> &Host {
        &self.front
    }

    /// The host `nodeN`.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn node(&self, number: usize) -> &Host {
        &self.nodes[number]
    }

    /// All hosts with `sshd`.
    pub fn nodes(&self) -> &[Host] {
        &self.nodes
    }

    /// The names of all nodes with a comma between them, as `--hosts` takes them.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.nodes.iter().map(Host::name).collect();
        names.join(",")
    }

    /// A directory that all hosts see under the same path. It goes with the bench.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path of a secret for jobs whose nodes join. All hosts see it.
    pub fn secret(&self) -> String {
        let path = self.directory.join("secret");
        if !path.exists() {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(&path);
            let text = format!("{}A=\n", "Q".repeat(42));
            file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes())).expect("the directory is ours");
        }
        path.display().to_string()
    }

    /// A configuration for `ssh -F` that leads to every node. It also is `~/.ssh/config` on each host.
    pub fn ssh_config(&self) -> PathBuf {
        ssh::config(&self.directory)
    }

    /// Proves that no job has left anything on any host, and ends the bench.
    ///
    /// # Panics
    /// If processes, shared memory, directories of jobs or their cgroups are still there after `bound` (longer on a loaded machine).
    pub fn finish(self, bound: Duration) {
        let left = self.wait_for_nothing(bound);
        assert!(left.is_empty(), "left on the hosts: {left:#?}");
    }

    /// What is left on the hosts when nothing is, or after `bound`.
    fn wait_for_nothing(&self, bound: Duration) -> Vec<String> {
        let left = || -> Vec<String> { self.all().flat_map(Host::left).collect() };
        match wait_until(bound * slowness(), || left().is_empty().then_some(())) {
            Some(()) => Vec::new(),
            None => left(),
        }
    }

    /// Ends every process on the hosts, and the bench.
    fn end(&mut self) {
        self.alive = None;
        let pid = self.keeper.id().cast_signed();
        // A keeper that hangs is killed, and with it go the holders, since their stdin ends too.
        if wait_until(BOUND, || self.keeper.try_wait().ok().flatten()).is_none() {
            crate::processes::send(pid, rustix::process::Signal::KILL);
            let _ = self.keeper.wait();
        }
    }

    fn all(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.front).chain(&self.nodes)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.end();
    }
}

/// A cgroup for each host, below one of the bench's.
fn make_cgroups(directory: &Path, names: &[String]) -> Option<PathBuf> {
    let base = leftovers::own_cgroup()?.join(directory.file_name()?);
    names.iter().try_for_each(|name| fs::create_dir_all(base.join(name))).ok()?;
    Some(base)
}

/// The file of the program that is running. `/proc/self/exe` does not tell once another test has put a fresh copy in its place.
fn own_program() -> io::Result<PathBuf> {
    std::env::args_os().next().map(PathBuf::from).ok_or_else(|| io::Error::other("a program has a name"))
}

/// Gives up our copy of stdout, so that who reads it sees its end when the others have.
fn close_stdout() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}
