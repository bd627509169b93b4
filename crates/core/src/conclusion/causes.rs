//! Why a rank failed: which of the things that were said of it is the cause, and its text.

use std::time::Duration;

use crate::evidence::{Evidence, Fact, Source};
use crate::exit::ExitCode;
use crate::gang::RankRecord;
use crate::grace::SIGKILL;
use crate::ids::Pid;
use crate::open_mpi::with_class;
use crate::peers::loss_of;
use crate::printable::{fit, printable};
use crate::status::{WorkerStatus, signal_name};
use crate::testimony::{Exception, StuckIn};
use crate::units::format_duration;

/// How long before its rank's end another process than the leader may have told of the failure that is its cause. What
/// is older has been survived: `python a.py || true; python b.py`.
const RECENT: Duration = Duration::from_secs(10);

/// How long after the exit work of a process its leader may end by it with another code: `python a.py || exit 2`.
const FOLLOWS: Duration = Duration::from_secs(2);

/// Columns of a cause: it is a headline.
pub(crate) const CAUSE_WIDTH: usize = 180;

/// The titles of Python's faulthandler for signals (Modules/faulthandler.c).
const SIGNALS_OF_FAULTHANDLER: [&str; 5] =
    ["Segmentation fault", "Aborted", "Bus error", "Illegal instruction", "Floating point exception"];

/// Codes above this are a library's own numbers for its errors, of which its words say more.
const CODE_OF_A_PROGRAM: i32 = 0xffff;

/// An exception that is the cause of a failure.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Chosen {
    pub(crate) exception: Exception,
    pub(crate) source: Source,
    /// When it was reported, if its program did so as it happened.
    pub(crate) at: Option<Duration>,
    /// The process that reported it.
    pub(crate) pid: Option<Pid>,
}

impl Chosen {
    pub(crate) fn of(evidence: &Evidence) -> Option<Chosen> {
        let (exception, source) = match &evidence.fact {
            Fact::Exception { exception, source } => (exception.clone(), *source),
            Fact::Suspect { exception, .. } => (exception.clone(), Source::Stderr),
            _ => return None,
        };
        let (at, pid) = if is_told(evidence) { (Some(evidence.at), evidence.pid) } else { (None, None) };
        Some(Chosen { exception, source, at, pid })
    }

    /// Whether an exception reached the top of the program: one with a type, or one that it reported itself. A message alone
    /// (Perl's `die`, an error of R, `ERROR STOP`, `sys.exit("no data")`) goes with an exit code.
    pub(crate) fn is_exception(&self) -> bool {
        match self.exception.kind.as_str() {
            "SystemExit" => false,
            "" => matches!(self.source, Source::Program | Source::ErrorFile),
            _ => true,
        }
    }
}

/// Whether an exception that another process than the leader told of did not bring the rank down: a leader that ends
/// otherwise than that process did, or long after it told, has survived it.
pub(crate) fn is_survived(record: &RankRecord, stop: Option<Duration>, told: &Evidence, facts: &[&Evidence]) -> bool {
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
    // A leader that speaks for itself has another reason, unless it hands the code of that process on.
    let is_handed_on = facts.iter().filter(|evidence| evidence.pid == record.pid && is_told(evidence)).all(|leaving| {
        let Fact::Exception { exception, .. } = &leaving.fact else { return true };
        let same = |code: i32| plain_exit(exception) == Some(i64::from(code));
        exiting.is_some_and(|(at, code)| same(code) && leaving.at <= at + FOLLOWS)
    });
    contradicts || !is_handed_on || end.is_some_and(|end| told.at + RECENT < end)
}

pub(crate) fn is_told(evidence: &Evidence) -> bool {
    matches!(evidence.fact, Fact::Exception { source: Source::Program, .. })
}

/// Whether a report has more than the type of an exception: where its text takes long to make, the type comes alone first.
pub(crate) fn is_complete(exception: &Exception) -> bool {
    !exception.message.is_empty() || !exception.traceback.is_empty()
}

