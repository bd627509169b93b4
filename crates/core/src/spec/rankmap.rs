//! Which ranks run where, and which command each runs.

use serde::{Deserialize, Serialize};

use crate::ids::{AppIndex, LocalRank, NodeRank, Rank};

/// The place of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    pub rank: Rank,
    pub node: NodeRank,
    pub local_rank: LocalRank,
    pub app: AppIndex,
}

/// The map of a world: places by rank, with the names of the nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankMap {
    places: Vec<Place>,
    nodes: Vec<String>,
}

impl RankMap {
    /// The map of a job on one node: app after app, each with its number of ranks.
    pub fn single_node(node: impl Into<String>, app_sizes: &[u32]) -> RankMap {
        let apps = app_sizes.iter().zip(0u32..).flat_map(|(size, app)| (0..*size).map(move |_| AppIndex(app)));
        let places = apps
            .zip(0u32..)
            .map(|(app, rank)| Place { rank: Rank(rank), node: NodeRank(0), local_rank: LocalRank(rank), app })
            .collect();
        RankMap { places, nodes: vec![node.into()] }
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

    /// The place of a rank of this world; `None` for a rank beyond it.
    pub fn place(&self, rank: Rank) -> Option<&Place> {
        self.places.get(rank.index())
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
        self.on_node(node).count() as u32
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
}
