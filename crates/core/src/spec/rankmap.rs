//! Which ranks run where, and which command each runs.

use serde::{Deserialize, Serialize};

use crate::ids::{AppIndex, GroupId, LocalRank, NodeRank, Rank};

/// The place of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    pub rank: Rank,
    pub node: NodeRank,
    pub local_rank: LocalRank,
    pub app: AppIndex,
}

/// The map of the world of a group: places by rank, with the names of the nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct RankMap {
    places: Vec<Place>,
    nodes: Vec<String>,
    /// How many ranks each node has.
    sizes: Vec<u32>,
    group: GroupId,
}

/// A map as it is sent and recorded: every node gets the whole map, so that its size counts once for each node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Written {
    nodes: Vec<String>,
    /// The nodes of the ranks, in order: so many ranks that follow each other are on this one.
    homes: Vec<(NodeRank, u32)>,
    /// How many ranks each command has.
    apps: Vec<u32>,
    #[serde(default)]
    group: GroupId,
}

/// A map that is not one: it comes from somebody else.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum NoMap {
    #[error("a rank is on node {0}, which the map does not have")]
    UnknownNode(NodeRank),
    #[error("the map has more than {WORLD_MOST} ranks")]
    TooLarge,
    #[error("the commands have {apps} ranks, and {homes} have a node")]
    Uneven { apps: u64, homes: u64 },
}

/// A map that is received may have so many ranks at most.
const WORLD_MOST: u64 = 1 << 24;

impl From<RankMap> for Written {
    fn from(map: RankMap) -> Written {
        let mut homes: Vec<(NodeRank, u32)> = Vec::new();
        let mut apps: Vec<u32> = Vec::new();
        for place in &map.places {
            match homes.last_mut() {
                Some((node, count)) if *node == place.node => *count += 1,
                _ => homes.push((place.node, 1)),
            }
            apps.resize(apps.len().max(place.app.index() + 1), 0);
            apps[place.app.index()] += 1;
        }
        Written { nodes: map.nodes, homes, apps, group: map.group }
    }
}

impl TryFrom<Written> for RankMap {
    type Error = NoMap;

    fn try_from(written: Written) -> Result<RankMap, NoMap> {
        let Written { nodes, homes: runs, apps, group } = written;
        let total = |counts: &mut dyn Iterator<Item = u32>| counts.map(u64::from).sum::<u64>();
        let (ranks, of_apps) = (total(&mut runs.iter().map(|(_, count)| *count)), total(&mut apps.iter().copied()));
        if ranks != of_apps {
            return Err(NoMap::Uneven { apps: of_apps, homes: ranks });
        }
        if ranks > WORLD_MOST {
            return Err(NoMap::TooLarge);
        }
        if let Some((node, _)) = runs.iter().find(|(node, _)| node.index() >= nodes.len()) {
            return Err(NoMap::UnknownNode(*node));
        }
        let homes: Vec<NodeRank> =
            runs.iter().flat_map(|(node, count)| std::iter::repeat_n(*node, *count as usize)).collect();
        Ok(RankMap::of_nodes(nodes, &homes, &apps).of_group(group))
    }
}

impl RankMap {
    /// The map of a job on one node: app after app, each with its number of ranks.
    pub fn single_node(node: impl Into<String>, app_sizes: &[u32]) -> RankMap {
        let world = app_sizes.iter().map(|size| *size as usize).sum();
        RankMap::of_nodes(vec![node.into()], &vec![NodeRank(0); world], app_sizes)
    }

    /// The map of a job whose ranks are on these nodes: app after app, each with its number of ranks. `homes` has the node
    /// of each rank, and is as long as the apps have ranks; it names only nodes that there are.
    pub fn of_nodes(nodes: Vec<String>, homes: &[NodeRank], app_sizes: &[u32]) -> RankMap {
        let apps = app_sizes.iter().zip(0u32..).flat_map(|(size, app)| (0..*size).map(move |_| AppIndex(app)));
        let mut sizes = vec![0u32; nodes.len()];
        let place = |((app, node), rank): ((AppIndex, &NodeRank), u32)| {
            let size = &mut sizes[node.index()];
            let local_rank = LocalRank(*size);
            *size += 1;
            Place { rank: Rank(rank), node: *node, local_rank, app }
        };
        let places = apps.zip(homes).zip(0u32..).map(place).collect();
        RankMap { places, nodes, sizes, group: GroupId(0) }
    }

    /// The same map, of the ranks of this group.
    pub fn of_group(mut self, group: GroupId) -> RankMap {
        self.places.iter_mut().for_each(|place| place.rank = Rank::of(group, place.rank.number()));
        self.group = group;
        self
    }

    /// The map without some of its nodes: ranks, nodes and local ranks are numbered anew, in their order. Returns `None` if a
    /// command would have no rank.
    pub fn without(&self, is_lost: impl Fn(NodeRank) -> bool) -> Option<RankMap> {
        let kept: Vec<Option<NodeRank>> = (0..self.node_count())
            .map(NodeRank)
            .scan(0, |next, node| {
                let rank = (!is_lost(node)).then_some(NodeRank(*next));
                *next += u32::from(rank.is_some());
                Some(rank)
            })
            .collect();
        let names = self.nodes.iter().zip(&kept).filter(|(_, kept)| kept.is_some()).map(|(name, _)| name.clone());
        let mut sizes = vec![0; self.app_sizes().len()];
        let mut homes = Vec::new();
        for place in &self.places {
            if let Some(node) = kept[place.node.index()] {
                sizes[place.app.index()] += 1;
                homes.push(node);
            }
        }
        let is_whole = !sizes.is_empty() && !sizes.contains(&0);
        is_whole.then(|| RankMap::of_nodes(names.collect(), &homes, &sizes).of_group(self.group))
    }

