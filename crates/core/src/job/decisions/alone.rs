//! Ranks that run MPI without being connected: when to look for them, and what is printed of them.

use crate::alone::Sight;
use crate::gang::{self, MpiLife};
use crate::ids::WorkerId;
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::spec::job::MpiMode;

impl Job {
    /// Asks the agents which ranks have MPI libraries, when it is time, until one has connected. They answer if there are any.
    pub(in crate::job) fn look_for_mpi(&mut self) {
        let now = self.now;
        if self.mpi_watch.must_judge(now) {
            self.judge_alone(false);
        }
        let Some(is_brief) = self.mpi_watch.due_look(now) else { return };
        if self.gang.ranks().iter().all(|record| record.pid.is_none()) {
            // The nodes are still awaited: the times count from the start of the ranks.
            self.mpi_watch.restart(now);
        } else {
            self.ask_for_mpi(is_brief);
        }
    }

    fn ask_for_mpi(&mut self, is_brief: bool) {
        let is_over = self.gang.stop_ordered().is_some();
        if is_over || self.gang.ranks().iter().any(|record| record.mpi != MpiLife::NotInited) {
            self.mpi_watch.end();
        } else {
            self.mpi_watch.asked(self.now);
            self.send(Order::LookForMpi { is_brief });
        }
    }

    /// The answer of an agent.
    pub(in crate::job) fn mpi_seen(&mut self, found: Vec<(WorkerId, Sight)>) {
        let now = self.now;
        for (worker, sight) in found {
            self.mpi_watch.see(now, worker.rank, sight);
        }
        self.judge_alone(false);
    }

    /// Something new is known of the ranks; `has_ended`: one has ended, and others may follow it soon.
    pub(in crate::job) fn judge_alone(&mut self, has_ended: bool) {
        if self.mpi_watch.is_over() || self.gang.stop_ordered().is_some() {
            return;
        }
        let now = self.now;
        if has_ended && self.mpi_watch.may_ask(now) {
            self.ask_for_mpi(false);
        }
        let is_offered = self.spec.mpi != MpiMode::None;
        let (map, libraries) = (&self.spec.map, &self.settings.mpi_libraries);
        let library = |rank| libraries.get(map.place(rank)?.app.0 as usize)?.as_deref();
        let alone = self.mpi_watch.sights().alone(&self.gang, is_offered, library);
        if alone.is_empty() {
            return;
        }
        // The others may be a little later. What `MPI_Init` makes in /dev/shm would be left by a rank that is ended in it.
        let records = self.gang.ranks();
        let ranks = alone.iter().filter_map(|group| group.ranks.count()).sum::<usize>();
        let is_complete = match self.settings.strict {
            true => records.iter().all(|record| record.status.is_some()),
            false => has_ended || ranks == records.len(),
        };
        if self.mpi_watch.awaits_others(now) && !is_complete {
            return;
        }
        self.mpi_watch.end();
        for group in &alone {
            self.note(group.to_string());
        }
        let mut advice: Vec<&str> = alone.iter().filter_map(|group| group.cause.advice()).collect();
        advice.dedup();
        for advice in advice {
            self.note(format!("hint: {advice}"));
        }
        let end = self.settings.strict;
        self.event(gang::Event::Alone { alone, end });
    }
}
