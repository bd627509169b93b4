//! One job in the front: its loop and its devices, around the machine that decides ([`rankrun_core::job::Job`]).
//!
//! Each source (`run`) is turned into events of the job; what the job orders is done in `effects`. `agents` has the messages of agents,
//! `ending` the end.

mod agents;
mod effects;
mod ending;
mod front;
mod on_failure;
mod pause;
mod refusal;
mod replay;
mod run;
mod signals;
mod start;

pub(crate) use front::Outcome;
pub use refusal::Refusal;
pub use replay::{JournalError, Replayed, replay};
pub(crate) use start::run;
