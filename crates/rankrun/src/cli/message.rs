//! What rankrun prints before a job starts: errors, hints and warnings, on stderr.

use std::fmt;
use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use rankrun_core::ExitCode;
use rankrun_core::printable::printable_lines;
use serde::{Deserialize, Serialize};

/// Why nothing was started, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Problem {
    pub(crate) text: String,
    pub(crate) hints: Vec<String>,
    pub(crate) code: ExitCode,
}

impl Problem {
    /// A mistake in what the user asked for.
    pub(crate) fn usage(text: impl Into<String>) -> Problem {
        Problem { text: text.into(), hints: Vec::new(), code: ExitCode::USAGE }
    }

    /// Something that rankrun itself could not do.
    pub(crate) fn internal(text: impl Into<String>) -> Problem {
        Problem { code: ExitCode::INTERNAL, ..Problem::usage(text) }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hints.push(hint.into());
        self
    }

    /// Adds a hint if there is one.
    pub(crate) fn hint_if(mut self, hint: Option<String>) -> Problem {
        self.hints.extend(hint);
        self
    }

    pub(crate) fn code(mut self, code: ExitCode) -> Problem {
        self.code = code;
        self
    }

    /// Prints the problem on stderr, in colour where stderr shows colours.
    pub(crate) fn print(&self) {
        line("error", AnsiColor::Red, &self.text);
        for hint in &self.hints {
            line("hint", AnsiColor::Cyan, hint);
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.text)?;
        for hint in &self.hints {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// Prints a line of ours about a job, as the job itself does.
pub(crate) fn say(text: &str) {
    // Nobody reads it.
    let _ = writeln!(anstream::stderr(), "rankrun: {}", printable_lines(text));
}

/// Prints a warning on stderr: a problem that does not prevent the job.
pub(crate) fn warn(text: &str) {
    line("warning", AnsiColor::Yellow, text);
}

fn line(label: &str, color: AnsiColor, text: &str) {
    let style = Style::new().bold().fg_color(Some(color.into()));
    // It quotes names of files and lines of scripts, which others may have chosen.
    let text = printable_lines(text);
    if writeln!(anstream::stderr(), "{style}{label}:{style:#} {text}").is_err() {
        // A sandbox may refuse `write` alone. If stderr is closed, there is nowhere to print.
        let line = format!("{label}: {text}\n");
        let _ = rustix::io::writev(rustix::stdio::stderr(), &[std::io::IoSlice::new(line.as_bytes())]);
    }
}
