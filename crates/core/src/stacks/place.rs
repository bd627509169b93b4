//! Where a rank is, and the ranks at the same place.

use serde::{Deserialize, Serialize};

use super::{Frame, ProcessStack};
use crate::ids::Rank;
use crate::ranks::{RankSet, written};

/// What a rank waits for, as far as its frames tell.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "for", content = "call")]
pub enum Wait {
    /// All ranks are to come to this call.
    Collective(String),
    /// The other ranks are to come to the end: `MPI_Finalize`.
    Finalize,
    /// A message of another rank.
    Message(String),
    /// Another rank that takes its message.
    Taker(String),
    /// A process that it has started.
    Process,
    /// Another thread of its own.
    Thread,
    Lock,
    /// Somebody who types.
    Stdin,
    /// A disk or a file server: no signal wakes it.
    Disk,
    /// That some time passes.
    Time,
    /// Bytes from a file, a pipe, a socket.
    Event,
    /// It is on its way out, in what runs after the end of its program.
    Exit,
    /// Its Python interpreter is gone, and the process is not.
    Gone,
    /// It was stopped (SIGSTOP).
    Continue,
    /// Nothing: it computes.
    Nothing,
    /// It cannot be told.
    Unknown,
}

impl Wait {
    /// Whether other ranks can end this wait.
    pub fn is_for_others(&self) -> bool {
        matches!(self, Wait::Collective(_) | Wait::Finalize | Wait::Message(_) | Wait::Taker(_))
    }
}

/// A thread as it is shown: innermost call first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Place {
    pub wait: Wait,
    pub calls: Vec<Frame>,
    /// The name of the thread, if it is not the main one.
    pub thread: Option<String>,
}

impl Place {
    /// Whether it says where the thread is. Without frames only a wait that the kernel itself shows is known.
    pub fn is_known(&self) -> bool {
        !self.calls.is_empty() || self.wait != Wait::Unknown
    }
}

/// A rank that was looked into.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seen {
    pub rank: Rank,
    pub node: String,
    pub stack: ProcessStack,
}

/// Ranks at the same place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Row {
    #[serde(with = "written")]
    pub ranks: RankSet,
    pub place: Place,
}

impl Row {
    /// How many ranks it has.
    pub fn count(&self) -> usize {
        self.ranks.count().unwrap_or(0)
    }
}
