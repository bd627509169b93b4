//! The question what the ranks are doing, while the agents may answer it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::condition::Condition;
use crate::ids::{NodeId, WorkerId};
use crate::job::parts::inquiry::Inquiry;
use crate::usage::Measured;

/// How long the agents have for their answer. An agent answers in its next turn, which may last a while on a machine that is
/// very busy.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// What has come of a question, by worker, on the front's clock.
#[derive(Debug, Default)]
pub(in crate::job) struct Told {
    pub(in crate::job) conditions: BTreeMap<WorkerId, Condition>,
    pub(in crate::job) usages: BTreeMap<WorkerId, Measured>,
}

/// A question to all agents. All clients that ask meanwhile share it.
#[derive(Debug, Default)]
pub(in crate::job) struct States {
    last: u64,
    /// The present one.
    asked: Option<Inquiry<Told>>,
}

impl States {
    /// When the wait for the agents is over.
    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        self.asked.as_ref().map(Inquiry::until)
    }

    /// The question that is under way.
    pub(in crate::job) fn asked(&mut self) -> Option<&mut Inquiry<Told>> {
        self.asked.as_mut()
    }

    /// A question is put to these nodes. Returns its number; `None` if one is under way.
    pub(in crate::job) fn ask(&mut self, now: Duration, nodes: Vec<NodeId>) -> Option<u64> {
        if self.asked.is_some() {
            return None;
        }
        self.last += 1;
        self.asked = Some(Inquiry::new(self.last, now + ANSWER_BOUND, nodes, Told::default()));
        Some(self.last)
    }

    /// The question is over.
    pub(in crate::job) fn take(&mut self) -> Option<Inquiry<Told>> {
        self.asked.take()
    }
}
