//! The nodes of a job that connect by themselves: which may join, and as which.
//!
//! A peer is known by its key. It is the caller that has proved that the peer knows the job's secret, and, where the peer shows a
//! certificate, that it was admitted before.
//!
//! A *place* is what a node is started as (`--node-rank`). Who has a place may change: a node that was lost may come back, or another in
//! its place. Each of them has a number of its own ([`NodeId`]).

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, NodeRank};

/// What a node asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<K> {
    /// `None`: any place that is free.
    pub node: Option<NodeRank>,
    pub key: K,
    /// The node that it was admitted as, by its certificate.
    pub was: Option<NodeId>,
    /// How many nodes it was started for, if it says.
    pub nodes: Option<u32>,
    pub host: String,
}

/// What becomes of a node that may join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// It is the first at its place.
    Admitted(NodeId),
    /// It was admitted, and asks again: it may not have received that.
    Again(NodeId),
    /// It was here before, with the same key.
    Back(NodeId),
    /// The node that had the place was lost: the job decides whether another one comes after it. The caller asks the job, and then
    /// [admits](Roster::admit) it or [gives it up](Roster::forget).
    After(NodeId),
}

/// Why a node may not join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Denied {
    /// The job has fewer nodes.
    NoSuchNode { node: NodeRank, nodes: u32 },
    /// This is the node of the front.
    IsFront { node: NodeRank },
    /// Another peer has this place.
    Taken { node: NodeRank, host: String },
    /// The node that had this place was lost. Its ranks have been ended, and nobody takes the place.
    Lost { node: NodeRank, host: String },
    /// All places are taken.
    Full { nodes: u32 },
    /// It comes back as another node than it was, or as one that never joined.
    OtherNode { was: NodeId },
    /// It was started for another number of nodes than the front.
    OtherCount { nodes: u32, its: u32 },
}

impl Denied {
    /// Whether the node may be admitted later, in a job that takes nodes in while it runs: who has the place may be lost.
    pub fn may_pass(&self) -> bool {
        matches!(self, Denied::Taken { .. } | Denied::Full { .. })
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Denied::NoSuchNode { node, nodes } => {
                write!(f, "there is no node {node}: the job has {nodes} nodes, numbered from 0 (--nnodes)")
            }
            Denied::IsFront { node } => write!(f, "node {node} is the one that the others connect to (--node-rank)"),
            Denied::Taken { node, host } => {
                write!(
                    f,
                    "node {node} has joined already, from {host}: each node needs a number of its own (--node-rank)"
                )
            }
            Denied::Lost { node, host } => {
                write!(f, "node {node} ({host}) was lost, and cannot join this job again")
            }
            Denied::Full { nodes } => write!(f, "all {nodes} nodes have joined already (--nnodes)"),
            Denied::OtherNode { was } => write!(f, "it was admitted as node {was}, and cannot be another one"),
            Denied::OtherCount { nodes, its } => {
                write!(f, "it was started with --nnodes {its}, and node 0 with --nnodes {nodes}")
            }
        }
    }
}

/// How far the node of a place has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Life {
    /// It is awaited.
    Missing,
    /// Nothing was received from it: its admission may have been lost on the way.
    Unheard,
    Heard,
    /// It was lost, or has not come in time.
    Lost,
    /// The same, and another one asks to come after it.
    Followed,
}

/// A place, and who has it, or had it last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Place<K> {
    id: NodeId,
    /// The front itself is there.
    is_front: bool,
    life: Life,
    who: Option<(K, String)>,
}

impl<K> Place<K> {
    fn host(&self) -> String {
        self.who.as_ref().map(|(_, host)| host.clone()).unwrap_or_default()
    }
}

impl<K: PartialEq> Place<K> {
    fn is_of(&self, peer: &K) -> bool {
        self.who.as_ref().is_some_and(|(key, _)| key == peer)
    }
}

/// The places of a job's nodes.
#[derive(Clone, Debug)]
pub struct Roster<K> {
    places: Vec<Place<K>>,
    /// On how many nodes the job may run; the other places are for spares.
    nodes: u32,
    /// Nodes may come after those that were lost.
    is_elastic: bool,
    /// The keys of those that had a place before.
    past: Vec<(NodeId, K)>,
    /// Places that have changed since [`Roster::changes`].
    changed: BTreeSet<usize>,
    /// How many of the past ones were among those.
    told_past: usize,
}

