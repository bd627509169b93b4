//! The file that shows progress (`--progress-file`).

use std::path::Path;
use std::time::Duration;

use rankrun_core::restart::{Event, GiveUp, How};

use super::{Front, Phase};
use crate::delivery::Task;

/// How long the file may take to answer.
const STAMP_BOUND: Duration = Duration::from_millis(200);

impl Front {
    /// All output of the attempt is written: before anything is decided, the file is looked at.
    pub(super) fn await_stamp(&mut self) {
        self.attempts.present.phase = Phase::Stamping { by: self.now() + STAMP_BOUND };
        self.look_for_progress();
    }

    /// Asks whether the file that shows progress has changed.
    pub(super) fn look_for_progress(&mut self) {
        if let Some(file) = self.plan.spec.restart.progress_file.clone() {
            let now = self.now();
            self.delivery.files.submit(now, Task::Stamp { attempt: self.plan.spec.attempt, path: file.into() });
        }
    }

    /// The file that shows progress has been looked at, or does not answer.
    pub(super) fn hear_of_progress(&mut self, now: Duration) {
        for (attempt, stamp) in std::mem::take(&mut self.delivery.stamps) {
            // One that comes late is of an attempt that is over.
            if self.attempts.stamp.replace(stamp).is_some_and(|before| before != stamp) {
                self.attempts.has_stamp_changed = true;
                self.decide(None, Event::Progress(attempt));
            }
            let is_of_present = attempt == self.plan.spec.attempt;
            if is_of_present && matches!(self.attempts.present.phase, Phase::Stamping { .. }) {
                self.attempt_over();
            }
        }
        if matches!(self.attempts.present.phase, Phase::Stamping { by } if by <= now) {
            self.attempt_over();
        }
    }

    /// What there is to say of the file where its job is given up because it made no progress.
    pub(super) fn about_progress_file(&self, why: &GiveUp) -> String {
        let file = self.plan.spec.restart.progress_file.as_ref();
        let (GiveUp::Repeated { how: How::WithoutProgress, .. }, Some(file)) = (why, file) else {
            return String::new();
        };
        let shown = Path::new(file).display();
        match (self.attempts.stamp, self.attempts.has_stamp_changed) {
            (Some(None), _) => format!(" (there is no {shown})"),
            (Some(Some(_)), false) => format!(" ({shown} never changed)"),
            (Some(Some(_)), true) => format!(" ({shown} has not changed since)"),
            (None, _) => format!(" ({shown} could not be looked at)"),
        }
    }
}