    /// How many ranks each command has.
    pub fn app_sizes(&self) -> Vec<u32> {
        let apps = self.places.last().map_or(0, |place| place.app.index() + 1);
        let mut sizes = vec![0; apps];
        self.places.iter().for_each(|place| sizes[place.app.index()] += 1);
        sizes
    }

    pub fn world_size(&self) -> u32 {
        self.places.len() as u32
    }

    pub fn node_count(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The name of a node, as the user or its host calls it.
    pub fn node_name(&self, node: NodeRank) -> &str {
        &self.nodes[node.index()]
    }

    /// A node has said its name.
    pub fn rename_node(&mut self, node: NodeRank, name: &str) {
        if let Some(known) = self.nodes.get_mut(node.index()) {
            name.clone_into(known);
        }
    }

    /// The place of a rank of this world; `None` for a rank beyond it.
    pub fn place(&self, rank: Rank) -> Option<&Place> {
        self.places.get(rank.number() as usize).filter(|place| place.rank == rank)
    }

    /// All places, by rank.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The places on one node, by local rank.
    pub fn on_node(&self, node: NodeRank) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| place.node == node)
    }

    /// How many ranks a node has.
    pub fn local_size(&self, node: NodeRank) -> u32 {
        self.sizes.get(node.index()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apps_take_their_ranks_in_order() {
        let map = RankMap::single_node("vm", &[1, 3]);
        assert_eq!(map.world_size(), 4);
        assert_eq!(map.local_size(NodeRank(0)), 4);
        let apps: Vec<u32> = map.places().iter().map(|place| place.app.0).collect();
        assert_eq!(apps, [0, 1, 1, 1]);
        assert_eq!(map.place(Rank(3)).map(|place| place.local_rank), Some(LocalRank(3)));
        assert_eq!(map.place(Rank(4)), None);
    }

    #[test]
    fn local_ranks_count_on_each_node() {
        let homes = [0, 1, 0, 1, 1].map(NodeRank);
        let map = RankMap::of_nodes(vec!["a".to_owned(), "b".to_owned()], &homes, &[2, 3]);
        let places: Vec<[u32; 3]> =
            map.places().iter().map(|place| [place.node.0, place.local_rank.0, place.app.0]).collect();
        assert_eq!(places, [[0, 0, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1], [1, 2, 1]]);
        assert_eq!((map.local_size(NodeRank(0)), map.local_size(NodeRank(1))), (2, 3));
    }

    #[test]
    fn the_nodes_that_are_left_are_numbered_anew() {
        let nodes = ["a", "b", "c"].map(str::to_owned).to_vec();
        let map = RankMap::of_nodes(nodes.clone(), &[0, 1, 2, 0, 1, 2].map(NodeRank), &[3, 3]);
        let left = map.without(|node| node == NodeRank(1)).expect("each command has ranks");
        let expected = RankMap::of_nodes(vec!["a".to_owned(), "c".to_owned()], &[0, 1, 0, 1].map(NodeRank), &[2, 2]);
        assert_eq!(left, expected);
        assert_eq!(map.without(|_| false), Some(map.clone()));
        assert_eq!(map.without(|_| true), None);
        let two = RankMap::of_nodes(nodes[..2].to_vec(), &[0, 1].map(NodeRank), &[1, 1]);
        assert_eq!(two.without(|node| node == NodeRank(0)), None, "the first command would have no rank");
    }

    #[test]
    fn a_map_is_read_as_it_was_written_and_a_large_one_is_short() {
        let maps = [
            (vec![0, 1, 0, 1, 1], vec![2, 3]),
            (vec![1, 1, 1], vec![0, 3]),
            (vec![0, 0, 1], vec![1, 1, 1]),
            (Vec::new(), Vec::new()),
        ];
        for (homes, apps) in maps {
            let homes: Vec<NodeRank> = homes.into_iter().map(NodeRank).collect();
            let map = RankMap::of_nodes(vec!["a".to_owned(), "b".to_owned()], &homes, &apps);
            let text = serde_json::to_string(&map).expect("it is written");
            assert_eq!(serde_json::from_str::<RankMap>(&text).expect("it is read"), map, "{text}");
        }
        let homes: Vec<NodeRank> = (0..8000).map(|rank| NodeRank(rank / 8)).collect();
        let map = RankMap::of_nodes(vec![String::new(); 1000], &homes, &[8000]);
        let text = serde_json::to_string(&map).expect("it is written");
        assert!(text.len() < 16_000, "{} bytes", text.len());
    }

    #[test]
    fn what_is_no_map_is_refused() {
        for text in [
            r#"{"nodes":["a"],"homes":[[1,2]],"apps":[2]}"#,
            r#"{"nodes":["a"],"homes":[[0,2]],"apps":[3]}"#,
            r#"{"nodes":["a"],"homes":[[0,4000000000]],"apps":[4000000000]}"#,
        ] {
            assert!(serde_json::from_str::<RankMap>(text).is_err(), "{text}");
        }
    }
}
