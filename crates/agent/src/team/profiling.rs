//! Samples the ranks, when the front asks for a profile. The sampler is one of the node, for all its groups.

use std::time::Duration;

use rankrun_core::job::AgentEvent;
use rankrun_core::stacks::profile::ProfileSpec;
use rankrun_core::{WorkerId, WorkerStatus};
use rankrun_sys::poll::Ready;
use rankrun_sys::signal;
use rankrun_wire::ToFront;

use super::spawner::{Job, NotSpawned};
use super::{Hands, Teams};
use crate::children::Helper;

const JOB: Job = Job::Helper(Helper::Sampler);

impl Teams {
    /// The front asks for a profile of these workers, or of all.
    pub(crate) fn profile(
        &mut self,
        hands: &mut Hands,
        now: Duration,
        number: u64,
        workers: Option<&[WorkerId]>,
        spec: ProfileSpec,
    ) {
        let limits = self.first().map(|team| team.preparer.limits());
        let subjects: Vec<_> = self.all().flat_map(|team| team.subjects(hands, workers)).collect();
        let refusal = match () {
            () if hands.profiler.number().is_some() => Some("this node is being profiled already"),
            () if !hands.spawner.has_room() || hands.spawner.awaits(JOB) => {
                Some("the agent is starting other processes")
            }
            () => None,
        };
        let over = |why: Option<String>| ToFront::Event(AgentEvent::ProfileOver { number, why });
        let (Some(limits), false) = (limits, subjects.is_empty()) else {
            // None of them is here.
            return hands.outbox.push(over(None));
        };
        if let Some(why) = refusal {
            return hands.outbox.push(over(Some(why.to_owned())));
        }
        hands.children.end_helpers(Helper::Sampler);
        let command = hands.profiler.begin(now, number, subjects, spec, limits, &hands.poller);
        if let Err(why) = hands.start_helper(Helper::Sampler, command) {
            match hands.profiler.number() {
                Some(_) => hands.no_profile(&why),
                // It has failed before it began.
                None => hands.outbox.push(over(Some(why))),
            }
        }
    }
}

impl Hands {
    fn no_profile(&mut self, why: &str) {
        let news = self.profiler.fail(&format!("the process that samples could not be started: {why}"));
        self.outbox.extend(news);
    }

    /// The front wants what there is.
    pub(super) fn end_profile(&mut self, now: Duration, number: u64) {
        let news = self.profiler.end(now, number);
        self.outbox.extend(news);
    }

    /// The spawner has started a sampler, or not.
    pub(super) fn sampler_spawned(&mut self, result: Result<i32, NotSpawned>) {
        match self.helper_spawned(Helper::Sampler, result) {
            Ok(_) => {
                if !self.profiler.started() {
                    self.children.end_helpers(Helper::Sampler);
                }
            }
            Err(NotSpawned::Cancelled) => self.no_profile("the job is being stopped"),
            Err(error) => self.no_profile(&error.to_string()),
        }
    }

    pub(super) fn sampler_ended(&mut self, status: WorkerStatus) {
        let news = self.profiler.ended(status);
        self.outbox.extend(news);
    }

    pub(super) fn sampler_ready(&mut self, event: Ready) {
        let news = self.profiler.ready(event);
        self.outbox.extend(news);
    }

    /// A sampler that takes too long is killed: what it has seen is with the front.
    pub(super) fn profiler_tick(&mut self, now: Duration) {
        if self.profiler.deadline().is_some_and(|until| until <= now) {
            self.children.end_helpers(Helper::Sampler);
            if let Some(child) = self.spawner.starting(JOB) {
                // It has not come to its exec, and holds up the spawner. It has no result yet: nobody has reaped it.
                let _ = child.signal(signal::SIGKILL);
            }
            let news = self.profiler.fail("sampling the ranks of this node took too long");
            self.outbox.extend(news);
        }
    }
}
