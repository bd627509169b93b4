//! The agent: its set-up, and its loop, which translates what its sources report into events of the team.

mod agent;
mod clock;
pub(crate) mod io;
mod limits;
mod run;
mod token;

pub(crate) use agent::Agent;
pub use clock::Clock;
pub(crate) use clock::wall;
pub use limits::soft_limits;
pub(crate) use token::Token;
