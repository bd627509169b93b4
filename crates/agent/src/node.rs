//! The workers of this node in one attempt: started, watched, stopped, proven gone.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rankrun_core::job::{CleanShm, Descendants, StopPolicy, StopScope};
use rankrun_core::testimony::Graces;
use rankrun_core::worker::{Effect, Event, State, Stop};
use rankrun_core::{JobId, JobSpec, Pid, WorkerId, WorkerStatus};
use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::limits::Limits;
use rankrun_sys::oom::{OomKill, OomWatch};
use rankrun_sys::poll::{Interest, Poller};
use rankrun_sys::proc::ChildList;
use rankrun_sys::wait::{self, Change, Look};
use rankrun_sys::{proc, signal};
use rankrun_wire::ToFront;
use rankrun_wire::message::{LeftProcess, Summary};
use rankrun_wireup::pmi1;

use crate::boundary::{Boundary, activity};
use crate::clean::Remains;
use crate::io::IoThread;
use crate::orphans::Orphans;
use crate::output::Output;
use crate::prepare::{Inherited, Preparer};
use crate::runtime::{Places, RuntimeDir};
use crate::shm::SharedMemory;
use crate::spawner::SpawnerThread;
use crate::speakers::{SPEAKER_STEP, Speakers};
use crate::token::Token;
use crate::worker::Slot;

/// How long a boundary must have been idle before what is left in it counts as not ending by itself.
pub(crate) const IDLE_FOR: Duration = Duration::from_millis(100);
/// How often a boundary is looked at for idleness, and in the fallback tier for emptiness.
pub(crate) const IDLE_STEP: Duration = Duration::from_millis(25);
/// The threads beside the loop.
pub(crate) struct Threads {
    pub(crate) spawner: SpawnerThread,
    pub(crate) io: IoThread,
}

/// The node.
pub(crate) struct Node {
    pub(crate) job: JobId,
    places: Places,
    pub(crate) runtime: RuntimeDir,
    pub(crate) boundary: Boundary,
    pub(crate) spawner: SpawnerThread,
    pub(crate) io: IoThread,
    pub(crate) inherited: Inherited,
    pub(crate) limits: Limits,
    /// Messages to the front, in order.
    pub(crate) outbox: Vec<ToFront>,
    pub(crate) spec: Option<Rc<JobSpec>>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) by_worker: HashMap<WorkerId, usize>,
    pub(crate) by_pid: HashMap<i32, usize>,
    pub(crate) preparer: Option<Preparer>,
    /// Slots that are still to be spawned.
    pub(crate) to_spawn: VecDeque<usize>,
    pub(crate) pmi: Option<pmi1::Server>,
    /// Holds the port that is told to the ranks as MASTER_PORT.
    pub(crate) _master_port: Option<OwnedFd>,
    pub(crate) output: Output,
    pub(crate) shared_memory: Option<SharedMemory>,
    pub(crate) speakers: Speakers,
    pub(crate) oom: Option<OomWatch>,
    stop: Option<Stop>,
    pub(crate) frozen: bool,
    pub(crate) released: u32,
    pub(crate) started: u32,
    pub(crate) left: Vec<LeftProcess>,
    pub(crate) orphans: Option<Orphans>,
    over: bool,
    /// The front has been told that all output has been sent.
    drained: bool,
    /// Slots whose boundary is to be looked at after the children have been reaped.
    to_look_at: Vec<usize>,
}

impl Node {
    pub(crate) fn new(
        job: JobId,
        places: Places,
        runtime: RuntimeDir,
        boundary: Boundary,
        Threads { spawner, io }: Threads,
        inherited: Inherited,
        limits: Limits,
    ) -> Node {
        Node {
            output: Output::new(runtime.path(), 0),
            job,
            places,
            runtime,
            boundary,
            spawner,
            io,
            inherited,
            limits,
            outbox: Vec::new(),
            spec: None,
            slots: Vec::new(),
            by_worker: HashMap::new(),
            by_pid: HashMap::new(),
            preparer: None,
            to_spawn: VecDeque::new(),
            pmi: None,
            _master_port: None,
            shared_memory: None,
            speakers: Speakers::default(),
            oom: None,
            stop: None,
            frozen: false,
            released: 0,
            started: 0,
            left: Vec::new(),
            orphans: None,
            over: false,
            drained: false,
            to_look_at: Vec::new(),
        }
    }

