//! What a job decides by, beside what its agents get: the user's settings, resolved.

use serde::{Deserialize, Serialize};

use std::net::IpAddr;
use std::time::Duration;

use crate::ids::Attempt;
use crate::planned::PlannedSpec;
use crate::spec::job::{OnFrontLost, Recent};
use crate::stacks::stall::StallSpec;

/// The settings of the front.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The nodes, by [`crate::NodeId`]: the same, in the same order, as in the rank map that the job begins with.
    pub hosts: Vec<Host>,
    /// On how few nodes the job may run (`--nnodes MIN:MAX`); `None`: it needs all.
    pub least: Option<u32>,
    /// Nodes that are lost may be replaced by spares, and may come back.
    pub is_elastic: bool,
    /// How long the next attempt waits for nodes without which it cannot begin.
    pub wait_for_nodes: Duration,
    /// A command fences nodes that are lost; another finds nodes in their place.
    pub fences: bool,
    pub replaces: bool,
    /// No attempt begins where only the time that has passed says that no rank of the last one is left.
    pub needs_proof: bool,
    /// A node that was lost so often is left out for a time.
    pub exclude_after: Option<Recent>,
    /// When nodes that have come are taken in.
    pub grow: Grow,
    /// How long a node may be silent before it counts as lost.
    pub node_timeout: Duration,
    /// What the agents do when they lose the front.
    pub on_front_lost: OnFrontLost,
    /// How long nodes may take to join.
    pub start_timeout: Duration,
    /// Once enough nodes have joined, how long the job waits for more.
    pub last_call: Duration,
    /// Steps of Slurm start the agents of the other nodes.
    pub has_steps: bool,
    /// How many nodes are called at a time.
    pub at_a_time: usize,
    /// The network interface at which the nodes reach each other (`--interface`).
    pub interface: Option<String>,
    /// The address at which other nodes reach this one (`--local-addr`).
    pub local_addr: Option<IpAddr>,
    /// The nodes come from OAR, and nobody has said how to log in there.
    pub is_oar: bool,
    /// When a job whose ranks do nothing has stalled, and what is done then.
    pub stall: Option<StallSpec>,
    /// Somebody may type into the job.
    pub has_terminal: bool,
    /// Which stops of the job are planned.
    pub planned: PlannedSpec,
    /// Whether ranks that run MPI without being connected end the job.
    pub strict: bool,
    /// Whether a rank that lives on after a traceback on stderr is ended (or only noted).
    pub end_suspects: bool,
    /// -1 is quiet, 0 is the default, 1 and more print progress.
    pub verbosity: i8,
    /// The MPI library of each program of the job that is known to call `MPI_Init`, in the order of its apps.
    pub mpi_libraries: Vec<Option<String>>,
    /// Each attempt has log files of its own, which are made before its ranks are started.
    pub opens_logs: bool,
    /// Stdin can be read only once.
    pub is_stdin_stream: bool,
    /// The directory of the report, as people write it.
    pub report_directory: Option<String>,
    /// There is a journal.
    pub is_recorded: bool,
    /// What the random parts of the restart policy begin with.
    pub seed: u64,
}

impl Settings {
    /// The file with the report of an attempt that another follows, as people write it.
    pub(in crate::job) fn report_of(&self, attempt: Attempt) -> Option<String> {
        self.report_directory.as_ref().map(|directory| format!("{directory}/{}", report_of(attempt)))
    }
}

/// The name of the file with the report of an attempt that another follows.
pub fn report_of(attempt: Attempt) -> String {
    format!("attempt-{attempt}.json")
}

/// A node that the job was given.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    pub way: Way,
    /// How many ranks it is for; `None` if nobody has said.
    pub slots: Option<u32>,
}

/// When a job that runs on fewer nodes than it could takes in those that have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Grow {
    /// When another attempt begins anyway.
    #[default]
    Next,
    /// At once: the job is restarted.
    Restart,
}

/// How the agent of a node comes to the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Way {
    /// It is on this machine, and runs already.
    Here,
    /// It is started over ssh.
    Ssh,
    /// It connects by itself.
    Joins,
}
