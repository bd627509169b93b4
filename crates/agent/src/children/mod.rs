//! Whose a process is: the leaders, what they start, and what they leave.

mod boundary;
mod looks;
mod registry;

pub(crate) use boundary::Boundary;
pub(crate) use registry::{Children, Ended, TAG};
