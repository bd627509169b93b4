//! Whole jobs in virtual time (`core/src/job/simulation`), built with optimization: each seed is a job of its own.

use anyhow::Result;

use crate::{process, workspace};

/// Simulates so many jobs, from this seed on. It fails if one of them has not kept what each must keep.
pub(crate) fn simulate(nodes: u32, faults: u32, spares: u32, seed: u64, jobs: u64) -> Result<()> {
    let mut command = workspace::cargo();
    command.current_dir(workspace::root());
    command.args(["run", "--release", "--quiet", "--package", "rankrun-core", "--features", "simulation"]);
    command.args(["--example", "simulate", "--", "--nodes", &nodes.to_string(), "--faults", &faults.to_string()]);
    command.args(["--spares", &spares.to_string()]);
    command.args(["--seed", &seed.to_string(), "--jobs", &jobs.to_string()]);
    process::run(&mut command)
}
