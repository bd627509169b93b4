//! Our own lines on stderr: notes, and what happens to the job, the report among it.

use std::collections::VecDeque;
use std::time::Duration;

use rankrun_core::event::JobEvent;
use rankrun_core::notes::Notes;
use rankrun_core::printable::{fit, printable};
use rankrun_core::stacks::fold::Table;
use rankrun_core::standing::{self, Standing};
use rankrun_core::text::{MAX_LINES, WIDTH};
use rankrun_sys::terminal;

use super::journal::Journal;

/// What waits to be shown, in its order.
#[derive(Debug)]
pub(crate) struct Notices {
    waiting: VecDeque<String>,
    /// What agents and ranks have caused.
    notes: Notes,
    is_quiet: bool,
    /// The terminal has shown `^C` at the start of the row that we write next.
    key_was_pressed: bool,
}

impl Notices {
    /// `is_quiet`: of what happens, only what must be said is (`-q`).
    pub(crate) fn new(is_quiet: bool) -> Notices {
        Notices { waiting: VecDeque::new(), notes: Notes::default(), is_quiet, key_was_pressed: false }
    }

    pub(crate) fn note(&mut self, now: Duration, text: &str, journal: &mut Journal) {
        if !self.is_quiet {
            // Parts of it may be a program's words.
            let text = printable(text);
            journal.record(now, || JobEvent::Note(text.to_string()));
            self.waiting.push_back(format!("rankrun: {text}"));
        }
    }

    /// A note that a rank may cause thousands of: within limits.
    pub(crate) fn note_often(&mut self, now: Duration, text: &str, journal: &mut Journal) {
        if !self.is_quiet && self.notes.take(now, text) {
            self.note(now, text, journal);
        }
    }

    /// How many notes were not printed: those of periods that are over, or all.
    pub(crate) fn note_withheld(&mut self, now: Duration, all: bool, journal: &mut Journal) {
        for text in self.notes.withheld((!all).then_some(now)) {
            self.note(now, &text, journal);
        }
    }

    /// When [`Notices::note_withheld`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.notes.deadline()
    }

    /// What must be said. `after_key`: the terminal may have shown a key at the start of the row.
    pub(crate) fn say(&mut self, text: &str, after_key: bool) {
        let over_key = if after_key && terminal::is_terminal(rustix::stdio::stderr()) { "\r" } else { "" };
        self.waiting.push_back(format!("{over_key}{text}"));
    }

    pub(crate) fn key_was_pressed(&mut self) {
        self.key_was_pressed = true;
    }

    /// Whether the terminal has shown `^C`.
    pub(crate) fn is_after_key(&self) -> bool {
        self.key_was_pressed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn next(&mut self) -> Option<String> {
        self.waiting.pop_front()
    }
}

/// Where the ranks are, as it is printed.
pub(crate) fn text_of_table(title: &str, table: &Table) -> String {
    with_lines(format!("rankrun: {title}:"), &table.lines(WIDTH - 2, MAX_LINES))
}

/// The state of the ranks, as it is printed.
pub(crate) fn text_of_standings(after: Duration, standings: &[Standing]) -> String {
    let first = format!("rankrun: after {:.1} s:", after.as_secs_f64());
    with_lines(first, &standing::lines(standings, standing::GROUPS))
}

fn with_lines(mut text: String, lines: &[String]) -> String {
    for line in lines {
        text.push_str("\n  ");
        text.push_str(&fit(&printable(line), WIDTH));
    }
    text
}
