//! Stdin that the front sends to ranks, piece by piece.

use std::collections::BTreeSet;
use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::job::Job;
use rankrun_wire::ToAgent;

use super::reach::{Reach, StdinOwed};

impl Reach {
    /// Sends a piece of stdin to the nodes whose ranks read it, which are returned. The end (`None`) is not waited for.
    pub(crate) fn send_stdin(&mut self, job: &Job, now: Duration, piece: Option<Vec<u8>>) -> BTreeSet<NodeId> {
        let mut sent = BTreeSet::new();
        for node in job.nodes().ids() {
            if !job.reads_stdin(node) || self.nodes[node.index()].link.is_none() {
                continue;
            }
            let group = job.spec().group;
            self.send_to(job, now, node, &ToAgent::Stdin { group, bytes: piece.clone() });
            sent.insert(node);
        }
        self.stdin_owed = piece.map(|_| StdinOwed { nodes: sent.clone(), is_read: None });
        sent
    }

    /// These nodes have been sent a piece by another front, and have not reported that their ranks have read it.
    pub(crate) fn owe_stdin(&mut self, nodes: BTreeSet<NodeId>) {
        self.stdin_owed = Some(StdinOwed { nodes, is_read: None }).filter(|owed| !owed.nodes.is_empty());
    }

    /// The ranks of a node have read what they were sent of stdin, or (`is_read` is false) all have closed theirs.
    pub(crate) fn stdin_taken(&mut self, node: NodeId, is_read: bool) {
        if let Some(owed) = &mut self.stdin_owed
            && owed.nodes.remove(&node)
        {
            owed.is_read = Some(is_read || owed.is_read == Some(true));
        }
    }

    /// Once all nodes have reported the last piece: whether a rank has read it. Nodes that are lost are not waited for.
    pub(crate) fn take_stdin_read(&mut self) -> Option<bool> {
        let is_open = |node: &NodeId| self.nodes[node.index()].link.is_some();
        let is_over = self.stdin_owed.as_ref().is_some_and(|owed| !owed.nodes.iter().any(is_open));
        self.stdin_owed.take_if(|_| is_over).map(|owed| owed.is_read.unwrap_or(true))
    }

    /// Another attempt begins. Returns whether a node had not read what it was sent of stdin.
    pub(crate) fn forget_stdin(&mut self) -> bool {
        self.stdin_owed.take().is_some()
    }
}