    /// The slot of a worker.
    pub(crate) fn index_of(&self, worker: WorkerId) -> Option<usize> {
        self.by_worker.get(&worker).copied()
    }

    pub(crate) fn policy(&self) -> StopPolicy {
        self.spec.as_ref().map(|spec| spec.stop.clone()).unwrap_or_default()
    }

    pub(crate) fn graces(&self) -> Graces {
        self.spec.as_ref().map(|spec| spec.graces.clone()).unwrap_or_default()
    }

    /// The grace of a stop that nobody outside asked for.
    pub(crate) fn grace(&self) -> Duration {
        self.policy().grace_failure
    }

    /// Whether nothing of the attempt is left, or what is left has been given up. True also before the start.
    pub(crate) fn is_over(&self) -> bool {
        self.over || self.spec.is_none()
    }

    /// Whether processes were let go, and so are to be left alone when the agent ends.
    pub(crate) fn has_released(&self) -> bool {
        self.released > 0
    }

    /// Takes in what the spawner has done and what the children have come to.
    pub(crate) fn children(&mut self, now: Duration, poller: &Poller) {
        self.spawn_results(now, poller);
        while let Look::Found(child) = wait::peek() {
            match self.by_pid.get(&child.pid).copied() {
                Some(index) => self.leader_ended(now, index, child, poller),
                // It may be a leader whose spawn we have not been told of: look again after the next result.
                None if self.spawner.is_busy() => break,
                None => {
                    wait::reap(child.pid);
                    self.orphan_ended();
                }
            }
        }
        while let Look::Found(child) = wait::stop_news() {
            let Some(&index) = self.by_pid.get(&child.pid) else { continue };
            let worker = self.slots[index].id;
            match child.change {
                Change::Stopped { signal } if !self.frozen => {
                    self.outbox.push(ToFront::Stopped { worker, signal, at: now });
                }
                Change::Continued if !self.frozen => self.outbox.push(ToFront::Continued { worker, at: now }),
                Change::Stopped { .. } | Change::Continued | Change::Exited { .. } | Change::Signaled { .. } => {}
            }
        }
        let mut looks = std::mem::take(&mut self.to_look_at);
        looks.sort_unstable();
        looks.dedup();
        for index in looks {
            self.look_at_boundary(now, index, poller);
        }
        self.spawn_more(now, poller);
        self.finish_if_over(now, poller);
    }

    fn leader_ended(&mut self, now: Duration, index: usize, child: wait::Child, poller: &Poller) {
        let status = match child.change {
            Change::Exited { code } => WorkerStatus::Exited { code },
            Change::Signaled { signal, core_dumped } => WorkerStatus::Signaled { signal, core_dumped },
            Change::Stopped { .. } | Change::Continued => return,
        };
        // What it has said to the wire-up before its end counts before its end.
        self.read_pmi(now, index, poller);
        self.hear_speakers_of(now, index, poller);
        self.look_for_oom(now, index, child.pid, status);
        if !status.success() {
            self.read_error_file(now, index, child.pid);
        }
        self.outbox.push(ToFront::Ended { worker: self.slots[index].id, status, at: now });
        wait::reap(child.pid);
        self.by_pid.remove(&child.pid);
        self.slots[index].leader_alive = false;
        self.event(now, index, Event::LeaderEnded(status), poller);
    }

    /// A SIGKILL that is not ours may be the kernel's, for want of memory.
    fn look_for_oom(&mut self, now: Duration, index: usize, pid: i32, status: WorkerStatus) {
        let killed = match status {
            WorkerStatus::Signaled { signal, .. } => signal == signal::SIGKILL,
            // A shell's word for it.
            WorkerStatus::Exited { code } => code == 128 + signal::SIGKILL as u8,
        };
        let ours = !matches!(self.slots[index].worker.state(), State::Running { .. });
        let Some(oom) = self.oom.as_mut().filter(|_| killed && !ours) else { return };
        let worker = self.slots[index].id;
        let detail = match oom.look(pid) {
            OomKill::Logged { line } => line,
            OomKill::Counted { cgroup, kills } => format!("{kills} out-of-memory kills in the cgroup {cgroup}"),
            OomKill::No => return,
            OomKill::Unknown => {
                let rank = worker.rank;
                self.outbox.push(ToFront::Note(format!(
                    "whether rank {rank} was killed for want of memory cannot be known here"
                )));
                return;
            }
        };
        self.outbox.push(ToFront::KilledForMemory { worker, detail, at: now });
    }

