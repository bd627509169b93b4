//! `rankrun replay`: the report of a journal, made again.

use std::path::Path;

use crate::message::{self, Problem};
use rankrun_sys::reason;

/// The text of a journal's report.
pub(crate) fn read(file: &Path, color: bool) -> Result<String, Problem> {
    let replayed = rankrun_front::replay(file, color).map_err(|error| {
        use rankrun_front::JournalError::{Event, Line, NoEnd, Read};
        Problem::usage(match &error {
            Read { source, .. } => format!("{error}: {}", reason(source)),
            Line { source, .. } => format!("{error}: {source}"),
            Event { source, .. } => format!("{error}: {source}"),
            NoEnd { .. } => error.to_string(),
        })
        .hint("a journal is written by --journal FILE")
    })?;
    replayed.warnings.iter().for_each(|warning| message::warn(warning));
    Ok(format!("{}\n", replayed.text))
}
