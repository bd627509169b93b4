//! The commands that the front runs for itself, and their hosts.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rankrun_agent::tidy;
use rankrun_core::job::{NodeCommand, RestartSpec};
use rankrun_core::report::Report;
use rankrun_core::restart::{Answer, AnswerError, Decision, OnFailure};
use rankrun_core::{JobId, NodeId, WorkerStatus};
use rankrun_sys::poll::Waker;

use super::policy::{Asked, OwnCommand};
use super::run::{Command, CommandError, Hold, Known, Output, Pending};
use crate::starter::Starter;

/// How long a command of the scheduler may take.
pub(crate) const SCHEDULER_BOUND: Duration = Duration::from_secs(20);

/// The hosts of commands that were started, and `--on-failure` while it is being asked.
#[derive(Default)]
pub(crate) struct Commands {
    hosts: Vec<Known>,
    asked: Option<Asked>,
    /// The commands about nodes that run.
    of_nodes: Vec<OfNode>,
    /// The command of `--preempt-notice`, while it runs.
    notice: Option<Pending<Result<Output, CommandError>>>,
}

/// A command about a node that was lost.
struct OfNode {
    node: NodeId,
    what: NodeCommand,
    asked: Pending<Result<Output, CommandError>>,
}

/// Longer than any job: the command is ended with its job.
const NOTICE_BOUND: Duration = Duration::from_secs(100 * 365 * 86_400);
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

    /// Runs the command of `--preempt-notice`, which may take as long as the job.
    pub(crate) fn await_notice(
        &mut self,
        starter: &mut Starter,
        waker: &Waker,
        job: &JobId,
        words: &[OsString],
    ) -> io::Result<()> {
        let (hold, mut command) = self.start(starter, job, words)?;
        self.notice = Some(Pending::new(hold, waker.clone(), move || command.converse(b"", NOTICE_BOUND))?);
        Ok(())
    }

    /// How the command of `--preempt-notice` has ended.
    pub(crate) fn notice(&mut self) -> Option<Result<WorkerStatus, String>> {
        let result = self.notice.as_ref()?.result()?;
        self.notice = None;
        Some(result.map(|output| output.status).map_err(|error| error.to_string()))
    }

    /// No answer of these is awaited any more.
    pub(crate) fn end_others(&mut self) {
        self.of_nodes.clear();
        self.notice = None;
    }

    /// Runs a command of the scheduler.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub(crate) fn ask_scheduler(
        &mut self,
        starter: &mut Starter,
        waker: &Waker,
        job: &JobId,
        words: &[OsString],
    ) -> io::Result<Pending<Result<Output, CommandError>>> {
        let (hold, mut command) = self.start(starter, job, words)?;
        Pending::new(hold, waker.clone(), move || command.converse(b"", SCHEDULER_BOUND))
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