    /// Feeds one event to a worker and performs what follows.
    pub(crate) fn event(&mut self, now: Duration, index: usize, event: Event, poller: &Poller) {
        let policy = self.policy();
        let mut effects = Vec::new();
        self.slots[index].worker.handle(now, event, &policy, &mut effects);
        for effect in effects {
            self.perform(now, index, effect, poller);
        }
    }

    fn perform(&mut self, now: Duration, index: usize, effect: Effect, poller: &Poller) {
        let slot = &self.slots[index];
        match effect {
            Effect::Terminate(scope) => {
                let Some(leader) = slot.leader.filter(|_| slot.leader_alive) else { return };
                match scope {
                    StopScope::Leader => match self.speaker_of(index) {
                        // The leader may be a shell that would go on to its next command, or end without its child.
                        Some(speaker) => {
                            terminate(&[speaker]);
                            self.slots[index].stopped_speaker = Some(speaker);
                            self.slots[index].next_speaker_look = Some(now + SPEAKER_STEP);
                        }
                        None => terminate(&[leader]),
                    },
                    StopScope::Group => {
                        let _ = signal::send_group(leader, signal::SIGTERM);
                        let _ = signal::send_group(leader, signal::SIGCONT);
                    }
                    StopScope::Tree => {
                        terminate(&[leader]);
                        terminate(&self.boundary.others(slot.member(&self.job)));
                    }
                }
            }
            Effect::TerminateRest => terminate(&self.boundary.others(slot.member(&self.job))),
            Effect::KillLeader => {
                let Some(leader) = slot.leader.filter(|_| slot.leader_alive) else { return };
                if proc::dumping_core(leader) {
                    self.event(now, index, Event::CoreDumpSeen, poller);
                } else {
                    let _ = signal::send(leader, signal::SIGKILL);
                }
            }
            Effect::KillSpawning => {
                // Its pid is not known yet. The spawner's children that nobody knows are those on their way.
                let adopted = proc::adopted_children();
                for pid in proc::own_children() {
                    if !self.by_pid.contains_key(&pid) && !adopted.contains(&pid) {
                        let _ = signal::send(pid, signal::SIGKILL);
                    }
                }
            }
            Effect::KillAll => self.boundary.kill(slot.member(&self.job)),
            Effect::LookAtBoundary => self.to_look_at.push(index),
            Effect::Release => {
                let leaf = Boundary::leaf(slot.rank());
                let others = self.boundary.others(slot.member(&self.job)).len() as u32;
                if let Some(cgroup) = self.boundary.cgroup() {
                    let _ = cgroup.release_leaf(&leaf);
                    let _ = cgroup.remove_leaf(&leaf);
                }
                self.released += others;
            }
            Effect::Gone => self.gone(index, poller),
        }
    }

    /// Looks whether anything of a worker is left, and says so to its machine.
    pub(crate) fn look_at_boundary(&mut self, now: Duration, index: usize, poller: &Poller) {
        let slot = &self.slots[index];
        if !slot.worker.awaits_boundary() || slot.leader_alive {
            return;
        }
        if self.boundary.is_empty(slot.member(&self.job)) {
            self.event(now, index, Event::BoundaryEmpty, poller);
            return;
        }
        // From now on the kernel tells of every change: by the events file, or by the end of an adopted orphan.
        if slot.events.is_none()
            && let Some(cgroup) = self.boundary.cgroup()
            && let Ok(file) = cgroup.leaf_events(&Boundary::leaf(slot.rank()))
            && poller.add(&file, Token::Boundary(index).encode(), Interest::Exception).is_ok()
        {
            self.slots[index].events = Some(file);
        }
        if self.slots[index].next_idle_look.is_none() {
            self.slots[index].next_idle_look = Some(now);
        }
    }

