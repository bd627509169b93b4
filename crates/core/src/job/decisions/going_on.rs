//! `--keep-going`: ranks run on without others (docs/adr/0040-keep-going-without-a-node.md). Those that run MPI must learn who is gone, on
//! whichever node: MPI may handle that (ULFM), and what its ranks do together must not wait for the dead.

use std::collections::BTreeSet;

use crate::gang::{self, MpiLife};
use crate::ids::{GroupId, WorkerId};
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::missing::Missing;

impl Job {
    /// Whether ranks run on when others fail. Ranks that are started again one by one have no world that would miss them.
    fn keeps_going(&self) -> bool {
        self.facts.rules.keep_going && !self.successors.are_on() && self.gang.stop_ordered().is_none()
    }

    /// Whether the others run on if these workers are lost with their node. With `--restart` the next attempt does. While the first ranks are
    /// being started, other nodes may wait for what only this one would have said.
    pub(in crate::job) fn goes_on_without(&self, workers: &[WorkerId]) -> bool {
        let lives = |record: &gang::RankRecord| {
            record.status.is_none() && record.outcome.is_none() && !record.is_lost && {
                let worker = WorkerId { rank: record.rank, attempt: record.attempt };
                !workers.contains(&worker)
            }
        };
        let is_started = |record: &gang::RankRecord| record.pid.is_some() || record.outcome.is_some();
        let mut first = self.gang.ranks().iter().filter(|record| record.rank.group() == GroupId::default());
        self.keeps_going() && !self.spec.restart.is_on() && first.all(is_started) && self.gang.ranks().iter().any(lives)
    }

    /// A node is lost with these workers, and the others run on.
    pub(in crate::job) fn go_on_without(&mut self, name: &str, workers: Vec<WorkerId>) {
        let groups: BTreeSet<GroupId> = workers.iter().map(|worker| worker.group()).collect();
        for group in groups.into_iter().filter(|group| self.groups.is_coming_up(*group)).collect::<Vec<_>>() {
            if let Some(worker) = workers.iter().find(|worker| worker.group() == group) {
                self.spawn_failed(worker.rank, "start", &format!("node {name} was lost"), "its ranks");
            }
        }
        for worker in workers {
            self.miss(worker);
        }
    }

    /// A worker has ended, or is lost.
    pub(in crate::job) fn miss(&mut self, worker: WorkerId) {
        if !self.keeps_going() || !self.gang.has(worker) {
            return;
        }
        match self.gang.ranks().get(worker.rank).map(|record| record.mpi) {
            Some(MpiLife::Finalized) | None => return,
            Some(MpiLife::Inited) => {}
            Some(MpiLife::NotInited) => self.missing.was_never_in_mpi = true,
        }
        self.missing.untold.push(worker);
        self.tell_missing();
    }

    /// Tells the nodes who is gone, as far as that concerns a rank in MPI, and ends a job whose ranks can never come out of `MPI_Init`.
    pub(in crate::job) fn tell_missing(&mut self) {
        if self.missing.untold.is_empty() || !self.gang.is_of_mpi() || !self.keeps_going() {
            return;
        }
        let workers = std::mem::take(&mut self.missing.untold);
        self.send(Order::Lost(workers));
        self.end_if_init_waits();
    }

    /// A rank has begun with MPI: ranks that have left before may be missed now.
    pub(in crate::job) fn rank_inited(&mut self) {
        self.tell_missing();
        self.end_if_init_waits();
    }

    fn end_if_init_waits(&mut self) {
        if self.missing.was_never_in_mpi
            && self.keeps_going()
            && let Some(worker) = self.gang.missed_in_init()
        {
            self.event(gang::Event::Missed { worker });
        }
    }

    /// Another attempt begins.
    pub(in crate::job) fn forget_missing(&mut self) {
        self.missing = Missing::default();
    }
}
