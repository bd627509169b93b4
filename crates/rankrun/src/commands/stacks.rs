//! `rankrun stacks`: where the ranks of a running job are.

use std::fmt::Write as _;
use std::time::Duration;

use rankrun_core::control::{Answer, Request};
use rankrun_core::printable::{fit, printable};
use rankrun_core::stacks::fold::{Seen, Table};
use rankrun_core::text::WIDTH;
use rankrun_sys::terminal;
use serde_json::json;

use crate::commands::jobs;
use crate::message::Problem;

/// How long a job may take to answer: its agents have some seconds.
const ANSWER_BOUND: Duration = Duration::from_secs(10);

/// What is asked.
pub(crate) struct Asked {
    pub(crate) job: String,
    pub(crate) ranks: Option<String>,
    pub(crate) native: bool,
    pub(crate) json: bool,
}

/// The text for stdout.
pub(crate) fn run(asked: Asked) -> Result<String, Problem> {
    let Asked { job, ranks, native, json } = asked;
    let found = jobs::find("stacks", &job)?;
    // Those of single ranks are shown frame by frame.
    let each = json || native || ranks.is_some();
    match found.ask(Request::Stacks { ranks, native, each }, ANSWER_BOUND) {
        Ok(Answer::Stacks { table, ranks }) if json => to_json(&table, &ranks),
        Ok(Answer::Stacks { table, ranks }) => Ok(text(&table, &ranks)),
        Ok(Answer::Refused { error, hint }) => Err(jobs::refused("look into", &found.job, &error, hint)),
        Ok(other) => Err(jobs::unexpected(&found.job, &other)),
        Err(silence) => Err(jobs::explain("stacks", &found, silence)),
    }
}

fn text(table: &Table, ranks: &[Seen]) -> String {
    let width = terminal::window(rustix::stdio::stdout()).map_or(WIDTH, |(_, columns)| usize::from(columns).max(40));
    let mut text = String::new();
    for line in table.lines(width, usize::MAX) {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{}", fit(&printable(&line), width));
    }
    for seen in ranks {
        text.push('\n');
        for line in seen.lines() {
            let _ = writeln!(text, "{}", printable(&line));
        }
    }
    text
}

fn to_json(table: &Table, ranks: &[Seen]) -> Result<String, Problem> {
    serde_json::to_string_pretty(&json!({ "table": table, "ranks": ranks }))
        .map(|text| text + "\n")
        .map_err(|error| Problem::internal(format!("cannot write JSON: {error}")))
}
