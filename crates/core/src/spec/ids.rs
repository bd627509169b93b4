//! Identities. Each is a type of its own, so that a local rank cannot be passed for a rank.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index into a vector.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A position in the world, from 0.
    Rank(u32)
);
number!(
    /// A rank's position among the ranks of its node, from 0.
    LocalRank(u32)
);
number!(
    /// A node's position among the nodes of an attempt, from 0.
    NodeRank(u32)
);
number!(
    /// A node of the job, for its whole life: its position among all that the job began with. An attempt that runs without
    /// some of them numbers the others anew, as [`NodeRank`].
    NodeId(u32)
);
number!(
    /// One life of the whole gang, from 0.
    Attempt(u32)
);
number!(
    /// A group of ranks that was started together: 0 is the job itself, others come from `MPI_Comm_spawn`.
    GroupId(u32)
);
number!(
    /// The index of a command in a job of several (`a : b`), which MPI calls `appnum`.
    AppIndex(u32)
);

number!(
    /// A worker's place among those that one agent holds in one attempt, from 0.
    Slot(u32)
);
number!(
    /// A process that reports for its rank, numbered by its agent.
    SpeakerId(u32)
);

/// A process id on the node of that process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pid(pub i32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One worker: a rank of a group in one attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct WorkerId {
    pub group: GroupId,
    pub rank: Rank,
    pub attempt: Attempt,
}

/// One life of a group of ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct GangId {
    pub group: GroupId,
    pub attempt: Attempt,
}

/// For tests: the worker of a rank in the first life of the job's first group.
#[cfg(test)]
pub(crate) fn worker(rank: u32) -> WorkerId {
    WorkerId { group: GroupId(0), rank: Rank(rank), attempt: Attempt(0) }
}

/// The job's own name: 8 hexadecimal digits, chosen at random when it starts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub String);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One of the two streams that a rank writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// Both, in the order in which they are listed everywhere.
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// 0 for stdout, 1 for stderr.
    pub fn index(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        })
    }
}
