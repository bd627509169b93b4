//! From evidence to a conclusion: who failed, of what class, why, and with which code rankrun exits (docs/failures.md).
//!
//! For each rank the strongest of its facts makes a *finding*, by the order of [`CLASSES`]. Among the findings, the order
//! of [`Weight`] decides, and time only within one weight: on one node the order in which exits are seen is not causal,
//! and a victim's is seen first now and then.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::causes::{
    CAUSE_WIDTH, Chosen, Said, choose, is_plain_exit, is_survived, of_child, one_line, plain_exit, text, told,
};
use crate::endings::{fate, how, seconds};
use crate::evidence::{Class, Evidence, Fact, Source};
use crate::exit::ExitCode;
use crate::gang::{Gang, MpiLife, Outside, RankRecord};
use crate::ids::{Pid, Rank};
use crate::order::{SETTLE, Weight, began, weight};
use crate::peers::{Loss, loss_of};
use crate::recognisers::place;
use crate::status::WorkerStatus;
use crate::testimony::{Exception, StuckIn};
use crate::window::{is_library, window};

/// How long before a lost connection, which may be to anything, a rank may have left whose loss that is.
const LEFT_RECENTLY: Duration = Duration::from_secs(5);

/// The conclusion.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Verdict {
    pub code: ExitCode,
    pub class: Option<Class>,
    /// The finding that decided, if a rank failed.
    pub culprit: Option<Finding>,
    /// The fate of every rank, by rank.
    pub fates: Vec<Fate>,
    /// What there is to say of the end of every rank besides its fate, by rank.
    pub endings: Vec<Ending>,
}

/// What there is to say of the end of a rank besides its fate.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Ending {
    /// How it ended where its fate leaves that open, such as `exited 1 on SIGTERM`.
    pub how: Option<String>,
    /// Why it failed, if it did, in its own words where it had any.
    pub cause: Option<String>,
}

/// Lines that a program wrote around the cause of its failure, as it wrote them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Window {
    pub origin: Origin,
    pub lines: Vec<String>,
}

/// Where the lines of a [`Window`] come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    Stderr,
    Stdout,
    /// A traceback that its program sent to rankrun itself.
    Traceback,
}

/// What became of one rank, seen from the verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    Culprit,
    Succeeded,
    /// It failed because another one was gone: its library says so.
    Victim,
    /// It ended by our own signals.
    EndedByRankrun,
    /// It failed too, of its own.
    FailedToo,
    NeverStarted,
    Unknown,
}

/// What all evidence of one rank comes to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    pub rank: Rank,
    pub class: Class,
    pub weight: Weight,
    /// When the failure began, since the start of the job.
    pub at: Duration,
    pub pid: Option<Pid>,
    /// In the program's own words where it had any.
    pub cause: String,
    pub code: ExitCode,
    pub exception: Option<Exception>,
    pub stuck_in: Option<StuckIn>,
    pub stuck_since: Option<Duration>,
    /// The lines around the cause, where they are known.
    pub window: Option<Window>,
}

/// The classes of a rank's facts, strongest first. What a rank did besides is told, and does not decide.
const CLASSES: [Class; 11] = [
    Class::SpawnFailed,
    Class::OutOfMemory,
    Class::Abort,
    Class::StuckInFinalize,
    Class::StuckInExitHandlers,
    Class::Exception,
    Class::Signal,
    Class::ExitCode,
    Class::ExitWithoutFinalize,
    Class::ExitBeforeInit,
    Class::Stopped,
];

