//! Performs the effects that the machine has decided.

use std::time::Duration;

use rankrun_core::job::{AgentEvent, WorkerEvent};
use rankrun_core::team::{Activity, Effect, Event, Target};
use rankrun_core::worker::{Outcome, State};
use rankrun_core::{Slot as SlotIndex, WorkerId};
use rankrun_sys::poll::Interest;
use rankrun_sys::proc::Reaction;
use rankrun_sys::spawn::Step;
use rankrun_sys::{proc, signal};
use rankrun_wire::ToFront;

use super::spawner::Job;
use super::{Hands, Team};
use crate::driver::token::Token;

/// ETIMEDOUT: reported when a child does not reach its exec.
const TIMED_OUT: i32 = 110;

impl Team {
    /// What a leader that is about to be sent a signal can do with it, if it is nothing.
    fn answer(&self, hands: &Hands, target: Target, signal: i32) -> Option<Event> {
        let (Target::Leader(slot) | Target::LeaderGroup(slot)) = target else { return None };
        match proc::reaction(hands.children.leader(self.id(slot))?.pid(), signal)? {
            Reaction::Ended => Some(Event::SignalMissed(slot)),
            Reaction::Unnoticed => Some(Event::SignalUnnoticed(slot)),
            Reaction::Noticed => None,
        }
    }

