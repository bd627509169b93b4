//! Which rank goes to which node.

use super::fold::fold;
use super::slots::NodeSlots;

/// The order in which ranks go to nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mapping {
    /// Each node has consecutive ranks.
    #[default]
    Block,
    /// One rank to each node in turn.
    Cyclic,
    /// In the order of the list, also where it names a host again; where that is not enough, the list begins again.
    Seq,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// How many ranks there are; `None` is for all slots.
    pub ranks: Option<u32>,
    /// How many ranks each node has, instead of its slots.
    pub per_node: Option<u32>,
    pub mapping: Mapping,
    /// Nodes may have more ranks than slots.
    pub oversubscribe: bool,
}

/// The most ranks of a job: far more than have ever been started.
const MAX_RANKS: u64 = 1 << 24;

/// Why ranks cannot be placed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlacementError {
    #[error("cannot place {} on {}: {} {}", count_ranks(*.ranks), shown(.hosts), they_have(.hosts), count_slots(*.room))]
    TooFewSlots { ranks: u64, room: u64, hosts: Vec<String> },
    #[error("cannot place {} on {}: --ppn {per_node} allows {}", count_ranks(*.ranks), shown(.hosts), count_ranks(*.room))]
    TooFewPerNode { ranks: u64, per_node: u32, room: u64, hosts: Vec<String> },
    #[error("cannot place {} on {}{}: {} {}{}", count_ranks(u64::from(*.per_node)), if .hosts.len() == 1 { "" } else { "each of " }, shown(.hosts), they_have(.hosts), count_slots(u64::from(*.slots)), if .hosts.len() == 1 { "" } else { " each" })]
    NodeTooSmall { per_node: u32, slots: u32, hosts: Vec<String> },
    #[error("cannot place {} on {}: max_slots allows {}", count_ranks(*.ranks), shown(.hosts), count_ranks(*.room))]
    Most { ranks: u64, room: u64, hosts: Vec<String> },
    #[error("{ranks} ranks are too many (at most {MAX_RANKS})")]
    TooManyRanks { ranks: u64 },
}

impl PlacementError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            PlacementError::TooFewSlots { hosts, .. } => {
                let first = hosts.first().map_or("HOST", String::as_str);
                Some(format!(
                    "say how many ranks each host is for ({first}:N, or --ppn N), or let hosts have more ranks than slots: --oversubscribe"
                ))
            }
            PlacementError::TooFewPerNode { .. } => {
                Some("raise --ppn, name more hosts, or let hosts have more: --oversubscribe".to_owned())
            }
            PlacementError::NodeTooSmall { .. } => {
                Some("lower --ppn, or let hosts have more ranks than slots: --oversubscribe".to_owned())
            }
            PlacementError::Most { .. } => Some("raise max_slots in the host file, or ask for fewer ranks".to_owned()),
            PlacementError::TooManyRanks { .. } => None,
        }
    }
}

fn count_ranks(count: u64) -> String {
    format!("{count} rank{}", if count == 1 { "" } else { "s" })
}

fn count_slots(count: u64) -> String {
    format!("{count} slot{}", if count == 1 { "" } else { "s" })
}

fn they_have(hosts: &[String]) -> &'static str {
    if hosts.len() == 1 { "it has" } else { "they have" }
}

/// The names of hosts, of which very many are cut short.
fn shown(hosts: &[String]) -> String {
    const SHOWN: usize = 120;
    let folded = fold(hosts);
    match folded.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}... ({} hosts)", &folded[..end], hosts.len()),
        None => folded,
    }
}

