//! Planned stops: the ranks are stopped before their work is done, and the job is run again later.

use crate::gang::{self, Outside, PlannedStop, PlannedWhy, RankRecord};
use crate::job::decisions::between::before_the_next;
use crate::job::event::Effect;
use crate::job::machine::Job;
use crate::job::parts::attempts::Stamp;
use crate::job::parts::notice::Said;
use crate::status::{WorkerStatus, signal_name};
use crate::verdict::verdict;
use crate::worker::{Stop, StopWhy};

/// Its number is the same on every Linux.
const SIGTERM: i32 = 15;

impl Job {
    /// Stops the job when its time limit has passed.
    pub(in crate::job) fn planned_due(&mut self) {
        if let Some(limit) = self.planned.limit().filter(|limit| *limit <= self.now) {
            self.stop_as_planned(PlannedWhy::TimeLimit(limit));
        }
        let now = self.now;
        if let Some(notice) = self.planned.notice_mut().due(now) {
            self.out.push(Effect::LookForNotice(notice));
        }
    }

    /// The file of the notice was looked at.
    pub(in crate::job) fn notice_file_seen(&mut self, stamp: Stamp) {
        let said = self.planned.notice_mut().file_seen(self.now, stamp);
        self.notice_said(said);
    }

    /// The command for the notice has ended, or could not be run.
    pub(in crate::job) fn notice_command_ended(&mut self, result: Result<WorkerStatus, String>) {
        let said = self.planned.notice_mut().command_ended(self.now, result);
        self.notice_said(said);
    }

    fn notice_said(&mut self, said: Said) {
        match said {
            Said::Nothing => {}
            Said::Note(text) => self.note(text),
            Said::Come => self.stop_as_planned(PlannedWhy::Notice),
        }
    }

    /// Whether this signal is a planned stop.
    pub(in crate::job) fn is_planned(&self, signal: i32) -> bool {
        signal == SIGTERM && self.planned.heeds_sigterm() && self.planned.came().is_none() && !self.is_decided()
    }

    /// Whether the job has succeeded, or something else has ended it.
    fn is_decided(&self) -> bool {
        let has_succeeded = |record: &RankRecord| record.status.is_some_and(WorkerStatus::success);
        self.gang.ended_by().is_some() || self.gang.ranks().iter().all(has_succeeded)
    }

    /// Stops the ranks, unless they end already. No attempt follows, in either case.
    pub(in crate::job) fn stop_as_planned(&mut self, why: PlannedWhy) {
        if self.is_decided() {
            return self.planned.come_too_late();
        }
        let Some(stop) = self.planned.come(why) else { return };
        // Ranks that end already may have got the same signal: the verdict tells.
        if self.gang.stop_ordered().is_none() {
            self.tell_planned(stop);
        }
        self.event(gang::Event::Planned(stop));
    }

    fn tell_planned(&mut self, stop: PlannedStop) {
        let grace = self.spec.stop.grace_outside;
        let (name, why) = match stop.why {
            PlannedWhy::TimeLimit(_) | PlannedWhy::Notice => (stop.why.to_string(), StopWhy::Planned),
            PlannedWhy::Signal(signal) => (signal_name(signal), StopWhy::Signal(signal)),
        };
        self.tell_stopping(&format!("planned stop for {name}"), Stop { why, grace }, false, false);
    }

    /// A planned stop that came when the ranks of the attempt had failed: no other attempt follows. A user who ends the job later
    /// ends it for good; a scheduler may repeat its signal.
    pub(in crate::job) fn planned_between(&self) -> Option<PlannedStop> {
        let is_ended_by_user = || self.gang.ended_by().is_some_and(|outside| !matches!(outside, Outside::Planned(_)));
        self.planned.came().filter(|stop| stop.requeues || !is_ended_by_user())
    }

    /// No attempt follows one that has failed, and the job is run again later.
    pub(in crate::job) fn end_as_planned(&mut self, stop: PlannedStop) {
        self.attempts.set_given_up(Some(before_the_next(format!("stopped as planned for {}", stop.why))));
        self.attempts.requeue(stop.requeues);
        self.end_agents();
    }

    /// Whether the scheduler is to be asked to run the job again: after a planned stop, or where the job gave up.
    pub fn is_to_requeue(&self) -> bool {
        let is_wanted = matches!(self.gang.ended_by(), Some(Outside::Planned(stop)) if stop.requeues);
        self.attempts.is_to_requeue() || is_wanted && verdict(&self.gang).is_planned_stop()
    }
}
