//! The events and the effects of a gang.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::outside::StopRequest;
use super::planned::PlannedStop;
use crate::absence::Absence;
use crate::alone::Alone;
use crate::evidence::MpiEvent;
use crate::exit::ExitCode;
use crate::grace::StopRecord;
use crate::ids::{NodeRank, Pid, WorkerId};
use crate::stacks::odd::Hang;
use crate::status::WorkerStatus;
use crate::stderr::Words;
use crate::testimony::{Exception, StuckIn, Testimony};
use crate::worker::{Outcome, Stop};

/// An event of a gang. The gang does not check its workers: whoever sends it checks them with [`Gang::has`](super::Gang::has).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    Started {
        worker: WorkerId,
        pid: Pid,
    },
    SpawnFailed {
        worker: WorkerId,
        step: String,
        error: String,
        command: String,
        not_found: Option<ExitCode>,
    },
    /// What was done to end a rank until its leader ended; the end follows.
    Signalled {
        worker: WorkerId,
        record: StopRecord,
    },
    /// A leader has ended.
    Ended {
        worker: WorkerId,
        status: WorkerStatus,
    },
    /// No process of the worker is left, or what is left is given up.
    Gone {
        worker: WorkerId,
        outcome: Outcome,
    },
    Mpi {
        worker: WorkerId,
        event: MpiEvent,
    },
    Stopped {
        worker: WorkerId,
        signal: i32,
    },
    /// A rank has not said in this time that it is ready (`--ready-timeout`).
    NotReady {
        worker: WorkerId,
        after: Duration,
    },
    /// A rank that had ended is started again, and the others run on: what it did before decides nothing.
    Again {
        worker: WorkerId,
    },
    /// A process of a rank has sent testimony about itself.
    Testimony {
        worker: WorkerId,
        pid: Pid,
        testimony: Testimony,
    },
    /// A process that had failed did not end.
    Stuck {
        worker: WorkerId,
        pid: Pid,
        place: StuckIn,
        since: Duration,
        leader: bool,
    },
    /// The kernel killed a rank because memory ran out.
    OutOfMemory {
        worker: WorkerId,
        detail: String,
    },
    /// A rank was killed by a SIGKILL that was not ours, had used so much CPU time, and has this hard limit.
    CpuTime {
        worker: WorkerId,
        used: Duration,
        limit: Duration,
    },
    /// The kernel killed another process of a rank than its leader because memory ran out.
    HelperOutOfMemory {
        worker: WorkerId,
        pid: Pid,
        name: String,
        detail: String,
    },
    /// A rank has failed in `MPI_Init` of Open MPI. Found out after its end.
    OpenMpi {
        worker: WorkerId,
    },
    /// A rank is still running after a traceback on stderr; `end`: end it for that.
    Suspect {
        worker: WorkerId,
        exception: Exception,
        end: bool,
        /// How long it has been silent.
        #[serde(default = "crate::testimony::suspect_after")]
        silent: Duration,
    },
    /// A rank runs Python without the interpreter hook.
    Hookless(WorkerId, Absence),
    /// Ranks run MPI, and have not connected; `end`: end the job for that.
    Alone {
        alone: Vec<Alone>,
        end: bool,
    },
    /// The last lines of a rank's output, read after its end.
    LastWords {
        worker: WorkerId,
        words: Words,
    },
    /// rankrun itself received a signal that asks it to end.
    Signal(i32),
    /// The job is to end now, and to go on later.
    Planned(PlannedStop),
    /// Another process asks for the end (`rankrun stop`).
    StopRequest(StopRequest),
    /// A user asks for a new attempt: this one is to end.
    RestartRequest,
    /// No rank has done anything for so long, and their stacks do not change (`--stall`).
    Hang(Hang),
    /// The reader of our output is gone: end as SIGPIPE would.
    OutputGone,
    /// Output could not be written for longer than `--drain`.
    OutputFailed,
    /// The log files of an attempt could not be made, or the results of ranks could not be written.
    LogsFailed {
        reason: String,
    },
    /// The agent is gone, and has not reported the end.
    AgentLost,
    /// The guard is gone.
    GuardLost,
    /// One of several nodes is lost, with the ranks that had not ended on it. `goes_on`: the other ranks run on.
    NodeLost {
        node: NodeRank,
        name: String,
        why: String,
        workers: Vec<WorkerId>,
        #[serde(default)]
        goes_on: bool,
    },
    /// A rank has ended, or is lost, that never was in MPI, and others of its group wait for it in `MPI_Init` for ever.
    Missed {
        worker: WorkerId,
    },
    /// Why a node was lost is known better now.
    LossKnown {
        node: NodeRank,
        why: String,
    },
    /// rankrun itself stood still for so long, and the nodes that are lost gave it up.
    StoodStill {
        time: Duration,
    },
    /// What connects the ranks of Open MPI is gone.
    WireUpLost {
        reason: String,
    },
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// All workers are to stop.
    Stop(Stop),
    /// All workers are to be killed at once.
    Kill,
}
