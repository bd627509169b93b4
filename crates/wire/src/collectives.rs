//! Collectives of the wire-up: each node sends its part, and when the parts stand for all who take part, every node gets all.
//!
//! A node contributes for all of its ranks that take part, dead or alive, when those that are alive have come. So a rank that is gone is waited
//! for only as long as its node has contributed nothing and has others that may.

use std::collections::{BTreeMap, BTreeSet};

use rankrun_core::collective::Collective;
use rankrun_core::{GroupId, NodeId, Rank};

/// One that is not complete.
#[derive(Debug, Default)]
struct Open {
    parts: Vec<(NodeId, Collective)>,
    gone: BTreeSet<Rank>,
}

impl Open {
    fn is_complete(&self, node_of: impl Fn(Rank) -> Option<NodeId>) -> bool {
        let members: u32 = self.parts.iter().map(|(_, part)| part.members).sum();
        let Some(of) = self.parts.last().map(|(_, part)| part.of) else { return false };
        if members >= of || self.gone.is_empty() {
            return members >= of;
        }
        let is_counted = |rank: &Rank| self.parts.iter().any(|(node, _)| node_of(*rank) == Some(*node));
        let missing = self.gone.iter().filter(|rank| !is_counted(rank)).count() as u32;
        members + missing >= of
    }
}

/// Those that are not complete.
#[derive(Debug, Default)]
pub struct Collectives {
    open: BTreeMap<(GroupId, u64), Open>,
}

impl Collectives {
    /// A part has come. Returns the whole, once it is complete: the parts in the order of the nodes.
    pub fn take(
        &mut self,
        from: NodeId,
        part: Collective,
        node_of: impl Fn(Rank) -> Option<NodeId>,
    ) -> Option<Collective> {
        let key = (part.group, part.seq);
        let open = self.open.entry(key).or_default();
        open.gone.extend(&part.gone);
        open.parts.retain(|(node, _)| *node != from);
        open.parts.push((from, part));
        self.complete(key, node_of)
    }

    /// Ranks that take part are gone. Returns the whole, if it waited for no others.
    pub fn gone(
        &mut self,
        group: GroupId,
        seq: u64,
        ranks: &[Rank],
        node_of: impl Fn(Rank) -> Option<NodeId>,
    ) -> Option<Collective> {
        // It may be complete already.
        self.open.get_mut(&(group, seq))?.gone.extend(ranks);
        self.complete((group, seq), node_of)
    }

    fn complete(&mut self, key: (GroupId, u64), node_of: impl Fn(Rank) -> Option<NodeId>) -> Option<Collective> {
        if !self.open.get(&key)?.is_complete(node_of) {
            return None;
        }
        let Open { mut parts, gone } = self.open.remove(&key)?;
        parts.sort_by_key(|(node, _)| *node);
        let members = parts.iter().map(|(_, part)| part.members).sum();
        let of = parts.last().map_or(members, |(_, part)| part.of);
        let payloads = parts.into_iter().flat_map(|(_, part)| part.payloads).collect();
        Some(Collective { group: key.0, seq: key.1, members, of, gone: gone.into_iter().collect(), payloads })
    }

    /// Another attempt begins.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(members: u32, of: u32, gone: &[u32], text: &str) -> Collective {
        let gone = gone.iter().map(|rank| Rank::of(GroupId::default(), *rank)).collect();
        let payloads = vec![text.as_bytes().to_vec()];
        Collective { group: GroupId::default(), seq: 7, members, of, gone, payloads }
    }

    /// Two ranks on each node.
    fn node_of(rank: Rank) -> Option<NodeId> {
        Some(NodeId(rank.number() / 2))
    }

    #[test]
    fn a_collective_is_complete_when_its_parts_stand_for_all() {
        let mut collectives = Collectives::default();
        assert_eq!(collectives.take(NodeId(1), part(1, 3, &[], "b"), node_of), None);
        assert_eq!(collectives.take(NodeId(1), part(1, 3, &[], "b"), node_of), None, "a part counts once");
        let whole = collectives.take(NodeId(0), part(2, 3, &[], "a"), node_of).expect("all are there");
        assert_eq!((whole.members, whole.payloads), (3, vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(collectives.take(NodeId(0), part(2, 3, &[], "a"), node_of), None, "the next one starts empty");
    }

    #[test]
    fn ranks_that_are_gone_with_their_node_are_not_waited_for() {
        let gone = |ranks: &[u32]| ranks.iter().map(|rank| Rank::of(GroupId::default(), *rank)).collect::<Vec<_>>();
        let mut collectives = Collectives::default();
        assert_eq!(collectives.take(NodeId(0), part(2, 6, &[], "a"), node_of), None);
        assert_eq!(collectives.take(NodeId(1), part(2, 6, &[], "b"), node_of), None);
        assert_eq!(collectives.gone(GroupId::default(), 7, &gone(&[4]), node_of), None, "rank 5 may come");
        let whole = collectives.gone(GroupId::default(), 7, &gone(&[4, 5]), node_of).expect("nobody else can come");
        assert_eq!(whole.payloads.len(), 2);
        assert_eq!(collectives.gone(GroupId::default(), 7, &gone(&[4, 5]), node_of), None, "it is over");
        // Known before the parts come.
        assert_eq!(collectives.take(NodeId(0), part(2, 6, &[4, 5], "a"), node_of), None);
        assert!(collectives.take(NodeId(1), part(2, 6, &[4, 5], "b"), node_of).is_some());
    }

    #[test]
    fn a_node_that_contributes_does_so_for_its_dead_too() {
        let mut collectives = Collectives::default();
        assert_eq!(collectives.take(NodeId(0), part(2, 6, &[1], "a"), node_of), None);
        assert_eq!(collectives.take(NodeId(1), part(2, 6, &[1], "b"), node_of), None, "node 2 has not come");
        assert!(collectives.take(NodeId(2), part(2, 6, &[], "c"), node_of).is_some());
    }
}
