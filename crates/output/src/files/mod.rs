//! What is kept in files: logs, and what waits.

pub(crate) mod logfiles;
pub(crate) mod spool;
