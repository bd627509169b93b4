//! Handles the changes of the leaders: ended, stopped, continued.

use std::time::Duration;

use rankrun_core::job::WorkerEvent;
use rankrun_core::team::Event;
use rankrun_core::worker::State;
use rankrun_core::{Pid, Slot as SlotIndex, WorkerStatus};
use rankrun_sys::limits;
use rankrun_sys::oom::OomKill;
use rankrun_sys::proc;
use rankrun_sys::process::Child;
use rankrun_sys::signal;
use rankrun_sys::wait::Change;
use rankrun_wire::ToFront;

use super::{Hands, Team, conclude};

impl Team {
    /// Something in a worker's boundary has changed.
    pub(crate) fn boundary_changed(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex) {
        if let Some(event) = self.perform(hands, now, rankrun_core::team::Effect::LookAtBoundary(slot)) {
            self.event(hands, now, event);
        }
    }

    /// Processes of any worker may have ended: the boundaries that we wait for may be empty now.
    pub(super) fn boundaries_may_be_empty(&mut self, hands: &mut Hands, now: Duration) {
        for slot in self.machine.slots() {
            if self.machine.awaits_boundary(slot) {
                self.boundary_changed(hands, now, slot);
            }
        }
    }

    /// A leader was stopped or continued.
    pub(super) fn leader_changed(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, change: Change) {
        match change {
            Change::Stopped { signal } if !self.frozen && !self.orders.holds(slot) => {
                self.tell(hands, now, slot, WorkerEvent::Stopped { signal });
            }
            Change::Continued if !self.frozen => self.tell(hands, now, slot, WorkerEvent::Continued),
            Change::Stopped { .. } | Change::Continued | Change::Exited { .. } | Change::Signaled { .. } => {}
        }
    }

    pub(super) fn leader_ended(
        &mut self,
        hands: &mut Hands,
        now: Duration,
        slot: SlotIndex,
        leader: Child,
        status: WorkerStatus,
    ) {
        let news = hands.look_at_pmix_host(now);
        self.mpi_news(hands, now, news);
        // Read pending PMI requests and reports before reporting the exit.
        let news = self.pmi.as_mut().map(|pmi| pmi.read_last(slot, &hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
        self.read_last_messages(hands, now, slot);
        if !status.success() {
            conclude::look_for_killed_helpers(hands, now);
        }
        self.look_for_oom(hands, now, slot, leader, status);
        self.look_at_cpu_time(hands, now, slot, leader, status);
        if !status.success() {
            self.read_error_file(hands, now, slot, Pid(leader.pid()));
        }
        let stop = self.machine.stop_record(slot, status);
        let goes_on = matches!(self.machine.state(slot), State::Running { .. }) && !status.success();
        self.rank_left_pmix(hands, now, slot, goes_on);
        self.tell(hands, now, slot, WorkerEvent::Ended { status, stop });
        hands.children.reap(self.id(slot), leader);
        self.event(hands, now, Event::LeaderEnded(slot, status));
    }

    /// A SIGKILL that is not ours may be the kernel's, for the CPU time that was used.
    fn look_at_cpu_time(&self, hands: &mut Hands, now: Duration, slot: SlotIndex, leader: Child, status: WorkerStatus) {
        let is_killed = matches!(status, WorkerStatus::Signaled { signal, .. } if signal == signal::SIGKILL);
        let ours = !matches!(self.machine.state(slot), State::Running { .. });
        let Some(limit) = (is_killed && !ours).then(|| limits::cpu_time_of(leader.pid())).flatten() else { return };
        if let Some(process) = proc::process(leader.pid()) {
            self.tell(hands, now, slot, WorkerEvent::CpuTime { used: process.cpu_time(), limit });
        }
    }

    /// A SIGKILL that is not ours may be the kernel's, which was out of memory.
    fn look_for_oom(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, leader: Child, status: WorkerStatus) {
        let killed = match status {
            WorkerStatus::Signaled { signal, .. } => signal == signal::SIGKILL,
            // How a shell reports it.
            WorkerStatus::Exited { code } => code == 128 + signal::SIGKILL as u8,
        };
        let ours = !matches!(self.machine.state(slot), State::Running { .. });
        if !killed || ours {
            return;
        }
        let worker = self.machine.id(slot);
        // A leader that was killed itself is named by the log.
        let has_exited = matches!(status, WorkerStatus::Exited { .. });
        let helper = has_exited.then(|| hands.site.killed.take(now, worker)).flatten();
        let detail = match hands.site.oom.as_mut().map_or(OomKill::Unknown, |oom| oom.look(leader.pid())) {
            // A shell exits with the status of its program.
            OomKill::Counted { .. } | OomKill::No | OomKill::Unknown if helper.is_some() => helper.unwrap_or_default(),
            OomKill::Logged { line } => line,
            OomKill::Counted { cgroup, kills } => format!("{kills} out-of-memory kills in the cgroup {cgroup}"),
            OomKill::No => return,
            OomKill::Unknown => {
                let rank = worker.rank;
                hands.outbox.push(ToFront::Note(format!(
                    "cannot tell whether the kernel killed rank {rank} for lack of memory: neither its log nor the memory cgroup is readable"
                )));
                return;
            }
        };
        self.tell(hands, now, slot, WorkerEvent::KilledForMemory { detail });
    }
}
