//! The guard watches the agent: it is the agent's parent, and the agent renews a lease with it.

mod launch;
pub(crate) mod lease;
mod watch;

pub use launch::{LapseNote, Launched, Options, launch};