/// What has changed in a roster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Changes<K> {
    places: Vec<(u32, Place<K>)>,
    past: Vec<(NodeId, K)>,
}

impl<K: PartialEq> Roster<K> {
    /// A job of so many nodes, and places for spares. The front may be on one of them.
    pub fn new(nodes: u32, spares: u32, front: Option<NodeRank>, is_elastic: bool) -> Roster<K> {
        let place =
            |node| Place { id: NodeId(node), is_front: front == Some(NodeRank(node)), life: Life::Missing, who: None };
        Roster {
            places: (0..nodes + spares).map(place).collect(),
            nodes,
            is_elastic,
            past: Vec::new(),
            changed: BTreeSet::new(),
            told_past: 0,
        }
    }

    /// Decides about a node that knows the secret. The caller tells whether the node is [heard](Roster::heard), and whether its place
    /// is to be [given back](Roster::release).
    pub fn join(&mut self, request: Request<K>) -> Result<Entry, Denied> {
        if let Some(its) = request.nodes.filter(|its| *its != self.nodes) {
            return Err(Denied::OtherCount { nodes: self.nodes, its });
        }
        if let Some(was) = request.was {
            let place = self.places.iter().position(|place| place.id == was && place.is_of(&request.key));
            return match place {
                Some(place) if request.node.is_none_or(|node| node.index() == place) => Ok(Entry::Back(was)),
                _ => Err(Denied::OtherNode { was }),
            };
        }
        let node = match request.node {
            Some(node) => node,
            None => self.any_place(&request.key)?,
        };
        let (all, is_elastic) = (self.places.len() as u32, self.is_elastic);
        let place = self.places.get_mut(node.index()).ok_or(Denied::NoSuchNode { node, nodes: all })?;
        if place.is_front {
            return Err(Denied::IsFront { node });
        }
        match place.life {
            Life::Missing => {}
            // It asks again since it has not received its admission.
            Life::Unheard if place.is_of(&request.key) => return Ok(Entry::Again(place.id)),
            Life::Lost if is_elastic => {
                place.life = Life::Followed;
                self.changed.insert(node.index());
                return Ok(Entry::After(place.id));
            }
            Life::Lost => return Err(Denied::Lost { node, host: place.host() }),
            Life::Unheard | Life::Heard | Life::Followed => return Err(Denied::Taken { node, host: place.host() }),
        }
        (place.life, place.who) = (Life::Unheard, Some((request.key, request.host)));
        self.changed.insert(node.index());
        Ok(Entry::Admitted(place.id))
    }

    /// The job admits a node after another one, with this number.
    pub fn admit(&mut self, before: NodeId, id: NodeId, key: K, host: String) {
        let Some(at) = self.places.iter().position(|place| place.id == before) else { return };
        let new = Place { id, is_front: false, life: Life::Unheard, who: Some((key, host)) };
        let old = std::mem::replace(&mut self.places[at], new);
        self.past.extend(old.who.map(|(key, _)| (old.id, key)));
        self.changed.insert(at);
    }

    /// What has changed since this was last called, for [`Roster::restore`]. `None`: nothing has.
    pub fn changes(&mut self) -> Option<Changes<K>>
    where
        K: Clone,
    {
        let changed = std::mem::take(&mut self.changed);
        let places: Vec<(u32, Place<K>)> = changed.into_iter().map(|at| (at as u32, self.places[at].clone())).collect();
        let past = self.past[self.told_past..].to_vec();
        self.told_past = self.past.len();
        (!places.is_empty()).then_some(Changes { places, past })
    }

    /// Does what has changed in another roster, in that order.
    pub fn restore(&mut self, changes: Changes<K>) {
        for (at, changed) in changes.places {
            if let Some(place) = self.places.get_mut(at as usize) {
                *place = changed;
                if place.life == Life::Followed {
                    // Who has asked to come after it asks again.
                    place.life = Life::Lost;
                }
            }
        }
        self.past.extend(changes.past);
        self.told_past = self.past.len();
    }

    /// Whether nodes may come after those that were lost.
    pub fn is_elastic(&self) -> bool {
        self.is_elastic
    }

