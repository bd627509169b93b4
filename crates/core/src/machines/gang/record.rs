//! What the gang knows of each rank.

use std::collections::VecDeque;
use std::time::Duration;

use crate::absence::Absence;
use crate::evidence::Evidence;
use crate::grace::{SIGTERM, StopRecord};
use crate::ids::{Attempt, Pid};
use crate::node_clock::Reading;
use crate::status::WorkerStatus;
use crate::topology::CpuSet;
use crate::worker::Outcome;

/// The state of a rank, as far as the front knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RankRecord {
    /// The attempt of the rank: that of the gang, or its own with `--restart-scope rank`.
    pub attempt: Attempt,
    pub pid: Option<Pid>,
    /// The CPUs that it is bound to.
    pub cpus: Option<CpuSet>,
    pub started_at: Option<Duration>,
    pub status: Option<WorkerStatus>,
    pub ended_at: Option<Duration>,
    /// The boundary is empty, or what is left has been given up.
    pub outcome: Option<Outcome>,
    pub mpi: MpiLife,
    /// When its MPI phase last changed.
    pub mpi_since: Option<Duration>,
    pub passed_barrier: bool,
    /// Since when only `MPI_Finalize` has been left of its program, if that is known.
    pub finalizing_since: Option<Duration>,
    /// It ended after the order to stop.
    pub stop_ordered_before_end: bool,
    /// What was done to end it, until its leader ended.
    pub stop: StopRecord,
    /// Why its Python has no hook, if it runs Python without.
    pub hookless: Option<Absence>,
    pub passing: Passing,
    /// How exact the time of its failure is.
    pub clock: Option<Reading>,
    /// Its node is lost: nothing more is known of it.
    pub is_lost: bool,
    /// The calls that it made of those that are not offered.
    pub(super) refused: Vec<String>,
}

impl RankRecord {
    pub(super) fn new(attempt: Attempt) -> RankRecord {
        RankRecord { attempt, ..RankRecord::default() }
    }

    /// The last signal of the stop that it was sent, if it ended after that.
    pub fn stopped_with(&self) -> Option<i32> {
        self.stop.last()
    }

    /// The latest time at which what is dated `at` may have happened.
    pub(crate) fn latest(&self, at: Duration) -> Duration {
        at + self.clock.map_or(Duration::ZERO, |clock| clock.bound)
    }

    /// Whether its status may come from a signal of ours.
    pub fn is_ended_by_our_signals(&self) -> bool {
        self.stop_ordered_before_end
            && self.status.is_some_and(|status| {
                // SIGTERM may have come from us before its sending was recorded. SIGKILL never comes first.
                (self.stop.signals.is_empty() && status.is_of_signal(SIGTERM))
                    || self.stop.signals.iter().any(|(signal, _)| status.is_of_signal(*signal))
            })
    }
}

/// The MPI phase of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MpiLife {
    #[default]
    NotInited,
    Inited,
    Finalized,
}

/// What a rank says that is no failure of it. It is kept apart from the evidence: a program may say it often, and its notes
/// must push out nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Passing {
    pub(super) notes: VecDeque<Evidence>,
    /// Exceptions that ended a thread, or nothing: the first, and the last.
    pub(super) first_aside: Option<Box<Evidence>>,
    pub(super) last_aside: Option<Box<Evidence>>,
}

impl Passing {
    /// The last notes, the oldest first.
    pub fn notes(&self) -> impl DoubleEndedIterator<Item = &Evidence> {
        self.notes.iter()
    }

    pub(super) fn into_evidence(self) -> impl Iterator<Item = Evidence> {
        let asides = self.first_aside.into_iter().chain(self.last_aside);
        self.notes.into_iter().chain(asides.map(|aside| *aside))
    }

    pub fn asides(&self) -> impl Iterator<Item = &Evidence> {
        self.first_aside.as_deref().into_iter().chain(self.last_aside.as_deref())
    }
}