/// Among the reports of other processes than the leader, that of an exception that the rank's output shows: so it is that
/// process which printed it.
pub(crate) fn reported_by_child<'a>(printed: &Evidence, of_children: &[&'a Evidence]) -> Option<&'a Evidence> {
    let Fact::Exception { source: Source::Stderr | Source::Stdout, exception: printed } = &printed.fact else {
        return None;
    };
    let is_same = |evidence: &&&Evidence| match &evidence.fact {
        Fact::Exception { exception, .. } => {
            let kind = |it: &Exception| it.kind.rsplit('.').next().map(str::to_owned);
            let message = |it: &Exception| one_line(it.message.trim().lines().next().unwrap_or_default(), CAUSE_WIDTH);
            kind(exception) == kind(printed) && message(exception) == message(printed)
        }
        _ => false,
    };
    of_children.iter().rev().find(is_same).copied()
}

/// What a rank told of its failure first: its leader, else another process, of which one that lost no peer comes first.
pub(crate) fn told<'a>(record: &RankRecord, facts: &[&'a Evidence]) -> Option<&'a Evidence> {
    let all = || facts.iter().copied().filter(|evidence| is_told(evidence));
    let of_leader = all().find(|evidence| evidence.pid == record.pid);
    let is_own = |evidence: &&Evidence| match &evidence.fact {
        Fact::Exception { exception, .. } => loss_of(exception).is_none(),
        _ => false,
    };
    of_leader.or_else(|| all().find(is_own)).or_else(|| all().next())
}

/// The exception that is the cause, from the best source that there is: what the program told itself, unless that is a plain
/// `sys.exit`, which says nothing; torch's error file; what it wrote.
pub(crate) fn choose(record: &RankRecord, facts: &[&Evidence]) -> Option<Chosen> {
    let is_telling = |evidence: &&&Evidence| match &evidence.fact {
        Fact::Exception { exception, .. } => !is_plain_exit(exception),
        _ => false,
    };
    let of_leader = facts.iter().filter(|it| is_told(it) && it.pid == record.pid).find(is_telling);
    let from = |wanted: Source| {
        let of_source = |it: &&&Evidence| matches!(it.fact, Fact::Exception { source, .. } if source == wanted);
        facts.iter().filter(of_source).find(is_telling)
    };
    let of_child = || {
        let children: Vec<&Evidence> = facts.iter().filter(|it| is_told(it)).filter(is_telling).copied().collect();
        told(record, &children)
    };
    let suspected = || facts.iter().find(|evidence| matches!(evidence.fact, Fact::Suspect { .. }));
    let evidence = of_leader
        .or_else(|| from(Source::ErrorFile))
        .copied()
        .or_else(of_child)
        .or_else(|| from(Source::Stderr).or_else(|| from(Source::Stdout)).or_else(suspected).copied())?;
    Chosen::of(evidence)
}

/// `sys.exit(3)` is an exit with a code, not an exception that anybody meant to raise; `sys.exit("no data")` has a cause.
pub(crate) fn is_plain_exit(exception: &Exception) -> bool {
    plain_exit(exception).is_some()
}

/// The code of a plain `sys.exit`.
pub(crate) fn plain_exit(exception: &Exception) -> Option<i64> {
    let code = match exception.message.as_str() {
        "True" => Some(1),
        "" | "None" | "False" => Some(0),
        text => text.parse::<i64>().ok(),
    };
    code.filter(|_| exception.kind == "SystemExit")
}

/// The kernel compares a limit with what its clock ticks have charged to a process, and reports the exact time: on a busy virtual machine
/// that was 4 to 15 % less, and more than 20 % of a limit of one second. Within this part (1 / n) of the limit, and this time, the kernel
/// may be the killer, and both times are told.
const CPU_TIME_ERROR: u32 = 5;
const CPU_TIME_ERROR_OF_TICKS: Duration = Duration::from_millis(250);

/// What a rank wrote itself, besides an exception, and what is known of its end besides its status.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said<'a> {
    pub(crate) peer_lost: Option<&'a str>,
    pub(crate) last_line: Option<&'a str>,
    /// The CPU time that it had used of its limit, where that may have ended it.
    pub(crate) cpu_time: Option<(Duration, Duration)>,
}

