//! What the ranks are doing, for `rankrun status`. The agents know it, and have a time to answer.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::condition::Condition;
use crate::ids::{NodeId, WorkerId};
use crate::job::event::Effect;
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::node::Node;
use crate::job::parts::states::Told;
use crate::usage::Usage;

impl Job {
    /// A client asks for the states of all ranks, and with `measure` for what they use.
    pub(in crate::job) fn ask_for_states(&mut self, measure: bool) {
        // While the job is paused, the agents' loops stand still too.
        let has_ranks = |node: &NodeId| self.nodes.get(*node).is_some_and(|node| node.place().is_some());
        let asked: Vec<NodeId> = self.nodes.ready().filter(|node| !self.is_paused && has_ranks(node)).collect();
        let is_possible = !asked.is_empty();
        match self.states.ask(self.now, asked) {
            // All clients that ask meanwhile share it: also one that wants more than the first, and asks again in a second.
            None => {}
            Some(number) if is_possible && measure => self.send(Order::Measure(number)),
            Some(number) if is_possible => self.send(Order::ReportConditions(number)),
            Some(_) => self.answer_states(),
        }
    }

    /// An agent has measured what its workers use. Its answer follows.
    pub(in crate::job) fn measured(
        &mut self,
        from: NodeId,
        number: u64,
        workers: Vec<(WorkerId, Usage)>,
        at: Duration,
    ) {
        if !self.states.asked().is_some_and(|asked| asked.is(number) && asked.missing().contains(&from)) {
            return;
        }
        let at = self.moment(from, at).at;
        if let Some(asked) = self.states.asked() {
            asked.found.usages.extend(workers.into_iter().map(|(worker, usage)| (worker, (at, usage))));
        }
    }

    /// An agent has answered.
    pub(in crate::job) fn conditions(
        &mut self,
        from: NodeId,
        number: u64,
        workers: Vec<(WorkerId, Condition)>,
        at: Duration,
    ) {
        if !self.states.asked().is_some_and(|asked| asked.is(number) && asked.answered(from)) {
            return;
        }
        // Times to come are as far from the time of the answer as those that have passed.
        let sent = self.moment(from, at).at;
        let ours = |time: Duration| match time.checked_sub(at) {
            Some(ahead) => sent + ahead,
            None => sent.saturating_sub(at - time),
        };
        let Some(asked) = self.states.asked() else { return };
        for (worker, condition) in workers {
            let Condition { since, until, .. } = condition;
            let condition = Condition { since: since.map(ours), until: until.map(ours), ..condition };
            asked.found.conditions.insert(worker, condition);
        }
        self.give_up_on_states();
    }

    /// Answers, once all agents have, without those that have not in time, or are lost.
    pub(in crate::job) fn give_up_on_states(&mut self) {
        let (now, nodes) = (self.now, &self.nodes);
        let is_connected = |node| nodes.get(node).is_some_and(Node::is_connected);
        if self.states.asked().is_some_and(|asked| asked.is_over(now, is_connected)) {
            self.answer_states();
        }
    }

    fn answer_states(&mut self) {
        let Some(asked) = self.states.take() else { return };
        let silent: &BTreeSet<NodeId> = asked.missing();
        let silent = silent.iter().map(|node| self.nodes.name(*node).to_owned()).collect();
        let Told { conditions, usages } = asked.found;
        let (conditions, usages) = (conditions.into_iter().collect(), usages.into_iter().collect());
        self.out.push(Effect::States { conditions, usages, silent });
    }
}
