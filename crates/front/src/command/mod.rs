//! Commands that the front runs for itself: `--on-failure` and others of the user's, and the scheduler's for a job that is to run again.
//!
//! A command is started by a *command host*: this binary in a process of its own ([`host`]), the subreaper of all that the command
//! starts. The host ends when none of it is left, and it outlives the front for as long as that takes. A thread of the front
//! passes on what is written and read, so that the loop waits for nothing ([`run`]).

mod commands;
pub(crate) mod host;
mod policy;
mod run;

pub(crate) use commands::{Commands, SCHEDULER_BOUND};
pub(crate) use run::Output;
