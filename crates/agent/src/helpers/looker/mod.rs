//! The looker: a child of the agent that looks into ranks.
//!
//! It is started for each look, and ends with it. Its descriptor 0 is the connection to the agent. The agent writes one
//! [`Request`]; the looker writes each answer as soon as it has it, so that those before a crash are not lost.

mod message;
mod run;

pub(crate) use message::{Found, Request, Subject};
pub(crate) use run::program_of;
pub use run::serve;
