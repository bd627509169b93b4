//! The ranks of a node and what there is for them: the question, and why it has no answer.

use crate::topology::{CpuSet, Device, DeviceKind, Machine};

/// The ranks of a node, as far as their places depend on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranks {
    pub count: u32,
    /// The GPU that each rank uses first, by position, where that is known.
    pub gpus: Vec<Option<u32>>,
    /// How many threads of OpenMP the user wants in each rank.
    pub threads: Option<u32>,
}

/// What the machine has for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// The part that may be used.
    pub machine: &'a Machine,
    /// Looked for only where it matters.
    pub gpus: &'a [Device],
    pub nics: &'a [Device],
}

/// Why a request cannot be met. The numbers are the machine's and the user's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Impossible {
    #[error("{ranks} with {} each need {}, and there {}", amount(*width, .unit), all(ranks, *width, .unit), are(*have, .unit))]
    TooFew { ranks: Count, width: u32, unit: &'static str, have: u32 },
    #[error("{ranks} on one {level} with {} each need {}, and it has {have}", amount(*width, .unit), all(ranks, *width, .unit))]
    TooFewNear { level: String, ranks: Count, width: u32, unit: &'static str, have: u32 },
    #[error("CPU {cpu} cannot be used: this job may use {allowed}")]
    NotAllowed { cpu: u32, allowed: CpuSet },
    #[error("core {core} is not there: this job may use {}, numbered from 0", amount(*have, "core"))]
    NoCore { core: u32, have: u32 },
    #[error("the kernel does not let rankrun bind processes: {reason}")]
    NotPermitted { reason: String },
    #[error("this machine has no {kind} that rankrun can see")]
    NoDevice { kind: DeviceKind },
}

/// A number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count(pub u32);

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", amount(self.0, "rank"))
    }
}

pub(super) fn amount(count: impl Into<u64>, unit: &str) -> String {
    let count = count.into();
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// What all ranks need together.
fn all(ranks: &Count, width: u32, unit: &str) -> String {
    amount(u64::from(ranks.0) * u64::from(width), unit)
}

fn are(count: u32, unit: &str) -> String {
    format!("{} {}", if count == 1 { "is" } else { "are" }, amount(count, unit))
}

/// Why ranks are not bound where nobody has said how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unbound {
    /// One rank alone has the node.
    Alone,
    /// There are more ranks than cores.
    Oversubscribed,
    /// The ranks want more threads than their shares have CPUs.
    Threads { wanted: u32, have: u32 },
    /// There are cores of several kinds, and too few of one for all ranks.
    Kinds,
}

/// The CPUs of each rank, by local rank.
pub type Sets = Vec<CpuSet>;
