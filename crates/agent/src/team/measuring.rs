//! Measures what the ranks use, when the front asks for it: for `rankrun top`. The meter is one of the node, for all its groups.

use std::time::Duration;

use rankrun_core::job::AgentEvent;
use rankrun_core::worker::State;
use rankrun_core::{WorkerId, WorkerStatus};
use rankrun_sys::poll::Ready;
use rankrun_wire::ToFront;

use super::spawner::{Job, NotSpawned};
use super::{Hands, Team, Teams};
use crate::children::Helper;
use crate::helpers::meter::Reading;
use crate::services::meter::Begun;

const JOB: Job = Job::Helper(Helper::Meter);

impl Teams {
    /// The front asks what the workers do and use.
    pub(super) fn measure(&mut self, hands: &mut Hands, now: Duration, number: u64) {
        let Some(limits) = self.first().map(|team| team.preparer.limits()) else { return };
        let workers: Vec<WorkerId> = self.all().flat_map(|team| team.measurable()).collect();
        let subjects = hands.children.subjects(&workers);
        let is_possible = hands.meter.is_there() || hands.spawner.has_room() && !hands.spawner.awaits(JOB);
        let begun = match is_possible && !subjects.is_empty() {
            true => hands.meter.ask(now, number, subjects, limits, &hands.poller),
            false => Begun::Not,
        };
        let is_under_way = match begun {
            Begun::Asked => true,
            Begun::Start(command) => hands.start_helper(Helper::Meter, Ok(*command)).is_ok() || hands.drop_meter(now),
            Begun::Not => false,
        };
        if !is_under_way {
            self.conditions(hands, now, number);
        }
    }

    /// Tells the front what every worker is doing.
    pub(super) fn conditions(&mut self, hands: &mut Hands, now: Duration, number: u64) {
        let workers = self.all().flat_map(|team| team.machine.conditions(now)).collect();
        hands.outbox.push(ToFront::Event(AgentEvent::Conditions { number, workers, at: now }));
    }

    pub(super) fn meter_ready(&mut self, hands: &mut Hands, now: Duration, event: Ready) {
        match hands.meter.ready(event) {
            Ok(Some(Reading { number, workers })) => {
                hands.outbox.push(ToFront::Event(AgentEvent::Measured { number, workers, at: now }));
                self.conditions(hands, now, number);
            }
            Ok(None) => {}
            // Its end is reported when it is reaped.
            Err(_) => self.meter_failed(hands, now),
        }
    }

    /// The spawner has started a meter, or not.
    pub(super) fn meter_spawned(&mut self, hands: &mut Hands, now: Duration, result: Result<i32, NotSpawned>) {
        match hands.helper_spawned(Helper::Meter, result) {
            Ok(pid) if hands.meter.started(pid) => {}
            // It was given up before it was started.
            Ok(_) => hands.children.end_helpers(Helper::Meter),
            Err(_) => self.meter_failed(hands, now),
        }
    }

    pub(super) fn meter_ended(&mut self, hands: &mut Hands, now: Duration, _: WorkerStatus) {
        // One that was told to end may be followed by another before it has ended.
        let is_present = hands.meter.pid().is_some_and(|pid| hands.children.helper(pid) == Some(Helper::Meter));
        if !is_present && hands.meter.pid().is_some() {
            self.meter_failed(hands, now);
        }
    }

    pub(super) fn meter_tick(&mut self, hands: &mut Hands, now: Duration) {
        if hands.meter.is_late(now) {
            self.meter_failed(hands, now);
        } else if hands.meter.is_idle(now) {
            hands.meter.end();
        }
    }

    /// The meter is of no use: answers without it.
    fn meter_failed(&mut self, hands: &mut Hands, now: Duration) {
        let unanswered = hands.meter.fail(now);
        hands.children.end_helpers(Helper::Meter);
        if let Some(number) = unanswered {
            self.conditions(hands, now, number);
        }
    }
}

impl Team {
    /// The workers that may have processes.
    fn measurable(&self) -> Vec<WorkerId> {
        let may_live = |state: &State| !matches!(state, State::Pending | State::Spawning { .. } | State::Gone { .. });
        let slots = self.machine.slots().filter(|slot| may_live(self.machine.state(*slot)));
        slots.map(|slot| self.machine.id(slot)).collect()
    }
}

impl Hands {
    /// The meter cannot be started. Returns `false`.
    fn drop_meter(&mut self, now: Duration) -> bool {
        // The caller answers.
        let _ = self.meter.fail(now);
        false
    }
}
