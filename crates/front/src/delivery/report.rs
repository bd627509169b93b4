//! Keeping the report of a job.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// How long a file system may take to save the report, after it was printed.
pub(crate) const SAVE_BOUND: Duration = Duration::from_secs(5);

/// The report's own name in its directory.
pub(crate) const REPORT: &str = "report.json";

/// The message about a file that could not be written.
pub(crate) fn cannot_write(path: &Path, why: &str) -> String {
    let what = if path.ends_with(REPORT) { "cannot write the report to" } else { "cannot write" };
    format!("{what} \"{}\": {why}", path.display())
}

/// A path as people write it, with `~` for their home.
pub(crate) fn shorten_home(path: &Path, home: Option<&Path>) -> String {
    let home = home.filter(|home| home.as_os_str().len() > 1);
    match home.and_then(|home| path.strip_prefix(home).ok()) {
        Some(below) => format!("~/{}", below.display()),
        None => path.display().to_string(),
    }
}

/// Something that the user may want to know, before there is anything else to write to.
pub(crate) fn note(text: &str) {
    // Where stderr is closed there is nobody left to tell.
    let _ = writeln!(io::stderr(), "rankrun: {}", rankrun_core::printable::printable(text));
}

/// An error of rankrun's own, before there is anything else to write to.
pub(crate) fn error(color: bool, what: &str, source: Option<&io::Error>, hint: Option<&str>) {
    let paint = |style: &str, word: &str| match color {
        true => format!("\x1b[{style}m{word}\x1b[0m"),
        false => word.to_owned(),
    };
    let source = source.map(|source| format!(": {}", rankrun_sys::reason(source))).unwrap_or_default();
    let mut stderr = io::stderr();
    // Where stderr is closed there is nobody left to tell.
    let _ = writeln!(stderr, "{} {what}{source}", paint("1;31", "error:"));
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "{} {hint}", paint("36", "hint:"));
    }
}
