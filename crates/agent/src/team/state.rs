//! The team: the machine that decides ([`rankrun_core::team`]), what is needed to perform its effects, and the end of both.

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use rankrun_core::absence::Hook;
use rankrun_core::job::{AgentEvent, CleanShm, WorkerEvent};
use rankrun_core::team::{Event, Team as Machine};
use rankrun_core::{GroupId, JobSpec, Rank, Slot as SlotIndex, WorkerId};
use rankrun_sys::oom::OomWatch;
use rankrun_sys::poll::Interest;
use rankrun_wire::message::Summary;
use rankrun_wire::{Memory, ToFront};

use super::error_files::ErrorFiles;
use super::hands::Hands;
use super::killed::Killed;
use super::prepare::Preparer;
use super::slot::Slot;
use super::speakers::Speakers;
use crate::children::Helper;
use crate::driver::token::Place;
use crate::driver::token::Token;
use crate::guard::lease::Word;
use crate::services::pmi::Pmi;
use crate::services::pmix::Pmix;
use crate::streams::Output;
use crate::tidy::shm::{self, FINISH_BOUND, SharedMemory};

/// How often to check whether somebody else has frozen the job's cgroup.
pub(super) const FREEZER_STEP: Duration = Duration::from_secs(1);

/// How far the end of a team has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    No,
    /// No process is left; /dev/shm is being checked, at most until then.
    Memory {
        until: Duration,
    },
    /// The front was sent that all ranks have ended.
    Over,
    /// And that no output follows.
    Drained,
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
    /// The job's directory.
    pub(super) runtime: PathBuf,
    pub(super) hook: Hook,
    /// Slots that are still to be spawned.
    pub(super) to_spawn: VecDeque<SlotIndex>,
    pub(super) pmi: Option<Pmi>,
    pub(super) pmix: Option<Pmix>,
    /// Reserve the ports at which the ranks meet.
    pub(super) _held_ports: Vec<OwnedFd>,
    pub(super) output: Output,
    /// The front was not yet sent that the last piece of stdin was written.
    pub(super) stdin_owed: bool,
    pub(super) memory: Option<SharedMemory>,
    /// The first rank is not started until the present content of /dev/shm is known.
    pub(super) memory_ready: bool,
    pub(super) orders: Orders,
    pub(super) speakers: Speakers,
    pub(super) error_files: ErrorFiles,
    /// Somebody else has frozen the job's cgroup, and the front was sent a note.
    pub(super) frozen_outside: bool,
    pub(super) next_freezer_look: Duration,
    pub(super) oom: OomWatch,
    /// When it is opened.
    pub(super) oom_due: Option<Duration>,
    pub(super) killed: Killed,
    pub(super) frozen: bool,
    pub(super) released: u32,
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
        }
    }

    /// Sends a note when somebody else has frozen the job's cgroup: nothing else shows why the ranks make no progress.
    fn look_at_freezer(&mut self, hands: &mut Hands, now: Duration) {
        if now < self.next_freezer_look {
            return;
        }
        self.next_freezer_look = now + FREEZER_STEP;
        let Some(cgroup) = hands.children.boundary().cgroup() else { return };
        let is_frozen = cgroup.is_frozen();
        if is_frozen && !self.frozen_outside {
            let path = cgroup.path().display();
            let text = format!(
                "another program has frozen the job's cgroup: its processes are stopped until 0 is written to \"{path}/cgroup.freeze\""
            );
            hands.outbox.push(ToFront::Note(text));
        }
        self.frozen_outside = is_frozen;
    }

    /// Does all that is due.
    pub(crate) fn tick(&mut self, hands: &mut Hands, now: Duration) {
        self.look_at_freezer(hands, now);
        if let Some(memory) = &mut self.memory {
            memory.retry();
        }
        if self.oom_due.take_if(|due| *due <= now).is_some() {
            self.open_oom(hands);
        }
        if self.orders.deadline().is_some_and(|due| due <= now) {
            self.carry_out(hands, now);
        }
        self.machine.set_pace(hands.children.pace());
        self.event(hands, now, Event::Tick);
        self.pmix_tick(hands, now);
        if let Ending::Memory { until } = self.ending
            && now >= until
        {
            let bound = FINISH_BOUND.as_secs();
            let text = format!("could not look through /dev/shm within {bound} s: the guard looks again");
            hands.outbox.push(ToFront::Note(text));
            self.over(hands, None);
        }
        self.spawn_more(hands, now);
    }

    /// From here on kills for lack of memory are news.
    fn open_oom(&mut self, hands: &Hands) {
        self.oom.open();
        if let Some(log) = self.oom.log() {
            // Without it only ended leaders are checked.
            let _ = hands.poller.add(log, Token::KernelLog(self.group()).encode(), Interest::Read);
        }
    }

    /// When [`Team::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let memory = match self.ending {
            Ending::Memory { until } => Some(until),
            Ending::No | Ending::Over | Ending::Drained => None,
        };
        let pmix = self.pmix.as_ref().and_then(Pmix::deadline);
        let due = [self.machine.deadline(), memory, pmix, self.orders.deadline(), self.oom_due, self.output.due];
        due.into_iter().flatten().min()
    }

    /// No process is left but what was given up or released: check what is left in /dev/shm.
    pub(super) fn processes_gone(&mut self, hands: &mut Hands, now: Duration) {
        if let Some(pmix) = &mut self.pmix {
            pmix.close();
        }
        if self.memory.as_mut().is_some_and(SharedMemory::finish) {
            self.ending = Ending::Memory { until: now + FINISH_BOUND };
            self.memory_news(hands, now);
        } else {
            if self.memory.is_some() {
                let text = "could not look through /dev/shm: the guard looks again";
                hands.outbox.push(ToFront::Note(text.to_owned()));
            }
            self.over(hands, None);
        }
    }

    /// The watch over /dev/shm has answered.
    pub(crate) fn memory_news(&mut self, hands: &mut Hands, now: Duration) {
        while let Some(answer) = self.memory.as_mut().and_then(SharedMemory::next_answer) {
            match answer {
                shm::Answer::Ready => {
                    self.memory_ready = true;
                    self.spawn_more(hands, now);
                }
                shm::Answer::Looked => self.looked(hands, now),
                shm::Answer::Finished(left) if matches!(self.ending, Ending::Memory { .. }) => {
                    hands.lease.send(Word::Looked);
                    self.over(hands, Some(left));
                }
                shm::Answer::Finished(_) => {}
            }
        }
    }

    /// `memory` is what was found in /dev/shm, if anybody has looked.
    pub(super) fn over(&mut self, hands: &mut Hands, memory: Option<Memory>) {
        self.ending = Ending::Over;
        let given_up = hands.children.given_up();
        if !given_up.is_empty() {
            hands.lease.send(Word::GivenUp);
        }
        hands.outbox.push(ToFront::Event(AgentEvent::Over(Summary {
            left: given_up,
            released: self.released,
            memory,
            removes_memory: self.spec.clean_shm == CleanShm::Job,
        })));
    }

    /// A name has appeared in /dev/shm.
    pub(crate) fn memory_told(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.told();
        }
    }

    /// Tells the front what has happened to a worker.
    pub(super) fn tell(&self, hands: &mut Hands, at: Duration, slot: SlotIndex, event: WorkerEvent) {
        hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker: self.machine.id(slot), at, event }));
    }

    /// After the end: sends the front once that no output is left here.
    pub(crate) fn report_drained(&mut self, outbox: &mut Vec<ToFront>) {
        if self.ending == Ending::Over && self.slots.iter().all(|slot| slot.closed == [true, true]) {
            self.ending = Ending::Drained;
            outbox.push(ToFront::Event(AgentEvent::Drained));
        }
    }

    /// Whether nothing of the attempt is left, or what is left has been given up.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.ending, Ending::Over | Ending::Drained)
    }

    /// Another attempt follows: returns what it needs, and forgets its own workers.
    pub(crate) fn make_way(self, hands: &mut Hands) {
        let workers: HashSet<WorkerId> = self.slots.iter().map(|slot| slot.id).collect();
        hands.forget(|worker| workers.contains(&worker));
        hands.children.end_helpers(Helper::PmixHost(self.group()));
        hands.memory = self.memory;
        hands.inherited.rewind_stdin();
    }

    /// Whether processes were released, and must not be killed when the agent ends.
    pub(crate) fn has_released(&self) -> bool {
        self.released > 0
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