/// Concludes. A pure function of what the gang has seen.
pub fn verdict(gang: &Gang) -> Verdict {
    let mut findings: Vec<Finding> =
        (0..gang.ranks().len() as u32).filter_map(|rank| finding(gang, Rank(rank))).collect();
    findings.extend(left_early(gang, &findings));
    let first = first(&findings);
    let outside = gang.outside().filter(|_| {
        // A stop from outside explains all that came after it.
        let began = gang.evidence().iter().find(|evidence| evidence.fact.ends_the_gang()).map(|evidence| evidence.at);
        began.is_none_or(|began| gang.stop_ordered().is_some_and(|stop| began > stop))
    });
    let (code, class, culprit) = match (outside, first) {
        (Some(outside), _) => (outside_code(outside), Some(outside_class(outside)), None),
        (None, Some(first)) => (first.code, Some(first.class), Some(first.clone())),
        (None, None) => (ExitCode::SUCCESS, None, None),
    };
    let (mut fates, mut endings) = (Vec::new(), Vec::new());
    for (record, rank) in gang.ranks().iter().zip((0..).map(Rank)) {
        let finding = findings.iter().find(|finding| finding.rank == rank);
        let is_culprit = culprit.as_ref().is_some_and(|culprit| culprit.rank == rank);
        let fate = fate(gang, record, finding, is_culprit);
        fates.push(fate);
        let cause =
            finding.filter(|it| it.pid == record.pid || fate != Fate::EndedByRankrun).map(|it| it.cause.clone());
        endings.push(Ending { how: how(gang, rank, record, fate), cause });
    }
    Verdict { code, class, culprit, fates, endings }
}

/// The finding that decides: that with the most weight, and of these the earliest. A rank that failed without a word well
/// before it comes first all the same: with `--keep-going` no stop parts the two.
fn first(findings: &[Finding]) -> Option<&Finding> {
    let strongest = findings.iter().min_by_key(|finding| (finding.weight, finding.at, finding.rank))?;
    let before = |finding: &&Finding| finding.weight == Weight::Silent && finding.at + SETTLE < strongest.at;
    Some(findings.iter().filter(before).min_by_key(|finding| (finding.at, finding.rank)).unwrap_or(strongest))
}

/// What the evidence of one rank comes to; `None` if it has not failed.
fn finding(gang: &Gang, rank: Rank) -> Option<Finding> {
    let all: Vec<&Evidence> = gang.evidence().iter().filter(|evidence| evidence.rank == rank).collect();
    let record = gang.ranks().get(rank.index())?;
    let is_survived = |evidence: &Evidence| is_survived(record, gang.stop_ordered(), evidence, &all);
    let facts: Vec<&Evidence> = all.iter().copied().filter(|evidence| !is_survived(evidence)).collect();
    let chosen = choose(record, &facts);
    let is_exception = chosen.as_ref().is_some_and(Chosen::is_exception);
    let deciding = facts
        .iter()
        .filter_map(|evidence| class_of(&evidence.fact, is_exception).map(|class| (class, *evidence)))
        .min_by_key(|(class, _)| CLASSES.iter().position(|known| known == class))
        .or_else(|| cut_short(record, &facts));
    let (class, evidence) = deciding?;
    // What its leader told of itself, or else what was chosen, began it.
    let told_at = told(record, &facts).filter(|it| it.pid == record.pid).map(|evidence| evidence.at);
    let told_at = told_at.or(chosen.as_ref().and_then(|chosen| chosen.at));
    let at = told_at.unwrap_or(evidence.at).min(evidence.at);
    let (stuck_in, stuck_since) = match evidence.fact {
        Fact::Stuck { place, since, .. } => (Some(place), Some(since)),
        _ => (None, None),
    };
    let code = code(gang, evidence, &facts);
    let mut said = Said::of(&facts);
    said.peer_lost = said.peer_lost.filter(|_| chosen.is_none());
    let is_victim = match &chosen {
        Some(chosen) => loss_of(&chosen.exception).is_some(),
        None => said.peer_lost.is_some(),
    };
    let mut cause = match (&chosen, &evidence.fact) {
        (Some(Chosen { exception, pid: Some(pid), .. }), Fact::Ended { status: WorkerStatus::Exited { code } })
            if *code <= 128
                && record.pid.is_some_and(|leader| leader != *pid)
                && exits_otherwise(&facts, *pid, *code) =>
        {
            of_child(exception, *code, said.last_line)
        }
        _ => text(&evidence.fact, chosen.as_ref().map(|chosen| &chosen.exception), said, code),
    };
    if let Some(killed) = killed_helper(&facts).filter(|_| class != Class::OutOfMemory) {
        let killed = format!(" ({killed})");
        cause = format!("{}{killed}", one_line(&cause, CAUSE_WIDTH.saturating_sub(killed.len())));
    }
    let when = began(gang, record, at, told_at.is_some());
    let is_of_leader = !matches!(evidence.fact, Fact::Exception { .. }) || evidence.pid == record.pid;
    let weight = match weight(class, when, is_victim, chosen.is_some()) {
        // What only a child told, and our stop ended, may have been survived.
        Weight::Own | Weight::UnderWay if !is_of_leader => Weight::Doubtful,
        weight => weight,
    };
    let window = chosen.as_ref().and_then(|chosen| {
        let origin = match chosen.source {
            Source::Stderr => Origin::Stderr,
            Source::Stdout => Origin::Stdout,
            Source::Program | Source::ErrorFile => Origin::Traceback,
        };
        window(origin, &chosen.exception.traceback)
    });
    Some(Finding {
        rank,
        class,
        weight,
        at,
        pid: evidence.pid,
        cause,
        code,
        exception: chosen.map(|chosen| with_own_place(chosen.exception)),
        stuck_in,
        stuck_since,
        window,
    })
}

