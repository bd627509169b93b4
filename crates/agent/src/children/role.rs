//! What the children of this process are to it, and how they end.

use std::time::{Duration, Instant};

use rankrun_core::{WorkerId, WorkerStatus};
use rankrun_sys::process::Child;
use rankrun_sys::wait::Change;

/// How long a process that runs no code any more may take to its end. The kernel needs microseconds, on a busy machine
/// some milliseconds. The loop waits for a helper no longer than this in all, however many ranks end meanwhile.
pub(super) const ENDING_BOUND: Duration = Duration::from_millis(500);

/// The role of a child of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Leader(WorkerId),
    /// A process of rankrun's own: never signalled with the job, and no obstacle to the proof that nothing of the job is left.
    Helper(Helper),
    /// A helper that was killed at this time, and is not reaped yet.
    Killed(Instant),
}

/// The number of an interpreter that ranks are forked from: one that is started again is another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServerId(pub(crate) u32);

/// The processes of rankrun's own that an agent has besides its workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Helper {
    PmixHost,
    Looker,
    Meter,
    /// It looks into ranks again and again.
    Sampler,
    /// An interpreter that ranks are forked from.
    ForkServer(ServerId),
}

impl Helper {
    /// The cgroup of its own where the job has cgroups. A looker has none, as a reader has none: it may wait for the file system of a
    /// rank's program, and the job's cgroup is to be empty all the same. A meter may wait for a process, or for the driver of a GPU.
    pub(super) fn leaf(self) -> Option<String> {
        match self {
            Helper::PmixHost => Some("pmix".to_owned()),
            Helper::Looker | Helper::Meter | Helper::Sampler => None,
            Helper::ForkServer(id) => Some(format!("fork{}", id.0)),
        }
    }
}

/// The end of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// It is not reaped yet.
    Leader(WorkerId, Child, WorkerStatus),
    /// An orphan of a worker. It has been reaped.
    Orphan,
    /// A process of rankrun's own. It has been reaped.
    Helper(Helper, WorkerStatus),
}

/// The status of a child that has ended.
pub(super) fn status_of(change: Change) -> Option<WorkerStatus> {
    match change {
        Change::Exited { code } => Some(WorkerStatus::Exited { code }),
        Change::Signaled { signal, core_dumped } => Some(WorkerStatus::Signaled { signal, core_dumped }),
        Change::Stopped { .. } | Change::Continued => None,
    }
}
