//! One job: the process that the user started. It starts guard and agent, runs the gang's state machine, writes the
//! output and the report, and returns the exit code.

mod command;
mod control;
mod delivery;
mod detached;
mod heir;
mod job;
mod join;
mod ledger;
mod link;
mod logs;
mod nodes;
mod outcome;
mod parent;
mod starter;
mod terminal;
mod token;

use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::foreign_codes::Codes;
use rankrun_core::job::OnFrontLost;
use rankrun_core::planned::PlannedSpec;
use rankrun_core::stacks::stall::StallSpec;
use rankrun_core::{ExitCode, JobId, JobSpec};
use serde::{Deserialize, Serialize};

pub use command::host::run_command_host;
pub use delivery::{TRANSCRIPT, run_storage};
pub use detached::run_successor;
pub use heir::run_heir;
pub use job::prepared::Prepared;
pub use job::refusal::Refusal;
pub use job::replay::{JournalError, Replayed, replay, trace};
pub use job::succession::{DEED, FAILURE};
pub use join::{FrontAddress, Join, LAST_CALL, Part, run_slurm_node};
pub use logs::{Logs, MatchedLines, Places, StreamFiles};
pub use nodes::{Hosts, HostsOrigin, NODE_TIMEOUT, NodeTarget, SshSettings};
pub use rankrun_wire::identity::Secret;

/// The job to run, with all settings resolved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The job. Its ignored signals are filled in here.
    pub spec: JobSpec,
    /// Its nodes, in the order of its rank map.
    pub hosts: Hosts,
    /// How the other nodes join, if they are not reached from here.
    pub join: Option<Join>,
    pub output: rankrun_output::Config,
    /// Where a file per rank and stream goes.
    pub logs: Option<Logs>,
    pub report: ReportPlace,
    /// The job has no terminal: this process ends when all ranks run.
    pub is_detached: bool,
    /// Bytes of the transcript, which is written where somebody attaches to the job, or it leaves its terminal.
    pub transcript_size: u64,
    /// Whether the job goes on without its terminal when that is gone (SIGHUP).
    pub goes_on_after_hangup: bool,
    /// Where the events of the job are written.
    pub journal: Option<PathBuf>,
    /// Where the results of ranks go, for `rankrun.launch`.
    pub results: Option<PathBuf>,
    /// Where torchrun would write the cause (`TORCHELASTIC_ERROR_FILE`).
    pub error_file: Option<PathBuf>,
    pub timeout: Option<Duration>,
    pub keep_going: bool,
    /// Whether ranks that run MPI without being connected end the job.
    pub strict: bool,
    /// The MPI library of each program of the job that is known to call `MPI_Init`, in the order of its apps.
    pub mpi_libraries: Vec<Option<String>>,
    /// The settings of the agent of this node.
    pub node: rankrun_agent::Options,
    /// The parent of this process, if the job ends when that does.
    pub die_with: Option<i32>,
    /// When a job whose ranks do nothing has stalled, and what is done then.
    pub stall: Option<StallSpec>,
    /// Which stops of the job are planned.
    pub planned: PlannedSpec,
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

impl Plan {
    /// How long the ranks go on where the front has ended, if another one can take its place: it then needs no terminal.
    fn outlasts_front(&self) -> Option<Duration> {
        match self.hosts.on_front_lost {
            OnFrontLost::Wait(time) if self.is_detached && self.why_no_successor().is_none() => Some(time),
            OnFrontLost::Wait(_) | OnFrontLost::Kill => None,
        }
    }

    /// What keeps another front from taking the place of that of a detached job.
    fn why_no_successor(&self) -> Option<&'static str> {
        let reasons = [
            (self.logs.is_some(), "it writes log files"),
            (self.journal.is_some(), "it writes a journal"),
            (self.results.is_some(), "it returns results"),
        ];
        reasons.into_iter().find_map(|(is, why)| is.then_some(why))
    }
}

/// Where the report goes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReportPlace {
    /// The directory of `report.json`; `None` where the user has no home.
    pub directory: Option<PathBuf>,
    /// Where it would be if the user had named none: a job that was detached is found there.
    pub usual: Option<PathBuf>,
    /// The user has named it: the report is then written also if the job succeeds.
    pub is_asked_for: bool,
    /// The user's home, which is written `~`. A directory below it is made only if the home exists.
    pub home: Option<PathBuf>,
    /// How many reports are kept in the default place.
    pub keep: u32,
}

/// Takes the place of the front of a job, which is gone: the job goes on in a process of its own, and this returns when that has reached all
/// agents, or the job is over. The calling process must have one thread.
pub fn resume(job: &JobId, color: bool, is_quiet: bool) -> ExitCode {
    detached::run_again(job, color, is_quiet).code
}

/// Runs the job to its end. The calling process must have one thread.
///
/// If a signal asked rankrun to end, this ends the process by that signal, so that a shell loop stops too.
pub fn run(plan: Plan, prepared: Option<Prepared>) -> ExitCode {
    let outcome = match plan.join.as_ref().and_then(|join| join.as_member()) {
        Some(member) => {
            // Node 0 says which job it is.
            drop(prepared);
            join::run(plan, member)
        }
        None if plan.is_detached => detached::run(plan),
        None => job::start::run(plan, prepared, None),
    };
    if let Some(signal) = outcome.raise {
        rankrun_sys::signal::die_of(signal);
    }
    outcome.code
}
