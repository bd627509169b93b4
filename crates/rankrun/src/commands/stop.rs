//! `rankrun stop`: ends a job as SIGTERM to its front does, and waits until it is over.

use std::fmt::Write as _;
use std::time::Duration;

use rankrun_core::ExitCode;
use rankrun_core::control::{Answer, Request};
use rankrun_core::printable::printable;
use rankrun_core::report::Left;

use crate::commands::clean::{count, wait_for_any};
use crate::commands::jobs::{self, ANSWER_BOUND, Silence};
use crate::message::Problem;

/// How long the front may take to exit after it has said that the job is over.
const EXIT_BOUND: Duration = Duration::from_secs(2);

/// Stops a job. Returns the text for stdout.
pub(crate) fn run(word: &str, grace: Option<Duration>, wait: bool) -> Result<(String, ExitCode), Problem> {
    let found = jobs::find("stop", word)?;
    let explain = |silence| jobs::explain("stop", &found, silence);
    let mut connection = found.connect(ANSWER_BOUND).map_err(explain)?;
    let front = connection.hold_front();
    let stop = Request::Stop { grace: grace.map(|grace| grace.as_secs_f64()) };
    // Both at once: the job cannot end between them unnoticed.
    let requests = [stop, Request::Wait];
    connection.send(if wait { &requests } else { &requests[..1] }).map_err(explain)?;
    let job = &found.job;
    let text = match connection.receive(Some(ANSWER_BOUND)).map_err(explain)? {
        Answer::Stopping { ranks: 0, .. } => format!("job {job}: its ranks have ended\n"),
        Answer::Stopping { ranks, grace, already } => {
            let was = if already { "is being stopped already" } else { "stopping" };
            let ranks = count(ranks as usize, "rank", "ranks");
            format!("job {job}: {was}, {ranks}; SIGKILL in {} at the latest\n", seconds(grace))
        }
        Answer::Refused { error, hint } => return Err(jobs::refused("stop", job, &error, hint)),
        other => return Err(jobs::unexpected(job, &other)),
    };
    if !wait {
        return Ok((text, ExitCode::SUCCESS));
    }
    let over = match connection.receive(None) {
        // The front was killed, and another one takes its place.
        Err(Silence::Ended) if found.has_heir() => crate::wait::wait_for(&found),
        over => over,
    };
    match over {
        Ok(Answer::Over { exit_code, summary, left }) => {
            let has_ended = front.is_none_or(|front| wait_for_any(&[front], EXIT_BOUND).contains(&true));
            let is_empty = left.as_ref().is_some_and(|left| left.proven && left.processes.is_empty());
            let left = left.as_ref().map_or_else(|| "what is left is unknown".to_owned(), describe);
            let summary = printable(&summary).into_owned();
            let mut text = format!("{text}job {job}: over, exit code {exit_code}: {summary}; {left}\n");
            if !has_ended {
                // Writing into a string does not fail.
                let _ = writeln!(text, "job {job}: its front is still there");
            }
            Ok((text, if is_empty { ExitCode::SUCCESS } else { ExitCode::LEFT_BEHIND }))
        }
        Ok(Answer::Refused { error, hint }) => Err(jobs::refused("wait for", job, &error, hint)),
        Ok(other) => Err(jobs::unexpected(job, &other)),
        Err(Silence::Ended) => {
            Err(Problem::internal(format!("the front of job {job} was killed while it ended the job"))
                .hint("its agent and its guard end what is left; \"rankrun status\" says when they are gone"))
        }
        Err(silence) => Err(explain(silence)),
    }
}

fn describe(left: &Left) -> String {
    if !left.processes.is_empty() {
        let names: Vec<String> =
            left.processes.iter().map(|process| format!("{} ({})", process.pid, printable(&process.name))).collect();
        return format!("could not kill {}", names.join(", "));
    }
    match (left.doubt(""), left.released) {
        (Some(doubt), _) => printable(&doubt).into_owned(),
        (None, 0) => "left nothing".to_owned(),
        (None, released) => format!("left {} (--descendants leave)", count(released as usize, "process", "processes")),
    }
}

fn seconds(time: f64) -> String {
    format!("{} s", (time * 10.0).round() / 10.0)
}
