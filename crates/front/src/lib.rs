//! One job: the process that the user started. It starts guard and agent, runs the gang's state machine, writes the
//! output and the report, and returns the exit code.

mod delivery;
mod job;
mod link;
mod nodes;
mod terminal;

use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::{ExitCode, JobSpec};

pub use job::{JournalError, Refusal, Replayed, replay};

/// What is to be run, with everything resolved.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The job. Its ignored signals are filled in here.
    pub spec: JobSpec,
    pub output: rankrun_output::Config,
    /// Where a file per rank and stream goes.
    pub log_dir: Option<rankrun_output::LogDirs>,
    pub report: ReportPlace,
    /// Where the events of the job are written.
    pub journal: Option<PathBuf>,
    /// Where torchrun would leave the cause (`TORCHELASTIC_ERROR_FILE`).
    pub error_file: Option<PathBuf>,
    pub timeout: Option<Duration>,
    pub keep_going: bool,
    /// How the agent of this node is to be.
    pub node: rankrun_agent::Options,
    /// Whether the job ends when our parent does.
    pub die_with_parent: bool,
    /// Whether a rank whose stderr ends with a traceback, and that lives on, is ended (or only named).
    pub end_suspects: bool,
    /// How long a blocked destination may hold us up after the end.
    pub drain: Duration,
    /// -1 is quiet, 0 as usual, 1 and more tell what is going on.
    pub verbosity: i8,
    /// Whether our own messages are coloured.
    pub color: bool,
}

/// Where the report goes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportPlace {
    /// The directory of `report.json`; `None` where the user has no home.
    pub directory: Option<PathBuf>,
    /// The user has named it: a report is written there also if the job succeeds.
    pub is_asked_for: bool,
    /// The user's home, which is written `~`. A directory below it is made only if the home exists.
    pub home: Option<PathBuf>,
    /// How many reports stay in the default place.
    pub keep: u32,
}

/// Runs the job to its end. The calling process must have one thread.
///
/// If rankrun was asked to end by a signal, this ends the process by that signal, so that a shell loop stops too.
pub fn run(plan: Plan) -> ExitCode {
    let outcome = job::run(plan);
    if let Some(signal) = outcome.raise {
        rankrun_sys::signal::die_of(signal);
    }
    outcome.code
}
