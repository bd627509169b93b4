//! The attempts of a job, replayed from its journal.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::Rank;
use crate::restart::{Decision, Event, Restarter};
use crate::spec::restart::RestartSpec;

/// The restart policy's state machines, fed with the events of a journal. There is one, or with `--restart-scope rank` one
/// for each rank.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    policy: Option<(RestartSpec, u64)>,
    machines: BTreeMap<Option<Rank>, Restarter>,
    /// The recorded decisions, and those of the replay.
    decided: Vec<(Option<Rank>, Decision)>,
    decides: Vec<(Option<Rank>, Decision)>,
}

impl Attempts {
    /// Begins with the policy.
    pub fn begin(&mut self, spec: RestartSpec, seed: u64) {
        self.policy = Some((spec, seed));
    }

    /// Takes the next event. Without a policy, those of a job that cannot be restarted are decided.
    pub fn take(&mut self, now: Duration, rank: Option<Rank>, event: Event) {
        let policy = &self.policy;
        let machine = self.machines.entry(rank).or_insert_with(|| {
            let (spec, seed) = policy.clone().unwrap_or_default();
            match rank {
                Some(rank) => Restarter::of_rank(&spec, seed, rank),
                None => Restarter::new(&spec, seed),
            }
        });
        self.decides.extend(machine.handle(now, event).map(|decision| (rank, decision)));
    }

    /// Takes a recorded decision.
    pub fn decided(&mut self, rank: Option<Rank>, decision: Decision) {
        self.decided.push((rank, decision));
    }

    /// The decisions of the replay.
    pub fn decisions(&self) -> &[(Option<Rank>, Decision)] {
        &self.decides
    }

    /// Whether the replay made the recorded decisions.
    pub fn is_faithful(&self) -> bool {
        self.decided == self.decides
    }
}
