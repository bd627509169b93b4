//! The job: its loop, what is decided, how it ends.
//!
//! Each source (`run`) is translated to [`event::FrontEvent`]s; their handlers decide, and queue [`event::FrontEffect`]s,
//! which the loop performs.

mod agents;
mod attempts;
mod control;
mod ending;
mod event;
mod front;
mod hooks;
mod on_failure;
mod pause;
mod refusal;
mod replay;
mod report;
mod run;
mod signals;
mod start;
mod successors;

pub use refusal::Refusal;
pub use replay::{JournalError, Replayed, replay};
pub(crate) use start::run;