    /// The nodes that have joined and were not lost.
    pub fn members(&self) -> impl Iterator<Item = NodeId> + '_ {
        let is_member = |place: &&Place<K>| !place.is_front && matches!(place.life, Life::Unheard | Life::Heard);
        self.places.iter().filter(is_member).map(|place| place.id)
    }

    /// Whether a node was lost, and may come back.
    pub fn may_return(&self, node: NodeId) -> bool {
        let is_lost = |place: &Place<K>| matches!(place.life, Life::Lost | Life::Followed);
        let lost = match self.places.iter().find(|place| place.id == node) {
            Some(place) => is_lost(place),
            None => self.past.iter().any(|(id, _)| *id == node),
        };
        self.is_elastic && lost
    }

    /// The node that asked to come after another one does not come.
    pub fn forget(&mut self, before: NodeId) {
        self.step(before, &[Life::Followed], Life::Lost);
    }

    /// The place of a node that has not said which it is: the one that it was given before, else the first that is free, else that of one
    /// that was lost.
    fn any_place(&self, own: &K) -> Result<NodeRank, Denied> {
        let first = |is_it: &dyn Fn(&Place<K>) -> bool| {
            self.places.iter().position(|place| !place.is_front && is_it(place)).map(|at| NodeRank(at as u32))
        };
        let (is_own, is_lost) = (|place: &Place<K>| place.is_of(own), |place: &Place<K>| place.life == Life::Lost);
        let node = first(&is_own).or_else(|| self.missing().next()).or_else(|| first(&is_lost));
        node.ok_or(Denied::Full { nodes: self.places.len() as u32 })
    }

    /// Whether a peer is this node, or was it last.
    pub fn is_of(&self, node: NodeId, peer: &K) -> bool {
        match self.places.iter().find(|place| place.id == node) {
            Some(place) => place.is_of(peer) || (place.who.is_none() && !place.is_front),
            None => self.past.iter().any(|(id, key)| *id == node && key == peer),
        }
    }

    /// The node has sent something: it has received its admission.
    pub fn heard(&mut self, node: NodeId) {
        self.step(node, &[Life::Unheard], Life::Heard);
    }

    /// The node was lost, or has never come and is awaited no more.
    pub fn lost(&mut self, node: NodeId) {
        self.step(node, &[Life::Missing, Life::Unheard, Life::Heard], Life::Lost);
    }

    fn step(&mut self, node: NodeId, from: &[Life], to: Life) {
        let is_it = |place: &Place<K>| place.id == node && from.contains(&place.life);
        if let Some(at) = self.places.iter().position(is_it) {
            self.places[at].life = to;
            self.changed.insert(at);
        }
    }

    /// Gives back the place of a node that was never heard.
    pub fn release(&mut self, node: NodeId) {
        let unheard = |place: &Place<K>| place.id == node && place.life == Life::Unheard;
        if let Some(at) = self.places.iter().position(unheard) {
            let place = &mut self.places[at];
            (place.life, place.who) = (Life::Missing, None);
            self.changed.insert(at);
        }
    }

    /// The nodes that have not joined, and are awaited, in order.
    pub fn missing(&self) -> impl Iterator<Item = NodeRank> + '_ {
        let is_missing = |place: &Place<K>| !place.is_front && place.life == Life::Missing;
        (0..).map(NodeRank).zip(&self.places).filter(move |(_, place)| is_missing(place)).map(|(node, _)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(nodes: u32) -> Roster<u32> {
        Roster::new(nodes, 0, Some(NodeRank(0)), false)
    }

    fn asks(node: Option<u32>, key: u32) -> Request<u32> {
        Request { node: node.map(NodeRank), key, was: None, nodes: None, host: format!("host{key}") }
    }

    fn is_back(was: u32, node: Option<u32>, key: u32) -> Request<u32> {
        Request { was: Some(NodeId(was)), ..asks(node, key) }
    }

    #[test]
    fn each_place_is_given_once() {
        let mut roster = roster(4);
        let new = |node| Ok(Entry::Admitted(NodeId(node)));
        assert_eq!(roster.join(asks(Some(2), 20)), new(2));
        assert_eq!(roster.join(asks(None, 10)), new(1));
        assert_eq!(roster.missing().collect::<Vec<_>>(), [NodeRank(3)]);
        let denied = |roster: &mut Roster<u32>, request| roster.join(request).map_err(|denied| denied.to_string());
        assert_eq!(
            denied(&mut roster, asks(Some(2), 21)).expect_err("it is taken"),
            "node 2 has joined already, from host20: each node needs a number of its own (--node-rank)"
        );
        assert_eq!(roster.join(asks(Some(4), 40)), Err(Denied::NoSuchNode { node: NodeRank(4), nodes: 4 }));
        assert_eq!(
            roster.join(asks(Some(u32::MAX), 40)),
            Err(Denied::NoSuchNode { node: NodeRank(u32::MAX), nodes: 4 })
        );
        assert_eq!(roster.join(asks(Some(0), 40)), Err(Denied::IsFront { node: NodeRank(0) }));
        assert_eq!(roster.join(asks(None, 30)), new(3));
        assert!(roster.missing().next().is_none());
        assert_eq!(roster.join(asks(None, 31)), Err(Denied::Full { nodes: 4 }));
    }

    #[test]
    fn a_node_comes_back_to_its_own_place_only() {
        let mut roster = roster(3);
        roster.join(asks(Some(1), 10)).expect("it is free");
        assert_eq!(roster.join(is_back(1, None, 10)), Ok(Entry::Back(NodeId(1))));
        assert_eq!(roster.join(is_back(1, Some(1), 10)), Ok(Entry::Back(NodeId(1))));
        // Another rank, another key, a place that nobody has, that of the front, one that is not there.
        for wrong in [
            is_back(1, Some(2), 10),
            is_back(1, None, 11),
            is_back(2, None, 10),
            is_back(0, None, 10),
            is_back(9, None, 10),
        ] {
            assert!(matches!(roster.join(wrong.clone()), Err(Denied::OtherNode { .. })), "{wrong:?}");
        }
        assert_eq!(roster.missing().collect::<Vec<_>>(), [NodeRank(2)]);
    }

    #[test]
    fn a_node_that_has_not_received_its_admission_gets_the_same_place_again() {
        let mut roster = roster(3);
        assert_eq!(roster.join(asks(None, 10)), Ok(Entry::Admitted(NodeId(1))));
        for asked in [None, Some(1)] {
            assert_eq!(roster.join(asks(asked, 10)), Ok(Entry::Again(NodeId(1))), "{asked:?}");
        }
        assert_eq!(roster.missing().collect::<Vec<_>>(), [NodeRank(2)]);
        // Another peer does not get it, and after the first message nobody does.
        let taken = Err(Denied::Taken { node: NodeRank(1), host: "host10".to_owned() });
        assert_eq!(roster.join(asks(Some(1), 11)), taken);
        roster.heard(NodeId(1));
        assert_eq!(roster.join(asks(Some(1), 10)), taken);
        assert_eq!(roster.join(asks(None, 10)), taken);
    }

    #[test]
    fn the_place_of_a_node_that_was_never_heard_is_free_again() {
        let mut roster = roster(2);
        roster.join(asks(Some(1), 10)).expect("it is free");
        roster.release(NodeId(1));
        assert!(roster.is_of(NodeId(1), &10) && roster.missing().next().is_some());
        roster.join(asks(Some(1), 11)).expect("it is free again");
        assert!(roster.is_of(NodeId(1), &11) && !roster.is_of(NodeId(1), &10));
        roster.heard(NodeId(1));
        roster.release(NodeId(1));
        assert!(roster.missing().next().is_none(), "a node that was heard keeps its place");
    }

    #[test]
    fn a_node_that_was_lost_is_told_so() {
        let mut roster = roster(3);
        roster.join(asks(Some(1), 10)).expect("it is free");
        roster.join(asks(Some(2), 20)).expect("it is free");
        roster.heard(NodeId(1));
        roster.lost(NodeId(1));
        for request in [asks(Some(1), 10), asks(Some(1), 11), asks(None, 11), asks(None, 10)] {
            let denied = roster.join(request.clone()).expect_err("it was lost");
            let expected = "node 1 (host10) was lost, and cannot join this job again";
            assert_eq!(denied.to_string(), expected, "{request:?}");
        }
        // With its certificate it is told that it is back, and the caller what that means.
        assert_eq!(roster.join(is_back(1, None, 10)), Ok(Entry::Back(NodeId(1))));
    }

    #[test]
    fn a_node_that_was_started_for_another_number_of_nodes_is_refused_with_both_numbers() {
        let mut roster = roster(2);
        let other = Request { nodes: Some(3), ..asks(Some(1), 10) };
        let denied = roster.join(other).expect_err("it is another job");
        assert_eq!(denied.to_string(), "it was started with --nnodes 3, and node 0 with --nnodes 2");
        let same = Request { nodes: Some(2), ..asks(Some(1), 10) };
        assert_eq!(roster.join(same), Ok(Entry::Admitted(NodeId(1))));
    }

    #[test]
    fn another_node_comes_after_one_that_was_lost_if_the_job_takes_nodes_in() {
        let mut roster = Roster::new(2, 1, Some(NodeRank(0)), true);
        let admitted = |node| Ok(Entry::Admitted(NodeId(node)));
        assert_eq!(roster.join(asks(Some(1), 10)), admitted(1));
        assert_eq!(roster.join(asks(None, 20)), admitted(2), "the place of the spare");
        roster.heard(NodeId(1));
        let taken = roster.join(asks(Some(1), 11)).expect_err("it lives");
        assert!(taken.may_pass() && roster.join(asks(None, 30)).expect_err("it is full").may_pass());
        roster.lost(NodeId(1));
        // One that says nothing of its place gets that of the lost one too; the next waits for it.
        assert_eq!(roster.join(asks(None, 11)), Ok(Entry::After(NodeId(1))));
        assert!(roster.join(asks(Some(1), 12)).expect_err("another one comes").may_pass());
        roster.forget(NodeId(1));
        assert_eq!(roster.join(asks(Some(1), 12)), Ok(Entry::After(NodeId(1))));
        roster.admit(NodeId(1), NodeId(7), 12, "host12".to_owned());
        assert_eq!(roster.join(asks(Some(1), 12)), Ok(Entry::Again(NodeId(7))), "its admission was lost on the way");
        roster.heard(NodeId(7));
        assert_eq!(roster.join(is_back(7, Some(1), 12)), Ok(Entry::Back(NodeId(7))));
        assert_eq!(roster.join(is_back(1, Some(1), 10)), Err(Denied::OtherNode { was: NodeId(1) }));
        // What the guard of the lost one says is still of that.
        assert!(roster.is_of(NodeId(1), &10) && !roster.is_of(NodeId(1), &12) && roster.is_of(NodeId(7), &12));
        roster.lost(NodeId(7));
        assert_eq!(roster.join(asks(Some(1), 13)), Ok(Entry::After(NodeId(7))));
    }

    #[test]
    fn another_roster_becomes_the_same_by_its_changes() {
        let mut state = 1u32;
        let mut below = |bound: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % bound
        };
        for _ in 0..200 {
            let new = || Roster::new(3, 1, Some(NodeRank(0)), true);
            let (mut first, mut next, mut ids) = (new(), new(), 4);
            for _ in 0..60 {
                let (node, key) = (NodeId(below(ids)), below(9));
                match below(6) {
                    0 | 1 => {
                        let place = (below(2) == 0).then(|| below(4));
                        if let Ok(Entry::After(before)) = first.join(asks(place, key)) {
                            match below(3) {
                                0 => first.forget(before),
                                1 => {}
                                _ => first.admit(before, NodeId(ids), key, format!("host{key}")),
                            }
                            ids += 1;
                        }
                    }
                    2 | 3 => first.heard(node),
                    4 => first.lost(node),
                    _ => first.release(node),
                }
                // Several may come at once.
                if below(3) == 0 {
                    first.changes().into_iter().for_each(|changes| next.restore(changes));
                }
            }
            first.changes().into_iter().for_each(|changes| next.restore(changes));
            first
                .places
                .iter_mut()
                .filter(|place| place.life == Life::Followed)
                .for_each(|place| place.life = Life::Lost);
            assert_eq!(next.places, first.places);
            let is_of = |roster: &Roster<u32>, node: u32, key: u32| roster.is_of(NodeId(node), &key);
            for (node, key) in (0..ids).flat_map(|node| (0..9).map(move |key| (node, key))) {
                assert_eq!(is_of(&next, node, key), is_of(&first, node, key), "node {node}, key {key}");
            }
        }
    }

    #[test]
    fn a_node_that_was_given_up_before_it_came_may_come_later() {
        let mut roster = Roster::new(2, 0, Some(NodeRank(0)), true);
        roster.lost(NodeId(1));
        assert!(roster.missing().next().is_none());
        assert_eq!(roster.join(asks(Some(1), 10)), Ok(Entry::After(NodeId(1))));
        roster.admit(NodeId(1), NodeId(2), 10, "host10".to_owned());
        assert!(roster.is_of(NodeId(2), &10) && !roster.is_of(NodeId(1), &10));
    }
}
