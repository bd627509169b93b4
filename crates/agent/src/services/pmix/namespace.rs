//! A group, as the PMIx host is told of it.

use std::path::{Path, PathBuf};

use rankrun_core::spawning::GroupMap;
use rankrun_core::{AppIndex, JobSpec, NodeRank, RankMap};
use rankrun_wireup::pmix::Namespace;

/// A group that has ranks on this node. `others`: how many ranks of other groups are here.
pub(super) fn of_spec(spec: &JobSpec, node: NodeRank, others: u32, cpus: u32) -> Namespace {
    Namespace {
        group: spec.group,
        ranks: ranks(&spec.map),
        apps: apps(spec),
        oversubscribed: spec.map.local_size(node) + others > cpus,
        universe: spec.universe(),
        parent: spec.spawned.as_ref().map(|spawned| spawned.by.rank),
    }
}

/// A group that has none.
pub(super) fn of_map(map: &GroupMap) -> Namespace {
    let apps = map.map.places().iter().map(|place| place.app.0 + 1).max().unwrap_or(0);
    Namespace {
        group: map.group,
        ranks: ranks(&map.map),
        apps: vec![(String::new(), String::new()); apps as usize],
        oversubscribed: false,
        universe: map.map.world_size(),
        parent: Some(map.by.rank),
    }
}

fn ranks(map: &RankMap) -> Vec<(u32, u16, u32)> {
    map.places().iter().map(|place| (place.node.0, place.local_rank.0 as u16, place.app.0)).collect()
}

/// The programs of a group that are named by a path.
pub(super) fn programs(spec: &JobSpec) -> Vec<PathBuf> {
    let cwd = Path::new(&spec.cwd);
    let words = spec.apps.iter().filter_map(|app| app.command.first());
    words.map(|word| cwd.join(word)).filter(|path| path.parent() != Some(cwd)).collect()
}

fn apps(spec: &JobSpec) -> Vec<(String, String)> {
    (0..spec.apps.len() as u32)
        .map(|index| {
            let app = spec.app(AppIndex(index));
            let words: Vec<String> = app.command.iter().map(|word| word.to_string_lossy().replace('\0', "")).collect();
            let first = spec.map.places().iter().find(|place| place.app == AppIndex(index));
            let directory = first.map_or_else(|| spec.cwd.clone(), |place| spec.directory(place.rank));
            (words.join(" "), directory.to_string_lossy().into_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rankrun_core::{Attempt, GroupId, Rank, WorkerId};

    use super::*;

    #[test]
    fn a_group_without_ranks_here_has_its_places_and_no_commands() {
        let map =
            RankMap::of_nodes(vec!["a".to_owned(), "b".to_owned()], &[NodeRank(1), NodeRank(1), NodeRank(0)], &[1, 2]);
        let by = WorkerId { rank: Rank(3), attempt: Attempt(0) };
        let map = GroupMap { group: GroupId(2), map: map.of_group(GroupId(2)), by };
        let namespace = of_map(&map);
        assert_eq!((namespace.group, namespace.parent, namespace.universe), (GroupId(2), Some(Rank(3)), 3));
        assert_eq!(namespace.ranks, [(1, 0, 0), (1, 1, 1), (0, 0, 1)]);
        assert_eq!(namespace.apps, vec![(String::new(), String::new()); 2]);
    }
}
