//! The state machine of the workers that one agent has of one group in one attempt: events in, effects out. The agent performs
//! the effects, and feeds back the results.
//!
//! Beyond the machine of each worker ([`crate::worker`]) it decides:
//! * which process gets the signal of a stop first: a rank's speaker before its leader (K-3);
//! * which failed processes are stuck;
//! * when the processes that a leader has left count as idle, so that their linger ends early (docs/adr/0005);
//! * what to do with processes that belong to no worker, once every worker is gone (K-4);
//! * how long a program may take to reach its exec (K-5).

mod orphans;
mod speakers;
mod speaking;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::condition::Condition;
use crate::grace::{Progress, SIGKILL, SIGTERM, StopRecord};
use crate::ids::{Attempt, Pid, Rank, Slot, SpeakerId, WorkerId};
use crate::spec::job::{StopPolicy, StopScope};
use crate::status::WorkerStatus;
use crate::testimony::{Graces, StuckIn, Usage};
use crate::timers::Timers;
use crate::worker::{self, State, Stop, Worker};
use speaking::Speaking;

/// After so long without activity, what a leader has left is expected not to end by itself.
pub const IDLE_FOR: Duration = Duration::from_millis(100);
/// How often it is checked, at most.
pub const IDLE_STEP: Duration = Duration::from_millis(25);
/// How often the agent checks whether a signalled speaker is gone.
pub const SPEAKER_STEP: Duration = Duration::from_millis(10);
/// How often it checks for the end of a speaker after its connection was closed.
pub const CLOSED_SPEAKER_STEP: Duration = Duration::from_secs(1);
/// How long a program may take from its clone to its exec: it may lie on a file system that does not answer.
pub const EXEC_BOUND: Duration = Duration::from_secs(60);

/// What some processes have done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// A number that changes when one of them ran, wrote, came or went.
    pub sum: u64,
    /// None of them is about to run: all are asleep, stopped or dead.
    pub quiet: bool,
}

/// An event of a team.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The spawner was given the worker's command.
    SpawnBegun(Slot),
    Spawned(Slot, Pid),
    SpawnFailed(Slot),
    LeaderEnded(Slot, WorkerStatus),
    /// The leader was not killed: its core is being written.
    CoreDumpSeen(Slot),
    /// The agent looked: nothing of a worker whose leader is gone is left.
    BoundaryEmpty(Slot),
    /// The agent looked: something is left.
    BoundaryHeld(Slot, Activity),
    /// The agent looked: a speaker is gone.
    SpeakerEnded(SpeakerId),
    /// The agent looked: a speaker is alive, and this is its usage since its start.
    SpeakerSeen(SpeakerId, Usage),
    /// Its connection is closed.
    SpeakerClosed(SpeakerId),
    /// The leader had ended before the signal that was just to be sent to it.
    SignalMissed(Slot),
    /// The leader ignores that signal or leaves it to the kernel: if it exits now, that is of its own.
    SignalUnnoticed(Slot),
    /// The agent looked: what a worker's processes have done.
    Progress(Slot, Progress),
    /// The agent looked: this process has no child left but helpers of its own.
    NoOrphans,
    /// The agent looked: processes of the job are left that belong to no worker.
    Orphans(Activity),
    /// A worker that is gone is to be started again, as the next attempt of its rank.
    Again(Slot, Attempt),
    /// It is not.
    Settled(Slot),
    Stop(Stop),
    Kill,
    /// A deadline may have passed.
    Tick,
}

