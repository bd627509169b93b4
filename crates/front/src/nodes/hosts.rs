//! The nodes of a job, and how the front reaches those that are not this machine.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::hosts::Host;
use rankrun_core::job::{Grow, OnFrontLost, Recent};
use serde::{Deserialize, Serialize};

/// The nodes of a job with what is needed to start, reach and watch them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hosts {
    /// The nodes of the rank map, in its order, and then the spares.
    pub targets: Vec<NodeTarget>,
    /// Who named them.
    pub origin: HostsOrigin,
    pub ssh: SshSettings,
    /// Options for the srun that starts the agents of a Slurm allocation.
    pub srun_args: Vec<OsString>,
    /// On how few nodes the job may run (`--nnodes MIN:MAX`); `None`: it needs all.
    pub least: Option<u32>,
    /// How long the next attempt waits for nodes without which it cannot begin.
    pub wait_for_nodes: Duration,
    /// The commands that fence a node that was lost, and that find another in its place. Their last word is the node's name.
    pub fence: Option<Vec<OsString>>,
    pub replace: Option<Vec<OsString>>,
    /// No attempt begins where only the time that has passed says that no rank of the last one is left.
    pub needs_proof: bool,
    /// A node that was lost so often is left out for a time.
    pub exclude_after: Option<Recent>,
    /// When a job that runs on fewer nodes than it could takes in those that have come.
    pub grow: Grow,
    /// How long a node may be silent before it counts as lost.
    pub node_timeout: Duration,
    /// What the agents do when they lose the front.
    pub on_front_lost: OnFrontLost,
    /// How long the ranks go on where this process has ended, since another one may take its place. Filled in by the front.
    pub outlasts_front: Option<Duration>,
    /// The network interface whose address the ranks of other nodes use to reach this node.
    pub interface: Option<String>,
    /// The address that other nodes use to reach this one.
    pub local_addr: Option<IpAddr>,
}

impl Hosts {
    /// Whether guard and agent of a node are children of this process. They would end with it.
    pub fn is_here(&self, target: &NodeTarget) -> bool {
        target.is_local && self.outlasts_front.is_none()
    }
}

/// How long a node may be silent by default.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(60);

/// One node of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeTarget {
    /// The machine's own name if it is this one, else the name or address as the user or the batch system wrote it.
    pub name: String,
    /// The user to log in as, if one was named (`user@host`).
    pub user: Option<String>,
    /// It is the machine that the front runs on.
    pub is_local: bool,
    /// How many ranks it is for; `None` if nobody has said.
    pub slots: Option<u32>,
}

impl NodeTarget {
    /// A host that was named when the job ran.
    pub(crate) fn named(host: Host) -> NodeTarget {
        NodeTarget { name: host.name, user: host.user, is_local: false, slots: host.slots }
    }
}

/// Who named the hosts of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HostsOrigin {
    /// Nobody: the job runs where rankrun was started.
    ThisMachine,
    /// `--hosts` or `--hostfile`.
    User,
    /// Nobody: they join by themselves (`--nnodes`).
    Themselves,
    /// A Slurm allocation.
    Slurm,
    /// A PBS job.
    Pbs,
    /// An LSF job.
    Lsf,
    /// A job of Grid Engine in a parallel environment.
    GridEngine,
    /// An OAR job.
    Oar,
}

/// How nodes are reached over ssh.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SshSettings {
    /// The program and its first arguments. Never empty.
    pub command: Vec<OsString>,
    /// The path of rankrun on the other nodes; `None` is for our own version, wherever it is found or copied to.
    pub remote_binary: Option<PathBuf>,
    /// Whether rankrun is copied to a node that has not the same version.
    pub copies: bool,
}

impl Default for SshSettings {
    fn default() -> SshSettings {
        SshSettings { command: vec!["ssh".into()], remote_binary: None, copies: true }
    }
}
