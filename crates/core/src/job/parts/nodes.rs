//! The nodes of a job: which of them the present attempt runs on, and without which it may go on.

use std::time::Duration;

use crate::hosts::fold;
use crate::ids::{NodeId, NodeRank};
use crate::job::parts::node::Node;
use crate::job::settings::Host;
use crate::rankmap::RankMap;

/// All nodes of the job, those that are lost among them.
#[derive(Clone, Debug)]
pub struct Nodes {
    all: Vec<Node>,
    /// On how few the job may run; `None`: it needs all.
    least: Option<u32>,
}

impl Nodes {
    pub(in crate::job) fn new(hosts: &[Host], start_timeout: Duration, least: Option<u32>) -> Nodes {
        let node = |(host, id): (&Host, u32)| Node::new(NodeId(id), host, start_timeout);
        Nodes { all: hosts.iter().zip(0..).map(node).collect(), least }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.all.iter()
    }

    pub(in crate::job) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.all.iter_mut()
    }

    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.all.len() as u32).map(NodeId)
    }

    pub fn get(&self, node: NodeId) -> Option<&Node> {
        self.all.get(node.index())
    }

    pub(in crate::job) fn get_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.all.get_mut(node.index())
    }

    pub(in crate::job) fn len(&self) -> usize {
        self.all.len()
    }

    /// The name of a node.
    pub fn name(&self, node: NodeId) -> &str {
        self.get(node).map_or("", Node::name)
    }

    /// The names of these nodes, as people read them.
    pub(in crate::job) fn names(&self, nodes: impl IntoIterator<Item = NodeId>) -> String {
        fold(nodes.into_iter().map(|node| self.name(node)).collect::<Vec<_>>())
    }

    /// The nodes of the present attempt, by rank.
    pub fn seated(&self) -> impl Iterator<Item = &Node> {
        self.all.iter().filter(|node| node.place().is_some())
    }

    /// The node at a place of the present attempt.
    pub fn at(&self, place: NodeRank) -> Option<NodeId> {
        // Those that are left out have moved it towards the front only.
        let from = self.all.get(place.index()..)?;
        from.iter().find(|node| node.place() == Some(place)).map(Node::id)
    }

    /// Whether any agent is connected, or about to be.
    pub fn is_linked(&self) -> bool {
        self.all.iter().any(Node::is_alive)
    }

    /// Whether every agent has reported the end of the attempt, or is lost.
    pub fn is_over(&self) -> bool {
        self.all.iter().all(Node::is_over)
    }

    /// Whether nothing more of the attempt is to come from any node.
    pub(in crate::job) fn are_finished(&self) -> bool {
        self.all.iter().all(Node::is_finished)
    }

    /// The nodes that can be asked something.
    pub(in crate::job) fn ready(&self) -> impl Iterator<Item = NodeId> {
        self.all.iter().filter(|node| node.is_ready()).map(Node::id)
    }

    /// The nodes of the present attempt that are lost.
    pub fn lost(&self) -> impl Iterator<Item = &Node> {
        self.seated().filter(|node| node.is_lost())
    }

    /// The map of the ranks without the nodes that are lost, if the job may run on so few.
    pub(in crate::job) fn map_left(&self, map: &RankMap) -> Option<RankMap> {
        let least = self.least?;
        // What only this machine can do, nobody does any more.
        if self.lost().any(Node::is_here) {
            return None;
        }
        let is_lost = |place: NodeRank| self.at(place).and_then(|node| self.get(node)).is_none_or(Node::is_lost);
        map.without(is_lost).filter(|map| map.node_count() >= least)
    }

    /// Why the job cannot go on, if nodes are lost and it may not run without them.
    pub(in crate::job) fn needs_lost(&self, map: &RankMap) -> Option<String> {
        let lost: Vec<NodeId> = self.lost().map(Node::id).collect();
        if lost.is_empty() || self.map_left(map).is_some() {
            return None;
        }
        let left = self.seated().count() - lost.len();
        let names = self.names(lost);
        Some(match self.least {
            Some(least) if left < least as usize => {
                format!("{} left without {names}, and --nnodes asks for {least}", are(left, "node"))
            }
            Some(_) => format!("the job cannot run without {names}"),
            None => format!("the job runs on all of its nodes, and {names} is lost (--nnodes MIN:MAX)"),
        })
    }

    /// Whether the job may go on without one more node.
    pub(in crate::job) fn may_spare_one(&self) -> bool {
        self.least.is_some_and(|least| self.seated().count() > least as usize)
    }

    /// How many nodes the job needs, and how many of the present ones have not failed to join.
    pub(in crate::job) fn are_enough_here(&self) -> bool {
        let here = self.seated().filter(|node| !node.is_awaited()).count();
        self.least.is_some_and(|least| here >= least as usize)
    }

    pub(in crate::job) fn may_run_on_fewer(&self) -> bool {
        self.least.is_some()
    }

    /// The attempts to come run without the nodes that are lost, on this map. Returns what is said of it.
    pub(in crate::job) fn leave_out_lost(&mut self, map: &RankMap) -> String {
        let without = self.names(self.lost().map(Node::id).collect::<Vec<_>>());
        let mut next = 0;
        for node in &mut self.all {
            let place = node.place().filter(|_| !node.is_lost()).map(|_| NodeRank(next));
            next += u32::from(place.is_some());
            node.seat(place);
        }
        let (ranks, nodes) = (counted(map.world_size() as usize, "rank"), counted(map.node_count() as usize, "node"));
        format!("without {without}: {ranks} on {nodes}, numbered anew")
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn are(count: usize, what: &str) -> String {
    format!("{} {}", counted(count, what), if count == 1 { "is" } else { "are" })
}
