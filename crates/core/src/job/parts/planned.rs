//! Whether a planned stop is due, or has been asked for.

use std::time::Duration;

use crate::gang::{PlannedStop, PlannedWhy};
use crate::job::parts::notice::NoticeWatch;
use crate::planned::PlannedSpec;

/// The planned stop of the job. There is at most one.
#[derive(Debug)]
pub(in crate::job) struct Planned {
    spec: PlannedSpec,
    came: Option<PlannedStop>,
    notice: NoticeWatch,
}

impl Planned {
    pub(in crate::job) fn new(spec: &PlannedSpec) -> Planned {
        Planned { spec: spec.clone(), came: None, notice: NoticeWatch::new(spec.notice.as_ref()) }
    }

    /// When the time limit passes, until it has.
    pub(in crate::job) fn limit(&self) -> Option<Duration> {
        self.spec.limit.filter(|_| self.came.is_none())
    }

    /// The time limit, or the next look for the notice.
    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        [self.limit(), self.notice.deadline()].into_iter().flatten().min()
    }

    pub(in crate::job) fn notice_mut(&mut self) -> &mut NoticeWatch {
        &mut self.notice
    }

    /// Whether a SIGTERM to rankrun is a planned stop.
    pub(in crate::job) fn heeds_sigterm(&self) -> bool {
        self.spec.heeds_sigterm
    }

    /// The stop that has come, unless its user has ended the job since.
    pub(in crate::job) fn came(&self) -> Option<PlannedStop> {
        self.came
    }

    /// One has come. Returns it if it is the first.
    pub(in crate::job) fn come(&mut self, why: PlannedWhy) -> Option<PlannedStop> {
        self.notice.end();
        let is_first = self.came.is_none();
        let stop = *self.came.get_or_insert(PlannedStop { why, requeues: self.spec.requeues });
        is_first.then_some(stop)
    }

    /// The job ends anyway: nothing is planned any more.
    pub(in crate::job) fn come_too_late(&mut self) {
        self.spec.limit = None;
        self.notice.end();
    }

    /// The user ends the job: it is not to run again.
    pub(in crate::job) fn ended_by_user(&mut self) {
        self.spec.requeues = false;
        self.spec.heeds_sigterm = false;
        if let Some(stop) = &mut self.came {
            stop.requeues = false;
        }
    }
}
