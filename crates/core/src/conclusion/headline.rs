//! The first line of the report: who failed, and why.

use crate::causes::one_line;
use crate::endings::seconds;
use crate::evidence::Class;
use crate::exit::ExitCode;
use crate::gang::{Gang, Outside};
use crate::order::Weight;
use crate::peers::{Loss, loss_in, loss_of};
use crate::report::OutputFate;
use crate::status::signal_name;
use crate::verdict::{Finding, Verdict};

/// Columns of a headline, at most.
pub const WIDTH: usize = 200;

/// What is known of the end besides the verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Circumstances<'a> {
    /// What rankrun exits with.
    pub code: ExitCode,
    pub output: OutputFate,
    /// The node whose agent or guard may have been lost, and why it was.
    pub node: &'a str,
    pub why_lost: Option<&'a str>,
}

/// The headline, on one line of at most [`WIDTH`] columns, as it can be printed.
pub fn headline(verdict: &Verdict, gang: &Gang, circumstances: Circumstances<'_>) -> String {
    let text = match &verdict.culprit {
        Some(culprit) => of_culprit(culprit, gang),
        None => of_job(gang, circumstances),
    };
    one_line(&text, WIDTH)
}

fn of_culprit(culprit: &Finding, gang: &Gang) -> String {
    let Finding { rank, cause, .. } = culprit;
    let is_peer = || match &culprit.exception {
        Some(exception) => loss_of(exception),
        None => loss_in(cause),
    } == Some(Loss::Peer);
    match culprit.class {
        Class::SpawnFailed => format!("rank {rank} could not be started: {cause}"),
        Class::LeftEarly => format!("no rank failed of its own: rank {rank} {cause}"),
        _ if culprit.weight == Weight::Victim && gang.ranks().len() > 1 && is_peer() => {
            format!("no rank failed of its own: rank {rank} was the first to miss a peer: {cause}")
        }
        _ => format!("rank {rank} failed: {cause}"),
    }
}

fn of_job(gang: &Gang, circumstances: Circumstances<'_>) -> String {
    let Circumstances { code, output, node, why_lost } = circumstances;
    match gang.outside() {
        Some(Outside::Signal(signal)) => format!("ended by {}", signal_name(signal)),
        Some(Outside::OutputFailed) => "could not write output for longer than --drain".to_owned(),
        Some(Outside::Timeout) => match gang.rules().timeout {
            Some(timeout) => format!("timed out after {} (--timeout)", seconds(timeout)),
            None => "timed out (--timeout)".to_owned(),
        },
        Some(Outside::OutputGone) => "nobody reads the output any more".to_owned(),
        Some(Outside::AgentLost) => {
            format!("node {node} was lost: {}", why_lost.unwrap_or("its agent was killed or stopped"))
        }
        Some(Outside::GuardLost) => format!("the guard of node {node} was killed"),
        None if code == ExitCode::LEFT_BEHIND => "processes of the job are left".to_owned(),
        None if output == OutputFate::Written => "every rank succeeded".to_owned(),
        None => "the job succeeded, but not all of its output could be written".to_owned(),
    }
}
