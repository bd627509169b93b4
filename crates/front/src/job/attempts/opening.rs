//! The log files of an attempt, which are made before its ranks are started: what they write must not be lost.

use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::gang;
use rankrun_core::worker::Outcome;

use super::{Front, Phase};
use crate::delivery::Task;

impl Front {
    /// Has the log files of the attempt made that has begun, if it has some of its own; then its ranks are started.
    pub(super) fn open_logs_of_attempt(&mut self, now: Duration) {
        let spec = &self.plan.spec;
        let logs = self.plan.logs.as_ref().filter(|logs| logs.are_for_each_attempt(spec));
        let Some(logs) = logs else { return self.begin_ranks_of_attempt(now) };
        let (places, world_size) = (Box::new(logs.places(spec)), spec.map.world_size());
        self.attempts.present.phase = Phase::Opening;
        self.delivery.files.submit(now, Task::OpenLogs { places, world_size });
    }

    /// The attempt is over before any rank of it was started.
    pub(super) fn no_rank_begins(&mut self) {
        for rank in (0..self.plan.spec.map.world_size()).map(Rank) {
            self.event(gang::Event::Gone { rank, outcome: Outcome::NeverStarted });
        }
    }

    /// The log files are there.
    pub(crate) fn logs_are_open(&mut self) {
        // Those of a single rank are nobody's wait, and a job that was ended meanwhile starts nothing.
        if matches!(self.attempts.present.phase, Phase::Opening) && self.forbids_attempt().is_none() {
            self.attempts.present.phase = Phase::Running;
            self.begin_ranks_of_attempt(self.now());
        }
    }
}
