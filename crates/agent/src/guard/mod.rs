//! The guard, and how it watches the agent: they are one another's parent and child, and share a lease.

mod launch;
pub(crate) mod lease;
mod watch;

pub use launch::{LapseNote, Launched, Options, launch};
