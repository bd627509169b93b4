//! From evidence to a conclusion: who failed, of what class, why, and with which code rankrun exits (docs/failures.md).
//!
//! For each rank the strongest of its facts makes a *finding*, by the order of [`CLASSES`]. Among the findings, the order
//! of [`Weight`] decides, and time only within one weight: on one node the order in which exits are seen is not causal,
//! and a victim's is seen first now and then.

use std::time::Duration;

use serde::Serialize;

use crate::causes::{
    CAUSE_WIDTH, Chosen, Said, choose, is_plain_exit, is_survived, of_child, one_line, plain_exit, reported_by_child,
    text, told,
};
use crate::echoes;
pub use crate::endings::{Ending, Fate};
use crate::endings::{fate, how, is_recent, left_after, left_before, seconds};
use crate::evidence::{Class, Evidence, Fact, Source};
use crate::exit::ExitCode;
pub use crate::finding::{Finding, Origin, Window};
use crate::gang::{Gang, MpiLife, Outside, RankRecord};
use crate::grace::SIGINT;
use crate::ids::{Pid, Rank};
use crate::interrupt::{is_interrupt, is_raised_by_sigint, is_shared};
use crate::node_clock::is_order_uncertain;
use crate::order::{SETTLE, Weight, began, weight};
use crate::peers::{Loss, collective_of, loss_of};
use crate::status::WorkerStatus;
use crate::testimony::{Exception, StuckIn};
use crate::traceback::{is_library, place};
use crate::window::window;

/// The conclusion.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Verdict {
    pub code: ExitCode,
    pub class: Option<Class>,
    /// The finding that decided, if a rank failed.
    pub culprit: Option<Finding>,
    /// What the rank that has the terminal did when it was interrupted, if that ended the job.
    pub interrupted: Option<Finding>,
    /// Ranks on other nodes that failed no less and may have failed before the culprit: their clocks do not tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncertain: Vec<Rank>,
    /// The fate of every rank, by rank.
    pub fates: Vec<Fate>,
    /// What there is to say of the end of every rank besides its fate, by rank.
    pub endings: Vec<Ending>,
}

impl Verdict {
    /// Whether a planned stop is what ended the attempt, and not a failure before it.
    pub fn is_planned_stop(&self) -> bool {
        self.class == Some(Class::PlannedStop)
    }
}

/// The classes of a rank's facts, strongest first. What a rank did besides is told, and does not decide.
const CLASSES: [Class; 12] = [
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
    Class::NotReady,
];

/// Concludes. A pure function of what the gang has seen.
pub fn verdict(gang: &Gang) -> Verdict {
    let mut of_rank: Vec<Vec<&Evidence>> = vec![Vec::new(); gang.ranks().len()];
    for evidence in gang.evidence() {
        if let Some(at) = gang.ranks().seat(evidence.rank) {
            of_rank[at].push(evidence);
        }
    }
    let mut findings: Vec<Finding> =
        of_rank.iter().zip(gang.ranks()).filter_map(|(all, record)| finding_from(gang, record.rank, all)).collect();
    echoes::weigh(gang, &mut findings);
    findings.extend(left_early(gang, &findings));
    let first = first(&findings);
    let outside = gang.outside().filter(|_| {
        // A stop from outside explains all that came after it.
        let began = gang.evidence().iter().find(|evidence| evidence.fact.ends_the_gang());
        let latest = |evidence: &Evidence| {
            gang.ranks().get(evidence.rank).map_or(evidence.at, |record| record.latest(evidence.at))
        };
        let began = began.map(latest);
        began.is_none_or(|began| gang.stop_ordered().is_some_and(|stop| began > stop))
    });
    let outside = outside.or_else(|| first.and_then(|first| is_shared(gang, first)));
    // Who only lost a peer lost those of a node that was lost, however late that was noticed.
    let is_victim = first.is_some_and(|first| first.weight == Weight::Victim);
    let outside = outside.or((is_victim && !gang.lost_nodes().is_empty()).then_some(Outside::NodeLost));
    let outside = outside.or_else(|| is_first_lost(gang, first).then_some(Outside::NodeLost));
    let (code, class, culprit, interrupted) = match (outside, first) {
        (Some(Outside::Hang), _) => (Outside::Hang.code(), Some(Class::Hang), held_up(gang), None),
        (Some(outside), _) => (outside.code(), Some(outside.class()), None, None),
        (None, Some(first)) if is_interrupt(gang, first) => {
            let outside = Outside::Interrupted(first.rank);
            (outside.code(), Some(outside.class()), None, Some(first.clone()))
        }
        (None, Some(first)) => (first.code, Some(first.class), Some(first.clone()), None),
        // Whatever rankrun failed at: without the end of every rank there is no success.
        (None, None) if gang.ranks().iter().any(|record| record.status.is_none()) => {
            (ExitCode::INTERNAL, Some(Class::LauncherLost), None, None)
        }
        (None, None) => (ExitCode::SUCCESS, None, None, None),
    };
    let decided = culprit.as_ref().or(interrupted.as_ref());
    let mut of_rank: Vec<Option<&Finding>> = vec![None; gang.ranks().len()];
    for finding in &findings {
        if let Some(at) = gang.ranks().seat(finding.rank) {
            of_rank[at].get_or_insert(finding);
        }
    }
    let (mut fates, mut endings) = (Vec::new(), Vec::new());
    for (record, finding) in gang.ranks().iter().zip(of_rank) {
        let rank = record.rank;
        let fate = match decided.filter(|decided| decided.rank == rank) {
            Some(_) if culprit.is_some() => Fate::Culprit,
            Some(_) => Fate::Interrupted,
            None => fate(gang, rank, record, finding, decided),
        };
        fates.push(fate);
        // What only a child of it reported, it may have survived.
        let is_of_child = |it: &Finding| it.pid != record.pid && record.is_ended_by_our_signals();
        let cause = finding.filter(|it| fate != Fate::EndedByRankrun || !is_of_child(it)).map(|it| it.cause.clone());
        endings.push(Ending { how: how(gang, rank, record, fate), cause });
    }
    let uncertain = culprit.as_ref().map(|culprit| rivals(gang, culprit, &findings)).unwrap_or_default();
    Verdict { code, class, culprit, interrupted, uncertain, fates, endings }
}

