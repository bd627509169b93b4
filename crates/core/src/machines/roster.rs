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
    /// All places are taken.
    Full { nodes: u32 },
    /// It comes back as another node than it was, or as one that never joined.
    OtherNode { was: NodeRank },
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
            Denied::Full { nodes } => write!(f, "all {nodes} nodes have joined already (--nnodes)"),
            Denied::OtherNode { was } => write!(f, "it was admitted as node {was}, and cannot be another one"),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Place<K> {
    /// The front itself is there.
    Front,
    Missing,
    Joined {
        key: K,
        host: String,
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

    /// Decides about a node that knows the secret.
    pub fn join(&mut self, request: Request<K>) -> Result<Admitted, Denied> {
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
            None => self.missing().next().ok_or(Denied::Full { nodes: self.nodes() })?,
        };
        let nodes = self.nodes();
        let place = self.places.get_mut(node.index()).ok_or(Denied::NoSuchNode { node, nodes })?;
        match place {
            Place::Front => return Err(Denied::IsFront { node }),
            Place::Joined { host, .. } => return Err(Denied::Taken { node, host: host.clone() }),
            Place::Missing => {}
        }
        *place = Place::Joined { key: request.key, host: request.host };
        Ok(Admitted { node, is_back: false })
    }

    /// The nodes that have not joined, in order.
    pub fn missing(&self) -> impl Iterator<Item = NodeRank> + '_ {
        let is_missing = |(at, place): (usize, &Place<K>)| (*place == Place::Missing).then_some(NodeRank(at as u32));
        self.places.iter().enumerate().filter_map(is_missing)
    }

    /// How many have joined, the front included.
    pub fn present(&self) -> u32 {
        self.nodes() - self.missing().count() as u32
    }

    /// Whether all are here.
    pub fn is_complete(&self) -> bool {
        self.missing().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(node: Option<u32>, key: u32) -> Request<u32> {
        Request { node: node.map(NodeRank), key, was: None, host: format!("host{key}") }
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
        assert_eq!((roster.present(), roster.is_complete()), (3, false));
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
        assert!(roster.is_complete());
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
}
