//! A node whose front is on another machine: a process here holds the agent for it.
//!
//! * `held.rs`: what is the same however the front is reached.
//! * `relay.rs`: the front has started the process, over ssh.

mod held;
mod relay;

pub use held::{Held, Holder};
pub use relay::{ALIVE, PROVE, RELAY, answer_alive, relay, relay_arguments};
