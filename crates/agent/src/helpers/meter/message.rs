//! What an agent and its meter say to each other.

use std::path::PathBuf;

use rankrun_core::WorkerId;
use rankrun_core::usage::Usage;
use serde::{Deserialize, Serialize};

/// To the meter: measure these workers now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) subjects: Vec<Subject>,
}

/// A worker, and where its processes are found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) worker: WorkerId,
    pub(crate) place: Place,
}

/// Where the processes of a worker are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Place {
    /// In this cgroup, which is one of its own.
    Cgroup(PathBuf),
    /// These processes and what is below them: the leader, and orphans.
    Trees(Vec<i32>),
}

/// From the meter. A worker of which no process was seen is missing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Reading {
    pub(crate) number: u64,
    pub(crate) workers: Vec<(WorkerId, Usage)>,
}
