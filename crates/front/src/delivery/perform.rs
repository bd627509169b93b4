//! Tasks of the storage processes where there is no loop: before a job, and of one that is refused.

use std::io;
use std::time::{Duration, Instant};

use rankrun_core::JobId;
use rankrun_sys::poll::{Waker, wait_for};
use rustix::event::{PollFd, PollFlags};

use super::files::Files;
use super::task::{Destination, Done, Task};

/// Performs tasks of one destination, where there is no loop. They have `bound` together.
///
/// # Errors
///
/// The file system does not answer, or there can be no thread.
pub(crate) fn perform(job: &JobId, tasks: Vec<Task>, bound: Duration) -> io::Result<Vec<Done>> {
    let waker = Waker::new()?;
    let mut files = Files::new(job.clone(), waker.clone());
    let destination = tasks.first().map_or(Destination::Report, Task::destination);
    tasks.into_iter().for_each(|task| files.submit(Duration::ZERO, task));
    let (begun, mut answers) = (Instant::now(), Vec::new());
    loop {
        while let Some(done) = files.next(Duration::ZERO) {
            answers.push(done);
        }
        let rest = bound.saturating_sub(begun.elapsed());
        match (files.is_idle(destination), rest.is_zero()) {
            (true, _) => return Ok(answers),
            (false, true) => return Err(io::Error::other(files.why(destination, bound))),
            (false, false) => {}
        }
        wait_for(&mut [PollFd::new(&waker, PollFlags::IN)], Some(rest));
        waker.clear();
    }
}
