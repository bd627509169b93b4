//! The front's stdin, for ranks of other machines.

use std::collections::BTreeSet;
use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::job::Job;
use rankrun_wire::ToAgent;

use super::reach::Reach;

impl Reach {
    /// Sends a piece of stdin to the nodes whose ranks read it, which are returned.
    pub(crate) fn send_stdin(&mut self, job: &Job, now: Duration, piece: Option<Vec<u8>>) -> Vec<NodeId> {
        let mut sent = Vec::new();
        for node in job.nodes().ids() {
            if !job.reads_stdin(node) || self.nodes[node.index()].link.is_none() {
                continue;
            }
            self.nodes[node.index()].owes_stdin = piece.is_some();
            let group = job.spec().group;
            self.send_to(job, now, node, &ToAgent::Stdin { group, bytes: piece.clone() });
            sent.push(node);
        }
        sent
    }

    /// These nodes have been sent a piece by another front, and have not said that they have read it. Returns whether one can still say so.
    pub(crate) fn owe_stdin(&mut self, nodes: &BTreeSet<NodeId>) -> bool {
        for node in nodes {
            self.nodes[node.index()].owes_stdin = true;
        }
        self.nodes.iter().any(|node| node.owes_stdin && node.link.is_some())
    }

    /// The ranks of a node have read what they were sent of stdin. Returns whether all nodes have.
    pub(crate) fn stdin_taken(&mut self, node: NodeId) -> bool {
        self.nodes[node.index()].owes_stdin = false;
        !self.nodes.iter().any(|node| node.owes_stdin && node.link.is_some())
    }

    /// Another attempt begins. Returns whether a node had not read what it was sent of stdin.
    pub(crate) fn forget_stdin(&mut self) -> bool {
        let is_owed = self.nodes.iter().any(|node| node.owes_stdin);
        self.nodes.iter_mut().for_each(|node| node.owes_stdin = false);
        is_owed
    }
}
