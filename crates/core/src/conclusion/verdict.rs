//! From evidence to a conclusion: who failed, of what class, why, and with which code rankrun exits (docs/failures.md).
//!
//! For each rank the strongest of its facts makes a *finding*, by the order of [`CLASSES`]. Among the findings, the order
//! of [`Weight`] decides, and time only within one weight: on one node the order in which exits are seen is not causal,
//! and a victim's is seen first now and then.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evidence::{Class, Evidence, Fact, Source, shorten};
use crate::exit::ExitCode;
use crate::gang::{Gang, Outside, RankRecord};
use crate::ids::{Pid, Rank};
use crate::status::{WorkerStatus, signal_name};
use crate::stderr::tells_of_a_lost_peer;
use crate::testimony::{Exception, StuckIn};
use crate::worker::Outcome;

/// How long after the stop was ordered a failure may still be the one that caused it: what was under way then, on a busy
/// machine. Later ones may come from our own SIGTERM.
pub const SETTLE: Duration = Duration::from_millis(100);

/// How long before its rank's end another process than the leader may have told of the failure that is its cause. What
/// is older has been survived: `python a.py || true; python b.py`.
const RECENT: Duration = Duration::from_secs(10);

/// How long after the exit work of a process its leader may end by it with another code: `python a.py || exit 2`.
const FOLLOWS: Duration = Duration::from_secs(2);

/// Bytes of a cause: it is a headline.
const CAUSE_KEPT: usize = 300;

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

/// How much a finding says of the origin of a failure. The first decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// An own cause: an exception, a crash, an abort, want of memory.
    Own,
    /// A failure without a word.
    Silent,
    /// A rank that is missed by others.
    Missing,
    /// An own cause, told so late that it may come from our stop.
    LateOwn,
    /// The rank says that a peer was lost.
    Victim,
    /// Silent, and late.
    Late,
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
    let findings: Vec<Finding> = (0..gang.ranks().len() as u32).filter_map(|rank| finding(gang, Rank(rank))).collect();
    let first = findings.iter().min_by_key(|finding| (finding.weight, finding.at, finding.rank));
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
    let endings = (0..gang.ranks().len() as u32)
        .map(|rank| {
            let finding = findings.iter().find(|finding| finding.rank == Rank(rank));
            Ending { how: None, cause: finding.map(|finding| finding.cause.clone()) }
        })
        .collect();
    let fates = gang
        .ranks()
        .iter()
        .zip(0..)
        .map(|(record, rank)| {
            let finding = findings.iter().find(|finding| finding.rank == Rank(rank));
            fate(record, finding, culprit.as_ref().is_some_and(|culprit| culprit.rank == Rank(rank)))
        })
        .collect();
    Verdict { code, class, culprit, fates, endings }
}

/// What the evidence of one rank comes to; `None` if it has not failed.
fn finding(gang: &Gang, rank: Rank) -> Option<Finding> {
    let all: Vec<&Evidence> = gang.evidence().iter().filter(|evidence| evidence.rank == rank).collect();
    let record = gang.ranks().get(rank.index())?;
    let is_survived = |evidence: &Evidence| is_survived(record, gang.stop_ordered(), evidence, &all);
    let facts: Vec<&Evidence> = all.iter().copied().filter(|evidence| !is_survived(evidence)).collect();
    let exception = exception_of(&facts);
    let deciding = facts
        .iter()
        .filter_map(|evidence| class_of(&evidence.fact, exception.is_some()).map(|class| (class, *evidence)))
        .min_by_key(|(class, _)| CLASSES.iter().position(|known| known == class))
        .or_else(|| cut_short(record, &facts));
    let (class, evidence) = deciding?;
    let told_at = told(&facts).map(|evidence| evidence.at);
    let at = told_at.unwrap_or(evidence.at).min(evidence.at);
    let (stuck_in, stuck_since) = match evidence.fact {
        Fact::Stuck { place, since, .. } => (Some(place), Some(since)),
        _ => (None, None),
    };
    let code = code(gang, evidence, &facts);
    let mut cause = cause(&evidence.fact, exception.as_ref(), code);
    if let Some(killed) = killed_helper(&facts).filter(|_| class != Class::OutOfMemory) {
        cause = format!("{cause} ({killed})");
    }
    shorten(&mut cause, CAUSE_KEPT);
    Some(Finding {
        rank,
        class,
        weight: weight(gang, class, at, evidence, &facts, exception.as_ref()),
        at,
        pid: evidence.pid,
        cause,
        code,
        exception,
        stuck_in,
        stuck_since,
        window: None,
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

/// Whether an exception that another process than the leader told of did not bring the rank down: a leader that ends
/// otherwise than that process did, or long after it told, has survived it.
fn is_survived(record: &RankRecord, stop: Option<Duration>, told: &Evidence, facts: &[&Evidence]) -> bool {
    if !is_told(told) || told.pid == record.pid {
        return false;
    }
    let of_teller = |evidence: &&&Evidence| evidence.pid == told.pid;
    let exiting = facts.iter().filter(of_teller).find_map(|evidence| match evidence.fact {
        Fact::Exiting { code } => Some((evidence.at, code)),
        _ => None,
    });
    // A leader that waited for it sees our SIGKILL then, not its own code.
    let is_killed = facts.iter().filter(of_teller).any(|evidence| matches!(evidence.fact, Fact::Stuck { .. }));
    let is_ours = record.is_ended_by_our_signals();
    let end = if is_ours { stop } else { record.ended_at };
    let contradicts = match (record.status, exiting) {
        _ if is_ours || is_killed => false,
        (Some(WorkerStatus::Signaled { .. }), _) => true,
        (Some(WorkerStatus::Exited { code: own }), Some((at, code))) => {
            code & 0xff != i32::from(own) && end.is_some_and(|end| at + FOLLOWS < end)
        }
        (Some(WorkerStatus::Exited { .. }), None) | (None, _) => false,
    };
    contradicts || end.is_some_and(|end| told.at + RECENT < end)
}

fn is_told(evidence: &Evidence) -> bool {
    matches!(evidence.fact, Fact::Exception { source: Source::Program, .. })
}

/// The exception that a rank told of itself first.
fn told<'a>(facts: &[&'a Evidence]) -> Option<&'a Evidence> {
    facts.iter().copied().find(|evidence| is_told(evidence))
}

