//! The nodes of a job: which of them the present attempt runs on, and without which it may go on.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::hosts::fold;
use crate::ids::{NodeId, NodeRank};
use crate::job::parts::node::Node;
use crate::job::settings::Host;
use crate::rankmap::RankMap;

/// All nodes of the job: those of the present attempt, spares, and those that are lost.
#[derive(Clone, Debug)]
pub struct Nodes {
    all: Vec<Node>,
    /// On how few the job may run; `None`: it needs all.
    least: Option<u32>,
    /// The map with which the job began, and who has each of its places: one that is lost has it until another attempt begins.
    full: RankMap,
    /// The identities of the nodes that had its places first.
    homes: Vec<String>,
    seats: Vec<Option<NodeId>>,
}

/// Where the ranks of another attempt run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::job) struct Seating {
    seats: Vec<Option<NodeId>>,
    pub(in crate::job) map: RankMap,
    /// Who gets a place that another had, or nobody.
    came: Vec<(NodeId, Option<NodeId>)>,
    /// Who was lost, and is not replaced.
    without: Vec<NodeId>,
}

impl Seating {
    /// Whether it differs from the present one.
    pub(in crate::job) fn is_news(&self) -> bool {
        !self.came.is_empty() || !self.without.is_empty()
    }
}

/// Who may get a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::job) struct Candidates {
    pub(in crate::job) readiness: Readiness,
    /// Those that get none.
    pub(in crate::job) left_out: BTreeSet<NodeId>,
}

/// How far a candidate must have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::job) enum Readiness {
    /// Also those that are being reached: they are waited for.
    Coming,
    /// Those whose agents are ready.
    Ready,
}

impl Nodes {
    /// Those of a job that begins. The first ones have the places of the map; the others are spares.
    pub(in crate::job) fn new(hosts: &[Host], start_timeout: Duration, least: Option<u32>, full: &RankMap) -> Nodes {
        let count = full.node_count();
        let node = |(host, id): (&Host, u32)| {
            let place = (id < count).then_some(NodeRank(id));
            Node::new(NodeId(id), host, place, start_timeout)
        };
        let all: Vec<Node> = hosts.iter().zip(0..).map(node).collect();
        let seats = (0..count).map(|id| (id < all.len() as u32).then_some(NodeId(id))).collect();
        let homes = all.iter().take(count as usize).map(|node| node.identity().to_owned()).collect();
        Nodes { all, least, full: full.clone(), homes, seats }
    }

