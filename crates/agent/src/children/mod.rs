//! Which rank a process belongs to: leaders, their descendants, and orphans.

mod boundary;
mod bounded;
mod interpreters;
mod libraries;
mod looks;
mod others;
mod registry;

pub(crate) use boundary::Boundary;
pub(crate) use bounded::Bounded;
pub(crate) use interpreters::{Interpreters, Subject};
pub(crate) use libraries::Libraries;
pub(crate) use registry::{Children, Ended, Helper, TAG};
