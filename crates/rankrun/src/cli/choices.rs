//! The options that take one of a few words: each word, what it means, and what it stands for.

use rankrun_core::job::{Buffer, CleanShm, Descendants, MpiMode, StopScope};

/// One word that an option takes.
#[derive(Debug)]
pub(crate) struct Choice<T> {
    pub(crate) word: &'static str,
    pub(crate) value: T,
    pub(crate) help: &'static str,
}

const fn choice<T>(word: &'static str, value: T, help: &'static str) -> Choice<T> {
    Choice { word, value, help }
}

/// Finds the meaning of a word; the error lists the words that there are.
pub(crate) fn choose<T: Copy>(choices: &[Choice<T>], word: &str) -> Result<T, String> {
    let found = choices.iter().find(|choice| choice.word == word);
    found.map(|choice| choice.value).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|choice| choice.word).collect();
        format!("\"{word}\" is none of {}", words.join(", "))
    })
}

/// How the ranks' output is put together. `Auto` is raw for one rank and line for more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Output {
    Line,
    Raw,
    Grouped,
    Folded,
    None,
}

/// When something that suits terminals is done.
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

pub(crate) const OUTPUT: &[Choice<Output>] = &[
    choice("line", Output::Line, "whole lines, never torn, as they come (default for several ranks)"),
    choice("raw", Output::Raw, "every byte as it comes (default for one rank)"),
    choice("grouped", Output::Grouped, "rank by rank, at the end"),
    choice("folded", Output::Folded, "identical lines of several ranks once, as \"[0-63] ...\""),
    choice("none", Output::None, "nothing; log files are still written"),
];

pub(crate) const WHEN: &[Choice<When>] = &[
    choice("auto", When::Auto, "on terminals, unless NO_COLOR or CLICOLOR=0 is set"),
    choice("always", When::Always, "everywhere"),
    choice("never", When::Never, "nowhere"),
];

pub(crate) const STDIO: &[Choice<Stdio>] = &[
    choice("auto", Stdio::Auto, "a pseudo-terminal for stdout if rankrun's own stdout is a terminal, else pipes"),
    choice("pipe", Stdio::Pipe, "pipes"),
    choice("pty", Stdio::Pty, "pseudo-terminals for stdout and stderr"),
];

pub(crate) const BUFFER: &[Choice<Buffer>] = &[
    choice("program", Buffer::Program, "as the program itself does (Python is asked not to)"),
    choice("line", Buffer::Line, "libc is asked for whole lines"),
    choice("none", Buffer::None, "libc is asked not to buffer"),
];

pub(crate) const STOP_SCOPE: &[Choice<StopScope>] = &[
    choice("leader", StopScope::Leader, "the process that speaks for the rank; its helpers stay until it is gone"),
    choice("group", StopScope::Group, "the rank's process group"),
    choice("tree", StopScope::Tree, "every process of the rank"),
];

pub(crate) const ON_SUSPECT: &[Choice<bool>] = &[
    choice("warn", false, "say so, and let it be"),
    choice("kill", true, "end the job, with the exception as its cause"),
];

pub(crate) const HOOK: &[Choice<bool>] = &[
    choice("auto", true, "tell every Python interpreter to say how it ends"),
    choice("none", false, "leave Python alone; its failures are then known by exit codes and stderr only"),
];

pub(crate) const DESCENDANTS: &[Choice<Descendants>] = &[
    choice("end", Descendants::End, "end them after the linger"),
    choice("wait", Descendants::Wait, "wait until they end by themselves"),
    choice("leave", Descendants::Leave, "let them outlive the job"),
];

pub(crate) const MPI: &[Choice<MpiMode>] = &[
    choice("auto", MpiMode::Pmi1, "PMI-1, which costs nothing to offer"),
    choice("pmi1", MpiMode::Pmi1, "what MPICH, Intel MPI and MVAPICH speak"),
    choice(
        "none",
        MpiMode::None,
        "the ranks are no MPI programs, find each other by themselves, or are each alone (Open MPI)",
    ),
];

pub(crate) const CLEAN_SHM: &[Choice<CleanShm>] = &[
    choice("job", CleanShm::Job, "remove what the job's processes mapped, once nobody maps it"),
    choice("list", CleanShm::List, "only list it in the report"),
    choice("no", CleanShm::No, "leave it alone"),
];
