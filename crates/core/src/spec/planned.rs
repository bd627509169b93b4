//! Planned stops: when a job ends before its work is done, and what then becomes of it.

use serde::{Deserialize, Serialize};

use std::ffi::OsString;
use std::time::Duration;

/// Which stops of a job are planned.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PlannedSpec {
    /// The job is stopped when its clock shows this time.
    pub limit: Option<Duration>,
    /// SIGTERM is a planned stop.
    pub heeds_sigterm: bool,
    /// After a planned stop the scheduler is asked to run the job again.
    pub requeues: bool,
    /// What announces that the job will lose its machines.
    pub notice: Option<Notice>,
}

#[cfg(any(test, feature = "simulation"))]
impl PlannedSpec {
    /// A time limit, and whether the job is then to be run again.
    pub(crate) fn of(limit: Option<Duration>, requeues: bool) -> PlannedSpec {
        PlannedSpec { limit, heeds_sigterm: requeues, requeues, notice: None }
    }
}

/// What is done after a planned stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnPlannedStop {
    /// rankrun exits.
    #[default]
    Exit,
    /// The scheduler is asked to run the job again.
    Requeue,
}

/// What announces that the job will lose its machines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// A file that appears, or changes. Absolute.
    File(OsString),
    /// A command that is repeated until it succeeds. Never empty.
    Command(Vec<OsString>),
}
