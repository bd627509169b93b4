//! A fact becomes evidence, and may end the gang.

use super::cause::CAUSE_PATIENCE;
use super::event::Effect;
use super::interrupts::is_interrupted;
use super::outside::Outside;
use super::state::Gang;
use crate::evidence::{Evidence, Fact};
use crate::ids::{Pid, Rank};
use crate::node_clock::Moment;

impl Gang {
    pub(super) fn fact(&mut self, moment: Moment, rank: Rank, fact: Fact, effects: &mut Vec<Effect>) {
        self.fact_of(moment, rank, None, fact, effects);
    }

    /// A fact about a rank, with the process that it is about: the leader, if none is given.
    pub(super) fn fact_of(
        &mut self,
        moment: Moment,
        rank: Rank,
        pid: Option<Pid>,
        fact: Fact,
        effects: &mut Vec<Effect>,
    ) {
        if self.ranks.get(rank).is_none() {
            // Of a group that was withdrawn: nothing of it counts.
            return;
        }
        let ends = fact.ends_the_gang();
        if let Some(record) = self.ranks.get_mut(rank).filter(|_| ends) {
            record.clock = record.clock.or(moment.clock);
        }
        let pid = pid.or_else(|| self.ranks.get(rank).and_then(|record| record.pid));
        // Further ranks that could not be started for the same reason add nothing.
        let repeated = matches!(fact, Fact::SpawnFailed { .. })
            && self.evidence.iter().any(|known| matches!(known.fact, Fact::SpawnFailed { .. }));
        if !repeated {
            self.record(Evidence { rank, at: moment.at, pid, fact });
        }
        if ends && self.stop_at.is_none() {
            if is_interrupted(self, rank) {
                self.end_from_outside(moment.now, Outside::Interrupted(rank), self.rules.grace_outside, effects);
            } else if !self.rules.keep_going {
                self.wait_until.get_or_insert(moment.now + CAUSE_PATIENCE.min(self.rules.grace_failure));
            }
        }
        self.heard_of(moment.now, rank, effects);
    }
}
