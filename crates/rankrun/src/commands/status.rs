//! `rankrun status`: the running jobs, or one of them with its ranks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::JobId;
use rankrun_core::control::{Answer, JobState, JobStatus, Request};
use rankrun_core::overview::{Row, describe, table};
use rankrun_core::printable::printable;
use rankrun_core::prometheus::{Answered, Sample, prometheus};
use rankrun_core::text::WIDTH;
use rankrun_sys::{proc, reason, terminal};
use serde_json::json;

use crate::commands::jobs::{self, ANSWER_BOUND, Found, Silence};
use crate::file;
use crate::message::Problem;

/// Bytes of a command line that are shown at most.
const MAX_COMMAND: u64 = 4096;

/// In which form the state of jobs is printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Text,
    Json,
    Prometheus {
        /// Series of each rank, which there are anyway where a job is named.
        ranks: bool,
        /// The file to replace.
        output: Option<PathBuf>,
    },
}

/// The text for stdout.
pub(crate) fn run(job: Option<&str>, form: &Form) -> Result<String, Problem> {
    if let Form::Prometheus { ranks, output } = form {
        let text = metrics(job, *ranks)?;
        return match output {
            Some(file) => replace(file, &text).map(|()| String::new()),
            None => Ok(text),
        };
    }
    let as_json = *form == Form::Json;
    let width = terminal::window(rustix::stdio::stdout()).map_or(WIDTH, |(_, columns)| usize::from(columns).max(40));
    match job {
        Some(word) => {
            let found = jobs::find("status", word)?;
            match one(&found)? {
                One::Answered(status) if as_json => to_json(&status),
                One::Answered(status) => Ok(describe(&status, width)),
                One::Paused(front) if as_json => to_json(&paused_in_json(&found, front)),
                One::Paused(front) => Ok(paused(&found, front)),
            }
        }
        None if as_json => to_json(&ask_all(false).iter().filter_map(in_json).collect::<Vec<_>>()),
        None => {
            let rows = rows();
            match rows.is_empty() {
                true => Ok("no job of yours is running on this machine\n".to_owned()),
                false => Ok(table(&rows, width)),
            }
        }
    }
}

/// The running jobs of this user.
pub(crate) fn rows() -> Vec<Row> {
    ask_all(false).iter().filter_map(row).collect()
}

/// The metrics of a job with its ranks, or of all jobs.
fn metrics(job: Option<&str>, ranks: bool) -> Result<String, Problem> {
    let Some(word) = job else {
        return Ok(prometheus(ask_all(true).iter().filter_map(sample).collect(), ranks));
    };
    let found = jobs::find("status", word)?;
    let answer = match one(&found)? {
        One::Answered(status) => Answered::Status(status),
        One::Paused(front) => Answered::Paused { command: command_of(front) },
    };
    Ok(prometheus(vec![Sample { job: JobId(found.job), answer }], true))
}

fn sample((found, answer): &(Found, Result<Answer, Silence>)) -> Option<Sample> {
    let answer = match answer {
        Ok(Answer::Status(status)) => Answered::Status(status.clone()),
        Ok(_) => Answered::Nothing,
        Err(Silence::Paused { front }) => Answered::Paused { command: command_of(*front) },
        Err(silence) => unknown(found, silence).map(|_| Answered::Nothing)?,
    };
    Some(Sample { job: JobId(found.job.clone()), answer })
}

/// Replaces the file that a reader such as node_exporter reads, which may be another user. The name of the file beside it does not end as
/// those that are read (`.prom`).
fn replace(file: &Path, text: &str) -> Result<(), Problem> {
    file::replace(file, text)
        .map_err(|error| Problem::usage(format!("cannot write \"{}\": {}", file.display(), reason(&error))))
}

/// What is known of one job.
enum One {
    Answered(Box<JobStatus>),
    /// Its front, this process, is stopped.
    Paused(i32),
}

fn one(found: &Found) -> Result<One, Problem> {
    match found.ask(Request::Status { ranks: true, measure: false }, ANSWER_BOUND) {
        Ok(Answer::Status(status)) => Ok(One::Answered(status)),
        Err(Silence::Paused { front }) => Ok(One::Paused(front)),
        Ok(Answer::Refused { error, hint }) => Err(jobs::refused("ask", &found.job, &error, hint)),
        Ok(other) => Err(jobs::unexpected(&found.job, &other)),
        Err(silence) => Err(jobs::explain("status", found, silence)),
    }
}

fn paused(found: &Found, front: i32) -> String {
    format!(
        "job {}: paused: its rankrun, process {front}, was stopped by ^Z or SIGSTOP; fg in its shell or \"kill -CONT {front}\" continues it\n  command   {}\n",
        found.job,
        printable(&command_of(front)),
    )
}

fn paused_in_json(found: &Found, front: i32) -> serde_json::Value {
    json!({ "job": found.job, "state": JobState::Paused, "pid": front, "front_pid": front })
}

/// The command line of a front that is stopped.
fn command_of(front: i32) -> String {
    let words = proc::arguments(front, MAX_COMMAND);
    words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
}

/// Another front takes the place of one that is gone in less.
const SOON: Duration = Duration::from_millis(300);

/// Asks all jobs at the same time: one that does not answer does not delay the others.
fn ask_all(ranks: bool) -> Vec<(Found, Result<Answer, Silence>)> {
    let found = jobs::directories();
    std::thread::scope(|scope| {
        let ask = |found: Found| {
            scope.spawn(move || {
                // One without a front does not hold up the list.
                let answer = match found.has_heir() && matches!(found.connect(SOON), Err(Silence::NoFront)) {
                    true => Err(Silence::NoFront),
                    false => found.ask(Request::Status { ranks, measure: false }, ANSWER_BOUND),
                };
                (found, answer)
            })
        };
        let threads: Vec<_> = found.into_iter().map(ask).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// The jobs that answer.
pub(crate) fn running() -> Vec<(Found, JobStatus)> {
    let answered = ask_all(false).into_iter().filter_map(|(found, answer)| match answer {
        Ok(Answer::Status(status)) => Some((found, *status)),
        _ => None,
    });
    answered.collect()
}

/// What is known of a job that has not answered; `None` if it is over.
fn unknown(found: &Found, silence: &Silence) -> Option<&'static str> {
    match silence {
        Silence::Paused { .. } => Some("paused"),
        Silence::TimedOut { .. } => Some("does not answer"),
        Silence::NoFront | Silence::Ended => found.is_held().then_some("no front"),
        Silence::Nonsense(_) | Silence::Io(_) => Some("not understood"),
    }
}

fn row((found, answer): &(Found, Result<Answer, Silence>)) -> Option<Row> {
    match answer {
        Ok(Answer::Status(status)) => Some(Row::of(status)),
        Ok(_) => Some(Row::unknown(&found.job, "not understood", "")),
        Err(silence) => {
            let command = match silence {
                Silence::Paused { front } => command_of(*front),
                _ => String::new(),
            };
            unknown(found, silence).map(|state| Row::unknown(&found.job, state, &command))
        }
    }
}

fn in_json((found, answer): &(Found, Result<Answer, Silence>)) -> Option<serde_json::Value> {
    match answer {
        Ok(Answer::Status(status)) => serde_json::to_value(status).ok(),
        Ok(_) => Some(json!({ "job": found.job, "state": null, "error": "not understood" })),
        Err(Silence::Paused { front }) => Some(paused_in_json(found, *front)),
        Err(silence) => unknown(found, silence).map(|error| json!({ "job": found.job, "state": null, "error": error })),
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<String, Problem> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| Problem::internal(error.to_string()))
}
