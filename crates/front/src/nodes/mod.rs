//! The nodes of the job, as the front holds them: one today, this machine.

mod bootstrap;
mod clock;
mod node;
mod watch;

pub(crate) use bootstrap::{Bootstrap, Local};
pub(crate) use node::{Guard, NodeHandle};
pub(crate) use watch::{Act, END_BOUND, KILLING_BOUND, LOOK_STEP};
