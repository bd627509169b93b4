//! Which rank a process belongs to: leaders, their descendants, and orphans.

mod boundary;
mod helpers;
mod interpreters;
mod leaves;
mod libraries;
mod lockable;
mod looks;
mod others;
mod reader;
mod registry;
mod role;

pub(crate) use boundary::Boundary;
pub(crate) use interpreters::{Interpreters, Subject};
pub(crate) use libraries::Libraries;
pub use reader::serve as serve_reader;
pub(crate) use reader::{Reader, Readers, content, waits};
pub(crate) use registry::{Children, TAG};
pub(crate) use role::{Ended, Helper, ServerId};
