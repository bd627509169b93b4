//! The commands that the front runs for itself, and their hosts.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rankrun_agent::tidy;
use rankrun_core::job::{NodeCommand, RestartSpec};
use rankrun_core::report::Report;
use rankrun_core::restart::{Answer, AnswerError, Decision, OnFailure};
use rankrun_core::{JobId, NodeId};
use rankrun_sys::poll::Waker;

use super::policy::{Asked, OwnCommand};
use super::run::{Command, CommandError, Hold, Known, Output, Pending};
use crate::starter::Starter;

/// How long the scheduler may take.
pub(crate) const REQUEUE_BOUND: Duration = Duration::from_secs(20);

/// The scheduler's command, which has been asked to run the job again.
pub(crate) struct Requeue {
    asked: Pending<Result<Output, CommandError>>,
    id: String,
}

/// The hosts of commands that were started, and `--on-failure` while it is being asked.
#[derive(Default)]
pub(crate) struct Commands {
    hosts: Vec<Known>,
    asked: Option<Asked>,
    /// The commands about nodes that run.
    of_nodes: Vec<OfNode>,
}

/// A command about a node that was lost.
struct OfNode {
    node: NodeId,
    what: NodeCommand,
    asked: Pending<Result<Output, CommandError>>,
}

/// How long a command about a node may take.
const NODE_BOUND: Duration = Duration::from_secs(300);

impl Commands {
    fn start(&mut self, starter: &mut Starter, job: &JobId, words: &[OsString]) -> io::Result<(Hold, Command)> {
        let (hold, command) = Command::start(starter, job, words)?;
        self.hosts.retain(|host| !host.has_proved());
        self.hosts.push(hold.host.clone());
        Ok((hold, command))
    }

    /// Asks `--on-failure` about an end, if there is one; `own` is what happens without it.
    pub(crate) fn ask(
        &mut self,
        starter: &mut Starter,
        waker: &Waker,
        (job, restart): (&JobId, &RestartSpec),
        report: Arc<Report>,
        own: Decision,
    ) -> io::Result<()> {
        let Some(wanted) = &restart.on_failure else { return Ok(()) };
        let (hold, command) = self.start(starter, job, &wanted.command)?;
        let mut policy = OwnCommand { command, timeout: wanted.timeout };
        self.asked = Some(Pending::new(hold, waker.clone(), move || policy.decide(&report, &own))?);
        Ok(())
    }

    /// What `--on-failure` has answered. If that is not awaited any more, the command is ended.
    pub(crate) fn answer(&mut self, is_awaited: bool) -> Option<Result<Answer, AnswerError>> {
        let answer = self.asked.as_ref().filter(|_| is_awaited).and_then(Asked::result);
        if answer.is_some() || !is_awaited {
            self.asked = None;
        }
        answer
    }

    /// Runs a command about a node that was lost.
    pub(crate) fn run_for(
        &mut self,
        starter: &mut Starter,
        waker: &Waker,
        job: &JobId,
        words: &[OsString],
        (node, what): (NodeId, NodeCommand),
    ) -> io::Result<()> {
        let (hold, mut command) = self.start(starter, job, words)?;
        let asked = Pending::new(hold, waker.clone(), move || command.converse(b"", NODE_BOUND))?;
        self.of_nodes.push(OfNode { node, what, asked });
        Ok(())
    }

    /// What a command about a node has answered. Nobody awaits it once the job is over: then it is ended.
    pub(crate) fn next_of_node(&mut self) -> Option<(NodeId, NodeCommand, Result<String, String>)> {
        let (at, result) = self.of_nodes.iter().enumerate().find_map(|(at, it)| Some((at, it.asked.result()?)))?;
        let OfNode { node, what, .. } = self.of_nodes.swap_remove(at);
        let answer = match result {
            Ok(Output { text, status }) if status.success() => Ok(text),
            Ok(Output { status, .. }) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        };
        Some((node, what, answer))
    }

    /// No answer is awaited any more.
    pub(crate) fn end_of_nodes(&mut self) {
        self.of_nodes.clear();
    }

    /// Asks the scheduler to run the job again.
    ///
    /// # Errors
    ///
    /// Why it cannot be asked, as the user reads it.
    pub(crate) fn requeue(
        &mut self,
        starter: &mut Starter,
        waker: &Waker,
        job: &JobId,
        environment: &[(OsString, OsString)],
    ) -> Result<Requeue, String> {
        let Some((_, number)) = environment.iter().find(|(name, _)| name == "SLURM_JOB_ID") else {
            return Err("--on-giveup requeue: there is no scheduler: SLURM_JOB_ID is not set".to_owned());
        };
        let id = number.to_string_lossy().into_owned();
        let words = ["scontrol".into(), "requeue".into(), number.clone()];
        let asked = self.start(starter, job, &words).and_then(|(hold, mut command)| {
            Pending::new(hold, waker.clone(), move || command.converse(b"", REQUEUE_BOUND))
        });
        match asked {
            Ok(asked) => Ok(Requeue { asked, id }),
            Err(error) => Err(refused(&id, &rankrun_sys::reason(&error))),
        }
    }

    /// The processes of the hosts.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.hosts.iter().filter_map(Known::pid)
    }

    /// Whether nothing is left of the commands. Their hosts have proved it, unless somebody has killed one: its orphans are ours then, and
    /// are ended.
    pub(crate) fn prove(&self, known: &tidy::Known<'_>) -> bool {
        if self.hosts.iter().any(Known::is_lost) {
            return tidy::end_children(known) && self.hosts.iter().all(|host| host.has_proved() || host.is_lost());
        }
        self.hosts.iter().all(Known::has_proved)
    }
}

impl Requeue {
    /// What the scheduler has said, as the user reads it; `None`: nothing yet.
    pub(crate) fn text(&self, is_awaited: bool) -> Option<String> {
        let Requeue { asked, id } = self;
        Some(match asked.result().or((!is_awaited).then_some(Err(CommandError::Unwanted)))? {
            Ok(Output { status, .. }) if status.success() => format!("Slurm runs job {id} again (scontrol requeue)"),
            Ok(Output { status, .. }) => refused(id, &format!("scontrol requeue: {status}")),
            Err(error) => refused(id, &error.to_string()),
        })
    }
}

fn refused(id: &str, why: &str) -> String {
    format!("Slurm does not run job {id} again: {why}")
}
