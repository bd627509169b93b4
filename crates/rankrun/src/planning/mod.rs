//! From settings to a plan: programs, CPUs, limits, and what would be done.

pub(crate) mod capacity;
pub(crate) mod cpus;
pub(crate) mod dry_run;
pub(crate) mod file;
pub(crate) mod gpus;
pub(crate) mod logs;
pub(crate) mod plan;
pub(crate) mod program;
pub(crate) mod refusal;
