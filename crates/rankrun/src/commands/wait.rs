//! `rankrun wait`: the exit code of a job, when it is over.

use std::ffi::OsString;
use std::path::Path;

use rankrun_core::ExitCode;
use rankrun_core::control::{Answer, Request};
use rankrun_core::printable::printable;

use crate::commands::jobs::{self, ANSWER_BOUND, Found, Silence};
use crate::commands::report::Reports;
use crate::message::Problem;

/// Waits for the end of a job. Returns the text for stdout, and the exit code of the job.
pub(crate) fn run(word: &str, env: Vec<(OsString, OsString)>) -> Result<(String, ExitCode), Problem> {
    let waited = jobs::find("wait", word).and_then(|found| wait_for(&found));
    waited.or_else(|problem| {
        let reports = Reports::of_user(env.into_iter());
        let (_, report) = reports.ended(Path::new(word)).map_err(|_| problem)?;
        Ok((over(&report.job.0, report.exit_code, &report.summary), report.exit_code))
    })
}

fn wait_for(found: &Found) -> Result<(String, ExitCode), Problem> {
    let explain = |silence| jobs::explain("wait", found, silence);
    let mut connection = found.connect(ANSWER_BOUND).map_err(explain)?;
    connection.send(&[Request::Wait]).map_err(explain)?;
    loop {
        match connection.receive(None) {
            Ok(Answer::Over { exit_code, summary, .. }) => {
                let code = ExitCode(exit_code);
                return Ok((over(&found.job, code, &summary), code));
            }
            Ok(Answer::Refused { error, hint }) => return Err(jobs::refused("wait for", &found.job, &error, hint)),
            Ok(other) => return Err(jobs::unexpected(&found.job, &other)),
            // Whoever waits goes on when it does.
            Err(Silence::Paused { .. } | Silence::TimedOut { .. }) => {}
            Err(silence) => return Err(explain(silence)),
        }
    }
}

fn over(job: &str, code: ExitCode, summary: &str) -> String {
    format!("job {job}: over, exit code {}: {}\n", code.0, printable(summary))
}
