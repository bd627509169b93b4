//! `rankrun status`: the running jobs, or one of them with its ranks.

use rankrun_core::control::{Answer, JobStatus, Request};
use rankrun_core::overview::{Row, describe, table};
use rankrun_core::text::WIDTH;
use rankrun_sys::terminal;
use serde_json::json;

use crate::commands::jobs::{self, ANSWER_BOUND, Found, Silence};
use crate::message::Problem;

/// The text for stdout.
pub(crate) fn run(job: Option<&str>, as_json: bool) -> Result<String, Problem> {
    let width = terminal::window(rustix::stdio::stdout()).map_or(WIDTH, |(_, columns)| usize::from(columns).max(40));
    match job {
        Some(word) => {
            let status = one(&jobs::find("status", word)?)?;
            if as_json { to_json(&status) } else { Ok(describe(&status, width)) }
        }
        None if as_json => to_json(&ask_all().iter().filter_map(in_json).collect::<Vec<_>>()),
        None => {
            let rows: Vec<Row> = ask_all().iter().filter_map(row).collect();
            match rows.is_empty() {
                true => Ok("no job of yours is running on this machine\n".to_owned()),
                false => Ok(table(&rows, width)),
            }
        }
    }
}

fn one(found: &Found) -> Result<JobStatus, Problem> {
    match found.ask(Request::Status { ranks: true }, ANSWER_BOUND) {
        Ok(Answer::Status(status)) => Ok(*status),
        Ok(Answer::Refused { error, hint }) => Err(jobs::refused("ask", &found.job, &error, hint)),
        Ok(other) => Err(jobs::unexpected(&found.job, &other)),
        Err(silence) => Err(jobs::explain("status", found, silence)),
    }
}

/// Asks all jobs at the same time: one that does not answer does not delay the others.
fn ask_all() -> Vec<(Found, Result<Answer, Silence>)> {
    let found = jobs::directories();
    std::thread::scope(|scope| {
        let ask = |found: Found| {
            scope.spawn(move || {
                let answer = found.ask(Request::Status { ranks: false }, ANSWER_BOUND);
                (found, answer)
            })
        };
        let threads: Vec<_> = found.into_iter().map(ask).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// What is known of a job that has not answered; `None` if it is over.
fn unknown(found: &Found, silence: &Silence) -> Option<&'static str> {
    match silence {
        Silence::TimedOut { .. } => Some("does not answer"),
        Silence::NoFront | Silence::Ended => found.is_held().then_some("no front"),
        Silence::Nonsense(_) | Silence::Io(_) => Some("not understood"),
    }
}

fn row((found, answer): &(Found, Result<Answer, Silence>)) -> Option<Row> {
    match answer {
        Ok(Answer::Status(status)) => Some(Row::of(status)),
        Ok(_) => Some(Row::unknown(&found.job, "not understood", "")),
        Err(silence) => unknown(found, silence).map(|state| Row::unknown(&found.job, state, "")),
    }
}

fn in_json((found, answer): &(Found, Result<Answer, Silence>)) -> Option<serde_json::Value> {
    match answer {
        Ok(Answer::Status(status)) => serde_json::to_value(status).ok(),
        Ok(_) => Some(json!({ "job": found.job, "state": null, "error": "not understood" })),
        Err(silence) => unknown(found, silence).map(|error| json!({ "job": found.job, "state": null, "error": error })),
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<String, Problem> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| Problem::internal(error.to_string()))
}
