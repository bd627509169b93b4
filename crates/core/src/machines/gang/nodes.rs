//! Nodes that are lost.

use std::time::Duration;

use super::Gang;
use crate::ids::{NodeRank, Rank};

/// A node that was lost, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostNode {
    pub node: NodeRank,
    pub name: String,
    pub why: String,
    pub at: Duration,
}

impl Gang {
    /// The nodes that were lost, in the order in which that was noticed.
    pub fn lost_nodes(&self) -> &[LostNode] {
        &self.lost_nodes
    }

    /// How long rankrun itself stood still, if the nodes that were lost have given it up.
    pub fn stood_still(&self) -> Option<Duration> {
        self.stood_still
    }

    pub(super) fn know_loss(&mut self, node: NodeRank, why: String) {
        if let Some(lost) = self.lost_nodes.iter_mut().find(|lost| lost.node == node) {
            lost.why = why;
        }
    }

    /// Nothing more is known of the ranks that had not ended there.
    pub(super) fn lose_node(&mut self, lost: LostNode, ranks: &[Rank]) {
        for rank in ranks {
            if let Some(record) = self.ranks.get_mut(rank.index()) {
                record.is_lost = record.outcome.is_none();
            }
        }
        self.lost_nodes.push(lost);
    }
}
