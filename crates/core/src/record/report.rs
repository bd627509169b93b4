//! The report of a job, saved as JSON (docs/report.md). [`text`](crate::text) makes the lines that a person reads.

use serde::{Deserialize, Serialize};

use crate::alone::Alone;
use crate::core_dump::CoreDump;
use crate::evidence::{Class, Evidence, LeftOut};
use crate::exit::ExitCode;
use crate::hookless::Hookless;
use crate::ids::{GroupId, JobId, Pid, Rank};
use crate::stacks::fold::Table;
use crate::standing::Standing;
use crate::status::WorkerStatus;
use crate::testimony::{Exception, StuckIn};
use crate::verdict::{Fate, Window};

/// The version of the schema. It changes when a reader of the old one would misunderstand the new one.
pub const SCHEMA: u32 = 1;

/// Everything about a job. Times are seconds since its start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    /// The version of rankrun.
    pub release: String,
    pub job: JobId,
    /// The first line of the text, without colour.
    pub summary: String,
    pub exit_code: ExitCode,
    pub class: Option<Class>,
    pub culprit: Option<Culprit>,
    /// When the job started, in seconds since the Unix epoch.
    pub started: f64,
    pub seconds: f64,
    /// The attempt that the rest is about, from 0.
    #[serde(default)]
    pub attempt: u32,
    /// Those before it, in order.
    #[serde(default)]
    pub attempts: Vec<AttemptReport>,
    /// Why no other attempt followed, if one was allowed.
    #[serde(default)]
    pub given_up: Option<String>,
    pub world_size: u32,
    pub command: Vec<String>,
    pub ranks: Vec<RankReport>,
    /// The groups that ranks have asked for (`MPI_Comm_spawn`). Their ranks are among `ranks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupReport>,
    pub evidence: Vec<Evidence>,
    /// What the lists above leave out to stay short.
    #[serde(default)]
    pub left_out: LeftOut,
    /// How the workers were contained, and why not in cgroups.
    pub containment: String,
    pub containment_note: Option<String>,
    pub left: Left,
    /// The state of the ranks when the job was ended from outside.
    #[serde(default)]
    pub standings: Vec<Standing>,
    /// In which calls they were then, if they were looked into.
    #[serde(default)]
    pub stacks: Option<Table>,
    /// Ranks whose Python had no hook, where that may hide the cause.
    #[serde(default)]
    pub hookless: Vec<Hookless>,
    /// Ranks that ran MPI without being connected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alone: Vec<Alone>,
    /// What can be done about the failure, a line each.
    #[serde(default)]
    pub next: Vec<String>,
}

/// An attempt that failed, and was followed by another.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttemptReport {
    /// From 0.
    pub attempt: u32,
    /// The first line of its own report.
    pub summary: String,
    pub exit_code: ExitCode,
    pub class: Option<Class>,
    /// The rank that failed first.
    pub rank: Option<Rank>,
    /// When it began, and how long it took.
    pub began: f64,
    pub seconds: f64,
    /// Where its own report is.
    pub report: Option<String>,
}

/// The rank that failed first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Culprit {
    pub rank: Rank,
    pub node: String,
    pub pid: Option<Pid>,
    /// In the program's own words, if there are any.
    pub cause: String,
    pub command: Vec<String>,
    pub at: f64,
    pub exception: Option<Exception>,
    pub stuck_in: Option<StuckIn>,
    /// How long it was stuck before it was ended, in seconds.
    pub stuck_for: Option<f64>,
    /// The last lines that it wrote to stderr.
    pub stderr: Vec<String>,
    /// The lines around the cause, where they are known.
    #[serde(default)]
    pub window: Option<Window>,
    /// The core, if the kernel dumped one.
    #[serde(default)]
    pub core: Option<CoreDump>,
    /// Ranks on other nodes that may have failed before it: their clocks do not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order_uncertain: Vec<Rank>,
}

/// A group that a rank has asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupReport {
    pub group: GroupId,
    /// Who has asked for it.
    pub by: Rank,
    pub world_size: u32,
    /// The command of its first rank.
    pub command: Vec<String>,
}

/// One rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: Rank,
    pub node: String,
    /// The CPUs that it was bound to, as the kernel writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    pub pid: Option<Pid>,
    pub fate: Fate,
    pub status: Option<WorkerStatus>,
    pub started_at: Option<f64>,
    pub ended_at: Option<f64>,
    /// How it ended, if its fate does not say that, such as `exited 1 on SIGTERM`.
    #[serde(default)]
    pub how: Option<String>,
    /// Why it failed, if it did.
    #[serde(default)]
    pub cause: Option<String>,
}

