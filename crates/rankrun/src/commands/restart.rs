//! `rankrun restart`: a planned restart, which costs nothing of what `--restart` allows.

use rankrun_core::control::{Answer, Request};

use crate::commands::jobs::{self, ANSWER_BOUND};
use crate::message::Problem;

/// Restarts a job. Returns the text for stdout.
pub(crate) fn run(word: &str, wait: bool) -> Result<String, Problem> {
    let found = jobs::find("restart", word)?;
    let explain = |silence| jobs::explain("restart", &found, silence);
    let mut connection = found.connect(ANSWER_BOUND).map_err(explain)?;
    connection.send(&[Request::Restart { wait }]).map_err(explain)?;
    let job = &found.job;
    let attempt =
        match connection.receive(Some(ANSWER_BOUND)).map_err(|silence| jobs::explain("restart", &found, silence))? {
            Answer::Restarting { attempt, .. } => attempt,
            Answer::Refused { error, hint } => return Err(jobs::refused("restart", job, &error, hint)),
            other => return Err(jobs::unexpected(job, &other)),
        };
    if !wait {
        return Ok(format!("job {job}: restarting, attempt {attempt}\n"));
    }
    match connection.receive(None).map_err(explain)? {
        Answer::Restarting { attempt, is_up: true } => Ok(format!("job {job}: attempt {attempt} runs\n")),
        Answer::Refused { error, hint } => Err(jobs::refused("restart", job, &error, hint)),
        other => Err(jobs::unexpected(job, &other)),
    }
}
