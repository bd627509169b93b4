//! The report of a job that was refused before its first rank.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_core::report::Report;
use rankrun_core::saved;
use rankrun_core::{ExitCode, JobId, Rank};

use crate::Plan;
use crate::delivery::report::{REPORT, SAVE_BOUND, cannot_write};
use crate::delivery::{Directory, Done, Task, perform};

/// A job that was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub job: JobId,
    /// The number of ranks; 0 if it is not known.
    pub world_size: u32,
    pub command: Vec<String>,
    /// Why.
    pub text: String,
    pub code: ExitCode,
}

impl Refusal {
    /// If the job was planned, and the user has named a place for its report.
    pub(crate) fn of(plan: &Plan) -> Option<(PathBuf, Refusal)> {
        let directory = plan.report.directory.clone().filter(|_| plan.report.is_asked_for)?;
        let words = plan.spec.command(Rank(0));
        let refusal = Refusal {
            job: plan.spec.job.clone(),
            world_size: plan.spec.map.world_size(),
            command: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            text: String::new(),
            code: ExitCode::INTERNAL,
        };
        Some((directory, refusal))
    }

    /// Writes the report in this directory. On failure returns the message.
    pub fn save(&self, directory: &Path) -> Result<(), String> {
        let path = directory.join(REPORT);
        let json = saved::to_json(&self.report()).map_err(|error| cannot_write(&path, &error.to_string()))?;
        let result = self.write(directory, &path, json);
        result.map_err(|error| cannot_write(&path, &rankrun_sys::reason(&error)))
    }

    fn write(&self, directory: &Path, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        let directory = Directory { path: directory.to_owned(), below: None, is_chosen: true };
        let own = Task::Forget { directory: directory.path.clone(), own: self.job.clone() };
        let save = Task::Save { directory: Some(directory), path: path.to_owned(), bytes };
        let done = perform(&self.job, vec![save, own], SAVE_BOUND)?;
        let saved =
            |done| if let Done::Saved { result, .. } = done { Some(result.map_err(io::Error::other)) } else { None };
        done.into_iter().find_map(saved).unwrap_or(Ok(()))
    }

    fn report(&self) -> Report {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Report {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            world_size: self.world_size,
            started: now.as_secs_f64(),
            ..Report::of_refusal(self.job.clone(), self.command.clone(), self.text.clone(), self.code)
        }
    }
}
