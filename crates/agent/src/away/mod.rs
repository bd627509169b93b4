//! A node whose front is on another machine: a process here holds the agent for it.
//!
//! * `held.rs`: what is the same however the front is reached.
//! * `relay.rs`: the front has started the process, over ssh.
//! * `door.rs`: where another front comes in whose predecessor is gone.

mod door;
mod held;
mod relay;

pub use door::{AGAIN, relay_again};
pub use held::{Held, Holder};
pub use relay::{ALIVE, PROVE, RelayCall, answer_alive, relay};
