//! The value of `PMI_process_mapping`: which rank is on which node.

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
    let nodes: Vec<NodeRank> = map.places().iter().map(|place| place.node).collect();
    mapping_of(&nodes)
}

fn mapping_of(nodes: &[NodeRank]) -> Option<String> {
    let first = *nodes.first()?;
    let whole = blocks(nodes);
    // Clients begin the vector again when ranks are left. MPICH 5 begins again at the first block with node 0, which
    // must be the very first for that to be the same thing (`mpl_rankmap.c`).
    let repeated = (first == NodeRank(0)).then(|| blocks(&nodes[..period(nodes)]));
    let shortest = repeated.filter(|repeated| repeated.len() < whole.len()).unwrap_or(whole);
    let mut text = "(vector".to_owned();
    for Block { first, count, ranks } in shortest {
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
            (&[0, 1, 0, 1, 0, 1], "(vector,(0,2,1))"),
            (&[0, 1, 2, 0, 1], "(vector,(0,3,1))"),
            (&[0, 0, 1, 1, 0, 0, 1], "(vector,(0,2,2))"),
            (&[0, 0, 0, 1, 1], "(vector,(0,1,3),(1,1,2))"),
            (&[1, 0, 1, 0], "(vector,(1,1,1),(0,2,1),(0,1,1))"),
        ] {
            assert_eq!(mapping(nodes).as_deref(), Some(text), "{nodes:?}");
        }
        assert_eq!(process_mapping(&RankMap::single_node("vm", &[1, 3])).as_deref(), Some("(vector,(0,1,4))"));
    }

    #[test]
    fn what_cannot_be_told_is_not_told() {
        assert_eq!(mapping(&[]), None);
        let irregular: Vec<u32> = (0..1000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
        assert_eq!(mapping(&irregular), None);
    }

    /// Reads a mapping as MPICH does: blocks in turn, from the first again while ranks are left.
    fn read(text: &str, size: usize) -> Vec<u32> {
        let triples = text.trim_start_matches("(vector,(").trim_end_matches("))");
        let blocks: Vec<Vec<u32>> = triples
            .split("),(")
            .map(|triple| triple.split(',').map(|number| number.parse().expect("a number")).collect())
            .collect();
        let nodes = blocks.iter().flat_map(|block| {
            (block[0]..block[0] + block[1]).flat_map(|node| std::iter::repeat_n(node, block[2] as usize))
        });
        nodes.cycle().take(size).collect()
    }

    proptest! {
        #[test]
        fn what_is_told_is_read_back_the_same(nodes in proptest::collection::vec(0u32..4, 1..40)) {
            let text = mapping(&nodes).expect("a short mapping");
            prop_assert_eq!(read(&text, nodes.len()), nodes, "{}", text);
        }
    }
}