/// The failure of a rank that told of it and was still on its way out when our stop ended it: its peers may have failed
/// for it, and ended, before.
fn cut_short<'a>(record: &RankRecord, facts: &[&'a Evidence]) -> Option<(Class, &'a Evidence)> {
    let evidence = told(facts)?;
    let Fact::Exception { exception, .. } = &evidence.fact else { return None };
    // What is raised because of our own signal, as `KeyboardInterrupt`, is no failure.
    let is_before = record.stop.signals.first().is_none_or(|(_, sent)| evidence.at < *sent);
    let is_ours = record.is_ended_by_our_signals();
    let class = if is_plain_exit(exception) { Class::ExitCode } else { Class::Exception };
    (is_ours && is_before).then_some((class, evidence))
}

/// The exception of a rank, from the best source that there is.
fn exception_of(facts: &[&Evidence]) -> Option<Exception> {
    let from = |wanted: Source| {
        let of_source = facts.iter().copied().find(|evidence| match evidence.fact {
            Fact::Exception { source, .. } => source == wanted,
            _ => false,
        });
        match &(if wanted == Source::Program { told(facts) } else { of_source })?.fact {
            Fact::Exception { exception, .. } => Some(exception.clone()),
            _ => None,
        }
    };
    let suspected = || {
        facts.iter().find_map(|evidence| match &evidence.fact {
            Fact::Suspect { exception, .. } => Some(exception.clone()),
            _ => None,
        })
    };
    let told = from(Source::Program).or_else(|| from(Source::ErrorFile)).or_else(|| from(Source::Stderr));
    told.or_else(suspected).filter(|exception| !is_plain_exit(exception))
}

/// `sys.exit(3)` is an exit with a code, not an exception that anybody meant to raise; `sys.exit("no data")` has a cause.
fn is_plain_exit(exception: &Exception) -> bool {
    plain_exit(exception).is_some()
}

fn plain_exit(exception: &Exception) -> Option<i64> {
    let code = exception.message.parse::<i64>().ok();
    code.filter(|_| exception.kind == "SystemExit")
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
        | Fact::HelperOutOfMemory { .. }
        | Fact::Note { .. }
        | Fact::Refused { .. }
        | Fact::Malformed { .. } => return None,
    })
}

