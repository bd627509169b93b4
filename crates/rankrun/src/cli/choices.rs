//! The options that take one of a few words: each word, its help, and its value.

use rankrun_core::hosts::Mapping;
use rankrun_core::job::{
    Buffer, CleanShm, Descendants, Grow, MpiMode, NodeLoss, OnGiveup, RestartScope, StopScope, TorchStore,
};
use rankrun_core::planned::OnPlannedStop;

/// One word that an option takes.
#[derive(Debug)]
pub(crate) struct Choice<T> {
    pub(crate) word: &'static str,
    pub(crate) value: T,
    pub(crate) help: &'static str,
}

pub(crate) const fn choice<T>(word: &'static str, value: T, help: &'static str) -> Choice<T> {
    Choice { word, value, help }
}

/// Finds the meaning of a word; the error lists the words that there are.
pub(crate) fn choose<T: Copy>(choices: &[Choice<T>], word: &str) -> Result<T, String> {
    let found = choices.iter().find(|choice| choice.word == word);
    found.map(|choice| choice.value).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|choice| choice.word).collect();
        format!("\"{word}\" is not one of {}", words.join(", "))
    })
}

/// How the ranks' output is merged. `Auto` is raw for one rank and line for more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Output {
    Line,
    Raw,
    Grouped,
    Folded,
    None,
}

/// When to use a feature for terminals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    Auto,
    Always,
    Never,
}

/// What carries the ranks' output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stdio {
    Auto,
    Pipe,
    Pty,
}

pub(crate) const ON_HANGUP: &[Choice<bool>] = &[
    choice("stop", false, "end the job, as SIGTERM does (default)"),
    choice("detach", true, "go on without the terminal"),
];

pub(crate) const OUTPUT: &[Choice<Output>] = &[
    choice("line", Output::Line, "whole lines, in order of arrival (default for several ranks)"),
    choice("raw", Output::Raw, "bytes, in order of arrival (default for one rank)"),
    choice("grouped", Output::Grouped, "all output of one rank after the other, at the end"),
    choice("folded", Output::Folded, "identical lines of several ranks once: \"[0-63] ...\""),
    choice("none", Output::None, "nothing; log files are still written"),
];

pub(crate) const WHEN: &[Choice<When>] = &[
    choice("auto", When::Auto, "on terminals, unless NO_COLOR or CLICOLOR=0 is set"),
    choice("always", When::Always, "always"),
    choice("never", When::Never, "never"),
];

pub(crate) const MAP: &[Choice<Mapping>] = &[
    choice("block", Mapping::Block, "consecutive ranks on each host (default)"),
    choice("cyclic", Mapping::Cyclic, "one rank to each host in turn"),
    choice("seq", Mapping::Seq, "as the hosts are listed: a:1,b:1,a:1 is a, b, a"),
];

pub(crate) const STDIO: &[Choice<Stdio>] = &[
    choice("auto", Stdio::Auto, "a pseudo-terminal for stdout if rankrun's stdout is a terminal, else pipes"),
    choice("pipe", Stdio::Pipe, "pipes"),
    choice("pty", Stdio::Pty, "pseudo-terminals for stdout and stderr"),
];

pub(crate) const BUFFER: &[Choice<Buffer>] = &[
    choice("program", Buffer::Program, "the program decides (PYTHONUNBUFFERED=1 is set)"),
    choice("line", Buffer::Line, "libc writes whole lines"),
    choice("none", Buffer::None, "libc does not buffer"),
];

pub(crate) const STOP_SCOPE: &[Choice<StopScope>] = &[
    choice("leader", StopScope::Leader, "the main process of the rank; its children are signalled when it is gone"),
    choice("group", StopScope::Group, "the rank's process group"),
    choice("tree", StopScope::Tree, "every process of the rank"),
];

pub(crate) const RESTART_SCOPE: &[Choice<RestartScope>] = &[
    choice("gang", RestartScope::Gang, "all ranks (default)"),
    choice("rank", RestartScope::Rank, "the rank that failed, of ranks that do not need each other (--keep-going)"),
];

pub(crate) const GROW: &[Choice<Grow>] = &[
    choice("next", Grow::Next, "when the job is restarted for another reason (default)"),
    choice("restart", Grow::Restart, "restart the job for it; that costs no budget of --restart"),
];

pub(crate) const UNPROVEN: &[Choice<bool>] = &[
    choice("go", false, "the next attempt begins (default)"),
    choice(
        "stop",
        true,
        "the job ends: something may have stopped rankrun's own processes there, and its ranks with them",
    ),
];

pub(crate) const ON_GIVEUP: &[Choice<OnGiveup>] = &[
    choice("exit", OnGiveup::Exit, "exit with the code of the last failure (default)"),
    choice("requeue", OnGiveup::Requeue, "also ask Slurm to run the job again (scontrol requeue)"),
];

pub(crate) const ON_PLANNED_STOP: &[Choice<OnPlannedStop>] = &[
    choice("exit", OnPlannedStop::Exit, "exit with code 75 (default)"),
    choice("requeue", OnPlannedStop::Requeue, "also ask Slurm to run the job again (scontrol requeue)"),
];

pub(crate) const NODE_LOSS: &[Choice<NodeLoss>] = &[
    choice("counts", NodeLoss::Counts, "as much as after any other failure (default)"),
    choice("free", NodeLoss::Free, "nothing; also without --restart"),
];

pub(crate) const ON_SUSPECT: &[Choice<bool>] = &[
    choice("warn", false, "print a warning, and wait"),
    choice("kill", true, "stop the job, and report the exception as the cause"),
];

pub(crate) const HOOK: &[Choice<bool>] = &[
    choice("auto", true, "every Python interpreter reports how it exits"),
    choice("none", false, "off; failures are known from exit codes and stderr only"),
];

pub(crate) const DESCENDANTS: &[Choice<Descendants>] = &[
    choice("end", Descendants::End, "stop them after --linger"),
    choice("wait", Descendants::Wait, "wait until they exit"),
    choice("leave", Descendants::Leave, "let them run on after the job"),
];

pub(crate) const MPI: &[Choice<MpiMode>] = &[
    choice("auto", MpiMode::Auto, "PMI-1 and PMIx: each MPI takes the one that it knows"),
    choice("pmi1", MpiMode::Pmi1, "PMI-1, for MPICH, Intel MPI and MVAPICH"),
    choice("pmix", MpiMode::Pmix, "PMIx, for Open MPI"),
    choice("none", MpiMode::None, "do not connect the ranks; every MPI rank runs alone"),
];

pub(crate) const TORCH_STORE: &[Choice<TorchStore>] = &[
    choice("agent", TorchStore::Agent, "rankrun, from before the first rank until the job ends"),
    choice(
        "relay",
        TorchStore::Relay,
        "the same; ranks on other nodes reach it through rankrun's own connections, which are encrypted",
    ),
    choice("rank0", TorchStore::Rank0, "the first rank; the port is free for what it starts there"),
];

pub(crate) const CLEAN_SHM: &[Choice<CleanShm>] = &[
    choice("job", CleanShm::Job, "remove files that the job created and nobody uses"),
    choice("list", CleanShm::List, "list them in the report"),
    choice("no", CleanShm::No, "ignore them"),
];
