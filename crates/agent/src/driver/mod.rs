//! The agent: its set-up, and its loop, which translates what its sources report into events of the team.

mod agent;
pub(crate) mod clock;
pub(crate) mod io;
mod limits;
mod run;
mod terms;
pub(crate) mod token;

pub(crate) use agent::Agent;
pub use agent::{Options, Seat};
pub use clock::Clock;
pub use limits::soft_limits;
pub use terms::Terms;
