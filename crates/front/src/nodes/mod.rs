//! The front's side of the job's nodes: today one, this machine.

mod bootstrap;
mod clock;
mod node;
mod watch;

pub(crate) use bootstrap::{Bootstrap, Local};
pub(crate) use node::{Guard, NodeHandle};
pub(crate) use watch::{Act, END_BOUND, KILLING_BOUND, LOOK_STEP};
