//! The nodes of a job that connect by themselves: which may join, and as which.
//!
//! A peer is known by its key. It is the caller that has proved that the peer knows the job's secret, and, where the peer shows a
//! certificate, that it was admitted before.

use std::fmt;

use crate::NodeRank;

/// What a node asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<K> {
    /// `None`: any place that is free.
    pub node: Option<NodeRank>,
    pub key: K,
    /// The node that it was admitted as, by its certificate.
    pub was: Option<NodeRank>,
    /// How many nodes it was started for, if it says.
    pub nodes: Option<u32>,
    pub host: String,
}

/// Its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admitted {
    pub node: NodeRank,
    /// It was here before.
    pub is_back: bool,
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
    OtherNode { was: NodeRank },
    /// It was started for another number of nodes than the front.
    OtherCount { nodes: u32, its: u32 },
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

/// What is known of a node that was admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// Nothing was received from it: its admission may have been lost on the way.
    Unheard,
    Heard,
    Lost,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Place<K> {
    /// The front itself is there.
    Front,
    Missing,
    Joined {
        key: K,
        host: String,
        life: Life,
    },
}

/// The places of a job's nodes.
#[derive(Clone, Debug)]
pub struct Roster<K> {
    places: Vec<Place<K>>,
}

impl<K: PartialEq> Roster<K> {
    /// A job of so many nodes. The front may be on one of them.
    pub fn new(nodes: u32, front: Option<NodeRank>) -> Roster<K> {
        let place = |node| if front == Some(NodeRank(node)) { Place::Front } else { Place::Missing };
        Roster { places: (0..nodes).map(place).collect() }
    }

    fn nodes(&self) -> u32 {
        self.places.len() as u32
    }

    /// Decides about a node that knows the secret. The caller tells whether the node is [heard](Roster::heard), and whether its place
    /// is to be [given back](Roster::release).
    pub fn join(&mut self, request: Request<K>) -> Result<Admitted, Denied> {
        let nodes = self.nodes();
        if let Some(its) = request.nodes.filter(|its| *its != nodes) {
            return Err(Denied::OtherCount { nodes, its });
        }
        if let Some(was) = request.was {
            let is_same = request.node.is_none_or(|node| node == was);
            return match self.places.get(was.index()) {
                Some(Place::Joined { key, .. }) if *key == request.key && is_same => {
                    Ok(Admitted { node: was, is_back: true })
                }
                _ => Err(Denied::OtherNode { was }),
            };
        }
        let node = match request.node {
            Some(node) => node,
            None => self.any_place(&request.key)?,
        };
        let place = self.places.get_mut(node.index()).ok_or(Denied::NoSuchNode { node, nodes })?;
        match place {
            Place::Front => return Err(Denied::IsFront { node }),
            // It asks again since it has not received its admission.
            Place::Joined { key, life: Life::Unheard, .. } if *key == request.key => {}
            Place::Joined { host, life: Life::Lost, .. } => return Err(Denied::Lost { node, host: host.clone() }),
            Place::Joined { host, life: Life::Unheard | Life::Heard, .. } => {
                return Err(Denied::Taken { node, host: host.clone() });
            }
            Place::Missing => {}
        }
        *place = Place::Joined { key: request.key, host: request.host, life: Life::Unheard };
        Ok(Admitted { node, is_back: false })
    }

    /// The place of a node that has not said which it is: the one that it was given before, or else the first that is free.
    fn any_place(&self, own: &K) -> Result<NodeRank, Denied> {
        let joined = |place: &Place<K>| matches!(place, Place::Joined { key, .. } if key == own);
        let before = self.places.iter().position(joined).map(|at| NodeRank(at as u32));
        if let Some(node) = before.or_else(|| self.missing().next()) {
            return Ok(node);
        }
        let mut places = self.places.iter().zip(0..);
        Err(places
            .find_map(|(place, node)| match place {
                Place::Joined { host, life: Life::Lost, .. } => {
                    Some(Denied::Lost { node: NodeRank(node), host: host.clone() })
                }
                Place::Front | Place::Missing | Place::Joined { .. } => None,
            })
            .unwrap_or(Denied::Full { nodes: self.nodes() }))
    }

    /// Whether a peer has this place, or had it last.
    pub fn is_of(&self, node: NodeRank, peer: &K) -> bool {
        match self.places.get(node.index()) {
            Some(Place::Joined { key, .. }) => key == peer,
            Some(Place::Missing) => true,
            Some(Place::Front) | None => false,
        }
    }

    /// The node has sent something: it has received its admission.
    pub fn heard(&mut self, node: NodeRank) {
        if let Some(Place::Joined { life: life @ Life::Unheard, .. }) = self.places.get_mut(node.index()) {
            *life = Life::Heard;
        }
    }