impl<'a> Said<'a> {
    pub(crate) fn of(facts: &[&'a Evidence]) -> Said<'a> {
        let find = |wanted: fn(&Fact) -> Option<&str>| {
            facts.iter().find_map(|evidence| wanted(&evidence.fact).filter(|line| !line.trim().is_empty()))
        };
        Said {
            peer_lost: find(|fact| match fact {
                Fact::PeerLost { line } => Some(line),
                _ => None,
            }),
            last_line: find(|fact| match fact {
                Fact::LastLine { line } => Some(line),
                _ => None,
            }),
            cpu_time: facts.iter().find_map(|evidence| match evidence.fact {
                Fact::CpuTime { used, limit } => {
                    let error = limit / CPU_TIME_ERROR + CPU_TIME_ERROR_OF_TICKS;
                    (used + error >= limit).then_some((used, limit))
                }
                _ => None,
            }),
        }
    }
}

/// The exception of a child, after which its rank went on to end with a code of its own: the exception may be the cause, or
/// it was tolerated, and the last line says more.
pub(crate) fn of_child(exception: &Exception, code: u8, last_line: Option<&str>) -> String {
    let is_new = |line: &&str| !exception.has_line(line);
    let after = match last_line.filter(is_new) {
        Some(line) => format!(" (in a child process; then the rank exited with code {code}: {})", one_line(line, 80)),
        None => format!(" (in a child process; then the rank exited with code {code})"),
    };
    format!("{}{after}", one_line(&exception.headline(), CAUSE_WIDTH.saturating_sub(after.len())))
}

/// An exception on one line. Only of one whose text takes long does a program report the type alone, and its rank ended before the rest
/// came.
fn headline_of(exception: &Exception, source: Source) -> String {
    let headline = exception.headline();
    let is_bare = source == Source::Program && !headline.is_empty() && !is_complete(exception);
    if is_bare && !is_plain_exit(exception) { format!("{headline} (its text was not made in time)") } else { headline }
}

/// The cause on one line, in the program's own words where it had any.
pub(crate) fn text(fact: &Fact, chosen: Option<&Chosen>, said: Said<'_>, exit: ExitCode) -> String {
    // faulthandler's title says no more than the signal, whose name is shown anyway.
    let is_title =
        |it: &Exception| it.kind == "Fatal Python error" && SIGNALS_OF_FAULTHANDLER.contains(&it.message.as_str());
    let told = chosen.filter(|chosen| !is_title(&chosen.exception));
    let told = told.map(|it| headline_of(&it.exception, it.source)).filter(|headline| !headline.is_empty());
    let told = match (fact, told) {
        (Fact::Aborted { code, .. }, Some(told)) => Some(with_class(&told, *code).unwrap_or(told)),
        (_, told) => told,
    };
    let told = told.or_else(|| said.peer_lost.map(str::to_owned));
    // Where nothing is known to be the cause, the last line may be.
    let or_last_line = |what: String| match said.last_line.filter(|_| told.is_none() && chosen.is_none()) {
        Some(line) => format!("{what}; last line of stderr: {line}"),
        None => what,
    };
    let with = |what: String| match &told {
        Some(told) => {
            let what = format!(" ({what})");
            format!("{}{what}", one_line(told, CAUSE_WIDTH.saturating_sub(what.len())))
        }
        None => what,
    };
    let text = match fact {
        Fact::Ended { status: WorkerStatus::Exited { code } } => {
            told.clone().unwrap_or_else(|| or_last_line(format!("exited with code {code}")))
        }
        Fact::Ended { status: WorkerStatus::Signaled { signal, core_dumped } } => {
            let core = if *core_dumped { ", core dumped" } else { "" };
            let time = said.cpu_time.filter(|_| *signal == SIGKILL);
            let why = time.map(|(used, limit)| {
                let (used, limit) = (used.as_secs_f64(), limit.as_secs());
                format!(": used {used:.1} s of its CPU time limit of {limit} s (ulimit -t)")
            });
            let what = format!("killed by {}{core}{}", signal_name(*signal), why.as_deref().unwrap_or_default());
            // Where the cause is known, no line is needed.
            if why.is_some() { with(what) } else { or_last_line(with(what)) }
        }
        Fact::OutOfMemory { .. } => "out of memory: killed by the kernel".to_owned(),
        Fact::Aborted { code, message } => {
            match message.as_deref().filter(|message| !["", "abort"].contains(message)) {
                Some(message) => with(format!("abort with code {code}: {message}")),
                None if told.is_some() && *code > CODE_OF_A_PROGRAM => told.clone().unwrap_or_default(),
                None => or_last_line(with(format!("abort with code {code}"))),
            }
        }
        Fact::Stuck { place, .. } => told.clone().unwrap_or_else(|| match place {
            StuckIn::Finalize => format!("exited with code {}", exit.0),
            StuckIn::ExitHandlers if exit == ExitCode::FAILURE => {
                "failed, and its exit handlers did not end".to_owned()
            }
            StuckIn::ExitHandlers => format!("exited with code {}, and its exit handlers did not end", exit.0),
        }),
        Fact::ExitWithoutFinalize => "exited with code 0 without MPI_Finalize, while others were in MPI".to_owned(),
        Fact::ExitBeforeInit => "exited with code 0 before MPI_Init, while others waited for it there".to_owned(),
        // Before the program, it is the rank's own process that cannot do something.
        Fact::SpawnFailed { step, error, .. } if step.starts_with("bind") => format!("cannot {step}: {error}"),
        Fact::SpawnFailed { step, error, command } => format!("cannot {step} \"{command}\": {error}"),
        Fact::NotReady { after } => {
            format!("did not say that it is ready within {} (--ready-timeout)", format_duration(*after))
        }
        Fact::Stopped { signal } => format!("stopped by {}, which rankrun did not send", signal_name(*signal)),
        Fact::Exception { exception, .. } if is_plain_exit(exception) => {
            told.clone().unwrap_or_else(|| format!("exited with code {}", exit.0))
        }
        Fact::Exception { exception, source } => headline_of(exception, *source),
        Fact::Suspect { exception, .. } | Fact::Aside { exception, .. } => exception.headline(),
        Fact::Exiting { code } => format!("exiting with code {code}"),
        Fact::PeerLost { line } | Fact::LastLine { line } => line.clone(),
        Fact::CpuTime { used, limit } => {
            format!("had used {:.1} s of CPU time; its limit is {} s", used.as_secs_f64(), limit.as_secs())
        }
        Fact::HelperOutOfMemory { name, .. } => format!("its process {name} was killed by the kernel: out of memory"),
        Fact::Note { text } => text.clone(),
        Fact::Refused { call, detail: Some(why), .. } => format!("{call} failed: {why}"),
        Fact::Refused { call, detail: None, .. } => format!("{call} failed"),
        Fact::Malformed { reason } => format!("broke the PMI protocol: {reason}"),
    };
    one_line(&text, CAUSE_WIDTH)
}

/// A text on one line of at most so many columns, as it can be printed.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    fit(&printable(&line), most).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_whose_text_took_too_long_is_told_as_that() {
        let stuck = Fact::Stuck { place: StuckIn::ExitHandlers, since: Duration::ZERO, leader: true };
        let bare = Exception { kind: "E".to_owned(), ..Exception::default() };
        let ended = Fact::Ended { status: WorkerStatus::Exited { code: 1 } };
        let own = Fact::Exception { source: Source::Program, exception: bare.clone() };
        let told_of = |fact: &Fact, exception: &Exception, source: Source| {
            let chosen = Chosen { exception: exception.clone(), source, at: None, pid: None };
            text(fact, Some(&chosen), Said::default(), ExitCode::FAILURE)
        };
        for fact in [&stuck, &ended, &own] {
            assert_eq!(told_of(fact, &bare, Source::Program), "E (its text was not made in time)", "{fact:?}");
        }
        assert_eq!(told_of(&ended, &bare, Source::Stderr), "E", "nothing more is known of what was printed");
        let told = |exception: &Exception| told_of(&stuck, exception, Source::Program);
        assert_eq!(told(&Exception { traceback: "E".to_owned(), ..bare.clone() }), "E", "it has none");
        assert_eq!(told(&Exception { message: "no mesh".to_owned(), ..bare }), "E: no mesh");
    }
}
