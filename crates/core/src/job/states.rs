//! What the ranks are doing, for `rankrun status`. The agents know it, and have a time to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Job;
use super::event::{Effect, Order};
use super::inquiry::Inquiry;
use crate::condition::Condition;
use crate::ids::{NodeId, Rank, WorkerId};

/// How long the agents have for their answer. An agent answers in its next turn, which may last a while on a machine that is
/// very busy.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// A question to all agents. All clients that ask meanwhile share it.
#[derive(Debug, Default)]
pub(super) struct States {
    last: u64,
    /// What has come of the present one: the conditions by rank, on the front's clock.
    asked: Option<Inquiry<BTreeMap<Rank, Condition>>>,
}

impl States {
    /// When the wait for the agents is over.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.asked.as_ref().map(Inquiry::until)
    }
}

impl Job {
    /// A client asks for the states of all ranks.
    pub(super) fn ask_for_states(&mut self) {
        if self.states.asked.is_some() {
            return;
        }
        self.states.last += 1;
        let (number, until) = (self.states.last, self.now + ANSWER_BOUND);
        // While the job is paused, the agents' loops stand still too.
        let asked: Vec<NodeId> = self.nodes.ready().filter(|_| !self.is_paused).collect();
        let is_possible = !asked.is_empty();
        self.states.asked = Some(Inquiry::new(number, until, asked, BTreeMap::new()));
        match is_possible {
            true => self.send(Order::ReportConditions(number)),
            false => self.answer_states(),
        }
    }

    /// An agent has answered.
    pub(super) fn conditions(&mut self, from: NodeId, number: u64, workers: Vec<(WorkerId, Condition)>, at: Duration) {
        if !self.states.asked.as_mut().is_some_and(|asked| asked.is(number) && asked.answered(from)) {
            return;
        }
        // Times to come are as far from the time of the answer as those that have passed.
        let sent = self.moment(from, at).at;
        let ours = |time: Duration| match time.checked_sub(at) {
            Some(ahead) => sent + ahead,
            None => sent.saturating_sub(at - time),
        };
        let Some(asked) = &mut self.states.asked else { return };
        for (worker, condition) in workers {
            let Condition { since, until, .. } = condition;
            let condition = Condition { since: since.map(ours), until: until.map(ours), ..condition };
            asked.found.insert(worker.rank, condition);
        }
        self.give_up_on_states();
    }

    /// Answers, once all agents have, without those that have not in time, or are lost.
    pub(super) fn give_up_on_states(&mut self) {
        let (now, nodes) = (self.now, &self.nodes);
        let is_connected = |node| nodes.get(node).is_some_and(super::Node::is_connected);
        if self.states.asked.as_ref().is_some_and(|asked| asked.is_over(now, is_connected)) {
            self.answer_states();
        }
    }

    fn answer_states(&mut self) {
        let Some(asked) = self.states.asked.take() else { return };
        let silent: &BTreeSet<NodeId> = asked.missing();
        let silent = silent.iter().map(|node| self.nodes.name(*node).to_owned()).collect();
        self.out.push(Effect::States { conditions: asked.found.into_iter().collect(), silent });
    }
}