/// The target of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    Leader(Slot),
    LeaderGroup(Slot),
    Speaker(SpeakerId),
    /// All processes of a worker except its leader.
    Rest(Slot),
    /// A worker's whole boundary.
    Boundary(Slot),
    /// The child of a worker that has not reached its exec, if there is one.
    Spawning(Slot),
    /// All processes of the job that belong to no worker.
    Orphans,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// This signal, then SIGCONT, so that a stopped process can act on it. Of a leader `SignalMissed` or `SignalUnnoticed` may
    /// follow.
    Terminate(Target, i32),
    /// SIGKILL.
    Kill(Target),
    /// SIGKILL to a leader, unless its core is being written: then `CoreDumpSeen` is to follow.
    KillLeader(Slot),
    /// Cancel the workers that the spawners have not begun.
    CancelSpawns,
    /// A program did not reach its exec within [`EXEC_BOUND`].
    ExecTimedOut(Slot),
    /// Look at what is left of a worker; `BoundaryEmpty` or `BoundaryHeld` is to follow.
    LookAtBoundary(Slot),
    /// Look at what a worker's processes have done; `Progress` is to follow.
    LookAtWork(Slot),
    /// `SpeakerEnded` or `SpeakerSeen` is to follow.
    LookAtSpeaker(SpeakerId),
    /// `NoOrphans` or `Orphans` is to follow.
    LookAtOrphans,
    /// A process that has failed does not end. If it is not the leader, its kill was ordered.
    Stuck { speaker: SpeakerId, slot: Slot, place: StuckIn, since: Duration, is_leader: bool },
    /// The exit handlers of a process that has failed take long. Emitted once.
    WaitsForHandlers { slot: Slot, left: Duration },
    /// Forget a speaker.
    ForgetSpeaker { speaker: SpeakerId, slot: Slot },
    /// Release what is left of a worker: it outlives the job.
    Release(Slot),
    /// A worker is gone. Emitted once.
    Gone(Slot),
    /// The successor of a worker that was gone is to be started.
    StartAgain(Slot),
    /// What is left of the orphans could not be killed.
    OrphansGivenUp,
    /// Every worker is gone, and nothing else is left but what was given up or released. Emitted once.
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Timer {
    Worker(Slot),
    Idle(Slot),
    Speaker(SpeakerId),
    Exec,
    Orphans,
    OrphansLook,
}

/// Since when the processes that are left have been idle.
#[derive(Clone, Copy, Default, Debug)]
struct Idleness(Option<(Duration, u64)>);

impl Idleness {
    /// Adds one check. Returns whether all have been idle for long enough.
    fn seen(&mut self, now: Duration, activity: Activity) -> bool {
        match self.0 {
            Some((since, before)) if activity.quiet && before == activity.sum => now >= since + IDLE_FOR,
            Some(_) | None => {
                self.0 = activity.quiet.then_some((now, activity.sum));
                false
            }
        }
    }
}

#[derive(Debug)]
struct Member {
    id: WorkerId,
    worker: Worker,
    idle: Idleness,
    /// A speaker that was signalled before its leader, and the signal.
    stopped_speaker: Option<(SpeakerId, i32)>,
    record: StopRecord,
    /// The signal that its leader is just being sent.
    sending: Option<i32>,
    /// The signals that its leader could not notice.
    unnoticed: Vec<i32>,
}

impl Member {
    fn new(id: WorkerId) -> Member {
        Member {
            id,
            worker: Worker::default(),
            idle: Idleness::default(),
            stopped_speaker: None,
            record: StopRecord::default(),
            sending: None,
            unnoticed: Vec::new(),
        }
    }
}

/// The team.
#[derive(Debug)]
pub struct Team {
    policy: StopPolicy,
    graces: Graces,
    members: Vec<Member>,
    by_rank: HashMap<Rank, Slot>,
    speakers: BTreeMap<SpeakerId, Speaking>,
    next_speaker: u32,
    /// Workers that the spawners have the commands of, in order.
    spawning: VecDeque<Slot>,
    /// The worker that had its child killed because it did not reach its exec.
    exec_killed: Option<Slot>,
    orphans: Option<(Worker, Idleness)>,
    stop: Option<Stop>,
    /// Workers that are not gone.
    alive: usize,
    /// Each worker that ends by itself may be started again (`--restart-scope rank`).
    is_open: bool,
    /// Those that are gone, and of which that is not decided.
    undecided: BTreeSet<Slot>,
    timers: Timers<Timer>,
    /// The least pause between two checks: more than [`IDLE_STEP`] if a check is expensive.
    pace: Duration,
    over: bool,
}

