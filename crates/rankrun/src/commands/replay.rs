//! `rankrun replay`: the report of a journal, made again, or its trace.

use std::path::Path;

use crate::message::{self, Problem};
use rankrun_front::JournalError;
use rankrun_sys::reason;

/// The text of a journal's report.
pub(crate) fn read(file: &Path, color: bool) -> Result<String, Problem> {
    let replayed = rankrun_front::replay(file, color).map_err(|error| problem(&error))?;
    replayed.warnings.iter().for_each(|warning| message::warn(warning));
    Ok(format!("{}\n", replayed.text))
}

/// The trace of a journal: OTLP in JSON, as one line.
pub(crate) fn trace(file: &Path) -> Result<String, Problem> {
    rankrun_front::trace(file).map(|text| text + "\n").map_err(|error| problem(&error))
}

fn problem(error: &JournalError) -> Problem {
    use JournalError::{Event, Line, NoEnd, Read, Write};
    Problem::usage(match error {
        Read { source, .. } => format!("{error}: {}", reason(source)),
        Line { source, .. } | Write { source } => format!("{error}: {source}"),
        Event { source, .. } => format!("{error}: {source}"),
        NoEnd { .. } => error.to_string(),
    })
    .hint("a journal is written by --journal FILE")
}
