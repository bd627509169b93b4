//! One job: the process that the user started. It starts guard and agent, runs the gang's state machine, writes the
//! output and the report, and returns the exit code.

mod delivery;
mod job;
mod link;
mod logs;
mod nodes;
mod terminal;

use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::foreign_codes::Codes;
use rankrun_core::{ExitCode, JobSpec};

pub use job::{JournalError, Refusal, Replayed, replay};
pub use logs::{Logs, MatchedLines, Places, StreamFiles};

/// The job to run, with all settings resolved.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The job. Its ignored signals are filled in here.
    pub spec: JobSpec,
    pub output: rankrun_output::Config,
    /// Where a file per rank and stream goes.
    pub logs: Option<Logs>,
    pub report: ReportPlace,
    /// Where the events of the job are written.
    pub journal: Option<PathBuf>,
    /// Where torchrun would write the cause (`TORCHELASTIC_ERROR_FILE`).
    pub error_file: Option<PathBuf>,
    pub timeout: Option<Duration>,
    pub keep_going: bool,
    /// The settings of the agent of this node.
    pub node: rankrun_agent::Options,
    /// Whether the job ends when our parent does.
    pub die_with_parent: bool,
    /// Whether a rank that lives on after a traceback on stderr is ended (or only noted).
    pub end_suspects: bool,
    /// How long we wait for a blocked destination after the end.
    pub drain: Duration,
    /// -1 is quiet, 0 is the default, 1 and more print progress.
    pub verbosity: i8,
    /// Whether our own messages are coloured.
    pub color: bool,
    /// Whose exit codes the job has; `None` is ours.
    pub codes: Option<Codes>,
}

/// Where the report goes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportPlace {
    /// The directory of `report.json`; `None` where the user has no home.
    pub directory: Option<PathBuf>,
    /// The user has named it: the report is then written also if the job succeeds.
    pub is_asked_for: bool,
    /// The user's home, which is written `~`. A directory below it is made only if the home exists.
    pub home: Option<PathBuf>,
    /// How many reports are kept in the default place.
    pub keep: u32,
}

/// Runs the job to its end. The calling process must have one thread.
///
/// If a signal asked rankrun to end, this ends the process by that signal, so that a shell loop stops too.
pub fn run(plan: Plan) -> ExitCode {
    let outcome = job::run(plan);
    if let Some(signal) = outcome.raise {
        rankrun_sys::signal::die_of(signal);
    }
    outcome.code
}
