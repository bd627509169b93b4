//! What writes for a job.

use std::io;

use rankrun_core::JobId;
use rankrun_sys::poll::Waker;

use super::files::Files;
use super::sink::Sink;

/// What writes. Threads and processes are started when they are first needed; before the first rank where ranks may use up the limit on
/// processes.
#[derive(Debug)]
pub(crate) struct Writers {
    pub(crate) files: Files,
    pub(super) sinks: [Sink; 2],
}

impl Writers {
    /// They wake the loop through `waker`.
    ///
    /// # Errors
    ///
    /// A thread cannot be started, or there are no descriptors left.
    pub(crate) fn new(job: JobId, waker: &Waker) -> io::Result<Writers> {
        Ok(Writers {
            files: Files::start(job, waker.clone())?,
            sinks: [
                Sink::new("stdout", rustix::stdio::stdout(), waker.clone())?,
                Sink::new("stderr", rustix::stdio::stderr(), waker.clone())?,
            ],
        })
    }
}
