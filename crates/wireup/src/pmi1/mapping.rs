//! The value of `PMI_process_mapping`: which rank is on which node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use rankrun_core::{NodeRank, RankMap};

/// The longest mapping that is sent: the whole reply stays below [`super::MAX_REPLY`].
const MAX_MAPPING: usize = 900;

/// `count` nodes from `first` on, with `ranks` consecutive ranks on each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    first: u32,
    count: u32,
    ranks: u32,
}

/// The mapping of a world as clients read it, such as `(vector,(0,2,4))` for ranks 0 to 3 on node 0 and 4 to 7 on
/// node 1. `None` for an empty world, and for a mapping so irregular that it needs more than 900 bytes.
pub fn process_mapping(map: &RankMap) -> Option<String> {
    mapping_of(&numbered(map.places().iter().map(|place| place.node).collect()))
}

/// The same nodes, numbered from 0 without a gap: a group need not have ranks on all nodes of the job, and Intel MPI takes the highest number
/// for the number of nodes.
fn numbered(mut nodes: Vec<NodeRank>) -> Vec<NodeRank> {
    let numbers: BTreeMap<NodeRank, u32> =
        nodes.iter().copied().collect::<BTreeSet<_>>().into_iter().zip(0..).collect();
    nodes.iter_mut().for_each(|node| *node = NodeRank(numbers[node]));
    nodes
}

fn mapping_of(nodes: &[NodeRank]) -> Option<String> {
    let first = *nodes.first()?;
    // MPICH begins the vector again when ranks are left, at the first block with node 0, which must be the very first for that to
    // be the same thing (`mpl_rankmap.c`). Intel MPI 2021 does not, and its own Hydra writes the whole: so do we where it fits.
    let period = || (first == NodeRank(0)).then(|| blocks(&nodes[..period(nodes)]));
    written(&blocks(nodes)).or_else(|| written(&period()?))
}

fn written(blocks: &[Block]) -> Option<String> {
    let mut text = "(vector".to_owned();
    for Block { first, count, ranks } in blocks {
        write!(text, ",({first},{count},{ranks})").ok()?;
        if text.len() >= MAX_MAPPING {
            return None;
        }
    }
    text.push(')');
    Some(text)
}

/// The triples that name the node of each rank in turn.
fn blocks(nodes: &[NodeRank]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for run in nodes.chunk_by(|a, b| a == b) {
        let (first, ranks) = (run[0].0, run.len() as u32);
        match blocks.last_mut() {
            Some(block) if block.ranks == ranks && block.first + block.count == first => block.count += 1,
            _ => blocks.push(Block { first, count: 1, ranks }),
        }
    }
    blocks
}

