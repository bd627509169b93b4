//! What is left after every worker is gone and can be told to belong to none of them: it ends with the attempt.
//!
//! These are children of the agent by now, since it is their reaper; when there is no child left, none of the job is
//! (K-4).

use std::time::Duration;

use rankrun_core::worker::{Effect, Event, State, Stop, StopWhy, Worker};
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{proc, signal};

use crate::boundary::activity;
use crate::node::{IDLE_FOR, IDLE_STEP, Node, left_processes};

/// The orphans, as if one more leader had left them.
#[derive(Debug)]
pub(crate) struct Orphans {
    worker: Worker,
    idle: Option<(Duration, u64)>,
    next_look: Duration,
}

impl Orphans {
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.worker.is_gone() {
            true => None,
            false => Some(self.worker.deadline().map_or(self.next_look, |deadline| deadline.min(self.next_look))),
        }
    }
}

/// All processes below this one.
fn all_below() -> Vec<i32> {
    proc::descendants(std::process::id() as i32).into_iter().map(|process| process.pid).collect()
}

impl Node {
    /// Whether there is no orphan, or all that can be done about them has been done. Called when every worker is gone.
    pub(crate) fn orphans_are_gone(&mut self, now: Duration, stop: Option<Stop>) -> bool {
        match &self.orphans {
            Some(orphans) => orphans.worker.is_gone(),
            None if no_child_is_left() => true,
            None => {
                let stop = stop.map(|stop| Stop { why: StopWhy::Over, ..stop });
                let worker = Worker::orphans(now, &self.policy(), stop);
                self.orphans = Some(Orphans { worker, idle: None, next_look: now });
                false
            }
        }
    }

    pub(crate) fn stop_orphans(&mut self, now: Duration, stop: Stop) {
        self.orphans_event(now, Event::Stop(stop));
    }

    pub(crate) fn kill_orphans(&mut self, now: Duration) {
        self.orphans_event(now, Event::Kill);
    }

    pub(crate) fn tick_orphans(&mut self, now: Duration) {
        let Some(orphans) = &mut self.orphans else { return };
        if orphans.worker.is_gone() {
            return;
        }
        if no_child_is_left() {
            self.orphans_event(now, Event::BoundaryEmpty);
            return;
        }
        if now >= orphans.next_look {
            orphans.next_look = now + IDLE_STEP;
            if orphans.worker.awaits_idle() {
                let (activity, quiet) = activity(&all_below());
                match orphans.idle {
                    Some((since, before)) if quiet && before == activity => {
                        if now >= since + IDLE_FOR {
                            self.orphans_event(now, Event::BoundaryIdle);
                        }
                    }
                    Some(_) | None => orphans.idle = quiet.then_some((now, activity)),
                }
            }
        }
        if self.orphans.as_ref().and_then(|orphans| orphans.worker.deadline()).is_some_and(|deadline| deadline <= now) {
            self.orphans_event(now, Event::Tick);
        }
    }

    fn orphans_event(&mut self, now: Duration, event: Event) {
        let policy = self.policy();
        let Some(orphans) = &mut self.orphans else { return };
        let mut effects = Vec::new();
        orphans.worker.handle(now, event, &policy, &mut effects);
        for effect in effects {
            let signal = match effect {
                Effect::TerminateRest => signal::SIGTERM,
                Effect::KillAll => signal::SIGKILL,
                // There is no leader, and the look comes with the next tick.
                Effect::Terminate(_)
                | Effect::KillLeader
                | Effect::KillSpawning
                | Effect::LookAtBoundary
                | Effect::Release
                | Effect::Gone => {
                    continue;
                }
            };
            for pid in all_below() {
                let _ = signal::send(pid, signal);
                let _ = signal::send(pid, signal::SIGCONT);
            }
        }
        if let State::Gone { left: true, .. } = orphans.worker.state() {
            self.left.extend(left_processes(&all_below()));
        }
    }
}

/// Reaps what has ended. The spawner is idle by now, so that every child that is found is an orphan.
fn no_child_is_left() -> bool {
    loop {
        match wait::peek() {
            Look::Found(child) => {
                wait::reap(child.pid);
            }
            Look::Nothing => return false,
            Look::NoChildren => return true,
        }
    }
}
