//! `rankrun logs`: the output that is kept of a job.

use std::ffi::OsString;
use std::path::Path;

use rankrun_core::ExitCode;
use rankrun_core::control::{Answer, Request};

use crate::commands::attach::{self, Job};
use crate::commands::jobs::{self, ANSWER_BOUND, Found};
use crate::commands::report::Reports;
use crate::commands::viewer::{From, Shown};
use crate::invocation::Watched;
use crate::message::Problem;

/// Prints the output of a job; with `follows` also what it writes from now on.
pub(crate) fn run(watched: &Watched, follows: bool, env: Vec<(OsString, OsString)>) -> Result<ExitCode, Problem> {
    let shown = Shown { from: From::Start, ranks: watched.ranks.clone(), lines: watched.lines() };
    if let Some(found) = (!follows).then(|| in_foreground(&watched.job)).flatten() {
        // To ask where its output is would begin a new transcript.
        let Some((_, directory)) = Reports::of_user(env.iter().cloned()).without_report(Path::new(&found.job)) else {
            return Err(none_is_kept(&found.job));
        };
        attach::print(&directory.join(rankrun_front::TRANSCRIPT), shown, env)?;
        return Ok(ExitCode::SUCCESS);
    }
    match Job::find("logs", &watched.job, &env)? {
        Job::Running { found, connection, transcript, .. } if follows => {
            attach::follow(found, connection, &transcript, shown, env)?;
        }
        Job::Running { found, from: 0, is_detached: false, .. } => {
            return Err(none_is_kept(&found.job));
        }
        Job::Running { transcript, .. } | Job::Lost { transcript, .. } => attach::print(&transcript, shown, env)?,
        Job::Ended { job, transcript, output, .. } => {
            attach::print(&transcript, shown, env)?;
            attach::say_if_lost(&job, output);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A running job that has not left its terminal.
fn in_foreground(word: &str) -> Option<Found> {
    let found = jobs::find("logs", word).ok()?;
    let answer = found.ask(Request::Status { ranks: false, measure: false }, ANSWER_BOUND).ok()?;
    matches!(answer, Answer::Status(status) if !status.detached).then_some(found)
}

fn none_is_kept(job: &str) -> Problem {
    Problem::usage(format!("job {job} has its output on its terminal: none is kept"))
        .hint(format!("\"rankrun attach {job}\" shows it from now on; --log-dir keeps all of it"))
        .code(ExitCode::FAILURE)
}
