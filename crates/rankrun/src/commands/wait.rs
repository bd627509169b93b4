//! `rankrun wait`: the exit code of a job, when it is over.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use rankrun_core::ExitCode;
use rankrun_core::control::{Answer, Request};
use rankrun_core::printable::printable;

use crate::commands::jobs::{self, ANSWER_BOUND, Found, Silence};
use crate::commands::report::Reports;
use crate::message::{self, Problem};

/// How often to look whether a job that was paused goes on.
const LOOK: Duration = Duration::from_millis(200);

/// Waits for the end of a job. Returns the text for stdout, and the exit code of the job.
pub(crate) fn run(word: &str, env: Vec<(OsString, OsString)>) -> Result<(String, ExitCode), Problem> {
    let problem = match jobs::find("wait", word) {
        Ok(found) => match wait_for(&found) {
            Ok(Answer::Over { exit_code, summary, .. }) => {
                let code = ExitCode(exit_code);
                return Ok((over(&found.job, code, &summary), code));
            }
            Ok(Answer::Refused { error, hint }) => return Err(jobs::refused("wait for", &found.job, &error, hint)),
            Ok(other) => return Err(jobs::unexpected(&found.job, &other)),
            Err(silence) if silence.is_of_an_end() => jobs::explain("wait", &found, silence),
            Err(silence) => return Err(jobs::explain("wait", &found, silence)),
        },
        Err(problem) => problem,
    };
    let (_, report) = Reports::of_user(env.into_iter()).ended(Path::new(word)).map_err(|_| problem)?;
    Ok((over(&report.job.0, report.exit_code, &report.summary), report.exit_code))
}

/// Waits until a job is over, also where another front takes the place of its first one.
pub(crate) fn wait_for(found: &Found) -> Result<Answer, Silence> {
    let mut is_told = false;
    loop {
        let mut connection = match found.patiently(|found| found.connect(ANSWER_BOUND)) {
            // Whoever waits goes on when it does.
            Err(silence @ (Silence::Paused { .. } | Silence::TimedOut { .. })) => {
                if let Silence::Paused { front } = silence
                    && !std::mem::replace(&mut is_told, true)
                {
                    message::say(&format!("job {} is paused: its rankrun, process {front}, is stopped", found.job));
                }
                rankrun_sys::poll::pause(LOOK);
                continue;
            }
            connection => connection?,
        };
        let answer = connection.send(&[Request::Wait]).and_then(|()| {
            loop {
                match connection.receive(None) {
                    // Whoever waits goes on when it does.
                    Err(Silence::Paused { .. } | Silence::TimedOut { .. }) => rankrun_sys::poll::pause(LOOK),
                    answer => break answer,
                }
            }
        });
        match answer {
            // The front was killed, and another one takes its place.
            Err(Silence::Ended) if found.has_heir() => {}
            answer => return answer,
        }
    }
}

fn over(job: &str, code: ExitCode, summary: &str) -> String {
    format!("job {job}: over, exit code {}: {}\n", code.0, printable(summary))
}
