//! `rankrun logs`: the output that is kept of a job.

use std::ffi::OsString;

use rankrun_core::ExitCode;

use crate::commands::attach::{self, Job};
use crate::commands::viewer::{From, Shown};
use crate::invocation::Watched;
use crate::message::Problem;

/// Prints the output of a job; with `follows` also what it writes from now on.
pub(crate) fn run(watched: &Watched, follows: bool, env: Vec<(OsString, OsString)>) -> Result<ExitCode, Problem> {
    let shown = Shown { from: From::Start, ranks: watched.ranks.clone(), lines: watched.lines() };
    match Job::find("logs", &watched.job, &env)? {
        Job::Running { found, connection, transcript, .. } if follows => {
            attach::follow(found, connection, &transcript, shown, env)?;
        }
        Job::Running { found, from: 0, is_detached: false, .. } => {
            let job = found.job;
            return Err(Problem::usage(format!("job {job} has its output on its terminal: none is kept"))
                .hint(format!("\"rankrun attach {job}\" shows it from now on; --log-dir keeps all of it"))
                .code(ExitCode::FAILURE));
        }
        Job::Running { transcript, .. } | Job::Lost { transcript, .. } => attach::print(&transcript, shown, env)?,
        Job::Ended { job, transcript, output, .. } => {
            attach::print(&transcript, shown, env)?;
            attach::say_if_lost(&job, output);
        }
    }
    Ok(ExitCode::SUCCESS)
}
