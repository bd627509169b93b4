//! Ranks that run MPI without being connected: when to look for them, and what is printed of them.

use std::time::Duration;

use rankrun_core::WorkerId;
use rankrun_core::alone::{Sight, Sights};
use rankrun_core::gang::{self, MpiLife};
use rankrun_core::job::MpiMode;
use rankrun_wire::ToAgent;

use crate::Plan;
use crate::job::front::Front;

/// Times after the start of an attempt, in milliseconds: early for short jobs, and again for programs that call `MPI_Init` late.
const LOOKS: [u64; 11] = [100, 200, 400, 800, 1_600, 3_000, 6_000, 8_000, 16_000, 32_000, 64_000];
/// How long the ranks that are alone are waited for, when two of them are known.
const OTHERS: Duration = Duration::from_secs(1);
/// The shortest time between two looks for the ends of ranks.
const BETWEEN: Duration = Duration::from_millis(100);

/// What is known of the MPI libraries of the ranks, and when to look next.
#[derive(Debug)]
pub(crate) struct MpiWatch {
    began: Duration,
    /// The next of [`LOOKS`]; `None` if no more looks are needed.
    next: Option<usize>,
    last: Option<Duration>,
    /// When ranks were first found to be alone.
    found: Option<Duration>,
    pub(crate) sights: Sights,
}

impl MpiWatch {
    /// For an attempt that begins at `began`. A job of one rank is not looked at.
    pub(crate) fn new(began: Duration, plan: &Plan) -> MpiWatch {
        MpiWatch {
            began,
            next: (plan.spec.map.world_size() > 1).then_some(0),
            last: None,
            found: None,
            sights: Sights::default(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        Some(self.began + Duration::from_millis(*LOOKS.get(self.next?)?))
    }

    fn is_due(&mut self, now: Duration) -> bool {
        let mut is_due = false;
        while self.deadline().is_some_and(|at| at <= now) {
            self.next = self.next.map(|next| next + 1);
            is_due = true;
        }
        is_due
    }
}

impl Front {
    /// Asks the agents which ranks have MPI libraries, when it is time, until one has connected. They answer if there are any.
    pub(crate) fn look_for_mpi(&mut self, now: Duration) {
        if !self.mpi_watch.is_due(now) {
            return;
        }
        if self.gang.ranks().iter().all(|record| record.pid.is_none()) {
            // The nodes are still awaited: the times count from the start of the ranks.
            (self.mpi_watch.began, self.mpi_watch.next) = (now, Some(0));
        } else {
            self.ask_for_mpi(now);
        }
    }

    fn ask_for_mpi(&mut self, now: Duration) {
        let is_over = self.gang.stop_ordered().is_some();
        if is_over || self.gang.ranks().iter().any(|record| record.mpi != MpiLife::NotInited) {
            self.mpi_watch.next = None;
        } else {
            self.mpi_watch.last = Some(now);
            self.send(ToAgent::LookForMpi);
        }
    }

    /// The answer of an agent.
    pub(crate) fn mpi_seen(&mut self, found: Vec<(WorkerId, Sight)>) {
        let now = self.now();
        for (worker, sight) in found {
            // Not of an attempt that is over.
            if worker.attempt >= self.plan.spec.attempt {
                self.mpi_watch.sights.see(now, worker.rank, sight);
            }
        }
        self.judge_alone(false);
    }

    /// Something new is known of the ranks; `has_ended`: one has ended, and others may follow it soon.
    pub(crate) fn judge_alone(&mut self, has_ended: bool) {
        if self.mpi_watch.next.is_none() || self.gang.stop_ordered().is_some() {
            return;
        }
        let now = self.now();
        if has_ended && self.mpi_watch.last.is_none_or(|last| now >= last + BETWEEN) {
            self.ask_for_mpi(now);
        }
        let is_offered = self.plan.spec.mpi != MpiMode::None;
        let alone = self.mpi_watch.sights.alone(&self.gang, is_offered);
        if alone.is_empty() {
            return;
        }
        // The others may be a little later.
        let since = *self.mpi_watch.found.get_or_insert(now);
        let ranks = alone.iter().filter_map(|group| group.ranks.count()).sum::<usize>();
        if !has_ended && now < since + OTHERS && ranks < self.gang.ranks().len() {
            return;
        }
        self.mpi_watch.next = None;
        for group in &alone {
            self.note(group.to_string());
        }
        let mut advice: Vec<&str> = alone.iter().filter_map(|group| group.cause.advice()).collect();
        advice.dedup();
        for advice in advice {
            self.note(format!("hint: {advice}"));
        }
        let end = self.plan.strict;
        self.event(gang::Event::Alone { alone, end });
    }
}
