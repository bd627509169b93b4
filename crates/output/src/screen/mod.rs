//! What a terminal or a file shows of them.

pub(crate) mod presenter;
pub(crate) mod region;
