//! From evidence to a conclusion: who failed, of what class, and with which code rankrun exits (DESIGN §5, §6).

use serde::Serialize;

use crate::evidence::{Class, Evidence, Fact};
use crate::exit::ExitCode;
use crate::gang::{Gang, Outside, RankRecord, explained_by_our_signals};
use crate::ids::Rank;
use crate::status::WorkerStatus;
use crate::worker::Outcome;

/// The conclusion.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Verdict {
    pub code: ExitCode,
    pub class: Option<Class>,
    /// The rank that failed first, if a rank failed.
    pub culprit: Option<Rank>,
    /// The evidence that decided, as an index into the gang's.
    #[serde(skip)]
    pub evidence: Option<usize>,
    /// The fate of every rank, by rank.
    pub fates: Vec<Fate>,
}

/// What became of one rank, seen from the verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    Culprit,
    Succeeded,
    /// It ended by our own signals.
    EndedByRankrun,
    /// It failed too, after the culprit.
    FailedToo,
    NeverStarted,
    Unknown,
}

/// Concludes. A pure function of what the gang has seen.
pub fn verdict(gang: &Gang) -> Verdict {
    let deciding = gang.evidence().iter().position(|evidence| evidence.fact.ends_the_gang());
    let outside_came_first = match (gang.outside(), deciding) {
        (Some(_), None) => true,
        (Some(_), Some(index)) => gang.stop_ordered().is_some_and(|stop| gang.evidence()[index].at > stop),
        (None, _) => false,
    };
    let deciding = deciding.filter(|_| !outside_came_first);
    let culprit = deciding.map(|index| gang.evidence()[index].rank);
    let (code, class) = match (deciding, gang.outside()) {
        (Some(index), _) => {
            let evidence = &gang.evidence()[index];
            (failure_code(gang, evidence), Some(evidence.fact.class()))
        }
        (None, Some(outside)) => (outside_code(outside), Some(outside_class(outside))),
        (None, None) => (ExitCode::SUCCESS, None),
    };
    let fates = gang.ranks().iter().zip(0..).map(|(record, rank)| fate(record, Some(Rank(rank)) == culprit)).collect();
    Verdict { code, class, culprit, evidence: deciding, fates }
}

fn failure_code(gang: &Gang, evidence: &Evidence) -> ExitCode {
    match &evidence.fact {
        Fact::Ended { status } => ExitCode(status.shell_code()),
        Fact::Aborted { code, .. } => match code & 0xff {
            0 => ExitCode::FAILURE,
            code => ExitCode(code as u8),
        },
        Fact::SpawnFailed { .. } => gang.spawn_code().unwrap_or(ExitCode::NOT_EXECUTABLE),
        Fact::ExitWithoutFinalize | Fact::ExitBeforeInit | Fact::Stopped { .. } | Fact::Malformed { .. } => {
            ExitCode::FAILURE
        }
    }
}

fn outside_code(outside: Outside) -> ExitCode {
    match outside {
        Outside::Signal(signal) => ExitCode::signal(signal),
        Outside::OutputGone => ExitCode::signal(13),
        Outside::Timeout => ExitCode::TIMEOUT,
        Outside::AgentLost => ExitCode::NODE_LOST,
        Outside::GuardLost | Outside::OutputFailed => ExitCode::INTERNAL,
    }
}

fn outside_class(outside: Outside) -> Class {
    match outside {
        Outside::Signal(_) | Outside::OutputGone => Class::Interrupted,
        Outside::Timeout => Class::Timeout,
        Outside::OutputFailed => Class::OutputFailed,
        Outside::AgentLost | Outside::GuardLost => Class::LauncherLost,
    }
}

fn fate(record: &RankRecord, culprit: bool) -> Fate {
    match (culprit, record.status, record.outcome) {
        (true, _, _) => Fate::Culprit,
        (false, Some(status), _) if status.success() => Fate::Succeeded,
        (false, Some(status), _) if record.stop_ordered_before_end && explained_by_our_signals(status) => {
            Fate::EndedByRankrun
        }
        (false, Some(WorkerStatus::Exited { .. } | WorkerStatus::Signaled { .. }), _) => Fate::FailedToo,
        (false, None, Some(Outcome::NeverStarted | Outcome::SpawnFailed)) => Fate::NeverStarted,
        (false, None, _) => Fate::Unknown,
    }
}
