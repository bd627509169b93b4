//! The report of a job that is refused before it is planned, if the user has named a place for it.

use rankrun_front::Refusal;

use crate::message::{self, Problem};
use crate::plan::Surroundings;
use crate::settings::Settings;

/// Saves the report. On failure prints a line; the exit code is that of the problem.
pub(crate) fn save(settings: &Settings, around: &Surroundings, problem: &Problem) {
    let Some(directory) = settings.report_dir.as_ref().filter(|_| !settings.dry_run) else { return };
    let command = settings.apps.first().map(|app| app.command.as_slice()).unwrap_or_default();
    let refusal = Refusal {
        job: around.job.clone(),
        world_size: 0,
        command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        text: problem.text.clone(),
        code: problem.code,
    };
    if let Err(text) = refusal.save(&around.cwd.join(directory)) {
        message::warn(&text);
    }
}