/// The length of the shortest beginning whose repetition gives the whole, possibly cut short at the end.
fn period(nodes: &[NodeRank]) -> usize {
    // borders[i]: the length of the longest proper beginning of nodes[..=i] that is also its end (Knuth, Morris, Pratt).
    let mut borders = vec![0; nodes.len()];
    for i in 1..nodes.len() {
        let mut border = borders[i - 1];
        while border > 0 && nodes[i] != nodes[border] {
            border = borders[border - 1];
        }
        borders[i] = border + usize::from(nodes[i] == nodes[border]);
    }
    nodes.len() - borders.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rankrun_core::hosts::{Mapping, NodeSlots, Wanted, place};

    use super::*;

    fn mapping(nodes: &[u32]) -> Option<String> {
        mapping_of(&nodes.iter().copied().map(NodeRank).collect::<Vec<_>>())
    }

    #[test]
    fn regular_worlds_take_one_triple() {
        for (nodes, text) in [
            (&[0][..], "(vector,(0,1,1))"),
            (&[0, 0, 0, 0], "(vector,(0,1,4))"),
            (&[0, 0, 1, 1, 2, 2], "(vector,(0,3,2))"),
            (&[0, 1, 0, 1, 0, 1], "(vector,(0,2,1),(0,2,1),(0,2,1))"),
            (&[0, 1, 2, 0, 1], "(vector,(0,3,1),(0,2,1))"),
            (&[0, 0, 1, 1, 0, 0, 1], "(vector,(0,2,2),(0,1,2),(1,1,1))"),
            (&[0, 0, 0, 1, 1], "(vector,(0,1,3),(1,1,2))"),
            (&[1, 0, 1, 0], "(vector,(1,1,1),(0,2,1),(0,1,1))"),
        ] {
            assert_eq!(mapping(nodes).as_deref(), Some(text), "{nodes:?}");
        }
        assert_eq!(process_mapping(&RankMap::single_node("vm", &[1, 3])).as_deref(), Some("(vector,(0,1,4))"));
    }

    #[test]
    fn the_nodes_of_a_group_are_numbered_without_a_gap() {
        for (nodes, told) in [
            (&[1, 1][..], "(vector,(0,1,2))"),
            (&[2, 0], "(vector,(1,1,1),(0,1,1))"),
            (&[3, 1], "(vector,(1,1,1),(0,1,1))"),
        ] {
            let nodes: Vec<NodeRank> = nodes.iter().copied().map(NodeRank).collect();
            assert_eq!(mapping_of(&numbered(nodes)).as_deref(), Some(told));
        }
    }

    #[test]
    fn what_cannot_be_told_is_not_told() {
        assert_eq!(mapping(&[]), None);
        let irregular: Vec<u32> = (0..1000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
        assert_eq!(mapping(&irregular), None);
    }

    /// The triples of a mapping.
    fn triples(text: &str) -> Vec<[u32; 3]> {
        let inner = text.strip_prefix("(vector,(").and_then(|rest| rest.strip_suffix("))")).expect("a vector");
        let numbers =
            |triple: &str| triple.split(',').map(|number| number.parse().expect("a number")).collect::<Vec<_>>();
        inner.split("),(").map(|triple| numbers(triple).try_into().expect("three numbers")).collect()
    }

    /// Reads a mapping as clients do: blocks in turn, and again from block `again` on while ranks are left.
    fn read(text: &str, size: usize, again: impl Fn(&[[u32; 3]]) -> usize) -> Vec<u32> {
        let blocks = triples(text);
        let again = again(&blocks);
        let ranks = |[first, count, ranks]: &[u32; 3]| {
            let ranks = *ranks as usize;
            (*first..first + count).flat_map(move |node| std::iter::repeat_n(node, ranks)).collect::<Vec<_>>()
        };
        let mut nodes: Vec<u32> = blocks.iter().flat_map(ranks).collect();
        while nodes.len() < size {
            nodes.extend(blocks[again..].iter().flat_map(ranks));
        }
        nodes.truncate(size);
        nodes
    }

    /// Both ways to begin again: at the first block, and at the first block with node 0 (MPICH 5, `mpl_rankmap.c`).
    fn read_by_all(text: &str, size: usize) -> [Vec<u32>; 2] {
        let node_0 = |blocks: &[[u32; 3]]| blocks.iter().position(|block| block[0] == 0).unwrap_or(0);
        [read(text, size, |_| 0), read(text, size, node_0)]
    }

    /// The nodes of a job as ranks are placed on them.
    fn placed() -> impl Strategy<Value = RankMap> {
        let slots = proptest::collection::vec(1u32..6, 1..12);
        let choices = (proptest::option::of(1u32..60), proptest::option::of(1u32..5), any::<bool>());
        (slots, choices).prop_map(|(slots, (ranks, per_node, is_cyclic))| {
            let node = |(i, slots): (usize, &u32)| NodeSlots {
                name: format!("n{i}"),
                user: None,
                slots: *slots,
                room: None,
                most: None,
            };
            let nodes: Vec<NodeSlots> = slots.iter().enumerate().map(node).collect();
            let mapping = if is_cyclic { Mapping::Cyclic } else { Mapping::Block };
            let homes =
                place(&nodes, &[], &Wanted { ranks, per_node, mapping, oversubscribe: true }).expect("everything fits");
            let homes: Vec<NodeRank> = homes.into_iter().map(|home| NodeRank(home as u32)).collect();
            RankMap::of_nodes(nodes.into_iter().map(|node| node.name).collect(), &homes, &[homes.len() as u32])
        })
    }

    proptest! {
        #[test]
        fn what_is_told_is_read_back_the_same(nodes in proptest::collection::vec(0u32..4, 1..40)) {
            let text = mapping(&nodes).expect("a short mapping");
            for read in read_by_all(&text, nodes.len()) {
                prop_assert_eq!(&read, &nodes, "{}", text);
            }
        }

        #[test]
        fn block_cyclic_and_uneven_jobs_are_read_back_as_they_are_placed(map in placed()) {
            let text = process_mapping(&map).expect("a short mapping");
            let nodes = numbered(map.places().iter().map(|place| place.node).collect());
            let nodes: Vec<u32> = nodes.into_iter().map(|node| node.0).collect();
            for read in read_by_all(&text, nodes.len()) {
                prop_assert_eq!(&read, &nodes, "{}", text);
            }
        }

        #[test]
        fn even_jobs_of_any_size_are_told_in_equal_triples(nodes in 1u32..2000, each in 1u32..64, is_cyclic in any::<bool>()) {
            let homes: Vec<u32> = match is_cyclic {
                false => (0..nodes).flat_map(|node| std::iter::repeat_n(node, each as usize)).collect(),
                true => (0..each).flat_map(|_| 0..nodes).collect(),
            };
            let text = mapping(&homes).expect("a short mapping");
            // In blocks one is enough; in turn there is one for each turn, where all fit.
            let triples = triples(&text);
            prop_assert!(triples.len() == 1 || (is_cyclic && triples.len() == each as usize), "{}", text);
            prop_assert!(triples.windows(2).all(|pair| pair[0] == pair[1]), "{}", text);
        }
    }
}
