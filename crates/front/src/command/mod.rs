//! Commands that the front runs for itself: `--on-failure`, and the scheduler's for `--on-giveup requeue`.
//!
//! A command is started by a *command host*: this binary in a process of its own ([`host`]), the subreaper of all that the command
//! starts. The host ends when none of it is left, and it outlives the front for as long as that takes. A thread of the front
//! passes on what is written and read, so that the loop waits for nothing ([`run`]).

mod commands;
pub(crate) mod host;
mod policy;
mod run;

pub(crate) use commands::{Commands, REQUEUE_BOUND};