    /// Another node, which is to be reached.
    pub(in crate::job) fn add(&mut self, host: &Host, now: Duration) -> NodeId {
        let id = NodeId(self.all.len() as u32);
        let mut node = Node::new(id, host, None, Duration::ZERO);
        node.ask_again(now);
        self.all.push(node);
        id
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

    /// The last node with an identity.
    pub(in crate::job) fn last_of(&self, identity: &str) -> Option<&Node> {
        self.all.iter().rev().find(|node| node.identity() == identity)
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
        self.seats.iter().flatten().filter_map(|node| self.get(*node))
    }

    /// The node at a place of the present attempt.
    pub fn at(&self, place: NodeRank) -> Option<NodeId> {
        self.seats.iter().flatten().nth(place.index()).copied()
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

    /// The nodes without a place in the present attempt that may get one in the next.
    pub(in crate::job) fn spares(&self) -> impl Iterator<Item = &Node> {
        self.all.iter().filter(|node| node.place().is_none() && node.is_ready() && !node.is_suspect())
    }

    /// Whether a place is empty that a spare could have.
    pub(in crate::job) fn could_grow(&self, candidates: &Candidates) -> bool {
        self.seating(candidates).is_some_and(|seating| {
            let taken = |seats: &[Option<NodeId>]| seats.iter().flatten().count();
            taken(&seating.seats) > taken(&self.seats)
        })
    }

    /// Where the ranks of the next attempt run, if the job may go on: those that are lost are replaced by spares as far as there are any, and
    /// empty places are filled.
    pub(in crate::job) fn seating(&self, candidates: &Candidates) -> Option<Seating> {
        // What only this machine can do, nobody does any more.
        if self.lost().any(Node::is_here) {
            return None;
        }
        let may_come = |node: &&Node| {
            let is_there = match candidates.readiness {
                Readiness::Coming => node.is_alive(),
                Readiness::Ready => node.is_ready(),
            };
            node.place().is_none() && is_there && !node.is_suspect() && !candidates.left_out.contains(&node.id())
        };
        let mut spares: Vec<&Node> = self.all.iter().filter(may_come).collect();
        let mut seating =
            Seating { seats: self.seats.clone(), map: self.full.clone(), came: Vec::new(), without: Vec::new() };
        let is_lost = |node: NodeId| self.get(node).is_none_or(Node::is_lost);
        let is_empty = |place: NodeRank| self.seats[place.index()].is_none_or(is_lost);
        let empty: Vec<NodeRank> =
            (0..seating.seats.len() as u32).map(NodeRank).filter(|place| is_empty(*place)).collect();
        empty.iter().for_each(|place| seating.seats[place.index()] = None);
        // Nodes come back to where they were, if they can. Then the other places are filled.
        for is_own in [true, false] {
            for place in empty.iter().map(|place| place.index()) {
                let ranks = self.full.local_size(NodeRank(place as u32));
                let home = self.homes.get(place).map_or("", String::as_str);
                let identity = self.seats[place].and_then(|node| self.get(node)).map_or(home, Node::identity);
                let fits = |node: &&Node| {
                    node.slots().is_none_or(|slots| slots >= ranks) && (!is_own || node.identity() == identity)
                };
                if seating.seats[place].is_none() {
                    seating.seats[place] = spares.iter().position(fits).map(|at| spares.remove(at).id());
                }
            }
        }
        for place in empty {
            match (seating.seats[place.index()], self.seats[place.index()]) {
                (Some(node), had) => seating.came.push((node, had)),
                (None, Some(had)) => seating.without.push(had),
                (None, None) => {}
            }
        }
        let (full, seats) = (&self.full, &seating.seats);
        let mut map = full.without(|place| seats.get(place.index()).is_none_or(Option::is_none))?;
        for (place, node) in (0..).map(NodeRank).zip(seats.iter().flatten()) {
            map.rename_node(place, self.name(*node));
        }
        let least = self.least.unwrap_or(full.node_count());
        seating.map = map;
        (seating.map.node_count() >= least).then_some(seating)
    }

    /// Why the job cannot go on, if nodes are lost and it may not run without them.
    pub(in crate::job) fn needs_lost(&self, candidates: &Candidates) -> Option<String> {
        let lost: Vec<NodeId> = self.lost().map(Node::id).collect();
        if lost.is_empty() || self.seating(candidates).is_some() {
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
        self.least.is_some_and(|least| self.seated().count() > least as usize) || self.spares().next().is_some()
    }

    /// Whether as many nodes are here as the job needs.
    pub(in crate::job) fn are_enough_here(&self) -> bool {
        let here = self.all.iter().filter(|node| node.is_connected()).count();
        here >= self.least.unwrap_or(self.full.node_count()) as usize
    }

    pub(in crate::job) fn may_run_on_fewer(&self) -> bool {
        self.least.is_some()
    }

    /// The attempts to come run there. Returns what is said of it.
    pub(in crate::job) fn take_seats(&mut self, seating: Seating) -> Vec<String> {
        let Seating { seats, map, came, without } = seating;
        let mut said = Vec::new();
        for (node, had) in came {
            let name = self.name(node);
            said.push(match had.and_then(|had| self.get(had)) {
                Some(had) if had.identity() == self.get(node).map_or("", Node::identity) => format!("{name} is back"),
                Some(had) => format!("{name} takes the place of {}", had.name()),
                None => format!("{name} joins the job"),
            });
        }
        let is_smaller = !without.is_empty();
        let without = self.names(without);
        let count = |map: &RankMap| {
            let (ranks, nodes) =
                (counted(map.world_size() as usize, "rank"), counted(map.node_count() as usize, "node"));
            format!("{ranks} on {nodes}")
        };
        if is_smaller {
            said.push(format!("without {without}: {}, numbered anew", count(&map)));
        } else if map.node_count() != self.seated().count() as u32 {
            said.push(format!("{}, numbered anew", count(&map)));
        }
        self.all.iter_mut().for_each(|node| node.seat(None));
        for (place, node) in (0..).map(NodeRank).zip(seats.iter().flatten()) {
            if let Some(node) = self.all.get_mut(node.index()) {
                node.seat(Some(place));
            }
        }
        self.seats = seats;
        said
    }

    /// A node of the map calls itself by this name.
    pub(in crate::job) fn rename(&mut self, node: NodeId, name: &str) {
        if let Some(place) = self.seats.iter().position(|seat| *seat == Some(node)) {
            self.full.rename_node(NodeRank(place as u32), name);
        }
        if let Some(node) = self.get_mut(node) {
            node.rename(name);
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn are(count: usize, what: &str) -> String {
    format!("{} {}", counted(count, what), if count == 1 { "is" } else { "are" })
}