/// What was left of the job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Left {
    /// Whether it is proved that nothing else is left.
    pub proven: bool,
    /// The nodes on which it is not: they cannot be reached, or do not answer.
    #[serde(default)]
    pub unproven: Vec<String>,
    /// Workers that had been started.
    pub workers: u32,
    pub processes: Vec<LeftProcess>,
    /// Processes that were released (`--descendants leave`).
    pub released: u32,
    pub shared_memory: Vec<String>,
    pub shared_memory_removed: bool,
    /// Files that the job may have created, and that were not removed.
    #[serde(default)]
    pub shared_memory_doubtful: Vec<String>,
    /// How many more of the first list there are, on nodes that have too many to name.
    #[serde(default)]
    pub shared_memory_more: u64,
    /// How many more of the second.
    #[serde(default)]
    pub shared_memory_doubtful_more: u64,
    /// The nodes on which nobody has looked through /dev/shm after the job: files of the job may be there.
    #[serde(default)]
    pub shared_memory_unchecked: Vec<String>,
    pub output: OutputFate,
}

impl Left {
    /// The exit code of a job that has come to `code`, and to this class if it failed: 123 where something is left, or may be. Else 125 where
    /// no rank has failed and output is lost: who reads the rest must not take it for the whole.
    ///
    /// A node that cannot be reached is lost, and the loss has a code of its own. One that was lost before, and without which the job has
    /// gone on (`only_lost_before`), is no failure: that is what `--nnodes MIN:MAX` asks for. The report names it in both cases.
    pub fn exit_code(&self, code: ExitCode, class: Option<Class>, only_lost_before: bool) -> ExitCode {
        let is_told = class == Some(Class::NodeLost) || only_lost_before;
        match self.processes.is_empty() && (self.proven || is_told) {
            true if code == ExitCode::SUCCESS && self.output == OutputFate::Lost => ExitCode::INTERNAL,
            true => code,
            false => ExitCode::LEFT_BEHIND,
        }
    }

    /// Where processes may be left, if it is not proved that there are none. `beside` is said where no node is named.
    pub fn doubt(&self, beside: &str) -> Option<String> {
        (!self.proven).then(|| match self.unproven.is_empty() {
            true => format!("not proven: processes of the job may be alive{beside}"),
            false => format!("not proven on {}: processes of the job may be alive there", self.unproven.join(", ")),
        })
    }
}

/// A process that could not be killed (K-5).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftProcess {
    pub pid: Pid,
    pub name: String,
    /// As proc(5) has it.
    pub state: char,
    /// The kernel function in which it waits.
    pub wait_channel: Option<String>,
}

/// The state of the ranks' output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFate {
    #[default]
    Written,
    /// Some could not be written, and is kept beside the report.
    KeptBesideReport,
    /// Some could be written nowhere.
    Lost,
    /// The agent was lost with unsent output.
    LostWithAgent,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unproven_on(nodes: &[&str]) -> Left {
        Left { unproven: nodes.iter().map(|&node| node.to_owned()).collect(), ..Left::default() }
    }

    #[test]
    fn lost_output_turns_success_into_failure_and_a_node_that_was_lost_before_does_not() {
        let proven = Left { proven: true, ..Left::default() };
        let process = LeftProcess { pid: Pid(7), name: "python".to_owned(), state: 'D', wait_channel: None };
        let stuck = |left: Left| Left { processes: vec![process.clone()], ..left };
        let without_output = Left { output: OutputFate::Lost, ..proven.clone() };
        let kept = Left { output: OutputFate::KeptBesideReport, ..proven.clone() };
        let (well, lost, behind) = (ExitCode::SUCCESS, ExitCode::NODE_LOST, ExitCode::LEFT_BEHIND);
        for (left, code, class, only_lost_before, expected) in [
            (proven.clone(), well, None, false, well),
            (without_output.clone(), well, None, false, ExitCode::INTERNAL),
            (without_output, ExitCode(3), Some(Class::ExitCode), false, ExitCode(3)),
            (kept, well, None, false, well),
            (unproven_on(&["q4"]), well, None, true, well),
            (unproven_on(&["q4"]), ExitCode(3), Some(Class::ExitCode), true, ExitCode(3)),
            (unproven_on(&["q4"]), lost, Some(Class::NodeLost), false, lost),
            // Of a node of the last attempt, or of commands, nobody has said so yet.
            (unproven_on(&["q4"]), well, None, false, behind),
            (unproven_on(&[]), well, None, false, behind),
            (unproven_on(&["q4"]), ExitCode(3), Some(Class::ExitCode), false, behind),
            (stuck(proven), well, None, false, behind),
            (stuck(unproven_on(&["q4"])), well, None, true, behind),
            (stuck(unproven_on(&["q4"])), lost, Some(Class::NodeLost), false, behind),
        ] {
            assert_eq!(left.exit_code(code, class, only_lost_before), expected, "{left:?}");
        }
    }

    #[test]
    fn nodes_without_proof_are_named() {
        let proven = Left { proven: true, ..Left::default() };
        assert_eq!(proven.doubt(""), None);
        let doubt = unproven_on(&["q4", "q5"]).doubt(" (cgroup)");
        assert_eq!(doubt.as_deref(), Some("not proven on q4, q5: processes of the job may be alive there"));
        let doubt = unproven_on(&[]).doubt(" (cgroup)");
        assert_eq!(doubt.as_deref(), Some("not proven: processes of the job may be alive (cgroup)"));
    }
}
