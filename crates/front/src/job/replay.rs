//! Replays a journal, and makes its report again, or a trace.

use std::io;
use std::path::{Path, PathBuf};

use rankrun_core::event::{Entry, JobEvent, Replay, ReplayError, other_version};
use rankrun_core::report::Report;
use rankrun_core::text::{Look, render};
use rankrun_core::traces::Export;
use rankrun_core::verdict::verdict;

/// The result of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// The report as it was printed at the end of the job, without its line end.
    pub text: String,
    /// Differences to the recorded result: the journal or this program is wrong.
    pub warnings: Vec<String>,
    /// Events that were left out since there were too many to write.
    pub missing: u64,
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
    #[error("cannot write the trace as JSON")]
    Write { source: serde_json::Error },
}

/// The text of a journal.
fn text_of(path: &Path) -> Result<String, JournalError> {
    std::fs::read_to_string(path).map_err(|source| JournalError::Read { path: path.to_owned(), source })
}

/// The entry in a line. Lines are counted from 1.
fn entry_of(path: &Path, line: usize, text: &str) -> Result<Entry, JournalError> {
    if let Some(version) = other_version(text) {
        return Err(JournalError::Event { path: path.to_owned(), line, source: ReplayError::Version(version) });
    }
    serde_json::from_str(text).map_err(|source| JournalError::Line { path: path.to_owned(), line, source })
}

/// Feeds a journal to gang and verdict again, and makes the report.
pub fn replay(path: &Path, color: bool) -> Result<Replayed, JournalError> {
    let text = text_of(path)?;
    let mut replay: Option<Replay> = None;
    for (line, text) in (1..).zip(text.lines()) {
        let entry = entry_of(path, line, text)?;
        let taken = match &mut replay {
            Some(replay) => replay.take(entry),
            None => Replay::new(entry).map(|first| replay = Some(first)),
        };
        taken.map_err(|source| JournalError::Event { path: path.to_owned(), line, source })?;
    }
    let no_end = || JournalError::NoEnd { path: path.to_owned() };
    let replay = replay.ok_or_else(no_end)?;
    let end = replay.end.as_ref().ok_or_else(no_end)?;
    let tail = |rank| replay.tails.iter().find(|(of, _)| *of == rank).map(|(_, tail)| tail);
    let report = Report::of(&replay.facts, &replay.gang, &verdict(&replay.gang), end, tail);
    let mut warnings = Vec::new();
    if replay.missing > 0 {
        warnings.push(format!("{} events are missing: there were too many to write", replay.missing));
    }
    if !replay.is_faithful() {
        warnings.push("this rankrun decides differently from the one that wrote the journal".to_owned());
    }
    let look = Look { saved: end.saved.as_deref(), color, is_quoted_above: end.is_quoted_above };
    Ok(Replayed { text: render(&report, look), warnings, missing: replay.missing })
}

/// The trace of the job of a journal (docs/traces.md), as one line of JSON without its end. A journal without an end has a trace up to there.
pub fn trace(path: &Path) -> Result<String, JournalError> {
    let text = text_of(path)?;
    // Its last line may be cut where rankrun was killed.
    let text = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let last = text.lines().last().and_then(|last| serde_json::from_str::<Entry>(last).ok());
    let started = last.and_then(|last| match last.event {
        JobEvent::End(end) => Some(end.started),
        _ => None,
    });
    let mut export: Option<Export> = None;
    for (line, text) in (1..).zip(text.lines()) {
        let entry = entry_of(path, line, text)?;
        let taken = match &mut export {
            Some(export) => export.take(entry),
            None => Export::new(entry, started).map(|first| export = Some(first)),
        };
        taken.map_err(|source| JournalError::Event { path: path.to_owned(), line, source })?;
    }
    let export = export.ok_or_else(|| JournalError::NoEnd { path: path.to_owned() })?;
    serde_json::to_string(&export.finish()).map_err(|source| JournalError::Write { source })
}