impl Team {
    /// The workers of these ranks, none of them started. Without any the team is over with its first tick: a node may have no rank of a
    /// group, and get some of a later one.
    pub fn new(attempt: Attempt, ranks: impl IntoIterator<Item = Rank>, policy: StopPolicy, graces: Graces) -> Team {
        let mut timers = Timers::default();
        let members: Vec<Member> = ranks.into_iter().map(|rank| Member::new(WorkerId { rank, attempt })).collect();
        timers.set(Timer::OrphansLook, members.is_empty().then_some(Duration::ZERO));
        Team {
            policy,
            graces,
            by_rank: members.iter().zip(0..).map(|(member, slot)| (member.id.rank, Slot(slot))).collect(),
            alive: members.len(),
            is_open: false,
            undecided: BTreeSet::new(),
            members,
            speakers: BTreeMap::new(),
            next_speaker: 0,
            spawning: VecDeque::new(),
            exec_killed: None,
            orphans: None,
            stop: None,
            timers,
            pace: IDLE_STEP,
            over: false,
        }
    }

    /// Each worker that ends before a stop is ordered waits for [`Event::Again`] or [`Event::Settled`].
    pub fn keep_open(&mut self) {
        self.is_open = true;
    }

    /// Whether it is to be decided if a worker that is gone has a successor.
    pub fn is_undecided(&self, slot: Slot) -> bool {
        self.undecided.contains(&slot)
    }

