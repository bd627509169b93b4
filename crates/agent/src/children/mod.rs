//! Which rank a process belongs to: leaders, their descendants, and orphans.

mod boundary;
mod interpreters;
mod looks;
mod others;
mod registry;

pub(crate) use boundary::Boundary;
pub(crate) use interpreters::{Interpreters, Subject};
pub(crate) use registry::{Children, Ended, Helper, TAG};
