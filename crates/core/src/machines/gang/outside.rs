//! What may end a gang other than its ranks.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::planned::PlannedStop;
use crate::evidence::Class;
use crate::exit::ExitCode;
use crate::grace::{SIGINT, SIGTERM};
use crate::ids::{NodeRank, Rank};

/// A second SIGINT kills at once if it comes at least this long after the first: a terminal may send two for one key.
pub const SECOND_INTERRUPT: Duration = Duration::from_millis(500);

/// Why the job as a whole ended other than by its ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outside {
    Signal(i32),
    /// The rank that has the terminal was interrupted, and ends by that.
    Interrupted(Rank),
    Timeout,
    /// The job is to go on later.
    Planned(PlannedStop),
    /// No rank did anything for longer than `--stall`, and their stacks did not change.
    Hang,
    OutputGone,
    OutputFailed,
    AgentLost,
    GuardLost,
    /// One of several nodes: see [`LostNode`].
    NodeLost,
    /// What connects the ranks of Open MPI.
    WireUpLost,
    /// Ranks run MPI, and have not connected (`--strict`).
    Alone,
    /// A user has asked for a new attempt. Anything else that comes after it counts instead.
    Restart,
}

impl Outside {
    /// The signal that asks the job to end.
    pub fn signal(self) -> Option<i32> {
        match self {
            Outside::Signal(signal) => Some(signal),
            Outside::Interrupted(_) => Some(SIGINT),
            Outside::OutputGone => Some(13),
            Outside::Restart => Some(SIGTERM),
            Outside::Timeout | Outside::Planned(_) | Outside::Hang | Outside::OutputFailed | Outside::Alone => None,
            Outside::AgentLost | Outside::GuardLost | Outside::NodeLost | Outside::WireUpLost => None,
        }
    }

    pub(crate) fn code(self) -> ExitCode {
        match self {
            Outside::Signal(_) | Outside::Interrupted(_) | Outside::OutputGone | Outside::Restart => {
                self.signal().map_or(ExitCode::FAILURE, ExitCode::signal)
            }
            Outside::Timeout => ExitCode::TIMEOUT,
            Outside::Planned(_) => ExitCode::PLANNED_STOP,
            Outside::Hang => ExitCode::HANG,
            Outside::Alone => ExitCode::FAILURE,
            Outside::AgentLost | Outside::NodeLost => ExitCode::NODE_LOST,
            Outside::GuardLost | Outside::WireUpLost | Outside::OutputFailed => ExitCode::INTERNAL,
        }
    }

    pub(crate) fn class(self) -> Class {
        match self {
            Outside::Signal(_) | Outside::Interrupted(_) | Outside::OutputGone | Outside::Restart => Class::Interrupted,
            Outside::Timeout => Class::Timeout,
            Outside::Planned(_) => Class::PlannedStop,
            Outside::Hang => Class::Hang,
            Outside::Alone => Class::Alone,
            Outside::OutputFailed => Class::OutputFailed,
            Outside::AgentLost | Outside::GuardLost | Outside::WireUpLost => Class::LauncherLost,
            Outside::NodeLost => Class::NodeLost,
        }
    }
}

/// A request to stop the job, and the process that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopRequest {
    pub by: Requester,
    /// The time from the first signal to SIGKILL, instead of that of the job.
    pub grace: Option<Duration>,
}

/// A process that asks something of a running job, as the kernel names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Requester {
    /// 0 if it is in another pid namespace.
    pub pid: i32,
    /// It is root's, and the job is another user's.
    pub is_root: bool,
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_root, self.pid) {
            (true, 0) => f.write_str("root"),
            (false, 0) => f.write_str("a process of another pid namespace"),
            (true, pid) => write!(f, "root, pid {pid}"),
            (false, pid) => write!(f, "pid {pid}"),
        }
    }
}

/// A node that was lost, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostNode {
    pub node: NodeRank,
    pub name: String,
    pub why: String,
    pub at: Duration,
}
