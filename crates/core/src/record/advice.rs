//! Advice after a failure: a debugger on the rank that crashed, its core, more time.

use crate::core_dump::CoreDump;
use crate::evidence::Class;
use crate::ids::{GroupId, Rank};
use crate::ranks::RankSet;
use crate::report::{Culprit, RankReport, Report};
use crate::status::WorkerStatus;

/// The signals of a crash: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
const CRASHES: [i32; 7] = [4, 5, 6, 7, 8, 11, 31];

const SIGQUIT: i32 = 3;

/// The debuggers that a command may begin with.
const DEBUGGERS: [&str; 5] = ["gdb", "lldb", "rr", "valgrind", "cuda-gdb"];

/// What to do next, a line each. `commands`: the number of commands of the job.
pub fn advice(report: &Report, commands: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(culprit) = &report.culprit {
        let status = report.ranks.iter().find(|rank| rank.rank == culprit.rank).and_then(|rank| rank.status);
        if let Some(WorkerStatus::Signaled { signal, .. }) = status
            && CRASHES.contains(&signal)
        {
            lines.extend(look_at_core(culprit));
            lines.extend(debug(culprit, report.world_size, commands));
        }
        if matches!(status, Some(WorkerStatus::Signaled { signal: SIGQUIT, .. })) {
            lines.push("a rank that has the terminal gets ^\\ itself; \"rankrun stacks\" in another terminal shows where it is".to_owned());
        }
        if culprit.exception.as_ref().is_some_and(|exception| exception.kind.ends_with("BdbQuit")) {
            lines.push(format!("--tty {} gives the rank the terminal for its debugger", culprit.rank));
        }
    }
    for hookless in &report.hookless {
        let advice = hookless.why.advice();
        if !lines.contains(&advice) {
            lines.push(advice);
        }
    }
    for alone in &report.alone {
        let advice = alone.cause.advice().map(str::to_owned);
        lines.extend(advice.filter(|advice| !lines.contains(advice)));
    }
    lines.extend(more_time(&report.ranks));
    if report.class == Some(Class::NotReady) {
        lines.push(
            "a rank says that it is ready with rankrun.ready() in Python, or with \"ready\" on the worker socket \
             (docs/worker-socket.md)"
                .to_owned(),
        );
    }
    lines
}

fn look_at_core(culprit: &Culprit) -> Option<String> {
    match (culprit.core.as_ref()?, culprit.pid) {
        (CoreDump::File(path), _) => {
            let program = culprit.command.first()?;
            Some(format!("gdb {} {}", quoted(program), quoted(path)))
        }
        (CoreDump::Handler(name), Some(pid)) if name == "systemd-coredump" => Some(format!("coredumpctl gdb {pid}")),
        (CoreDump::Handler(name), _) => Some(format!("the core was given to {name} (kernel.core_pattern)")),
    }
}

fn debug(culprit: &Culprit, world_size: u32, commands: usize) -> Option<String> {
    // Options name the first ranks only.
    let program = culprit.command.first().filter(|_| culprit.rank.group() == GroupId(0))?;
    let name = program.rsplit('/').next().unwrap_or(program);
    // A debugger takes no script.
    let gdb = match name.rsplit_once('.').map(|(_, extension)| extension) {
        _ if DEBUGGERS.contains(&name) => return None,
        Some("py") => "gdb --args python3",
        Some("sh" | "pl" | "rb" | "js" | "R" | "jl") => return None,
        Some(_) | None => "gdb --args",
    };
    let rank = culprit.rank;
    Some(match (world_size, commands) {
        (1, _) => format!("retry with --wrap '{gdb}'"),
        (_, 0 | 1) => format!("retry with --tty {rank} --wrap '{rank}:{gdb}'"),
        (_, _) => format!("retry with --tty {rank}, and --wrap '{rank}:{gdb}' before the command of rank {rank}"),
    })
}

/// Ranks that the end of the grace cut off.
fn more_time(ranks: &[RankReport]) -> Option<String> {
    let of_grace = |rank: &&RankReport| {
        rank.how.as_deref().is_some_and(|how| how.contains("of grace") && !how.contains("--grace"))
    };
    let cut_off: Vec<Rank> = ranks.iter().filter(of_grace).map(|rank| rank.rank).collect();
    let noun = if cut_off.len() == 1 { "rank" } else { "ranks" };
    (!cut_off.is_empty()).then(|| format!("a longer --grace gives {noun} {} time to end", RankSet::of(cut_off)))
}

/// A word, quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_alphanumeric() || "_-./:=@%+,".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
