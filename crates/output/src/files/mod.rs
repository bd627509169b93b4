//! What is kept in files: logs, and spooled output.

pub(crate) mod logfiles;
pub(crate) mod matches;
pub(crate) mod places;
pub(crate) mod spool;