    /// Performs one effect. Some are questions: the answer is fed back to the machine.
    pub(super) fn perform(&mut self, hands: &mut Hands, now: Duration, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Terminate(target, signal) => {
                let answer = self.answer(hands, target, signal);
                self.signal(hands, target, &[signal, signal::SIGCONT]);
                return answer;
            }
            Effect::Kill(Target::Boundary(slot)) => hands.children.kill(self.id(slot)),
            Effect::Kill(target) => self.signal(hands, target, &[signal::SIGKILL]),
            Effect::KillLeader(slot) => {
                let leader = hands.children.leader(self.id(slot))?;
                if proc::dumping_core(leader.pid()) {
                    return Some(Event::CoreDumpSeen(slot));
                }
                self.signal(hands, Target::Leader(slot), &[signal::SIGKILL]);
            }
            Effect::CancelSpawns => hands.spawner.cancel(self.group()),
            Effect::ExecTimedOut(slot) => self.report_spawn_failed(hands, now, slot, Step::Exec.to_string(), TIMED_OUT),
            Effect::LookAtBoundary(slot) => return self.look_at_boundary(hands, slot),
            Effect::LookAtWork(slot) => {
                return Some(Event::Progress(slot, hands.children.progress(self.id(slot))));
            }
            Effect::LookAtSpeaker(id) => return Some(self.speakers.look(id, &hands.children)),
            Effect::LookAtOrphans => {
                return Some(match hands.children.orphans_left(self.group(), hands.spawner.is_busy()) {
                    Some(activity) => Event::Orphans(activity),
                    // The spawner may be about to start a child: wait for its result, within the time limit of orphans.
                    None if hands.spawner.is_busy() => Event::Orphans(Activity { sum: 0, quiet: false }),
                    None => Event::NoOrphans,
                });
            }
            Effect::Stuck { speaker, slot, place, since, is_leader } => {
                let pid = self.speakers.pid(speaker)?;
                let worker = self.machine.id(slot);
                let event = WorkerEvent::Stuck { pid, place, since, is_leader };
                hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker, at: now, event }));
            }
            Effect::WaitsForHandlers { slot, left } => {
                let (rank, left) = (self.machine.id(slot).rank, left.as_secs_f64().round());
                let text = format!("rank {rank}: waiting for its exit handlers, for {left} s at most (--exit-grace)");
                hands.outbox.push(ToFront::Note(text));
            }
            Effect::ForgetSpeaker { speaker, slot } => {
                self.speakers.forget(speaker);
                self.send_reports(hands, slot);
            }
            Effect::Release(slot) => hands.site.released += hands.children.release(self.id(slot)),
            Effect::Gone(slot) => self.gone(hands, slot),
            Effect::StartAgain(slot) => self.start_again(hands, slot),
            Effect::OrphansGivenUp => drop(hands.children.give_up_orphans(self.group())),
            Effect::Over => self.processes_gone(hands, now),
        }
        None
    }

    /// Sends signals. A process that has ended meanwhile gets none. One that may not be signalled (another user's) is still
    /// there at the time limit, and is reported.
    fn signal(&mut self, hands: &mut Hands, target: Target, signals: &[i32]) {
        match target {
            Target::Leader(slot) => {
                if let Some(leader) = hands.children.leader(self.id(slot)) {
                    for signal in signals {
                        // As said above.
                        let _ = leader.signal(*signal);
                    }
                }
            }
            Target::LeaderGroup(slot) => {
                if let Some(leader) = hands.children.leader(self.id(slot)) {
                    for signal in signals {
                        // As said above.
                        let _ = leader.signal_group(*signal);
                    }
                }
            }
            Target::Speaker(id) => self.speakers.signal(id, signals),
            Target::Rest(slot) | Target::Boundary(slot) => hands.children.signal_others(self.id(slot), signals),
            Target::Spawning(slot) => {
                if let Some(child) = hands.spawner.starting(Job::Worker(self.id(slot))) {
                    for signal in signals {
                        // As said above.
                        let _ = child.signal(*signal);
                    }
                }
            }
            Target::Orphans => hands.children.signal_orphans(self.group(), signals),
        }
    }

    /// Checks whether any process of a worker is left.
    fn look_at_boundary(&mut self, hands: &mut Hands, slot: SlotIndex) -> Option<Event> {
        if !self.machine.awaits_boundary(slot) || hands.children.leader(self.id(slot)).is_some() {
            return None;
        }
        if hands.children.is_empty(self.id(slot), self.will_reuse_cgroups()) {
            return Some(Event::BoundaryEmpty(slot));
        }
        // From now on the kernel reports every change: by the events file, or by the end of an adopted orphan. Without the
        // file the agent polls.
        if self.slot(slot).events.is_none()
            && let Some(file) = hands.children.events(self.id(slot))
            && hands.poller.add(&file, Token::Boundary(self.place(slot)).encode(), Interest::Exception).is_ok()
        {
            self.slot(slot).events = Some(file);
        }
        Some(Event::BoundaryHeld(slot, hands.children.activity(self.id(slot))))
    }

    /// Whether workers that wait for their start will need the cgroups of those that end.
    fn will_reuse_cgroups(&self) -> bool {
        !self.to_spawn.is_empty()
    }

    /// No process of the worker is left, or what is left is given up. Reads what it wrote, then reports its end.
    fn gone(&mut self, hands: &mut Hands, slot: SlotIndex) {
        self.drain(hands, slot);
        let worker = self.machine.id(slot);
        {
            let slot = self.slot(slot);
            // A clone that is under way has copies of them: closing ours alone would leave them in the set.
            if let Some(events) = slot.events.take() {
                // It was added when it was opened.
                let _ = hands.poller.remove(&events);
            }
            if let Some(stdin) = slot.stdin.take() {
                // Not in the set while nothing waits to be written.
                let _ = hands.poller.remove(&stdin.pipe);
            }
            slot.awaits_start = false;
            slot.stdin_backlog.clear();
            slot.windows.clear();
        }
        if let Some(pmi) = &mut self.pmi {
            pmi.close(slot, &hands.poller);
        }
        let now = hands.clock.now();
        let State::Gone { outcome, left } = *self.machine.state(slot) else { return };
        let spawning = hands.spawner.starting(Job::Worker(worker)).filter(|_| outcome == Outcome::Unkillable);
        let left = if left { hands.children.give_up(self.id(slot), spawning) } else { Vec::new() };
        if outcome != Outcome::NeverStarted {
            let reuse = left.is_empty() && self.will_reuse_cgroups();
            hands.children.free_leaf(self.id(slot), reuse);
        }
        hands.children.gone(worker);
        let event = WorkerEvent::Gone { outcome, is_left: !left.is_empty() };
        hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker, at: now, event }));
        self.report_closed(&mut hands.outbox, now, slot);
        // The others may have been waiting for this one to take its stdin.
        self.report_stdin_taken(hands);
    }

    /// A signal for the process that speaks for each rank.
    pub(crate) fn signal_all(&mut self, hands: &mut Hands, signal: i32) {
        for slot in self.machine.slots() {
            if hands.children.leader(self.id(slot)).is_some() {
                let target = self.machine.voice(slot);
                self.signal(hands, target, &[signal]);
            }
        }
    }

    /// Stops or continues all workers, with everything that they have started.
    pub(crate) fn freeze(&mut self, hands: &mut Hands, frozen: bool) {
        if std::mem::replace(&mut self.frozen, frozen) == frozen {
            return;
        }
        let slots: Vec<SlotIndex> = self.machine.slots().collect();
        self.freeze_slots(hands, &slots, frozen);
    }

    pub(super) fn freeze_slots(&mut self, hands: &mut Hands, slots: &[SlotIndex], frozen: bool) {
        let is_there = |slot: &&SlotIndex| {
            !matches!(self.machine.state(**slot), State::Gone { .. } | State::Pending)
                && hands.children.leader_pid(self.id(**slot)).is_some()
        };
        let workers: Vec<WorkerId> = slots.iter().filter(is_there).map(|slot| self.id(*slot)).collect();
        hands.children.freeze(&workers, frozen);
    }

    /// The front's terminal has a new window. A rank's pty is not a controlling terminal, so that the kernel sends no
    /// SIGWINCH: we do.
    pub(crate) fn resize(&mut self, hands: &mut Hands, window: (u16, u16)) {
        for slot in self.machine.slots() {
            let windows = &self.slots[slot.index()].windows;
            if windows.is_empty() {
                continue;
            }
            for master in windows {
                // The rank may be gone.
                let _ = rankrun_sys::pty::resize(master, window);
            }
            self.signal(hands, Target::LeaderGroup(slot), &[signal::SIGWINCH]);
        }
    }
}
