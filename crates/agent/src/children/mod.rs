//! Which rank a process belongs to: leaders, their descendants, and orphans.

mod boundary;
mod looks;
mod registry;

pub(crate) use boundary::Boundary;
pub(crate) use registry::{Children, Ended, TAG};
