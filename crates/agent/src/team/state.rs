//! The team: the machine that decides ([`rankrun_core::team`]), what is needed to perform its effects, and the end of both.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use rankrun_core::absence::Hook;
use rankrun_core::job::{AgentEvent, WorkerEvent};
use rankrun_core::team::{Event, Team as Machine};
use rankrun_core::{AppIndex, GroupId, JobSpec, Rank, Slot as SlotIndex, WorkerId};
use rankrun_wire::ToFront;

use super::error_files::ErrorFiles;
use super::hands::Hands;
use super::prepare::Preparer;
use super::slot::Slot;
use super::speakers::Speakers;
use crate::children::ServerId;
use crate::driver::token::Place;
use crate::services::pmi::Pmi;
use crate::services::pmix;
use crate::streams::Output;

/// How far the end of a team has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    No,
    /// No process is left but what was given up or released.
    Over,
}

/// The orders that wait.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) waiting: Vec<Event>,
    /// Looks that were requested and are not answered.
    pub(super) looks: u32,
    pub(super) until: Duration,
    /// The slots whose processes stand still meanwhile.
    pub(super) held: Vec<SlotIndex>,
}

impl Orders {
    /// When the orders that wait are carried out without an answer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(self.until)
    }

    /// Whether we have stopped the processes of a slot.
    pub(super) fn holds(&self, slot: SlotIndex) -> bool {
        self.held.contains(&slot)
    }
}

/// The team.
pub(crate) struct Team {
    pub(crate) machine: Machine,
    pub(super) spec: Rc<JobSpec>,
    pub(super) slots: Vec<Slot>,
    pub(super) preparer: Preparer,
    /// The interpreters that the ranks of some commands are forked from.
    pub(super) servers: HashMap<AppIndex, ServerId>,
    /// The job's directory.
    pub(super) runtime: PathBuf,
    pub(super) hook: Hook,
    /// Slots that are still to be spawned.
    pub(super) to_spawn: VecDeque<SlotIndex>,
    pub(super) pmi: Option<Pmi>,
    pub(super) pmix: Option<pmix::Ranks>,
    /// Reserve the ports at which the ranks meet.
    pub(super) _held_ports: Vec<OwnedFd>,
    pub(super) output: Output,
    /// The front was not yet sent that the last piece of stdin was written.
    pub(super) stdin_owed: bool,
    /// A rank has read what was sent last, or its end.
    pub(super) stdin_read: bool,
    /// What the front sends of stdin has ended: ranks that are started again read the end too.
    pub(super) has_stdin_ended: bool,
    pub(super) orders: Orders,
    pub(super) speakers: Speakers,
    pub(super) error_files: ErrorFiles,
    pub(super) frozen: bool,
    pub(super) started: u32,
    pub(super) ending: Ending,
}

impl Team {
    /// Feeds the machine, and performs its effects until there are none.
    pub(crate) fn event(&mut self, hands: &mut Hands, now: Duration, event: Event) {
        let mut effects = Vec::new();
        self.machine.handle(now, event, &mut effects);
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            hands.lease.renew();
            if let Some(reply) = self.perform(hands, now, effect) {
                let mut more = Vec::new();
                self.machine.handle(now, reply, &mut more);
                queue.extend(more);
            }
        }
    }

    /// Feeds an event of a rank to the machine.
    pub(crate) fn event_of_rank(
        &mut self,
        hands: &mut Hands,
        now: Duration,
        rank: Rank,
        event: impl FnOnce(SlotIndex) -> Event,
    ) {
        if let Some(slot) = self.machine.slot_of(rank) {
            self.event(hands, now, event(slot));
            self.spawn_more(hands, now);
            // It may have no successor.
            self.report_stdin_taken(hands);
        }
    }

    /// Does all that is due.
    pub(crate) fn tick(&mut self, hands: &mut Hands, now: Duration) {
        if self.orders.deadline().is_some_and(|due| due <= now) {
            self.carry_out(hands, now);
        }
        self.machine.set_pace(hands.children.pace());
        self.event(hands, now, Event::Tick);
        self.spawn_more(hands, now);
    }

    /// When [`Team::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let due = [self.machine.deadline(), self.orders.deadline(), self.output.due];
        due.into_iter().flatten().min()
    }

    /// No process is left but what was given up or released.
    pub(super) fn processes_gone(&mut self, hands: &mut Hands, now: Duration) {
        self.leave_pmix(hands, now);
        self.ending = Ending::Over;
    }

    /// Tells the front what has happened to a worker.
    pub(super) fn tell(&self, hands: &mut Hands, at: Duration, slot: SlotIndex, event: WorkerEvent) {
        hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker: self.machine.id(slot), at, event }));
    }

    /// Whether all that its ranks wrote has been sent.
    pub(crate) fn is_drained(&self) -> bool {
        self.slots.iter().all(|slot| slot.closed == [true, true])
    }

    /// Whether nothing of the attempt is left, or what is left has been given up.
    pub(crate) fn is_over(&self) -> bool {
        self.ending == Ending::Over
    }

    /// It is over, and leaves nothing that anybody needs: forgets its own workers.
    pub(crate) fn make_way(self, hands: &mut Hands) {
        hands.give_back(self.group());
    }

    /// The time from SIGTERM to SIGKILL, in a stop that no signal from outside started.
    pub(crate) fn grace(&self) -> Duration {
        self.spec.stop.grace_failure
    }

    pub(super) fn group(&self) -> GroupId {
        self.spec.group
    }

    /// The worker that has a slot. Its successor has it when all is ready for its start.
    pub(super) fn id(&self, slot: SlotIndex) -> WorkerId {
        self.slots[slot.index()].id
    }

    /// The slot of a worker of this team; `None` for one that has a successor.
    pub(super) fn slot_of(&self, worker: WorkerId) -> Option<SlotIndex> {
        self.machine.slot_of(worker.rank).filter(|slot| self.id(*slot) == worker)
    }

    pub(super) fn place(&self, slot: SlotIndex) -> Place {
        Place { group: self.group(), slot }
    }

    pub(super) fn slot(&mut self, slot: SlotIndex) -> &mut Slot {
        &mut self.slots[slot.index()]
    }
}