    /// A process that is no leader has ended: the boundaries that are waited for may be empty now.
    fn orphan_ended(&mut self) {
        if self.boundary.cgroup().is_none() {
            let waiting = self.slots.iter().zip(0..).filter(|(slot, _)| slot.worker.awaits_boundary());
            self.to_look_at.extend(waiting.map(|(_, index)| index));
        }
    }

    /// Nothing of the worker is left, or what is left is given up. What it wrote is taken in, and then its end is told.
    fn gone(&mut self, index: usize, poller: &Poller) {
        self.drain(index, poller);
        let slot = &mut self.slots[index];
        slot.events = None;
        slot.stdin = None;
        slot.windows.clear();
        if let Some(client) = slot.pmi.take() {
            let _ = poller.remove(&client.socket);
        }
        let State::Gone { outcome, left } = *slot.worker.state() else { return };
        let worker = slot.id;
        let left = match left {
            true => left_processes(&self.boundary.others(self.slots[index].member(&self.job))),
            false => Vec::new(),
        };
        self.left.extend(left.iter().cloned());
        self.outbox.push(ToFront::Gone { worker, outcome, left });
        self.tell_closed(index);
    }

    /// All that is due.
    pub(crate) fn tick(&mut self, now: Duration, poller: &Poller) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.worker.deadline().is_some_and(|deadline| deadline <= now) {
                self.event(now, index, Event::Tick, poller);
            }
            if self.slots[index].next_idle_look.is_some_and(|next| next <= now) {
                self.look_for_idleness(now, index, poller);
            }
        }
        self.tick_orphans(now);
        self.tick_speakers(now, poller);
        self.look_for_shared_memory(now, false);
        let looks = std::mem::take(&mut self.to_look_at);
        for index in looks {
            self.look_at_boundary(now, index, poller);
        }
        self.spawn_more(now, poller);
        self.finish_if_over(now, poller);
    }

    /// Whether the front has been told all that there is to tell.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// After the end: tells the front once that no output is left here.
    pub(crate) fn tell_drained(&mut self) {
        if self.over && !self.drained && self.slots.iter().all(|slot| slot.closed == [true, true]) {
            self.drained = true;
            self.outbox.push(ToFront::Drained);
        }
    }

    /// When [`Node::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let slots = self.slots.iter().flat_map(|slot| [slot.worker.deadline(), slot.next_idle_look]);
        let shared_memory = self.shared_memory.as_ref().and_then(SharedMemory::deadline);
        let orphans = self.orphans.as_ref().and_then(Orphans::deadline);
        slots.chain([shared_memory, orphans, self.speakers_deadline()]).flatten().min()
    }

    fn look_for_idleness(&mut self, now: Duration, index: usize, poller: &Poller) {
        let slot = &self.slots[index];
        if !slot.worker.awaits_boundary() {
            self.slots[index].next_idle_look = None;
            return;
        }
        if self.boundary.cgroup().is_none() {
            // An orphan that lives on as a grandchild of ours is seen only by looking.
            self.to_look_at.push(index);
        }
        if slot.worker.awaits_idle() {
            let (activity, quiet) = activity(&self.boundary.others(slot.member(&self.job)));
            match slot.idle {
                Some((since, before)) if quiet && before == activity => {
                    if now >= since + IDLE_FOR {
                        self.event(now, index, Event::BoundaryIdle, poller);
                    }
                }
                Some(_) | None => self.slots[index].idle = quiet.then_some((now, activity)),
            }
        }
        self.slots[index].next_idle_look = Some(now + IDLE_STEP);
    }

    /// Orders every worker to stop.
    pub(crate) fn stop_all(&mut self, now: Duration, stop: Stop, poller: &Poller) {
        self.stop = Some(stop);
        self.look_for_shared_memory(now, true);
        for index in 0..self.slots.len() {
            self.event(now, index, Event::Stop(stop), poller);
        }
        self.stop_orphans(now, stop);
        self.finish_if_over(now, poller);
    }

    /// Kills every worker at once.
    pub(crate) fn kill_all(&mut self, now: Duration, poller: &Poller) {
        self.look_for_shared_memory(now, true);
        for index in 0..self.slots.len() {
            self.event(now, index, Event::Kill, poller);
        }
        self.kill_orphans(now);
        self.finish_if_over(now, poller);
    }

    /// A signal for the process that speaks for each rank.
    pub(crate) fn signal_all(&self, signal: i32) {
        for (index, slot) in self.slots.iter().enumerate() {
            if let Some(leader) = slot.leader.filter(|_| slot.leader_alive) {
                let _ = signal::send(self.speaker_of(index).unwrap_or(leader), signal);
            }
        }
    }

    /// Stops or continues all workers, with everything that they have started.
    pub(crate) fn freeze(&mut self, frozen: bool) {
        if self.frozen == frozen {
            return;
        }
        self.frozen = frozen;
        for index in 0..self.slots.len() {
            self.freeze_slot(index, frozen);
        }
    }

    pub(crate) fn freeze_slot(&mut self, index: usize, frozen: bool) {
        let slot = &mut self.slots[index];
        if slot.worker.is_gone() || slot.leader.is_none() {
            return;
        }
        if let Some(cgroup) = self.boundary.cgroup()
            && cgroup.freeze_leaf(&Boundary::leaf(slot.rank()), frozen).is_ok()
        {
            return;
        }
        if frozen {
            slot.paused = self.boundary.stop(slot.member(&self.job));
        } else {
            for pid in std::mem::take(&mut slot.paused) {
                let _ = signal::send(pid, signal::SIGCONT);
            }
        }
    }

    /// The front's terminal has a new window. A rank's pty is nobody's controlling terminal, so that nobody but us tells
    /// the rank.
    pub(crate) fn resize(&self, window: (u16, u16)) {
        for slot in self.slots.iter().filter(|slot| !slot.windows.is_empty()) {
            for master in &slot.windows {
                let _ = rankrun_sys::pty::resize(master, window);
            }
            if let Some(leader) = slot.leader.filter(|_| slot.leader_alive) {
                let _ = signal::send_group(leader, signal::SIGWINCH);
            }
        }
    }

    /// Removes what the job has on this node besides processes.
    pub(crate) fn tidy(&self) {
        if self.has_released() {
            self.places.remove();
            return;
        }
        let cgroup = self.boundary.cgroup().and_then(|cgroup| GuardedCgroup::open(cgroup.path()).ok());
        let clean_shm = self.spec.as_ref().is_some_and(|spec| spec.clean_shm == CleanShm::Job);
        Remains { cgroup, children: ChildList::open(), places: self.places.clone(), clean_shm }.tidy(None);
    }

    /// After the last worker is gone: ends the orphans that belong to none, and tells the front that all is over.
    pub(crate) fn finish_if_over(&mut self, now: Duration, _poller: &Poller) {
        if self.over || self.spec.is_none() || self.slots.iter().any(|slot| !slot.worker.is_gone()) {
            return;
        }
        if self.policy().descendants != Descendants::Leave && !self.orphans_are_gone(now, self.stop) {
            return;
        }
        self.over = true;
        let policy = self.spec.as_ref().map(|spec| spec.clean_shm).unwrap_or_default();
        let shared_memory = self.shared_memory.as_mut().map(SharedMemory::finish).unwrap_or_default();
        self.outbox.push(ToFront::Over(Summary {
            left: self.left.clone(),
            released: self.released,
            shared_memory,
            shared_memory_removed: policy == CleanShm::Job,
            workers: self.started,
        }));
    }
}

/// SIGTERM, and SIGCONT so that a stopped process can act on it.
fn terminate(pids: &[i32]) {
    for &pid in pids {
        let _ = signal::send(pid, signal::SIGTERM);
        let _ = signal::send(pid, signal::SIGCONT);
    }
}

/// What the report says of processes that could not be killed.
pub(crate) fn left_processes(pids: &[i32]) -> Vec<LeftProcess> {
    pids.iter()
        .filter_map(|&pid| proc::process(pid))
        .filter(|process| process.state != 'Z')
        .map(|process| LeftProcess {
            pid: Pid(process.pid),
            name: process.name,
            state: process.state,
            wait_channel: proc::wait_channel(process.pid),
        })
        .collect()
}