    /// The node was lost.
    pub fn lost(&mut self, node: NodeRank) {
        if let Some(Place::Joined { life, .. }) = self.places.get_mut(node.index()) {
            *life = Life::Lost;
        }
    }

    /// Gives back the place of a node that was never heard.
    pub fn release(&mut self, node: NodeRank) {
        if let Some(place @ Place::Joined { life: Life::Unheard, .. }) = self.places.get_mut(node.index()) {
            *place = Place::Missing;
        }
    }

    /// The nodes that have not joined, in order.
    pub fn missing(&self) -> impl Iterator<Item = NodeRank> + '_ {
        let is_missing =
            |(at, place): (usize, &Place<K>)| matches!(place, Place::Missing).then_some(NodeRank(at as u32));
        self.places.iter().enumerate().filter_map(is_missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(node: Option<u32>, key: u32) -> Request<u32> {
        Request { node: node.map(NodeRank), key, was: None, nodes: None, host: format!("host{key}") }
    }

    fn is_back(was: u32, node: Option<u32>, key: u32) -> Request<u32> {
        Request { was: Some(NodeRank(was)), ..asks(node, key) }
    }

    #[test]
    fn each_place_is_given_once() {
        let mut roster = Roster::new(4, Some(NodeRank(0)));
        let new = |node| Ok(Admitted { node: NodeRank(node), is_back: false });
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
        let mut roster = Roster::new(3, Some(NodeRank(0)));
        roster.join(asks(Some(1), 10)).expect("it is free");
        assert_eq!(roster.join(is_back(1, None, 10)), Ok(Admitted { node: NodeRank(1), is_back: true }));
        assert_eq!(roster.join(is_back(1, Some(1), 10)), Ok(Admitted { node: NodeRank(1), is_back: true }));
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
        let mut roster = Roster::new(3, Some(NodeRank(0)));
        let first = Ok(Admitted { node: NodeRank(1), is_back: false });
        for asked in [None, None, Some(1)] {
            assert_eq!(roster.join(asks(asked, 10)), first, "{asked:?}");
        }
        assert_eq!(roster.missing().collect::<Vec<_>>(), [NodeRank(2)]);
        // Another peer does not get it, and after the first message nobody does.
        let taken = Err(Denied::Taken { node: NodeRank(1), host: "host10".to_owned() });
        assert_eq!(roster.join(asks(Some(1), 11)), taken);
        roster.heard(NodeRank(1));
        assert_eq!(roster.join(asks(Some(1), 10)), taken);
        assert_eq!(roster.join(asks(None, 10)), taken);
    }

    #[test]
    fn the_place_of_a_node_that_was_never_heard_is_free_again() {
        let mut roster = Roster::new(2, Some(NodeRank(0)));
        roster.join(asks(Some(1), 10)).expect("it is free");
        roster.release(NodeRank(1));
        assert!(roster.is_of(NodeRank(1), &10) && roster.missing().next().is_some());
        roster.join(asks(Some(1), 11)).expect("it is free again");
        assert!(roster.is_of(NodeRank(1), &11) && !roster.is_of(NodeRank(1), &10));
        roster.heard(NodeRank(1));
        roster.release(NodeRank(1));
        assert!(roster.missing().next().is_none(), "a node that was heard keeps its place");
    }

    #[test]
    fn a_node_that_was_lost_is_told_so() {
        let mut roster = Roster::new(3, Some(NodeRank(0)));
        roster.join(asks(Some(1), 10)).expect("it is free");
        roster.join(asks(Some(2), 20)).expect("it is free");
        roster.heard(NodeRank(1));
        roster.lost(NodeRank(1));
        for request in [asks(Some(1), 10), asks(Some(1), 11), asks(None, 11), asks(None, 10)] {
            let denied = roster.join(request.clone()).expect_err("it was lost");
            let expected = "node 1 (host10) was lost, and cannot join this job again";
            assert_eq!(denied.to_string(), expected, "{request:?}");
        }
        // With its certificate it is told that it is back, and the caller what that means.
        assert_eq!(roster.join(is_back(1, None, 10)), Ok(Admitted { node: NodeRank(1), is_back: true }));
    }

    #[test]
    fn a_node_that_was_started_for_another_number_of_nodes_is_refused_with_both_numbers() {
        let mut roster = Roster::new(2, Some(NodeRank(0)));
        let other = Request { nodes: Some(3), ..asks(Some(1), 10) };
        let denied = roster.join(other).expect_err("it is another job");
        assert_eq!(denied.to_string(), "it was started with --nnodes 3, and node 0 with --nnodes 2");
        let same = Request { nodes: Some(2), ..asks(Some(1), 10) };
        assert_eq!(roster.join(same), Ok(Admitted { node: NodeRank(1), is_back: false }));
    }
}
