//! What belongs to no worker, once every worker is gone (K-4).

use std::time::Duration;

use super::{Activity, Effect, Idleness, Target, Team, Timer};
use crate::grace::SIGTERM;
use crate::spec::job::Descendants;
use crate::timers::Timers;
use crate::worker::{self, State, Stop, StopWhy, Worker};

impl Team {
    /// After the last worker: checks for processes that belong to no worker.
    pub(super) fn look_for_orphans(&mut self, effects: &mut Vec<Effect>) {
        if self.alive > 0 || !self.undecided.is_empty() || self.over {
            return;
        }
        if self.policy.descendants == Descendants::Leave {
            self.over = true;
            effects.push(Effect::Over);
        } else {
            effects.push(Effect::LookAtOrphans);
        }
    }

    pub(super) fn no_orphans(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.over || self.alive > 0 || !self.undecided.is_empty() {
            return;
        }
        self.orphans_event(now, worker::Event::BoundaryEmpty, effects);
        if !self.over {
            self.end_of_all(effects);
        }
    }

    pub(super) fn orphans_left(&mut self, now: Duration, activity: Activity, effects: &mut Vec<Effect>) {
        if self.over || self.alive > 0 || !self.undecided.is_empty() {
            return;
        }
        if self.orphans.is_none() {
            let stop = self.stop.map(|stop| Stop { why: StopWhy::Over, ..stop });
            let worker = Worker::orphans(now, &self.policy, stop);
            self.timers.set(Timer::Orphans, worker.deadline());
            self.orphans = Some((worker, Idleness::default()));
        }
        let Some((worker, idle)) = &mut self.orphans else { return };
        if worker.awaits_idle() && idle.seen(now, activity) {
            self.orphans_event(now, worker::Event::BoundaryIdle, effects);
        }
        if !self.over {
            self.timers.set(Timer::OrphansLook, Some(now + self.pace));
        }
    }

    pub(super) fn orphans_event(&mut self, now: Duration, event: worker::Event, effects: &mut Vec<Effect>) {
        let Some((worker, _)) = &mut self.orphans else { return };
        let mut wanted = Vec::new();
        worker.handle(now, event, &self.policy, &mut wanted);
        self.timers.set(Timer::Orphans, worker.deadline());
        let is_left = matches!(worker.state(), State::Gone { left: true, .. });
        for effect in wanted {
            match effect {
                worker::Effect::TerminateRest => effects.push(Effect::Terminate(Target::Orphans, SIGTERM)),
                worker::Effect::KillAll => effects.push(Effect::Kill(Target::Orphans)),
                worker::Effect::LookAtBoundary => effects.push(Effect::LookAtOrphans),
                worker::Effect::Gone => {
                    if is_left {
                        effects.push(Effect::OrphansGivenUp);
                    }
                    self.end_of_all(effects);
                }
                // There is no leader, and nothing that could be released.
                worker::Effect::Terminate(..)
                // Processes that belong to no worker get no extra time.
                | worker::Effect::LookAtWork
                | worker::Effect::KillLeader
                | worker::Effect::KillSpawning
                | worker::Effect::Release => {}
            }
        }
    }

    fn end_of_all(&mut self, effects: &mut Vec<Effect>) {
        self.over = true;
        self.timers = Timers::default();
        effects.push(Effect::Over);
    }
}
