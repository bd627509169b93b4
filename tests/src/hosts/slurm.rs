//! A real Slurm over the hosts of a bench: `slurmctld` on the front, `slurmd` and `munged` on every node.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::host::Host;
use super::setup::find_program;
use super::{BOUND, Hosts, Plan};
use crate::skip::skip;
use crate::time::wait_until;

/// The programs of Slurm, and the Debian packages that bring them.
const PROGRAMS: [(&str, &str); 4] =
    [("slurmctld", "slurm-wlm"), ("slurmd", "slurm-wlm"), ("srun", "slurm-wlm"), ("munged", "munge")];

/// Slurm's usual port of the controller: the front has a network of its own.
const CONTROLLER_PORT: u16 = 6817;

/// The socket at which `munged` serves a host. Its /run is the host's own.
const MUNGE_SOCKET: &str = "/run/munge/munge.socket.2";

/// Hosts with Slurm. Everything ends when this is dropped.
#[derive(Debug)]
pub struct Slurm {
    hosts: Hosts,
    daemons: Vec<Child>,
}

impl Slurm {
    /// Slurm with so many nodes `node0`, `node1` ... of 4 CPUs each, all idle, or `None` after the calling test has been noted as skipped.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn up(nodes: usize) -> Option<Slurm> {
        Slurm::of(Plan::new(nodes))
    }

    /// The same over hosts of another plan.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn of(mut plan: Plan) -> Option<Slurm> {
        let lacking = PROGRAMS.iter().find(|(name, _)| find_program(name).is_none());
        if let Some((name, package)) = lacking {
            skip(&format!("{name} is missing; cargo xtask test installs Debian's package {package} as root"));
            return None;
        }
        plan.slurm = true;
        let mut slurm = Slurm { hosts: plan.up()?, daemons: Vec::new() };
        slurm.start();
        Some(slurm)
    }

    fn start(&mut self) {
        for host in self.hosts.all() {
            let key = self.hosts.directory().join("munge.key");
            let mut munged = daemon(host, "munged");
            munged.args(["--foreground", "--force", "--num-threads=2", "--pid-file=/run/munge/munged.pid"]);
            munged.args(["--log-file=/var/log/munged.log", "--seed-file=/run/munge/seed"]);
            munged.arg(format!("--key-file={}", key.display())).arg(format!("--socket={MUNGE_SOCKET}"));
            self.daemons.push(host.spawn_daemon(munged));
        }
        let sockets = || self.hosts.all().all(|host| host.file(MUNGE_SOCKET).exists()).then_some(());
        assert!(wait_until(BOUND, sockets).is_some(), "munged does not come up");
        let front = self.hosts.front();
        let mut slurmctld = daemon(front, "slurmctld");
        slurmctld.args(["-D", "-i"]);
        self.daemons.push(front.spawn_daemon(slurmctld));
        let listens = wait_until(BOUND, || front.listens_on(CONTROLLER_PORT).then_some(()));
        assert!(listens.is_some(), "slurmctld does not listen: {}", log(front, "slurmctld"));
        for node in self.hosts.nodes() {
            let mut slurmd = daemon(node, "slurmd");
            slurmd.arg("-D");
            self.daemons.push(node.spawn_daemon(slurmd));
        }
        assert!(self.wait_for_idle(BOUND), "the nodes do not register: {}", log(front, "slurmctld"));
        // Among them is one that slurmctld starts.
        self.hosts.all().for_each(Host::adopt_all);
    }

    /// The hosts. The front is where a user logs in; what jobs have is what the nodes see.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Runs a line of shell on the front: `sbatch job.sh`.
    ///
    /// # Panics
    /// If there is no shell.
    pub fn run(&self, line: &str) -> Output {
        self.hosts.front().run(line)
    }

    /// Waits until every node is idle: no job runs, and none is being cleaned up. False if that is not so within `bound`.
    pub fn wait_for_idle(&self, bound: Duration) -> bool {
        let idle = || {
            let output = self.run("sinfo --noheader --format=%T");
            let states = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.success() && states.trim() == "idle").then_some(())
        };
        wait_until(bound, idle).is_some()
    }

    /// What the daemons have logged, for the message of a failing test.
    pub fn logs(&self) -> String {
        let nodes = self.hosts.nodes().iter().map(|node| format!("{}:\n{}\n", node.name(), log(node, "slurmd")));
        format!("slurmctld:\n{}\n{}", log(self.hosts.front(), "slurmctld"), nodes.collect::<String>())
    }

    /// As [`Hosts::finish`].
    ///
    /// # Panics
    /// As [`Hosts::finish`], and if a job is still there.
    pub fn finish(mut self, bound: Duration) {
        let left = self.hosts.wait_for_nothing(bound);
        let jobs = self.run("squeue --noheader");
        let jobs = String::from_utf8_lossy(&jobs.stdout).into_owned();
        self.end();
        assert!(left.is_empty() && jobs.is_empty(), "left on the hosts: {left:#?}; jobs: {jobs}");
    }

    fn end(&mut self) {
        self.hosts.end();
        for daemon in &mut self.daemons {
            // It has ended with its host.
            let _ = daemon.wait();
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Where stderr is closed there is nobody to tell.
            let _ = writeln!(io::stderr(), "{}", self.logs());
        }
        self.end();
    }
}

fn daemon(host: &Host, name: &str) -> Command {
    let program = find_program(name).expect("it was there before");
    let mut command = host.command(program);
    // What it writes to stderr is in its log too.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn log(host: &Host, name: &str) -> String {
    let text = fs::read_to_string(host.file(format!("/var/log/{name}.log"))).unwrap_or_default();
    let from = text.len().saturating_sub(4000);
    text.get(from..).unwrap_or_default().to_owned()
}

/// Writes what Slurm is configured with, before the hosts take their files from there.
pub(super) fn write_files(directory: &Path, nodes: usize) {
    let mut key = [0; 128];
    let count = rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty());
    assert_eq!(count, Ok(key.len()), "a key needs random bytes");
    let path = directory.join("munge.key");
    fs::write(&path, key).expect("the directory of the bench is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the key is ours");
    let slurm = directory.join("etc/slurm");
    fs::create_dir(&slurm).expect("the directory of the bench is ours");
    fs::write(slurm.join("slurm.conf"), configuration(nodes)).expect("the directory of the bench is ours");
}

/// `slurm.conf`. Its times are as short as they may be: tests wait for them. A requeued job waits until its credential is void.
fn configuration(nodes: usize) -> String {
    let last = nodes.saturating_sub(1);
    format!(
        "ClusterName=bench\n\
         SlurmctldHost=front\n\
         SlurmctldPort={CONTROLLER_PORT}\n\
         SlurmUser=root\n\
         SlurmdUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={MUNGE_SOCKET},cred_expire=5\n\
         StateSaveLocation=/run/slurm-state\n\
         SlurmdSpoolDir=/run/slurm-spool\n\
         SlurmctldPidFile=/run/slurmctld.pid\n\
         SlurmdPidFile=/run/slurmd.pid\n\
         SlurmctldLogFile=/var/log/slurmctld.log\n\
         SlurmdLogFile=/var/log/slurmd.log\n\
         SlurmdParameters=config_overrides\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         MpiDefault=none\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU\n\
         SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1\n\
         ReturnToService=2\n\
         KillWait=2\n\
         SlurmdTimeout=5\n\
         NodeName=node[0-{last}] CPUs=4 RealMemory=1000 State=UNKNOWN\n\
         PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    )
}
