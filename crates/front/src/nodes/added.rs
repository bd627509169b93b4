//! Nodes that were not there when the job began.

use rankrun_core::NodeId;

use super::hosts::NodeTarget;
use super::node::NodeHandle;
use super::reach::Reach;

impl Reach {
    /// There is another node, which is to be called.
    pub(crate) fn add(&mut self, node: NodeId, target: NodeTarget) {
        self.hosts.targets.push(target);
        self.nodes.push(NodeHandle::there(node));
    }

    /// The same machine as one that was lost.
    pub(crate) fn add_again(&mut self, node: NodeId, before: NodeId) {
        self.add(node, self.hosts.targets[before.index()].clone());
    }
}
