//! The trace of a job that is recorded: `rankrun replay --otlp` exports it.

use std::ffi::OsString;
use std::time::{SystemTime, UNIX_EPOCH};

use rankrun_core::JobId;
use rankrun_core::trace::Trace;

/// That of a job which begins now, in this environment.
pub(crate) fn begin(job: &JobId, env: &[(OsString, OsString)]) -> Trace {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Trace::of_environment(job, now, env)
}