/// The node of each rank, as an index into `nodes`. Nodes may stay without ranks. `mentions` are the hosts as they were listed: a node,
/// and how many ranks the list gives it at this place ([`mentions`](super::mentions)).
pub fn place(nodes: &[NodeSlots], mentions: &[(usize, u32)], wanted: &Wanted) -> Result<Vec<usize>, PlacementError> {
    let names = || nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    if let Some(per_node) = wanted.per_node {
        check_per_node(nodes, per_node, wanted.oversubscribe)?;
    }
    if wanted.mapping == Mapping::Seq {
        return follow(nodes, mentions, wanted);
    }
    let shares: Vec<u32> = nodes.iter().map(|node| wanted.per_node.unwrap_or(node.slots)).collect();
    let all: u64 = shares.iter().copied().map(u64::from).sum();
    let count = wanted.ranks.map_or(all, u64::from);
    if count > MAX_RANKS {
        return Err(PlacementError::TooManyRanks { ranks: count });
    }
    let shares = match count <= all {
        true => shares,
        false => {
            let bounds: Vec<u64> = nodes.iter().zip(&shares).map(|(node, share)| bound(node, *share, wanted)).collect();
            let room = bounds.iter().fold(0u64, |sum, bound| sum.saturating_add(*bound));
            if count > room {
                let hosts = names();
                return Err(match wanted.per_node {
                    _ if wanted.oversubscribe => PlacementError::Most { ranks: count, room, hosts },
                    Some(per_node) => PlacementError::TooFewPerNode { ranks: count, per_node, room, hosts },
                    None => PlacementError::TooFewSlots { ranks: count, room, hosts },
                });
            }
            widen(shares, &bounds, count - all)
        }
    };
    Ok(match wanted.mapping {
        Mapping::Block => {
            let each = shares.iter().enumerate().flat_map(|(node, share)| std::iter::repeat_n(node, *share as usize));
            each.take(count as usize).collect()
        }
        Mapping::Cyclic | Mapping::Seq => deal(&shares, count as usize),
    })
}

/// The nodes in the order of their mentions, as often as it takes: Hydra's order (MPICH 5.0.2, as measured).
fn follow(nodes: &[NodeSlots], mentions: &[(usize, u32)], wanted: &Wanted) -> Result<Vec<usize>, PlacementError> {
    let hosts = || nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    let of_nodes: Vec<(usize, u32)> = nodes.iter().enumerate().map(|(node, have)| (node, have.slots)).collect();
    let mentions = if mentions.is_empty() { &of_nodes } else { mentions };
    let slots = |listed: u32| wanted.per_node.unwrap_or(listed);
    let all: u64 = mentions.iter().map(|(_, listed)| u64::from(slots(*listed))).sum();
    let count = wanted.ranks.map_or(all, u64::from);
    if count > MAX_RANKS {
        return Err(PlacementError::TooManyRanks { ranks: count });
    }
    if count > all && !wanted.oversubscribe {
        return Err(PlacementError::TooFewSlots { ranks: count, room: all, hosts: hosts() });
    }
    let mut room: Vec<u64> = nodes.iter().map(|node| node.most.map_or(u64::MAX, u64::from)).collect();
    let mut homes = Vec::new();
    while (homes.len() as u64) < count {
        let before = homes.len();
        for (node, listed) in mentions {
            let Some(room) = room.get_mut(*node) else { continue };
            let taken = u64::from(slots(*listed)).min(*room).min(count - homes.len() as u64);
            *room -= taken;
            homes.extend(std::iter::repeat_n(*node, taken as usize));
        }
        if homes.len() == before {
            return Err(PlacementError::Most { ranks: count, room: before as u64, hosts: hosts() });
        }
    }
    Ok(homes)
}

/// Refuses a number of ranks on each node that one of them has no room for.
fn check_per_node(nodes: &[NodeSlots], per_node: u32, oversubscribe: bool) -> Result<(), PlacementError> {
    let limit = |node: &NodeSlots| if oversubscribe { node.most } else { least(node.room, node.most) };
    let Some(slots) = nodes.iter().filter_map(limit).filter(|limit| *limit < per_node).min() else {
        return Ok(());
    };
    let small = nodes.iter().filter(|node| limit(node) == Some(slots));
    let hosts: Vec<String> = small.map(|node| node.name.clone()).collect();
    Err(match oversubscribe {
        true => PlacementError::Most {
            ranks: u64::from(per_node) * hosts.len() as u64,
            room: u64::from(slots) * hosts.len() as u64,
            hosts,
        },
        false => PlacementError::NodeTooSmall { per_node, slots, hosts },
    })
}