/// With `--keep-going` a lost node ends no rank of another: whether it was lost before the first rank failed.
fn is_first_lost(gang: &Gang, first: Option<&Finding>) -> bool {
    let lost = gang.lost_nodes().first().filter(|_| gang.rules().keep_going);
    lost.is_some_and(|lost| first.is_none_or(|first| lost.at < first.at))
}

/// The rank that all others waited for when the job had stalled, where that is certain.
fn held_up(gang: &Gang) -> Option<Finding> {
    let odd = gang.hang()?.odd.as_ref().filter(|odd| odd.is_certain)?;
    let record = gang.ranks().get(odd.rank)?;
    Some(Finding {
        rank: odd.rank,
        class: Class::Hang,
        weight: Weight::Own,
        at: gang.stop_ordered().unwrap_or_default(),
        is_reported: false,
        pid: record.pid,
        cause: odd.text.clone(),
        code: ExitCode::HANG,
        exception: None,
        stuck_in: None,
        stuck_since: None,
        window: None,
    })
}

/// What one rank by itself comes to, which others do not depend on.
pub fn of_rank(gang: &Gang, rank: Rank) -> Verdict {
    let culprit = finding(gang, rank);
    let code = culprit.as_ref().map_or(ExitCode::SUCCESS, |finding| finding.code);
    let class = culprit.as_ref().map(|finding| finding.class);
    Verdict { code, class, culprit, interrupted: None, uncertain: Vec::new(), fates: Vec::new(), endings: Vec::new() }
}

/// The finding that decides: that with the most weight, and of these the earliest. A rank that failed without a word well
/// before it comes first all the same: with `--keep-going` no stop parts the two.
fn first(findings: &[Finding]) -> Option<&Finding> {
    let strongest = findings.iter().min_by_key(|finding| (finding.weight, finding.at, finding.rank))?;
    let before = |finding: &&Finding| finding.weight == Weight::Silent && finding.at + SETTLE < strongest.at;
    Some(findings.iter().filter(before).min_by_key(|finding| (finding.at, finding.rank)).unwrap_or(strongest))
}

/// The ranks whose failures have the same weight as the culprit's, and were so close to it that the clocks of their nodes do not tell
/// which was first.
fn rivals(gang: &Gang, culprit: &Finding, findings: &[Finding]) -> Vec<Rank> {
    let read = |finding: &Finding| (finding.at, gang.ranks().get(finding.rank).and_then(|record| record.clock));
    let is_rival = |it: &&Finding| {
        it.rank != culprit.rank && it.weight == culprit.weight && is_order_uncertain(read(culprit), read(it))
    };
    findings.iter().filter(is_rival).map(|finding| finding.rank).collect()
}

/// What the evidence of one rank comes to; `None` if it has not failed.
pub(crate) fn finding(gang: &Gang, rank: Rank) -> Option<Finding> {
    let all: Vec<&Evidence> = gang.evidence().iter().filter(|evidence| evidence.rank == rank).collect();
    finding_from(gang, rank, &all)
}

