//! The journal: the events of the job as lines of JSON in a file (`--journal`), from which `rankrun replay` makes the
//! report again.

use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::event::{Entry, JobEvent};

use crate::delivery::files::Files;
use crate::delivery::task::{Failure, Task};

/// Bytes that may wait for the file. With so many waiting, events are left out and counted: a job never waits for its
/// journal.
const WAITING: usize = 16 << 20;

/// The journal, seen from the loop.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    path: Option<PathBuf>,
    lines: Vec<u8>,
    /// Bytes that were handed over and are not written.
    waiting: usize,
    /// Events left out since the last one that was recorded.
    missing: u64,
    /// How long the job has been paused.
    paused: Duration,
}

impl Journal {
    /// `None`: nothing is recorded.
    pub(crate) fn new(path: Option<PathBuf>) -> Journal {
        Journal { path, ..Journal::default() }
    }

    /// Whether anything is recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.path.is_some()
    }

    /// Records an event. It is made only if there is a journal.
    pub(crate) fn record(&mut self, at: Duration, event: impl FnOnce() -> JobEvent) {
        if self.path.is_none() {
            return;
        }
        if self.waiting + self.lines.len() > WAITING {
            self.missing += 1;
            return;
        }
        if self.missing > 0 {
            let events = std::mem::take(&mut self.missing);
            self.write(&Entry::new(at, JobEvent::Gap { events }).after_pauses(self.paused));
        }
        self.write(&Entry::new(at, event()).after_pauses(self.paused));
    }

    /// The job goes on after a pause; `paused`: how long all its pauses were.
    pub(crate) fn resumed(&mut self, paused: Duration) {
        self.paused = paused;
    }

    fn write(&mut self, entry: &Entry) {
        let length = self.lines.len();
        match serde_json::to_writer(&mut self.lines, entry) {
            Ok(()) => self.lines.push(b'\n'),
            Err(_) => {
                // Such as a path that is not UTF-8: the rest can be read without it.
                self.lines.truncate(length);
                self.missing += 1;
            }
        }
    }

    /// Hands over what has been recorded.
    pub(crate) fn hand_on(&mut self, now: Duration, files: &mut Files) {
        if !self.lines.is_empty() {
            let lines = std::mem::take(&mut self.lines);
            self.waiting += lines.len();
            files.submit(now, Task::Journal(lines));
        }
    }

    /// So many bytes were written, or could not be. Returns the message about a failure.
    pub(crate) fn written(&mut self, bytes: usize, result: Result<(), Failure>) -> Option<String> {
        self.waiting = self.waiting.saturating_sub(bytes);
        let error = result.err()?;
        let path = self.path.take()?;
        self.lines.clear();
        Some(format!("cannot write the journal to \"{}\": {error}", path.display()))
    }
}
