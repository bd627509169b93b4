//! The report of a job that was refused before its first rank.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_core::evidence::{Class, LeftOut};
use rankrun_core::report::{Left, Report, SCHEMA};
use rankrun_core::{ExitCode, JobId, Rank};

use crate::Plan;
use crate::delivery::{forget, save};
use crate::job::ending::{REPORT, SAVE_BOUND, cannot_write};
use crate::job::report;

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
        let json = report::to_json(&self.report()).map_err(|error| cannot_write(&path, &error.to_string()))?;
        let (answer, answers) = sync_channel(1);
        let (directory, file, own) = (directory.to_owned(), path.clone(), self.job.clone());
        // The file system may never answer.
        let write = move || {
            let result = std::fs::create_dir_all(&directory).and_then(|()| save(&file, &json));
            forget(&directory, &own);
            // The receiver is gone if it took too long.
            let _ = answer.send(result);
        };
        let thread = std::thread::Builder::new().name("report".to_owned()).spawn(write);
        let result = thread.and_then(|_| {
            answers.recv_timeout(SAVE_BOUND).map_err(|_| {
                io::Error::other(format!("no answer from its file system for {} s", SAVE_BOUND.as_secs_f64()))
            })?
        });
        result.map_err(|error| cannot_write(&path, &rankrun_sys::reason(&error)))
    }

    fn report(&self) -> Report {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Report {
            schema: SCHEMA,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            job: self.job.clone(),
            summary: self.text.clone(),
            exit_code: self.code,
            class: Some(Class::Refused),
            culprit: None,
            started: now.as_secs_f64(),
            seconds: 0.0,
            attempt: 0,
            attempts: Vec::new(),
            given_up: None,
            world_size: self.world_size,
            command: self.command.clone(),
            ranks: Vec::new(),
            evidence: Vec::new(),
            left_out: LeftOut::default(),
            containment: "unknown".to_owned(),
            containment_note: None,
            left: Left { proven: true, shared_memory_removed: true, ..Left::default() },
            standings: Vec::new(),
            stacks: None,
            hookless: Vec::new(),
            next: Vec::new(),
        }
    }
}