/// What all the evidence of one rank comes to.
fn finding_from(gang: &Gang, rank: Rank, all: &[&Evidence]) -> Option<Finding> {
    let record = gang.ranks().get(rank)?;
    let is_survived = |evidence: &Evidence| is_survived(record, gang.stop_ordered(), evidence, all);
    let (survived, mut facts): (Vec<&Evidence>, Vec<&Evidence>) =
        all.iter().partition(|evidence| is_survived(evidence));
    // A traceback of a process that the rank has survived is not the rank's own, but better than none.
    let printed = facts.iter().find_map(|evidence| reported_by_child(evidence, &survived));
    facts.retain(|evidence| reported_by_child(evidence, &survived).is_none());
    let chosen =
        choose(record, &facts).or_else(|| printed.filter(|it| !has_own_words(&facts, it)).and_then(Chosen::of));
    let is_exception = chosen.as_ref().is_some_and(Chosen::is_exception);
    let deciding = facts
        .iter()
        .filter_map(|evidence| class_of(&evidence.fact, is_exception, record).map(|class| (class, *evidence)))
        .min_by_key(|(class, evidence)| (CLASSES.iter().position(|known| known == class), evidence.at))
        .or_else(|| cut_short(record, &facts));
    let (class, evidence) = deciding?;
    // What its leader told of itself, or else what was chosen, began it.
    let told_at = told(record, &facts).filter(|it| it.pid == record.pid).map(|evidence| evidence.at);
    let told_at = told_at.or(chosen.as_ref().and_then(|chosen| chosen.at));
    let (stuck_in, stuck_since) = match evidence.fact {
        Fact::Stuck { place, since, .. } => (Some(place), Some(since)),
        Fact::Suspect { silent, .. } => (Some(suspected_in(record)), Some(evidence.at.saturating_sub(silent))),
        _ => (None, None),
    };
    // A suspect has been silent since its traceback.
    let began_at = stuck_since.filter(|_| matches!(evidence.fact, Fact::Suspect { .. })).unwrap_or(evidence.at);
    let at = told_at.unwrap_or(began_at).min(began_at);
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
        _ => text(&evidence.fact, chosen.as_ref(), said, code),
    };
    if let Some(killed) = killed_helper(&facts).filter(|_| class != Class::OutOfMemory) {
        let killed = format!(" ({killed})");
        cause = format!("{}{killed}", one_line(&cause, CAUSE_WIDTH.saturating_sub(killed.len())));
    }
    let when = began(gang, record, at, told_at.is_some());
    let interrupted = |chosen: &Chosen| is_raised_by_sigint(&chosen.exception.kind) && record.stop.was_sent(SIGINT, at);
    let pid = chosen.as_ref().filter(|_| class == Class::Exception).and_then(|chosen| chosen.pid).or(evidence.pid);
    let is_of_leader = !matches!(evidence.fact, Fact::Exception { .. }) || evidence.pid == record.pid;
    let weight = match weight(class, when, is_victim, chosen.is_some()) {
        // It is our own signal that raises it, in whatever the program was doing.
        _ if chosen.as_ref().is_some_and(interrupted) => Weight::Late,
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
        window(origin, &chosen.exception)
    });
    Some(Finding {
        rank,
        class,
        weight,
        at,
        is_reported: told_at.is_some(),
        pid,
        cause,
        code,
        exception: chosen.map(|chosen| with_own_place(chosen.exception)),
        stuck_in,
        stuck_since,
        window,
    })
}

/// Whether a rank wrote more than what a process of it reported.
fn has_own_words(facts: &[&Evidence], of_child: &Evidence) -> bool {
    let Fact::Exception { exception, .. } = &of_child.fact else { return false };
    Said::of(facts).last_line.is_some_and(|line| !exception.has_line(line))
}

/// The last process of a rank, other than the leader, that the kernel killed because memory ran out.
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

/// Whether a victim says that it lost a rank. What is said after the end of the first of them may be about that one.
fn is_peer_lost(gang: &Gang, first: &Finding, findings: &[Finding]) -> bool {
    let end = gang.ranks().get(first.rank).and_then(|record| record.ended_at);
    let is_before = |finding: &Finding| finding.rank == first.rank || end.is_none_or(|end| finding.at <= end);
    findings.iter().any(|finding| finding.loss() == Some(Loss::Peer) && is_before(finding))
}

/// A rank that left longer before a loss than this has left before it, and not at the same time.
const LONG_BEFORE: Duration = Duration::from_millis(50);

