//! What was observed of a failure, each fact with its time and its rank (DESIGN §5).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{Pid, Rank};
use crate::status::WorkerStatus;

/// What became known of a rank's MPI life through its wire-up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MpiEvent {
    /// It called `MPI_Init`.
    Inited,
    /// It has come out of a barrier, so that its siblings were there too.
    PassedBarrier,
    /// It called `MPI_Finalize` and is on its way out.
    Finalized,
    /// It called `MPI_Abort`.
    Aborted { code: i32, message: Option<String> },
    /// It spoke nonsense; its connection was closed.
    Malformed { reason: String },
}

/// One fact that speaks for a failure of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Evidence {
    pub rank: Rank,
    /// Since the start of the job, on the clock of the rank's node.
    pub at: Duration,
    pub pid: Option<Pid>,
    pub fact: Fact,
}

/// The fact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Fact {
    /// Its leader ended with a status that is a failure.
    Ended { status: WorkerStatus },
    /// It called `MPI_Abort`.
    Aborted { code: i32, message: Option<String> },
    /// It exited with 0, had called `MPI_Init` and not `MPI_Finalize`, and a sibling was still in MPI a second later.
    ExitWithoutFinalize,
    /// It exited with 0 and had not called `MPI_Init`, while a sibling waits for it there.
    ExitBeforeInit,
    /// It could not be started.
    SpawnFailed { step: String, error: String, command: String },
    /// It was stopped by somebody else.
    Stopped { signal: i32 },
    /// It spoke nonsense to the wire-up.
    Malformed { reason: String },
}

impl Fact {
    /// The class of a failure, as the report and `--restart-on` name it.
    pub fn class(&self) -> Class {
        match self {
            Fact::Ended { status: WorkerStatus::Exited { .. } } => Class::ExitCode,
            Fact::Ended { status: WorkerStatus::Signaled { .. } } => Class::Signal,
            Fact::Aborted { .. } => Class::Abort,
            Fact::ExitWithoutFinalize => Class::ExitWithoutFinalize,
            Fact::ExitBeforeInit => Class::ExitBeforeInit,
            Fact::SpawnFailed { .. } => Class::SpawnFailed,
            Fact::Stopped { .. } => Class::Stopped,
            Fact::Malformed { .. } => Class::Malformed,
        }
    }

    /// Whether this fact by itself ends the gang.
    pub fn ends_the_gang(&self) -> bool {
        match self {
            Fact::Ended { .. }
            | Fact::Aborted { .. }
            | Fact::ExitWithoutFinalize
            | Fact::ExitBeforeInit
            | Fact::SpawnFailed { .. } => true,
            Fact::Stopped { .. } | Fact::Malformed { .. } => false,
        }
    }
}

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    SpawnFailed,
    Abort,
    Signal,
    ExitCode,
    ExitWithoutFinalize,
    ExitBeforeInit,
    Stopped,
    Malformed,
    Timeout,
    Interrupted,
    LauncherLost,
    OutputFailed,
}
