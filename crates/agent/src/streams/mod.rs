//! The bytes between the ranks and the front: captured, spooled, sent; and stdin the other way.

mod capture;
mod link;
mod output;

pub(crate) use capture::{Capture, Read};
pub(crate) use link::{Link, LinkError};
pub(crate) use output::Output;
pub(crate) use rankrun_sys::null;
