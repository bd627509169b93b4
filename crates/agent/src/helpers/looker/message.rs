//! What the agent and its looker say to each other.

use std::time::Duration;

use rankrun_core::stacks::ProcessStack;
use rankrun_sys::process::ProcessId;
use serde::{Deserialize, Serialize};

/// The one message to the looker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// What to look into, in this order.
    pub(crate) subjects: Vec<Subject>,
    /// The time for all of them.
    pub(crate) bound: Duration,
    /// Native frames of all threads, also where there are Python frames.
    pub(crate) native: bool,
}

/// A process that plays a rank, or the leader of the processes that do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) pid: i32,
    /// Its start: another process that has got its pid is not looked into.
    pub(crate) started: u64,
    /// It may be a shell or the like that waits for the program.
    pub(crate) is_leader: bool,
}

impl Subject {
    pub(crate) fn id(self) -> ProcessId {
        ProcessId { pid: self.pid, started: self.started }
    }
}

/// From the looker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Found {
    /// The subject of this index.
    Subject(u32, Box<ProcessStack>),
    /// There is nothing more to come.
    Done,
}
