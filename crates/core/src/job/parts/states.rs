//! The question what the ranks are doing, while the agents may answer it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::condition::Condition;
use crate::ids::{NodeId, WorkerId};
use crate::job::parts::inquiry::Inquiry;

/// How long the agents have for their answer. An agent answers in its next turn, which may last a while on a machine that is
/// very busy.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// A question to all agents. All clients that ask meanwhile share it.
#[derive(Debug, Default)]
pub(in crate::job) struct States {
    last: u64,
    /// What has come of the present one: the conditions by worker, on the front's clock.
    asked: Option<Inquiry<BTreeMap<WorkerId, Condition>>>,
}

impl States {
    /// When the wait for the agents is over.
    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        self.asked.as_ref().map(Inquiry::until)
    }

    /// The question that is under way.
    pub(in crate::job) fn asked(&mut self) -> Option<&mut Inquiry<BTreeMap<WorkerId, Condition>>> {
        self.asked.as_mut()
    }

    /// A question is put to these nodes. Returns its number; `None` if one is under way.
    pub(in crate::job) fn ask(&mut self, now: Duration, nodes: Vec<NodeId>) -> Option<u64> {
        if self.asked.is_some() {
            return None;
        }
        self.last += 1;
        self.asked = Some(Inquiry::new(self.last, now + ANSWER_BOUND, nodes, BTreeMap::new()));
        Some(self.last)
    }

    /// The question is over.
    pub(in crate::job) fn take(&mut self) -> Option<Inquiry<BTreeMap<WorkerId, Condition>>> {
        self.asked.take()
    }
}
