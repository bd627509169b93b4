//! Whether the stop waits for the cause of a failure.
//!
//! A rank that raises often closes its connections first, in a `finally` or a destructor, and reports its failure when it has
//! cleaned up. Its peers report their loss meanwhile, and end before it. A stop at once would end the rank before it could
//! say what happened: a Python program that gets SIGTERM in a `finally` dies without a word. So where every failure is the
//! loss of a peer, the stop waits until a rank reports a failure of its own, or no rank is left that could, or
//! [`CAUSE_PATIENCE`] is over.

use std::time::Duration;

use super::event::Effect;
use super::record::RankRecord;
use super::state::Gang;
use crate::causes::{is_complete, is_told};
use crate::evidence::{Class, Fact};
use crate::ids::Rank;
use crate::peers::{Loss, loss_of};
use crate::verdict::finding;
use crate::worker::{Stop, StopWhy};

/// How long the stop waits at most for a failure that is not the loss of a peer, from the first loss on. `--grace` bounds it
/// too. Long enough for a clean-up that waits for threads or other processes, and short beside a failure that nobody
/// explains.
pub(super) const CAUSE_PATIENCE: Duration = Duration::from_secs(2);

impl Gang {
    /// Something new is known of a rank: after a failure, orders the stop unless it waits for the cause.
    pub(super) fn heard_of(&mut self, now: Duration, rank: Rank, effects: &mut Vec<Effect>) {
        if self.wait_until.is_some_and(|until| now >= until || !self.awaits_cause(rank)) {
            self.stop_for_failure(now, effects);
        }
    }

    pub(super) fn stop_after_wait(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.wait_until.is_some_and(|until| now >= until) {
            self.stop_for_failure(now, effects);
        }
    }

    fn stop_for_failure(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.stop_at.is_none() {
            self.stop(now, Stop { why: StopWhy::GangFailed, grace: self.rules.grace_failure }, effects);
        }
    }

    /// Whether what is known of this rank, and was not before, leaves the cause open, and a rank may yet report it.
    fn awaits_cause(&self, rank: Rank) -> bool {
        // The search below is not free, and there is nothing to wait for.
        if self.stop_at.is_some() {
            return false;
        }
        let is_loss = finding(self, rank).is_none_or(|finding| {
            // Whoever calls `MPI_Abort` asks for the end of the job. A service that cannot be reached is seldom a rank.
            finding.class != Class::Abort && finding.loss().is_some_and(|loss| loss > Loss::Unreached)
        });
        is_loss && self.may_report_cause()
    }

    /// Whether a rank is alive that has reported nothing, and none that has reported a failure of its own.
    fn may_report_cause(&self) -> bool {
        let is_alive = |record: &RankRecord| record.pid.is_some() && record.status.is_none();
        let mut is_open: Vec<bool> = self.ranks.iter().map(is_alive).collect();
        for evidence in self.evidence.iter().filter(|evidence| is_told(evidence)) {
            let (Some(seat), Some(record)) = (self.ranks.seat(evidence.rank), self.ranks.get(evidence.rank)) else {
                continue;
            };
            let Fact::Exception { exception, .. } = &evidence.fact else { continue };
            // A process that the leader started may have failed without harm.
            if !is_alive(record) || evidence.pid != record.pid || !is_complete(exception) {
                continue;
            }
            if loss_of(exception).is_none() {
                return false;
            }
            is_open[seat] = false;
        }
        is_open.contains(&true)
    }
}
