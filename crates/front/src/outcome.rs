//! How a job, or the part of one on a node, has ended.

use rankrun_core::ExitCode;

/// How the job ended.
pub(crate) struct Outcome {
    pub(crate) code: ExitCode,
    /// The signal to end this process by.
    pub(crate) raise: Option<i32>,
}
