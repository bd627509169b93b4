//! What ranks do together: fences, `PMIx_Connect` and `PMIx_Disconnect`, and groups of PMIx.
//!
//! libpmix gathers the ranks of a node, and each node sends its part to the front, which adds them up. So the parts of an operation must
//! have the same number on all nodes, and no other operation that number. A node sees each operation in which it has a part, and those of
//! the same participants in the same order: they are counted.

use std::collections::HashMap;

use rankrun_core::GroupId;

use super::message::{Participants, Ranks};

/// What the ranks agree on together. Operations of different kinds have different numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Kind {
    Fence,
    Connect,
    Disconnect,
    Group,
}

/// A collective that waits for other nodes.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) who: Participants,
    pub(super) wants_context: bool,
}

/// The operations of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Collectives {
    /// Those that wait, by their number.
    pending: HashMap<u64, Pending>,
    /// How many operations of each kind the same participants have begun.
    counts: HashMap<(Kind, Participants), u64>,
}

impl Collectives {
    /// The number of an operation that begins.
    pub(super) fn begin(&mut self, kind: Kind, who: &Participants) -> u64 {
        let count = self.counts.entry((kind, who.clone())).or_default();
        *count += 1;
        number(kind, who, *count)
    }

    pub(super) fn wait(&mut self, seq: u64, pending: Pending) {
        self.pending.insert(seq, pending);
    }

    /// Those that wait for other nodes, with their numbers.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u64, &Participants)> {
        self.pending.iter().map(|(seq, pending)| (*seq, &pending.who))
    }

    pub(super) fn take(&mut self, seq: u64) -> Option<Pending> {
        self.pending.remove(&seq)
    }

    /// No rank of the group is left on this node: nothing in which it has a part begins here any more.
    pub(super) fn forget(&mut self, group: GroupId) {
        self.counts.retain(|(_, who), _| !who.has(group));
    }

    /// How many participants have been counted for.
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        self.counts.len()
    }
}

/// Whether a collective of this number is one of PMIx's: those of PMI-1 have the highest bit unset.
pub fn is_of_pmix(seq: u64) -> bool {
    seq & OURS != 0
}

const OURS: u64 = 1 << 63;

/// Two operations have the same number once in 2^63 (FNV-1a).
fn number(kind: Kind, who: &Participants, count: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |number: u64| {
        for byte in number.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(kind as u64);
    add(count);
    for (group, ranks) in &who.0 {
        add(u64::from(group.0));
        match ranks {
            Ranks::All => add(u64::MAX),
            Ranks::Some(ranks) => {
                add(ranks.len() as u64);
                ranks.iter().for_each(|rank| add(rank.number().into()));
            }
        }
    }
    hash | OURS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(procs: &[(u32, Option<u32>)]) -> Participants {
        Participants::of(procs.iter().map(|(group, rank)| (GroupId(*group), *rank)))
    }

    #[test]
    fn the_same_participants_have_the_same_numbers_in_whichever_order_they_are_named() {
        let names = [(1, None), (0, Some(2)), (0, Some(0)), (0, Some(2))];
        let mut nodes = [Collectives::default(), Collectives::default()];
        let mut seen = Vec::new();
        for _ in 0..3 {
            let first = nodes[0].begin(Kind::Connect, &who(&names));
            let second = nodes[1].begin(Kind::Connect, &who(&[(0, Some(0)), (0, Some(2)), (1, None)]));
            assert_eq!(first, second);
            assert!(is_of_pmix(first) && !seen.contains(&first));
            seen.push(first);
            // Another operation of one of the nodes changes nothing.
            nodes[1].begin(Kind::Fence, &who(&[(1, None)]));
        }
    }

    #[test]
    fn different_operations_have_different_numbers() {
        let mut all = Collectives::default();
        let participants = [
            who(&[(0, None)]),
            who(&[(1, None)]),
            who(&[(0, None), (1, None)]),
            who(&[(0, None), (2, None)]),
            who(&[(0, Some(0)), (1, None)]),
            who(&[(0, Some(0)), (1, Some(0))]),
            who(&[(0, Some(0)), (1, Some(1))]),
            who(&[(0, Some(0)), (0, Some(1)), (1, Some(1))]),
            who(&[(0, Some(1)), (1, Some(0))]),
        ];
        let kinds = [Kind::Fence, Kind::Connect, Kind::Disconnect, Kind::Group];
        let mut numbers: Vec<u64> =
            participants.iter().flat_map(|who| kinds.map(|kind| all.begin(kind, who))).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
        all.forget(GroupId(1));
        assert_eq!(all.counted(), 2 * kinds.len());
    }

    #[test]
    fn all_of_a_group_has_its_single_ranks_in_it() {
        assert_eq!(who(&[(3, Some(1)), (3, None), (3, Some(2))]), Participants::all_of(GroupId(3)));
    }
}