    pub fn size(&self) -> usize {
        self.members.len()
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.members.len() as u32).map(Slot)
    }

    pub fn id(&self, slot: Slot) -> WorkerId {
        self.members[slot.index()].id
    }

    pub fn slot_of(&self, rank: Rank) -> Option<Slot> {
        self.by_rank.get(&rank).copied()
    }

    pub fn state(&self, slot: Slot) -> &State {
        self.members[slot.index()].worker.state()
    }

    /// The workers whose leaders have not ended, and whether each is stopping and seen to write files.
    pub fn alive(&self, now: Duration) -> Vec<(WorkerId, bool)> {
        let alive = self.members.iter().filter(|member| member.worker.leader().is_some());
        let is_saving = |worker: &Worker| worker.grace().is_some_and(|grace| grace.is_saving(now));
        alive.map(|member| (member.id, is_saving(&member.worker))).collect()
    }

    /// What every worker is doing.
    pub fn conditions(&self, now: Duration) -> Vec<(WorkerId, Condition)> {
        self.members.iter().map(|member| (member.id, Condition::of(&member.worker, now))).collect()
    }

    /// What was done to end a worker, until its leader ended so: an exit with a code is no answer to a signal that the leader
    /// could not notice.
    pub fn stop_record(&self, slot: Slot, status: WorkerStatus) -> StopRecord {
        let Member { record, unnoticed, .. } = &self.members[slot.index()];
        let mut record = record.clone();
        if matches!(status, WorkerStatus::Exited { .. }) {
            record.signals.retain(|(signal, _)| !unnoticed.contains(signal));
        }
        record
    }

    /// Whether a worker's leader is gone and other processes are left.
    pub fn awaits_boundary(&self, slot: Slot) -> bool {
        self.members[slot.index()].worker.awaits_boundary()
    }

    /// When `Tick` is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Sets the least pause between two checks of what is left.
    pub fn set_pace(&mut self, pace: Duration) {
        self.pace = pace.max(IDLE_STEP);
    }

    /// Handles one event; appends to `effects`.
    pub fn handle(&mut self, now: Duration, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::SpawnBegun(slot) => {
                self.spawning.push_back(slot);
                if self.spawning.len() == 1 {
                    self.timers.set(Timer::Exec, Some(now + EXEC_BOUND));
                }
                self.worker(now, slot, worker::Event::SpawnBegun, effects);
            }
            Event::Spawned(slot, pid) => {
                self.spawn_ended(now, slot);
                self.worker(now, slot, worker::Event::Spawned(pid), effects);
            }
            Event::SpawnFailed(slot) => {
                self.spawn_ended(now, slot);
                self.worker(now, slot, worker::Event::SpawnFailed, effects);
            }
            Event::LeaderEnded(slot, status) => {
                self.forget_speakers(effects, |speaking| speaking.slot == slot && speaking.is_leader);
                self.worker(now, slot, worker::Event::LeaderEnded(status), effects);
            }
            Event::CoreDumpSeen(slot) => self.worker(now, slot, worker::Event::CoreDumpSeen, effects),
            Event::BoundaryEmpty(slot) => self.worker(now, slot, worker::Event::BoundaryEmpty, effects),
            Event::BoundaryHeld(slot, activity) => self.boundary_held(now, slot, activity, effects),
            Event::SignalMissed(slot) => {
                let member = &mut self.members[slot.index()];
                if member.sending.take().is_some() {
                    member.record.signals.pop();
                }
            }
            Event::SignalUnnoticed(slot) => {
                let member = &mut self.members[slot.index()];
                // Its children may notice what goes to the group or to all, and it notices their end.
                member.unnoticed.extend(member.sending.take().filter(|_| self.policy.scope == StopScope::Leader));
            }
            Event::Progress(slot, progress) => self.worker(now, slot, worker::Event::Progress(progress), effects),
            Event::SpeakerEnded(id) => self.speaker_ended(id, effects),
            Event::SpeakerSeen(id, usage) => self.speaker_seen(now, id, usage, effects),
            Event::SpeakerClosed(id) => {
                if let Some(speaking) = self.speakers.get_mut(&id) {
                    speaking.is_closed = true;
                    effects.push(Effect::LookAtSpeaker(id));
                }
            }
            Event::NoOrphans => self.no_orphans(now, effects),
            Event::Orphans(activity) => self.orphans_left(now, activity, effects),
            Event::Again(slot, attempt) => self.start_again(slot, attempt, effects),
            Event::Settled(slot) => {
                self.undecided.remove(&slot);
                self.look_for_orphans(effects);
            }
            Event::Stop(stop) => {
                self.stop = Some(stop);
                self.close(effects);
                effects.push(Effect::CancelSpawns);
                for slot in self.slots() {
                    self.worker(now, slot, worker::Event::Stop(stop), effects);
                }
                self.orphans_event(now, worker::Event::Stop(stop), effects);
            }
            Event::Kill => {
                self.close(effects);
                effects.push(Effect::CancelSpawns);
                for slot in self.slots() {
                    self.worker(now, slot, worker::Event::Kill, effects);
                }
                self.orphans_event(now, worker::Event::Kill, effects);
            }
            Event::Tick => self.tick(now, effects),
        }
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Worker(slot) => self.worker(now, slot, worker::Event::Tick, effects),
                Timer::Idle(slot) => {
                    if self.awaits_boundary(slot) {
                        effects.push(Effect::LookAtBoundary(slot));
                    }
                }
                Timer::Speaker(id) => effects.push(Effect::LookAtSpeaker(id)),
                Timer::Exec => self.exec_timed_out(now, effects),
                Timer::Orphans => self.orphans_event(now, worker::Event::Tick, effects),
                Timer::OrphansLook => effects.push(Effect::LookAtOrphans),
            }
        }
    }

    /// The program that has waited for its exec for the longest time does not reach it. If it cannot be killed either, its spawner stays
    /// blocked, and soon all of them: no worker behind it is started.
    fn exec_timed_out(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let Some(&first) = self.spawning.front() else { return };
        let is_killed_in_vain = self.exec_killed.replace(first) == Some(first);
        let is_stuck = |slot: &Slot| match self.state(*slot) {
            State::Pending | State::Spawning { .. } => is_killed_in_vain && *slot != first,
            State::Running { .. }
            | State::Stopping { .. }
            | State::Lingering { .. }
            | State::Terminating { .. }
            | State::DumpingCore { .. }
            | State::KillingLeader { .. }
            | State::KillingAll { .. }
            | State::Gone { .. } => false,
        };
        let mut failed: Vec<Slot> = self.slots().filter(is_stuck).collect();
        if is_killed_in_vain {
            effects.push(Effect::CancelSpawns);
        } else {
            failed.push(first);
            self.timers.set(Timer::Exec, Some(now + worker::KILL_BOUND));
            effects.push(Effect::Kill(Target::Spawning(first)));
        }
        for slot in failed {
            effects.push(Effect::ExecTimedOut(slot));
            self.worker(now, slot, worker::Event::Kill, effects);
        }
    }

    /// Feeds one event to a worker, and translates its effects into effects of the team.
    fn worker(&mut self, now: Duration, slot: Slot, event: worker::Event, effects: &mut Vec<Effect>) {
        let mut wanted = Vec::new();
        let member = &mut self.members[slot.index()];
        member.worker.handle(now, event, &self.policy, &mut wanted);
        self.timers.set(Timer::Worker(slot), member.worker.deadline());
        if let Some(grace) = member.worker.grace().filter(|_| member.worker.leader().is_some()) {
            member.record.work = grace.work();
        }
        for effect in wanted {
            match effect {
                worker::Effect::Terminate(scope, signal) => self.terminate(slot, scope, signal, now, effects),
                worker::Effect::TerminateRest => effects.push(Effect::Terminate(Target::Rest(slot), SIGTERM)),
                worker::Effect::LookAtWork => effects.push(Effect::LookAtWork(slot)),
                worker::Effect::KillSpawning => effects.push(Effect::Kill(Target::Spawning(slot))),
                worker::Effect::KillLeader => {
                    let signals = &mut self.members[slot.index()].record.signals;
                    // It waits for the core dump, and repeats the order.
                    if signals.last().is_none_or(|(signal, _)| *signal != SIGKILL) {
                        signals.push((SIGKILL, now));
                    }
                    effects.push(Effect::KillLeader(slot));
                }
                worker::Effect::KillAll => effects.push(Effect::Kill(Target::Boundary(slot))),
                worker::Effect::LookAtBoundary => effects.push(Effect::LookAtBoundary(slot)),
                worker::Effect::Release => effects.push(Effect::Release(slot)),
                worker::Effect::Gone => self.gone(slot, effects),
            }
        }
    }

    fn terminate(&mut self, slot: Slot, scope: StopScope, signal: i32, now: Duration, effects: &mut Vec<Effect>) {
        let speaker = self.speaker_of(slot).filter(|_| scope == StopScope::Leader);
        let member = &mut self.members[slot.index()];
        member.record.signals.push((signal, now));
        member.sending = speaker.is_none().then_some(signal);
        match scope {
            // The leader may be a shell that would go on to its next command, or end without its child.
            StopScope::Leader => match speaker {
                Some(id) => {
                    effects.push(Effect::Terminate(Target::Speaker(id), signal));
                    self.members[slot.index()].stopped_speaker = Some((id, signal));
                    self.timers.set(Timer::Speaker(id), Some(now + SPEAKER_STEP));
                }
                None => effects.push(Effect::Terminate(Target::Leader(slot), signal)),
            },
            StopScope::Group => effects.push(Effect::Terminate(Target::LeaderGroup(slot), signal)),
            StopScope::Tree => {
                effects.push(Effect::Terminate(Target::Leader(slot), signal));
                effects.push(Effect::Terminate(Target::Rest(slot), signal));
            }
        }
    }

    fn gone(&mut self, slot: Slot, effects: &mut Vec<Effect>) {
        self.alive -= 1;
        self.timers.set(Timer::Idle(slot), None);
        self.forget_speakers(effects, |speaking| speaking.slot == slot);
        effects.push(Effect::Gone(slot));
        if self.is_open {
            self.undecided.insert(slot);
        }
        self.look_for_orphans(effects);
    }

    /// A worker that is gone has a successor.
    fn start_again(&mut self, slot: Slot, attempt: Attempt, effects: &mut Vec<Effect>) {
        if !self.undecided.remove(&slot) {
            // A stop has come first.
            return;
        }
        let id = self.members[slot.index()].id;
        self.members[slot.index()] = Member::new(WorkerId { attempt, ..id });
        self.alive += 1;
        effects.push(Effect::StartAgain(slot));
    }

    /// No worker is started again.
    fn close(&mut self, effects: &mut Vec<Effect>) {
        self.is_open = false;
        if !std::mem::take(&mut self.undecided).is_empty() {
            self.look_for_orphans(effects);
        }
    }

    fn spawn_ended(&mut self, now: Duration, slot: Slot) {
        let was_first = self.spawning.front() == Some(&slot);
        self.spawning.retain(|spawning| *spawning != slot);
        if was_first {
            let next = (!self.spawning.is_empty()).then_some(now + EXEC_BOUND);
            self.timers.set(Timer::Exec, next);
        }
    }

    fn boundary_held(&mut self, now: Duration, slot: Slot, activity: Activity, effects: &mut Vec<Effect>) {
        if !self.awaits_boundary(slot) {
            return;
        }
        let member = &mut self.members[slot.index()];
        if member.worker.awaits_idle() && member.idle.seen(now, activity) {
            self.worker(now, slot, worker::Event::BoundaryIdle, effects);
        }
        self.timers.set(Timer::Idle(slot), Some(now + self.pace));
    }
}

#[cfg(test)]
#[path = "team_tests.rs"]
mod tests;
