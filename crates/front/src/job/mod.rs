//! The job: its loop, what is decided, how it ends.
//!
//! Each source (`run`) is translated to [`event::FrontEvent`]s; their handlers decide, and queue [`event::FrontEffect`]s,
//! which the loop performs.

mod agents;
mod alone;
mod attempts;
mod control;
mod ending;
mod event;
mod front;
mod hooks;
mod joining;
mod liveness;
mod looking;
mod meeting;
mod muster;
mod nodes_left;
mod on_failure;
mod pause;
mod proof;
mod refusal;
mod replay;
pub(crate) mod report;
mod run;
mod signals;
mod start;
mod successors;
mod token;

pub(crate) use front::Outcome;
pub use refusal::Refusal;
pub use replay::{JournalError, Replayed, replay};
pub(crate) use start::run;
