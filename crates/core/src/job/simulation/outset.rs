//! What a simulated job is like.

use std::time::Duration;

use super::dice::Dice;
use crate::ids::{Attempt, GroupId, JobId, NodeRank};
use crate::rankmap::RankMap;
use crate::spec::job::{App, Backoff, Budget, IoPolicy, JobSpec, RestartScope, RestartSpec, StopPolicy};

pub(super) fn spec(dice: &mut Dice, nodes: u32) -> JobSpec {
    let per_node = 1 + dice.below(3) as u32;
    let homes: Vec<NodeRank> = (0..nodes * per_node).map(|rank| NodeRank(rank / per_node)).collect();
    let names = (0..nodes).map(|node| format!("n{node}")).collect();
    let size = nodes * per_node;
    let total = (dice.chance(70)).then(|| dice.below(6) as u32);
    let scope = if dice.chance(15) { RestartScope::Rank } else { RestartScope::Gang };
    let restart = RestartSpec {
        budget: Budget { recent: None, total },
        backoff: Backoff::default(),
        breaker: false,
        scope,
        ready_timeout: dice.chance(10).then(|| Duration::from_secs(30)),
        progress_file: dice.chance(20).then(|| "/p".into()),
        ..RestartSpec::default()
    };
    JobSpec {
        job: JobId("simulated".to_owned()),
        group: GroupId(0),
        attempt: Attempt(0),
        spawned: None,
        universe: None,
        room: None,
        apps: vec![App {
            command: vec!["x".into()],
            size,
            env: Vec::new(),
            wdir: None,
            search: None,
            wraps: Vec::new(),
        }],
        map: RankMap::of_nodes(names, &homes, &[size]),
        base_env: Vec::new(),
        cwd: "/".into(),
        stop: StopPolicy::default(),
        graces: Default::default(),
        preload: None,
        hook: false,
        io: IoPolicy::default(),
        mpi: Default::default(),
        pmix_library: None,
        torch_store: Default::default(),
        ports: None,
        gpus_per_rank: None,
        binding: Default::default(),
        tf_config: false,
        error_file: None,
        expands_args: false,
        clean_shm: Default::default(),
        restart,
        ignored_signals: Vec::new(),
        trace: None,
    }
}