/// Where others say that they lost a peer and none failed of its own, the rank that had left before with 0.
fn left_early(gang: &Gang, findings: &[Finding]) -> Option<Finding> {
    let first = findings.iter().min_by_key(|finding| (finding.weight, finding.at, finding.rank))?;
    if first.weight != Weight::Victim {
        return None;
    }
    let is_peer = is_peer_lost(gang, first, findings);
    // A connection may be to anything: whoever left in good order is not missed for the loss of one.
    let is_missed =
        |record: &RankRecord, ended| is_peer || (record.mpi == MpiLife::Inited && is_recent(ended, first.at));
    let later = || is_peer.then(|| left_after(gang, first.at)).flatten();
    let (ended, rank) = left_before(gang, first.at + SETTLE, is_missed).or_else(later)?;
    let record = gang.ranks().get(rank)?;
    let victims = || findings.iter().filter(|finding| finding.weight == Weight::Victim);
    let (others, were) = match victims().count() {
        1 => (format!("rank {}", first.rank), "was"),
        _ => ("the others".to_owned(), "were"),
    };
    let collective = victims().find_map(|victim| victim.exception.as_ref().and_then(collective_of));
    let how_long = first.at.saturating_sub(ended);
    let before = match collective {
        Some(collective) if how_long < LONG_BEFORE => format!(" while {others} {were} in {collective}"),
        Some(collective) => format!(", {} before {others} lost it in {collective}", seconds(how_long)),
        None if ended > first.at + SETTLE => format!(", just after {others} lost it"),
        None if how_long < LONG_BEFORE => format!(", just before {others} lost it"),
        None => format!(", {} before {others} lost it", seconds(how_long)),
    };
    let hidden = how(gang, rank, record, Fate::Succeeded).map(|how| format!("; it {how}")).unwrap_or_default();
    Some(Finding {
        rank,
        class: if record.mpi == MpiLife::Inited { Class::ExitWithoutFinalize } else { Class::LeftEarly },
        weight: Weight::Missing,
        at: ended,
        is_reported: false,
        pid: record.pid,
        cause: format!("left with code 0{before}{hidden}"),
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
    let class = if Chosen::of(evidence)?.is_exception() { Class::Exception } else { Class::ExitCode };
    // What is raised because of our own signal, as `KeyboardInterrupt`, is no failure.
    let is_before = record.stop.signals.first().is_none_or(|(_, sent)| evidence.at < *sent);
    let is_ours = record.is_ended_by_our_signals();
    (is_ours && is_before).then_some((class, evidence))
}

/// Where a rank is that ended its stderr with a traceback and lives on, as far as that can be known: Python prints it before
/// its exit handlers run, and a rank in MPI that fails before its peers do waits for them in `MPI_Finalize`.
fn suspected_in(record: &RankRecord) -> StuckIn {
    match record.mpi {
        MpiLife::Inited => StuckIn::Finalize,
        MpiLife::NotInited | MpiLife::Finalized => StuckIn::ExitHandlers,
    }
}

fn class_of_stuck(place: StuckIn) -> Class {
    match place {
        StuckIn::Finalize => Class::StuckInFinalize,
        StuckIn::ExitHandlers => Class::StuckInExitHandlers,
    }
}

/// The class that a fact gives its rank; `None` if it is no failure by itself.
fn class_of(fact: &Fact, has_exception: bool, record: &RankRecord) -> Option<Class> {
    Some(match fact {
        Fact::SpawnFailed { .. } => Class::SpawnFailed,
        Fact::OutOfMemory { .. } => Class::OutOfMemory,
        Fact::Aborted { .. } => Class::Abort,
        Fact::Stuck { place, leader: true, .. } => class_of_stuck(*place),
        Fact::Suspect { ended: true, .. } => class_of_stuck(suspected_in(record)),
        Fact::Ended { status: WorkerStatus::Exited { .. } } if has_exception => Class::Exception,
        Fact::Ended { status: WorkerStatus::Exited { .. } } => Class::ExitCode,
        Fact::Ended { status: WorkerStatus::Signaled { .. } } => Class::Signal,
        Fact::ExitWithoutFinalize => Class::ExitWithoutFinalize,
        Fact::ExitBeforeInit => Class::ExitBeforeInit,
        Fact::Stopped { .. } => Class::Stopped,
        Fact::NotReady { .. } => Class::NotReady,
        Fact::Refused { ended: true, .. } => Class::Exception,
        Fact::Exception { .. }
        | Fact::Exiting { .. }
        | Fact::Aside { .. }
        | Fact::Stuck { leader: false, .. }
        | Fact::Suspect { ended: false, .. }
        | Fact::PeerLost { .. }
        | Fact::LastLine { .. }
        | Fact::HelperOutOfMemory { .. }
        | Fact::CpuTime { .. }
        | Fact::Note { .. }
        | Fact::Refused { ended: false, .. }
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
        | Fact::NotReady { .. }
        | Fact::PeerLost { .. }
        | Fact::LastLine { .. }
        | Fact::HelperOutOfMemory { .. }
        | Fact::CpuTime { .. }
        | Fact::Note { .. }
        | Fact::Refused { .. }
        | Fact::Malformed { .. } => exiting.or_else(left_with).map_or(ExitCode::FAILURE, own),
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
