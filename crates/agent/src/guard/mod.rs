//! The guard watches the agent: it is the agent's parent, and the agent renews a lease with it.

mod keeper;
mod launch;
pub(crate) mod lease;
mod note;
mod watch;
mod watchdog;

pub use keeper::{GuardState, Keeper, LastKnown, Proof};
pub use launch::{Launched, Prepared, launch, launch_in, prepare};
pub use note::GuardNote;
pub use watchdog::{Act, LOOK_STEP, Watch};