fn weight(
    gang: &Gang,
    class: Class,
    at: Duration,
    deciding: &Evidence,
    facts: &[&Evidence],
    exception: Option<&Exception>,
) -> Weight {
    // A program says at once that it has raised; what it says after the stop may be raised by its handler of SIGTERM.
    let settle = if told(facts).is_some() { Duration::ZERO } else { SETTLE };
    let leader = gang.ranks().get(deciding.rank.index()).and_then(|record| record.pid);
    let is_uncertain = matches!(deciding.fact, Fact::Exception { .. }) && deciding.pid != leader;
    let late = is_uncertain || gang.stop_ordered().is_some_and(|stop| at > stop + settle);
    let tells_of_peer = match exception {
        Some(exception) => tells_of_a_lost_peer(&exception.headline()),
        None => facts.iter().any(|evidence| matches!(evidence.fact, Fact::PeerLost { .. })),
    };
    match class {
        Class::SpawnFailed | Class::OutOfMemory => Weight::Own,
        Class::Abort
        | Class::Exception
        | Class::StuckInFinalize
        | Class::StuckInExitHandlers
        | Class::Signal
        | Class::ExitCode
            if tells_of_peer =>
        {
            Weight::Victim
        }
        Class::Abort | Class::Exception | Class::StuckInFinalize | Class::StuckInExitHandlers | Class::Signal => {
            if late { Weight::LateOwn } else { Weight::Own }
        }
        Class::ExitCode | Class::Stopped => {
            if late {
                Weight::Late
            } else {
                Weight::Silent
            }
        }
        Class::ExitWithoutFinalize
        | Class::ExitBeforeInit
        | Class::Timeout
        | Class::Interrupted
        | Class::LauncherLost
        | Class::OutputFailed
        | Class::Refused => Weight::Missing,
    }
}

fn code(gang: &Gang, evidence: &Evidence, facts: &[&Evidence]) -> ExitCode {
    let exiting = facts.iter().find_map(|evidence| match evidence.fact {
        Fact::Exiting { code } => Some(code),
        _ => None,
    });
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
        | Fact::HelperOutOfMemory { .. }
        | Fact::Note { .. }
        | Fact::Refused { .. }
        | Fact::Malformed { .. } => exiting.map_or(ExitCode::FAILURE, own),
    }
}

/// The cause, in the program's own words where it had any.
fn cause(fact: &Fact, exception: Option<&Exception>, exit: ExitCode) -> String {
    let told = exception.map(Exception::headline).filter(|headline| !headline.is_empty());
    let with = |what: String| match &told {
        Some(told) => format!("{told} ({what})"),
        None => what,
    };
    match fact {
        Fact::Ended { status: WorkerStatus::Exited { code } } => {
            told.clone().unwrap_or_else(|| format!("exited with code {code}"))
        }
        Fact::Ended { status: WorkerStatus::Signaled { signal, core_dumped } } => {
            let core = if *core_dumped { ", core dumped" } else { "" };
            with(format!("killed by {}{core}", signal_name(*signal)))
        }
        Fact::OutOfMemory { .. } => "out of memory: killed by the kernel".to_owned(),
        Fact::Aborted { code, message } => {
            with(match message.as_deref().filter(|message| !["", "abort"].contains(message)) {
                Some(message) => format!("abort with code {code}: {message}"),
                None => format!("abort with code {code}"),
            })
        }
        Fact::Stuck { place, .. } => told.clone().unwrap_or_else(|| match place {
            StuckIn::Finalize => format!("exited with code {}", exit.0),
            StuckIn::ExitHandlers => "failed, and its exit handlers did not end".to_owned(),
        }),
        Fact::ExitWithoutFinalize => "exited with code 0 without MPI_Finalize, while others were in MPI".to_owned(),
        Fact::ExitBeforeInit => "exited with code 0 before MPI_Init, while others waited for it there".to_owned(),
        Fact::SpawnFailed { step, error, command } => format!("cannot {step} \"{command}\": {error}"),
        Fact::Stopped { signal } => format!("stopped by {}, which rankrun did not send", signal_name(*signal)),
        Fact::Exception { exception, .. } if is_plain_exit(exception) => format!("exited with code {}", exit.0),
        Fact::Suspect { exception, .. } | Fact::Exception { exception, .. } | Fact::Aside { exception, .. } => {
            exception.headline()
        }
        Fact::Exiting { code } => format!("exiting with code {code}"),
        Fact::PeerLost { line } => line.clone(),
        Fact::HelperOutOfMemory { name, .. } => format!("its process {name} was killed by the kernel: out of memory"),
        Fact::Note { text } => text.clone(),
        Fact::Refused { call, .. } => format!("called {call}, which is not offered"),
        Fact::Malformed { reason } => format!("broke the PMI protocol: {reason}"),
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

fn fate(record: &RankRecord, finding: Option<&Finding>, culprit: bool) -> Fate {
    if culprit {
        return Fate::Culprit;
    }
    if let Some(finding) = finding {
        return if finding.weight == Weight::Victim { Fate::Victim } else { Fate::FailedToo };
    }
    match (record.status, record.outcome) {
        (Some(status), _) if status.success() => Fate::Succeeded,
        (Some(_), _) if record.is_ended_by_our_signals() => Fate::EndedByRankrun,
        (Some(WorkerStatus::Exited { .. } | WorkerStatus::Signaled { .. }), _) => Fate::FailedToo,
        (None, Some(Outcome::NeverStarted | Outcome::SpawnFailed)) => Fate::NeverStarted,
        (None, _) => Fate::Unknown,
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
