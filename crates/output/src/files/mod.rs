//! What is kept in files: logs, spooled output, and the transcript.

pub(crate) mod entry;
pub(crate) mod left;
pub(crate) mod logfiles;
pub(crate) mod matches;
pub(crate) mod places;
pub(crate) mod recorder;
pub(crate) mod reopened;
pub(crate) mod spool;
pub(crate) mod torn;
pub(crate) mod transcript;