/// The last process of a rank, other than the leader, that the kernel killed for want of memory.
fn killed_helper(facts: &[&Evidence]) -> Option<String> {
    facts.iter().rev().find_map(|evidence| match &evidence.fact {
        Fact::HelperOutOfMemory { name, .. } => {
            let pid = evidence.pid.map(|pid| format!(", pid {pid},")).unwrap_or_default();
            Some(format!("its process {name}{pid} was killed by the kernel: out of memory"))
        }
        _ => None,
    })
}

/// Whether a process of a rank reported that it exits with another code than its leader did.
fn exits_otherwise(facts: &[&Evidence], pid: Pid, leader: u8) -> bool {
    facts.iter().any(|evidence| match evidence.fact {
        Fact::Exiting { code } => evidence.pid == Some(pid) && code & 0xff != i32::from(leader),
        _ => false,
    })
}

/// An exception that was raised in a library, with the place of the program's own from which that was called.
fn with_own_place(mut exception: Exception) -> Exception {
    let own = || place(exception.traceback.lines()).filter(|(file, ..)| !is_library(file));
    if exception.file.as_deref().is_some_and(is_library)
        && let Some((file, line, function)) = own()
    {
        (exception.file, exception.line, exception.function) = (Some(file), Some(line), Some(function));
    }
    exception
}

/// Where others say that they lost a peer and none failed of its own, the rank that had left before with 0.
fn left_early(gang: &Gang, findings: &[Finding]) -> Option<Finding> {
    let first = findings.iter().min_by_key(|finding| (finding.weight, finding.at, finding.rank))?;
    if first.weight != Weight::Victim {
        return None;
    }
    let is_peer = first.exception.as_ref().is_some_and(|exception| loss_of(exception) == Some(Loss::Peer));
    let left = |rank: &Rank| {
        let record = gang.ranks().get(rank.index())?;
        let ended = record.ended_at.filter(|_| record.status.is_some_and(WorkerStatus::success))?;
        let is_before = ended <= first.at + SETTLE && (is_peer || first.at <= ended + LEFT_RECENTLY);
        is_before.then_some((ended, *rank))
    };
    let all = (0..gang.ranks().len() as u32).map(Rank);
    let (ended, rank) = all.filter_map(|rank| left(&rank)).max()?;
    let record = gang.ranks().get(rank.index())?;
    let others = match findings.iter().filter(|finding| finding.weight == Weight::Victim).count() {
        1 => format!("rank {}", first.rank),
        _ => "the others".to_owned(),
    };
    let before = match first.at.saturating_sub(ended) {
        time if time < Duration::from_millis(50) => format!("just before {others} lost it"),
        time => format!("{} before {others} lost it", seconds(time)),
    };
    let hidden = how(gang, rank, record, Fate::Succeeded).map(|how| format!("; it {how}")).unwrap_or_default();
    Some(Finding {
        rank,
        class: if record.mpi == MpiLife::Inited { Class::ExitWithoutFinalize } else { Class::LeftEarly },
        weight: Weight::Missing,
        at: ended,
        pid: record.pid,
        cause: format!("left with code 0, {before}{hidden}"),
        code: ExitCode::FAILURE,
        exception: None,
        stuck_in: None,
        stuck_since: None,
        window: None,
    })
}

