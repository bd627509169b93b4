//! What is known of nodes that join by themselves, and of the steps of Slurm that start some of them.

use std::time::Duration;

use crate::ids::NodeId;

/// What is known of the nodes that join.
#[derive(Debug, Default)]
pub(in crate::job) struct Joining {
    /// Until when the job waits for more nodes than it needs.
    last_call: Option<Duration>,
    /// The steps of Slurm that start agents, the first one first.
    steps: Vec<Step>,
    asked_again: Vec<NodeId>,
}

/// A step of Slurm.
#[derive(Debug)]
struct Step {
    nodes: Vec<NodeId>,
    /// Why it has ended, if it has.
    ended: Option<String>,
}

impl Joining {
    pub(in crate::job) fn is_asked_again(&self, node: NodeId) -> bool {
        self.asked_again.contains(&node)
    }

    /// The steps that are for a node, the first one first.
    fn of(&self, node: NodeId) -> impl DoubleEndedIterator<Item = &Step> {
        self.steps.iter().filter(move |step| step.nodes.contains(&node))
    }

    /// A step is started for these nodes.
    /// Returns its number.
    pub(in crate::job) fn add_step(&mut self, nodes: Vec<NodeId>) -> usize {
        self.steps.push(Step { nodes, ended: None });
        self.steps.len() - 1
    }

    pub(in crate::job) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Whether there is one step, and no node was asked again.
    pub(in crate::job) fn may_ask_again(&self) -> bool {
        self.steps.len() == 1 && self.asked_again.is_empty()
    }

    /// Whether nodes were asked again.
    pub(in crate::job) fn has_asked_again(&self) -> bool {
        !self.asked_again.is_empty()
    }

    pub(in crate::job) fn ask_again(&mut self, nodes: Vec<NodeId>) {
        self.asked_again = nodes;
    }

    /// A step has ended, with these words.
    pub(in crate::job) fn step_ended(&mut self, step: usize, words: String) {
        if let Some(step) = self.steps.get_mut(step) {
            step.ended = Some(words);
        }
    }

    /// The nodes that a step is for.
    pub(in crate::job) fn nodes_of(&self, step: usize) -> Vec<NodeId> {
        self.steps.get(step).map(|step| step.nodes.clone()).unwrap_or_default()
    }

    /// The words of the last step that has ended, of those that are for some of these nodes.
    pub(in crate::job) fn last_words(&self, nodes: &[NodeId]) -> Option<String> {
        let steps = self.steps.iter().rev().filter(|step| nodes.iter().any(|node| step.nodes.contains(node)));
        steps.into_iter().find_map(|step| step.ended.clone())
    }

    /// Whether all steps for a node have ended.
    pub(in crate::job) fn are_over_for(&self, node: NodeId) -> bool {
        self.of(node).all(|step| step.ended.is_some())
    }

    /// Whether the last step for a node has ended.
    pub(in crate::job) fn is_last_over_for(&self, node: NodeId) -> bool {
        self.of(node).next_back().is_some_and(|step| step.ended.is_some())
    }

    /// Until when the job waits for more nodes than it needs, from the first call on.
    pub(in crate::job) fn last_call(&mut self, now: Duration, wait: Duration) -> Duration {
        *self.last_call.get_or_insert(now + wait)
    }
}
