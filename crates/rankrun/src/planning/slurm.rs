//! Jobs in a Slurm allocation of several nodes.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use rankrun_core::RankMap;
use rankrun_core::hosts::{Slurm, are_like_tasks};
use rankrun_front::{FrontAddress, Join, LAST_CALL, Part, Plan, Secret};

use crate::message::Problem;
use crate::plan::Surroundings;

/// How many tasks each node of an allocation has. Intel MPI takes it, where it is set, for the places of the ranks.
const TASKS: &str = "SLURM_TASKS_PER_NODE";

/// How long srun may take to start rankrun on all nodes.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// In a Slurm allocation the agents of the other nodes are started by srun, and join with a secret of this job.
pub(crate) fn plan(mut plan: Plan) -> Result<Plan, Problem> {
    let secret = Secret::generate()
        .map_err(|error| Problem::internal(format!("cannot make a secret: {}", rankrun_sys::reason(&error))))?;
    // The kernel picks the port, and srun tells the address.
    let front = FrontAddress { host: String::new(), port: 0 };
    let nodes = plan.hosts.targets.len() as u32;
    plan.join = Some(Join {
        nodes,
        spares: 0,
        part: Part::Front,
        front,
        secret,
        start_timeout: START_TIMEOUT,
        last_call: LAST_CALL,
    });
    Ok(plan)
}

/// The GPUs of a node of the allocation, as Slurm says.
pub(crate) fn gpus_on_node(around: &Surroundings) -> Option<u32> {
    around.variable("SLURM_GPUS_ON_NODE")?.to_str()?.parse().ok()
}

/// Whether ranks may inherit a variable that tells of tasks: it is to be true of the ranks, in every attempt. If it is left
/// out, Intel MPI gets the places from PMI.
pub(crate) fn is_true(name: &OsStr, value: &OsString, around: &Surroundings, map: &RankMap, is_for_good: bool) -> bool {
    if name != TASKS {
        return true;
    }
    let nodes = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"].iter().find_map(|name| around.variable(name)?.to_str());
    match (nodes, value.to_str()) {
        (Some(node_list), tasks @ Some(_)) => {
            is_for_good && are_like_tasks(map, &Slurm { node_list, tasks, ..Slurm::default() })
        }
        _ => true,
    }
}
