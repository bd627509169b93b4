//! The subcommands of rankrun, as clap knows them.

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, Command};

use crate::completions::Shell;
use crate::texts;

/// The subcommands of rankrun, with what each does.
pub(crate) const SUBCOMMANDS: &[(&str, &str)] = &[
    ("check", "Diagnose this machine"),
    ("clean", "Remove what crashed jobs left behind"),
    ("completions", "Print the completion script of a shell"),
    ("man", "Print the man page"),
    ("mpiexec", "Run a command line of mpiexec or mpirun"),
    ("report", "Print the report of a job"),
    ("restart", "Restart a running job as planned"),
    ("replay", "Print the report of a journal"),
    ("stacks", "Print each rank's call and the outlier"),
    ("status", "Print what running jobs and their ranks are doing"),
    ("stop", "Stop a running job"),
    ("torchrun", "Run a command line of torchrun"),
];

/// What makes the definition of a subcommand.
type Maker = fn() -> Command;

/// By name.
const MAKERS: [(&str, Maker); 12] = [
    ("check", check),
    ("clean", clean),
    ("completions", completions),
    ("man", man),
    ("mpiexec", mpiexec),
    ("replay", replay),
    ("report", report),
    ("restart", restart),
    ("stacks", stacks),
    ("status", status),
    ("stop", stop),
    ("torchrun", torchrun),
];

/// The definitions of all subcommands.
pub(crate) fn all() -> [Command; 12] {
    MAKERS.map(|(_, make)| make())
}

/// What makes the definition of a subcommand.
pub(crate) fn subcommand(name: &str) -> Option<Maker> {
    MAKERS.iter().find(|(known, _)| *known == name).map(|(_, make)| *make)
}

/// What a subcommand does.
fn about(name: &str) -> &'static str {
    SUBCOMMANDS.iter().find(|(known, _)| *known == name).map_or("", |(_, about)| about)
}

pub(crate) fn mpiexec() -> Command {
    Command::new("mpiexec")
        .bin_name("rankrun mpiexec")
        .about(about("mpiexec"))
        .long_about(texts::MPIEXEC)
        .override_usage("rankrun mpiexec [OPTIONS] COMMAND [ARG]... [: [OPTIONS] COMMAND [ARG]...]...")
        .after_help(crate::mpiexec::options())
        .disable_help_flag(true)
        .arg(Arg::new("help").long("help").short('h').action(ArgAction::HelpLong).help("Print help"))
        .arg(Arg::new("words").num_args(0..).trailing_var_arg(true).hide(true).value_parser(ValueParser::os_string()))
}

pub(crate) fn torchrun() -> Command {
    Command::new("torchrun")
        .bin_name("rankrun torchrun")
        .about(about("torchrun"))
        .long_about(texts::TORCHRUN)
        .override_usage("rankrun torchrun [OPTIONS] SCRIPT [ARG]...")
        .after_help(crate::torchrun::options())
        .disable_help_flag(true)
        .arg(Arg::new("help").long("help").short('h').action(ArgAction::HelpLong).hide(true).help("Print help"))
        .arg(Arg::new("words").num_args(0..).trailing_var_arg(true).hide(true).value_parser(ValueParser::os_string()))
}

pub(crate) fn report() -> Command {
    Command::new("report")
        .bin_name("rankrun report")
        .about(about("report"))
        .long_about(
            "Prints the report as rankrun printed it when the job ended: what failed first and why, how the other ranks ended, and \
             what was left. Without JOB, prints your newest report.",
        )
        .arg(
            Arg::new("job")
                .value_name("JOB")
                .value_parser(ValueParser::path_buf())
                .value_hint(clap::ValueHint::AnyPath)
                .help("The id of the job or the beginning of it; or its report.json, or the directory that holds one"),
        )
        .arg(
            Arg::new("attempt")
                .long("attempt")
                .value_name("N")
                .allow_negative_numbers(true)
                .help("Print that of an attempt before the last, from 0 on (--restart)")
                .conflicts_with("list"),
        )
        .arg(Arg::new("list").long("list").help("List your reports, the newest first").action(ArgAction::SetTrue).conflicts_with("job"))
        .arg(Arg::new("json").long("json").help("Print JSON").action(ArgAction::SetTrue))
        .args_override_self(true)
}

fn running_job() -> Arg {
    Arg::new("job")
        .value_name("JOB")
        .value_hint(clap::ValueHint::Other)
        .help("The id of the job or the beginning of it; \"rankrun status\" lists them")
}