/// The failure of a rank that told of it and was still on its way out when our stop ended it: its peers may have failed
/// for it, and ended, before.
fn cut_short<'a>(record: &RankRecord, facts: &[&'a Evidence]) -> Option<(Class, &'a Evidence)> {
    let evidence = told(record, facts)?;
    let Fact::Exception { exception, .. } = &evidence.fact else { return None };
    // What is raised because of our own signal, as `KeyboardInterrupt`, is no failure.
    let is_before = record.stop.signals.first().is_none_or(|(_, sent)| evidence.at < *sent);
    let is_ours = record.is_ended_by_our_signals();
    let class = if is_plain_exit(exception) { Class::ExitCode } else { Class::Exception };
    (is_ours && is_before).then_some((class, evidence))
}

/// The class that a fact gives its rank; `None` if it is no failure by itself.
fn class_of(fact: &Fact, has_exception: bool) -> Option<Class> {
    Some(match fact {
        Fact::SpawnFailed { .. } => Class::SpawnFailed,
        Fact::OutOfMemory { .. } => Class::OutOfMemory,
        Fact::Aborted { .. } => Class::Abort,
        Fact::Stuck { place: StuckIn::Finalize, leader: true, .. } => Class::StuckInFinalize,
        Fact::Stuck { place: StuckIn::ExitHandlers, leader: true, .. } => Class::StuckInExitHandlers,
        Fact::Suspect { ended: true, .. } => Class::StuckInExitHandlers,
        Fact::Ended { status: WorkerStatus::Exited { .. } } if has_exception => Class::Exception,
        Fact::Ended { status: WorkerStatus::Exited { .. } } => Class::ExitCode,
        Fact::Ended { status: WorkerStatus::Signaled { .. } } => Class::Signal,
        Fact::ExitWithoutFinalize => Class::ExitWithoutFinalize,
        Fact::ExitBeforeInit => Class::ExitBeforeInit,
        Fact::Stopped { .. } => Class::Stopped,
        Fact::Exception { .. }
        | Fact::Exiting { .. }
        | Fact::Aside { .. }
        | Fact::Stuck { leader: false, .. }
        | Fact::Suspect { ended: false, .. }
        | Fact::PeerLost { .. }
        | Fact::LastLine { .. }
        | Fact::HelperOutOfMemory { .. }
        | Fact::Note { .. }
        | Fact::Refused { .. }
        | Fact::Malformed { .. } => return None,
    })
}

fn code(gang: &Gang, evidence: &Evidence, facts: &[&Evidence]) -> ExitCode {
    let exiting = facts.iter().find_map(|evidence| match evidence.fact {
        Fact::Exiting { code } => Some(code),
        _ => None,
    });
    // A process that is stuck in its exit handlers has said no more than that it leaves.
    let left_with = || {
        facts.iter().find_map(|it| match &it.fact {
            Fact::Exception { exception, source: Source::Program } if it.pid == evidence.pid => {
                plain_exit(exception).map(|code| (code & 0xff) as i32)
            }
            _ => None,
        })
    };
    let own = |code: i32| match code & 0xff {
        0 => ExitCode::FAILURE,
        code => ExitCode(code as u8),
    };
    let ended = facts.iter().find_map(|evidence| match evidence.fact {
        Fact::Ended { status } => Some(ExitCode(status.shell_code())),
        _ => None,
    });
    match &evidence.fact {
        Fact::Ended { status } => ExitCode(status.shell_code()),
        Fact::Aborted { code, .. } => own(*code),
        Fact::SpawnFailed { .. } => gang.spawn_code().unwrap_or(ExitCode::NOT_EXECUTABLE),
        Fact::OutOfMemory { .. } => ended.unwrap_or(ExitCode::signal(9)),
        Fact::Stopped { signal } => ExitCode::signal(*signal),
        Fact::Exception { exception, .. } if is_plain_exit(exception) => {
            plain_exit(exception).map_or(ExitCode::FAILURE, |code| own((code & 0xff) as i32))
        }
        Fact::Stuck { .. }
        | Fact::Suspect { .. }
        | Fact::Exception { .. }
        | Fact::Exiting { .. }
        | Fact::Aside { .. }
        | Fact::ExitWithoutFinalize
        | Fact::ExitBeforeInit
        | Fact::PeerLost { .. }
        | Fact::LastLine { .. }
        | Fact::HelperOutOfMemory { .. }
        | Fact::Note { .. }
        | Fact::Refused { .. }
        | Fact::Malformed { .. } => exiting.or_else(left_with).map_or(ExitCode::FAILURE, own),
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

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
