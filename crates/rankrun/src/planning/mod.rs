//! From settings to a plan: programs, CPUs, limits, and what would be done.

pub(crate) mod allocation;
pub(crate) mod ask;
pub(crate) mod beforehand;
pub(crate) mod capacity;
pub(crate) mod dry_run;
pub(crate) mod early;
pub(crate) mod file;
pub(crate) mod gpus;
pub(crate) mod here;
pub(crate) mod layout;
pub(crate) mod local_addr;
pub(crate) mod logs;
mod looks;
pub(crate) mod plan;
pub(crate) mod program;
pub(crate) mod programs;
pub(crate) mod refusal;
pub(crate) mod sandbox;
pub(crate) mod slurm;
pub(crate) mod stops;
pub(crate) mod traces;
