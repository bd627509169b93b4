//! A restart that a user asks for.

use std::time::Duration;

use rankrun_core::Attempt;
use rankrun_core::gang::{self, Requester};
use rankrun_core::restart::{Decision, Event};

use super::{Front, Phase, Wait};

impl Front {
    /// A user asks for a new attempt, which costs no budget. Returns its number.
    pub(crate) fn planned_restart(&mut self, by: Requester) -> Result<Attempt, NoRestart> {
        if self.successors.are_on() {
            return Err(NoRestart::OfRanks);
        }
        if self.attempts.present.planned_at.is_some() || matches!(self.attempts.present.phase, Phase::Opening) {
            return Err(NoRestart::Restarting);
        }
        let is_between = match &self.attempts.present.phase {
            // What has succeeded is not run again.
            Phase::Running if self.gang.stop_ordered().is_some() || self.gang.over() => return Err(NoRestart::Ending),
            Phase::Showing | Phase::Stamping { .. } | Phase::Opening | Phase::Over => return Err(NoRestart::Ending),
            Phase::Running => false,
            Phase::Asking { .. } | Phase::Waiting(_) => true,
        };
        let Some(Decision::Restart { attempt, because, .. }) = self.decide(None, Event::Planned) else {
            return Err(NoRestart::Ending);
        };
        let now = self.now();
        self.attempts.present.planned_at = Some(now);
        if !is_between {
            self.note(format!("rankrun restart ({by}): ending attempt {}", self.plan.spec.attempt));
            self.event(gang::Event::RestartRequest);
            return Ok(attempt);
        }
        self.note(format!("rankrun restart ({by}): attempt {attempt} begins now"));
        match std::mem::take(&mut self.attempts.present.phase) {
            Phase::Asking { report, .. } => self.plan_attempt(now, Duration::ZERO, attempt, &because, &report),
            _ => self.attempts.present.phase = Phase::Waiting(Wait { since: now, until: now, because }),
        }
        Ok(attempt)
    }
}

/// Why a job is not restarted, although somebody asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRestart {
    /// It is coming to its end.
    Ending,
    /// It has been asked for already.
    Restarting,
    /// Each rank is restarted by itself.
    OfRanks,
}
