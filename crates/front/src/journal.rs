//! The journal: the events of the job as lines of JSON in a file (`--journal`), from which `rankrun replay` makes the
//! report again.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::event::{Entry, JobEvent, Replay, ReplayError};
use rankrun_core::report::render;

use crate::files::{Files, Task};
use crate::report;

/// Bytes that may wait for the file. Events that come when there are so many are counted and left out: a journal is
/// never the reason why a job waits.
const WAITING: usize = 16 << 20;

/// The journal, seen from the loop.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    path: Option<PathBuf>,
    lines: Vec<u8>,
    /// Bytes that were handed over and are not written.
    waiting: usize,
    /// Events that were left out since the last that was not.
    missing: u64,
}

impl Journal {
    /// `None`: nothing is recorded.
    pub(crate) fn new(path: Option<PathBuf>) -> Journal {
        Journal { path, ..Journal::default() }
    }

    /// Takes an event in. It is made only if somebody wants it.
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
            self.write(&Entry::new(at, JobEvent::Gap { events }));
        }
        self.write(&Entry::new(at, event()));
    }

    fn write(&mut self, entry: &Entry) {
        let length = self.lines.len();
        match serde_json::to_writer(&mut self.lines, entry) {
            Ok(()) => self.lines.push(b'\n'),
            Err(_) => {
                // Such as a path that is no text: the rest can be read without it.
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

    /// So many bytes were written, or could not be. Returns what is to be said of that.
    pub(crate) fn written(&mut self, bytes: usize, result: io::Result<()>) -> Option<String> {
        self.waiting = self.waiting.saturating_sub(bytes);
        let error = result.err()?;
        let path = self.path.take()?;
        self.lines.clear();
        Some(format!("cannot write the journal to \"{}\": {}", path.display(), rankrun_sys::reason(&error)))
    }
}

/// What a journal comes to.
#[derive(Debug)]
pub struct Replayed {
    /// The report as it was printed at the end of the job, without its line end.
    pub text: String,
    /// What is wrong with the journal, or with us: it does not come to what it came to then.
    pub warnings: Vec<String>,
}

/// Why a journal cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot read the journal \"{}\"", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("line {line} of \"{}\" is no event of a job", path.display())]
    Line { path: PathBuf, line: usize, source: serde_json::Error },
    #[error("line {line} of \"{}\" does not fit", path.display())]
    Event { path: PathBuf, line: usize, source: ReplayError },
    #[error("\"{}\" has no end: rankrun was killed, or could not write it", path.display())]
    NoEnd { path: PathBuf },
}

/// Feeds a journal to gang and verdict again, and makes the report.
pub fn replay(path: &Path, color: bool) -> Result<Replayed, JournalError> {
    let text = std::fs::read_to_string(path).map_err(|source| JournalError::Read { path: path.to_owned(), source })?;
    let mut replay: Option<Replay> = None;
    for (number, line) in text.lines().enumerate() {
        let line_of = number + 1;
        let entry: Entry = serde_json::from_str(line).map_err(|source| JournalError::Line {
            path: path.to_owned(),
            line: line_of,
            source,
        })?;
        let taken = match &mut replay {
            Some(replay) => replay.take(entry),
            None => Replay::new(entry).map(|first| replay = Some(first)),
        };
        taken.map_err(|source| JournalError::Event { path: path.to_owned(), line: line_of, source })?;
    }
    let no_end = || JournalError::NoEnd { path: path.to_owned() };
    let replay = replay.ok_or_else(no_end)?;
    let end = replay.end.as_ref().ok_or_else(no_end)?;
    let tail = |rank| replay.tails.iter().find(|(of, _)| *of == rank).map(|(_, tail)| tail);
    let report = report::make(&replay.facts, &replay.gang, end, tail);
    let mut warnings = Vec::new();
    if replay.missing > 0 {
        warnings.push(format!("{} events are missing: there were too many to write", replay.missing));
    }
    if !replay.is_faithful() {
        warnings.push("the gang decides otherwise now than it did then".to_owned());
    }
    Ok(Replayed { text: render(&report, end.saved.as_deref(), color), warnings })
}
