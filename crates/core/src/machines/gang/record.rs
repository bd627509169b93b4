//! What the gang knows of each rank.

use std::collections::VecDeque;
use std::time::Duration;

use crate::absence::Absence;
use crate::evidence::Evidence;
use crate::grace::{SIGTERM, StopRecord};
use crate::ids::{Attempt, GroupId, Pid, Rank, WorkerId};
use crate::node_clock::Reading;
use crate::status::WorkerStatus;
use crate::topology::CpuSet;
use crate::worker::Outcome;

/// The state of a rank, as far as the front knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RankRecord {
    pub rank: Rank,
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
    /// The calls that it made and that could not be done, each with the reason.
    pub(super) refused: Vec<String>,
    /// How many testimonies of it are in the evidence.
    pub(super) words: u32,
}

impl RankRecord {
    pub(super) fn new(worker: WorkerId) -> RankRecord {
        RankRecord { rank: worker.rank, attempt: worker.attempt, ..RankRecord::default() }
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

/// The records of all ranks: group after group, each by rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranks {
    records: Vec<RankRecord>,
    /// Where the records of each group begin, by group.
    groups: Vec<(GroupId, usize)>,
}

impl Ranks {
    /// A further group begins. Its number is greater than those of all others.
    pub(super) fn add(&mut self, group: GroupId, attempt: Attempt, size: u32) {
        self.groups.push((group, self.records.len()));
        let ranks = (0..size).map(|number| Rank::of(group, number));
        self.records.extend(ranks.map(|rank| RankRecord::new(WorkerId { rank, attempt })));
    }

    /// The last group is not to be: its ranks were never started.
    pub(super) fn remove(&mut self, group: GroupId) {
        self.records.retain(|record| record.rank.group() != group);
        let mut begin = 0;
        let mut groups = Vec::new();
        for of_group in self.records.chunk_by(|one, other| one.rank.group() == other.rank.group()) {
            groups.push((of_group[0].rank.group(), begin));
            begin += of_group.len();
        }
        self.groups = groups;
    }

    /// The position of a rank among all ranks: what is kept in a vector for each rank has it there.
    pub fn seat(&self, rank: Rank) -> Option<usize> {
        let at = match self.groups.first() {
            Some((group, begin)) if *group == rank.group() => begin + rank.number() as usize,
            _ => {
                let at = self.groups.binary_search_by_key(&rank.group(), |(group, _)| *group).ok()?;
                self.groups[at].1 + rank.number() as usize
            }
        };
        self.records.get(at).filter(|record| record.rank == rank).map(|_| at)
    }

    pub fn get(&self, rank: Rank) -> Option<&RankRecord> {
        self.seat(rank).map(|at| &self.records[at])
    }

    pub(super) fn get_mut(&mut self, rank: Rank) -> Option<&mut RankRecord> {
        self.seat(rank).map(|at| &mut self.records[at])
    }

    pub fn iter(&self) -> std::slice::Iter<'_, RankRecord> {
        self.records.iter()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

impl<'a> IntoIterator for &'a Ranks {
    type Item = &'a RankRecord;
    type IntoIter = std::slice::Iter<'a, RankRecord>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
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