fn no_wait() -> Arg {
    Arg::new("no-wait").long("no-wait").action(ArgAction::SetTrue)
}

pub(crate) fn status() -> Command {
    Command::new("status")
        .bin_name("rankrun status")
        .about(about("status"))
        .long_about(
            "Without JOB, lists your jobs that run on this machine. With JOB, prints what each of its ranks is doing, since when, \
             until when and why; ranks that do the same share a line.",
        )
        .arg(running_job())
        .arg(Arg::new("json").long("json").help("Print JSON, with every rank").action(ArgAction::SetTrue))
        .args_override_self(true)
}

pub(crate) fn stacks() -> Command {
    Command::new("stacks")
        .bin_name("rankrun stacks")
        .about(about("stacks"))
        .long_about(
            "Reads the stacks of the ranks of a running job from outside, and prints the functions that they are in: Python, C, C++, \
             Fortran, Rust. Ranks at the same place share a line, and outliers are named. Each rank is stopped for some milliseconds.",
        )
        .arg(running_job().required(true))
        .arg(
            Arg::new("rank")
                .long("rank")
                .value_name("RANKS")
                .help("Only these ranks, as in 0,4-7, with each of their threads"),
        )
        .arg(
            Arg::new("native")
                .long("native")
                .help("Each thread of each rank, with the frames of the Python interpreter itself")
                .action(ArgAction::SetTrue),
        )
        .arg(Arg::new("json").long("json").help("Print JSON, with every rank").action(ArgAction::SetTrue))
        .args_override_self(true)
}

pub(crate) fn stop() -> Command {
    Command::new("stop")
        .bin_name("rankrun stop")
        .about(about("stop"))
        .long_about(
            "Ends a running job as SIGTERM to its rankrun does: the ranks get SIGTERM, and SIGKILL after the grace. Waits until the job \
             is over, and prints its exit code and whether anything is left (exit code 123).",
        )
        .arg(running_job().required(true))
        .arg(
            Arg::new("grace")
                .long("grace")
                .value_name("DURATION")
                .help("Time from SIGTERM to SIGKILL, instead of that of the job (--grace)"),
        )
        .arg(no_wait().help("Return when the stop has begun"))
        .args_override_self(true)
}

pub(crate) fn restart() -> Command {
    Command::new("restart")
        .bin_name("rankrun restart")
        .about(about("restart"))
        .long_about(
            "Ends all ranks of a running job and starts a new attempt, which does not count against --restart. Waits until every rank \
             of the new attempt runs. A job with --restart-scope rank cannot be restarted.",
        )
        .arg(running_job().required(true))
        .arg(no_wait().help("Return when the restart has begun"))
        .args_override_self(true)
}

pub(crate) fn check() -> Command {
    Command::new("check").bin_name("rankrun check").about(about("check")).long_about(
        "Prints one line for each thing that jobs need: cgroups, pseudo-terminals, ptrace, limits, shared memory, MPI libraries, \
         GPUs, Python. Problems come with a hint. The exit code is 1 if jobs cannot run.",
    )
}

pub(crate) fn replay() -> Command {
    Command::new("replay")
        .bin_name("rankrun replay")
        .about(about("replay"))
        .long_about(
            "Reads the events of a job, as --journal wrote them, and prints the report that this version of rankrun makes of them. \
             For tests, and for bug reports.",
        )
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(ValueParser::path_buf())
                .value_hint(clap::ValueHint::FilePath)
                .help("A file that --journal wrote"),
        )
}

pub(crate) fn clean() -> Command {
    let dry_run = Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue);
    Command::new("clean")
        .bin_name("rankrun clean")
        .about(about("clean"))
        .long_about(
            "Kills the processes, and removes the cgroups, the shared memory and the private directories of your jobs on this \
             machine whose rankrun processes are all gone. Running jobs are never touched.",
        )
        .arg(dry_run.help("List what would be removed, and exit"))
        .args_override_self(true)
}

pub(crate) fn completions() -> Command {
    let shell = Arg::new("shell").value_name("SHELL").required(true);
    Command::new("completions")
        .bin_name("rankrun completions")
        .about(about("completions"))
        .arg(shell.value_parser(PossibleValuesParser::new(Shell::NAMES)).help("The shell"))
}

pub(crate) fn man() -> Command {
    Command::new("man").bin_name("rankrun man").about(about("man"))
}
