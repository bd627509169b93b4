//! The journal that each job of a test writes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use rankrun_front::JournalError;

use crate::job::Ended;

/// The job's id, as the first line of its journal has it.
pub(crate) fn job(journal: &Path) -> Option<String> {
    let mut line = String::new();
    let journal = File::open(journal).ok()?;
    BufReader::new(journal.take(1 << 20)).read_line(&mut line).ok()?;
    let (_, rest) = line.split_once("\"job\":\"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// Checks that a journal comes to the same decisions and the same report again. A front that was killed leaves none that is whole.
///
/// # Panics
/// If it does not.
pub(crate) fn check(journal: &Path, ended: &Ended, complaint: impl Fn() -> String) {
    let text = fs::read(journal).unwrap_or_default();
    if String::from_utf8_lossy(&text).matches(r#""at":0,"event":{"job":"#).count() != 1 {
        // One job within another has written it, too.
        return;
    }
    let replayed = match rankrun_front::replay(journal, false) {
        Ok(replayed) => replayed,
        Err(JournalError::Read { .. } | JournalError::NoEnd { .. }) => return,
        // The last line was cut when the front was killed.
        Err(JournalError::Line { .. }) if ended.signal.is_some() => return,
        Err(error) => panic!("{error:?}; {}", complaint()),
    };
    if replayed.missing > 0 {
        // The storage process was too slow for so many events. What is left need not come to the same end.
        return;
    }
    let printed = ended.stderr_text();
    let headline = replayed.text.lines().next().unwrap_or_default();
    let is_same = !printed.contains(headline) || printed.contains(&replayed.text);
    assert!(
        is_same && replayed.warnings.is_empty(),
        "the journal comes to another end: {:?}\nnow: {}\nthen: {printed}\n{}",
        replayed.warnings,
        replayed.text,
        complaint()
    );
}