fn least(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

/// The most ranks that a node may have.
fn bound(node: &NodeSlots, share: u32, wanted: &Wanted) -> u64 {
    match (wanted.oversubscribe, wanted.per_node) {
        (true, _) => node.most.map_or(u64::MAX, u64::from),
        (false, Some(_)) => u64::from(share),
        (false, None) => u64::from(least(node.room, node.most).unwrap_or(share).max(share)),
    }
}

/// Gives each node one more rank in turn, where it may have one, until `more` are given.
fn widen(mut shares: Vec<u32>, bounds: &[u64], mut more: u64) -> Vec<u32> {
    while more > 0 {
        let before = more;
        for (share, bound) in shares.iter_mut().zip(bounds) {
            if more > 0 && u64::from(*share) < *bound {
                *share += 1;
                more -= 1;
            }
        }
        // The bounds have been checked: there is room for all.
        if more == before {
            break;
        }
    }
    shares
}

/// One rank to each node in turn, as long as it has a share left.
fn deal(shares: &[u32], count: usize) -> Vec<usize> {
    let mut left: Vec<(usize, u32)> = shares.iter().copied().enumerate().collect();
    let mut nodes = Vec::with_capacity(count);
    while nodes.len() < count && !left.is_empty() {
        left.retain_mut(|(node, share)| {
            if *share > 0 && nodes.len() < count {
                nodes.push(*node);
                *share -= 1;
            }
            *share > 0
        });
    }
    nodes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hosts::{mentions, merge, parse_list};

    fn nodes(list: &str) -> Vec<NodeSlots> {
        merge(parse_list(list).expect("a list")).expect("good hosts")
    }

    fn placed(list: &str, wanted: Wanted) -> String {
        let hosts = parse_list(list).expect("a list");
        match place(&nodes(list), &mentions(&hosts, &nodes(list)), &wanted) {
            Ok(homes) => homes.iter().map(usize::to_string).collect(),
            Err(error) => {
                format!("error: {error}{}", error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default())
            }
        }
    }

    const ALL: Wanted = Wanted { ranks: None, per_node: None, mapping: Mapping::Block, oversubscribe: false };
    const CYCLIC: Wanted = Wanted { mapping: Mapping::Cyclic, ..ALL };

    fn of(ranks: u32) -> Wanted {
        Wanted { ranks: Some(ranks), ..ALL }
    }

    #[test]
    fn blocks_fill_one_node_after_the_other() {
        for (list, wanted, expected) in [
            ("a:2,b:3", ALL, "00111"),
            ("a:2,b:3", of(3), "001"),
            ("a:4,b:4", of(2), "00"),
            ("a,b,a", ALL, "001"),
            ("a,b", Wanted { per_node: Some(2), ..ALL }, "0011"),
            ("a:4,b:4", Wanted { per_node: Some(1), ..ALL }, "01"),
            ("a,b", Wanted { per_node: Some(2), ..of(3) }, "001"),
            ("a:1,b:1", Wanted { oversubscribe: true, ..of(5) }, "00011"),
            ("a:3,b:1", Wanted { oversubscribe: true, ..of(6) }, "000011"),
            ("a,b", Wanted { per_node: Some(1), oversubscribe: true, ..of(4) }, "0011"),
        ] {
            assert_eq!(placed(list, wanted), expected, "{list} {wanted:?}");
        }
    }

    #[test]
    fn cyclic_goes_round_until_nodes_are_full() {
        for (list, wanted, expected) in [
            ("a:2,b:3", CYCLIC, "01011"),
            ("a:1,b:3,c:2", CYCLIC, "012121"),
            ("a:4,b:4", Wanted { ranks: Some(3), ..CYCLIC }, "010"),
            ("a,b", Wanted { per_node: Some(2), ..CYCLIC }, "0101"),
            ("a,b", Wanted { ranks: Some(5), oversubscribe: true, ..CYCLIC }, "01010"),
        ] {
            assert_eq!(placed(list, wanted), expected, "{list} {wanted:?}");
        }
    }

    #[test]
    fn seq_follows_the_list() {
        const SEQ: Wanted = Wanted { mapping: Mapping::Seq, ..ALL };
        for (list, wanted, expected) in [
            ("a,b,a", SEQ, "010"),
            ("a:2,b:1,A:1,c", SEQ, "00102"),
            ("b:2,a:1,b:3", Wanted { ranks: Some(4), ..SEQ }, "0010"),
            ("a,b", Wanted { ranks: Some(5), oversubscribe: true, ..SEQ }, "01010"),
            ("a,b,a", Wanted { ranks: Some(4), ..SEQ }, "error: cannot place 4 ranks on a,b: they have 3 slots"),
            ("a:2,b:1", Wanted { ranks: Some(7), oversubscribe: true, ..SEQ }, "0010010"),
            ("a,b,a", Wanted { per_node: Some(2), ..SEQ }, "001100"),
        ] {
            let text = placed(list, wanted);
            assert!(
                text.starts_with(expected) && (expected.len() == text.len() || text.starts_with('e')),
                "{list}: {text}"
            );
        }
    }

    #[test]
    fn an_allocation_with_more_room_than_tasks_is_filled_evenly() {
        let node = |name: &str, slots, room| NodeSlots {
            name: name.to_owned(),
            user: None,
            slots,
            room: Some(room),
            most: None,
        };
        let nodes = [node("a", 1, 4), node("b", 1, 4)];
        assert_eq!(place(&nodes, &[], &ALL), Ok(vec![0, 1]));
        assert_eq!(place(&nodes, &[], &of(6)), Ok(vec![0, 0, 0, 1, 1, 1]));
        assert_eq!(place(&nodes, &[], &Wanted { per_node: Some(4), ..ALL }).map(|homes| homes.len()), Ok(8));
        assert!(place(&nodes, &[], &of(9)).is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_way_out() {
        let mut small = nodes("n[01-03]:2");
        small[2].most = Some(3);
        let most =
            place(&small, &[], &Wanted { per_node: Some(4), oversubscribe: true, ..ALL }).expect_err("max_slots");
        let mut all = small.clone();
        all.iter_mut().for_each(|node| node.most = Some(2));
        let full = place(&all, &[], &Wanted { oversubscribe: true, ..of(7) }).expect_err("max_slots");
        let cases = [
            placed("a,b", of(8)),
            placed("node[01-16,20]:8", of(137)),
            placed("a:1", of(2)),
            placed("a:4,b:2,c:2", Wanted { per_node: Some(3), ..ALL }),
            placed("a,b", Wanted { per_node: Some(3), ..of(7) }),
            placed("a", Wanted { oversubscribe: true, ..of(u32::MAX) }),
            placed("a:4000000000,b:4000000000", ALL),
            most.to_string(),
            full.to_string(),
        ];
        insta::assert_snapshot!(cases.join("\n"));
    }

    proptest! {
        #[test]
        fn every_rank_is_placed_and_nothing_is_overfull(
            shares in proptest::collection::vec((1u32..5, 0u32..4), 1..8),
            ranks in proptest::option::of(1u32..40),
            per_node in proptest::option::of(1u32..6),
            cyclic in any::<bool>(),
            oversubscribe in any::<bool>(),
        ) {
            let nodes: Vec<NodeSlots> = shares.iter().enumerate().map(|(i, (slots, more))| {
                NodeSlots { name: format!("n{i}"), user: None, slots: *slots, room: Some(slots + more), most: None }
            }).collect();
            let mapping = if cyclic { Mapping::Cyclic } else { Mapping::Block };
            let wanted = Wanted { ranks, per_node, mapping, oversubscribe };
            let Ok(homes) = place(&nodes, &[], &wanted) else {
                prop_assert!(!oversubscribe, "with --oversubscribe everything fits");
                return Ok(());
            };
            if let Some(ranks) = ranks {
                prop_assert_eq!(homes.len(), ranks as usize);
            }
            prop_assert_eq!(homes.first(), Some(&0));
            for (node, slots) in nodes.iter().enumerate() {
                let have = homes.iter().filter(|home| **home == node).count() as u32;
                prop_assert!(oversubscribe || have <= slots.room.unwrap_or(0).max(per_node.unwrap_or(0)));
                if let Some(per_node) = per_node.filter(|_| !oversubscribe) {
                    prop_assert!(have <= per_node);
                }
            }
            if !cyclic {
                prop_assert!(homes.is_sorted());
            }
        }
    }
}
