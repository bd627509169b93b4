//! Looks into the ranks, when the front asks where they are. The looker is one of the node, for all its groups.

use std::time::Duration;

use rankrun_core::job::AgentEvent;
use rankrun_core::team::Target;
use rankrun_core::worker::State;
use rankrun_core::{Slot as SlotIndex, WorkerId, WorkerStatus};
use rankrun_sys::poll::Ready;
use rankrun_sys::process::ProcessId;
use rankrun_sys::signal;
use rankrun_wire::ToFront;

use super::spawner::{Job, NotSpawned};
use super::{Hands, Team, Teams};
use crate::children::Helper;
use crate::helpers::looker::Subject;
use crate::services::looker::Look;

const JOB: Job = Job::Helper(Helper::Looker);

impl Teams {
    /// The front asks where these workers are, or all.
    pub(crate) fn look(
        &mut self,
        hands: &mut Hands,
        now: Duration,
        number: u64,
        workers: Option<&[WorkerId]>,
        native: bool,
    ) {
        let Some(limits) = self.first().map(|team| team.preparer.limits()) else {
            // No rank has been started here.
            hands.outbox.push(ToFront::Event(AgentEvent::Looking { number, traffic: None }));
            hands.outbox.push(ToFront::Event(AgentEvent::LookOver { number }));
            return;
        };
        let subjects: Vec<_> = self.all().flat_map(|team| team.subjects(hands, workers)).collect();
        hands.outbox.push(ToFront::Event(AgentEvent::Looking { number, traffic: hands.traffic }));
        hands.looker.ask(Look { number, native, subjects, limits });
        hands.start_looker(now);
    }
}

impl Team {
    pub(super) fn subjects(&self, hands: &Hands, workers: Option<&[WorkerId]>) -> Vec<(WorkerId, Subject)> {
        let is_wanted = |slot: &SlotIndex| {
            let is_alive = matches!(self.machine.state(*slot), State::Running { .. } | State::Stopping { .. });
            is_alive && workers.is_none_or(|workers| workers.contains(&self.machine.id(*slot)))
        };
        let subject = |slot: SlotIndex| Some((self.machine.id(slot), self.subject(hands, slot)?));
        self.machine.slots().filter(is_wanted).filter_map(subject).collect()
    }

    /// The process of a rank that is looked into: the one in MPI, else the one that reports for the rank, else the leader.
    fn subject(&self, hands: &Hands, slot: SlotIndex) -> Option<Subject> {
        let leader = hands.children.leader(self.id(slot)).map(|leader| leader.pid());
        let speaker = if let Target::Speaker(id) = self.machine.voice(slot) { self.speakers.process(id) } else { None };
        let known = self.in_mpi(slot).flatten().or(speaker);
        let of = |id: ProcessId| Subject { pid: id.pid, started: id.started, is_leader: Some(id.pid) == leader };
        known.or_else(|| ProcessId::of(leader?)).map(of)
    }
}

impl Hands {
    /// Starts a looker as soon as the spawner has room for it.
    fn start_looker(&mut self, now: Duration) {
        while self.looker.wants_start() && self.spawner.has_room() && !self.spawner.awaits(JOB) {
            self.children.end_helpers(Helper::Looker);
            let command = self.looker.start(now, &self.poller);
            match self.start_helper(Helper::Looker, command) {
                Ok(()) => return,
                Err(why) => self.no_look(&why),
            }
        }
    }

    fn no_look(&mut self, why: &str) {
        let news = self.looker.fail(&format!("the process that looks into ranks could not be started: {why}"));
        self.outbox.extend(news);
    }

    /// The spawner has started a looker, or not.
    pub(super) fn looker_spawned(&mut self, result: Result<i32, NotSpawned>) {
        match self.helper_spawned(Helper::Looker, result) {
            Ok(pid) => {
                if !self.looker.started(pid) {
                    self.children.end_helpers(Helper::Looker);
                }
            }
            // It was given up before it was started.
            Err(_) if !self.looker.is_looking() => {}
            Err(NotSpawned::Cancelled) => self.no_look("the job is being stopped"),
            Err(error) => self.no_look(&error.to_string()),
        }
    }

    pub(super) fn looker_ended(&mut self, now: Duration, status: WorkerStatus) {
        let news = self.looker.ended(status);
        self.outbox.extend(news);
        self.start_looker(now);
    }

    pub(super) fn looker_ready(&mut self, now: Duration, event: Ready) {
        let news = self.looker.ready(event);
        let is_over = news.iter().any(|news| matches!(news, ToFront::Event(AgentEvent::LookOver { .. })));
        self.outbox.extend(news);
        if is_over {
            self.start_looker(now);
        }
    }

    /// A looker that takes too long is killed: what it has found is with the front.
    pub(super) fn looker_tick(&mut self, now: Duration) {
        if self.looker.is_late(now) {
            self.children.end_helpers(Helper::Looker);
            if let Some(child) = self.spawner.starting(JOB) {
                // It has not come to its exec, and holds up the spawner. It has no result yet: nobody has reaped it.
                let _ = child.signal(signal::SIGKILL);
            }
            let news = self.looker.fail("looking into the ranks of this node took too long");
            self.outbox.extend(news);
        }
        self.start_looker(now);
    }
}
