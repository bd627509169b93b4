//! The state machine of the job, on the front's side: decides when the gang is stopped, and collects the evidence for
//! the verdict.
//!
//! The first failing event orders the stop; evidence is collected until every worker is gone.

mod cause;
mod event;
mod facts;
mod handle;
mod interrupts;
mod outside;
mod phases;
mod planned;
mod record;
mod room;
mod state;
mod words;

pub use event::{Effect, Event};
pub use outside::{LostNode, Outside, Requester, SECOND_INTERRUPT, StopRequest};
pub use planned::{PlannedStop, PlannedWhy};
pub use record::{MpiLife, Passing, RankRecord};
pub use state::{Gang, Rules};
pub(crate) use words::SPAWN;

pub use crate::node_clock::Moment;

#[cfg(test)]
#[path = "gang_tests.rs"]
mod tests;
