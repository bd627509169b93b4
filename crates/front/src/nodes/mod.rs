//! The front's side of the job's nodes: this machine, others over ssh, and others that join by themselves.

mod added;
mod asker;
mod calls;
mod enrol;
mod found;
mod hosts;
mod node;
mod prover;
mod reach;
mod recalls;
mod srun;
mod ssh;
mod stdin;
mod steps;
mod succession;

pub(crate) use calls::{Calls, Kept};
pub(crate) use enrol::{Enrolment, KeptDoor};
pub use hosts::{Hosts, HostsOrigin, NODE_TIMEOUT, NodeTarget, SshSettings};
pub(crate) use node::NodeHandle;
pub(crate) use reach::Reach;
