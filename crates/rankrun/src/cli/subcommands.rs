//! The subcommands of rankrun, as clap knows them.

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, Command};

use crate::completions::Shell;
use crate::texts;

/// What makes the definition of a subcommand.
type Maker = fn() -> Command;

/// The subcommands of rankrun: the name, what it does, and what makes its definition.
pub(crate) const SUBCOMMANDS: [(&str, &str, Maker); 20] = [
    ("attach", "Show the output of a running job, and of one that was detached", attach),
    ("check", "Diagnose this machine", check),
    ("clean", "Remove what crashed jobs left behind", clean),
    ("completions", "Print the completion script of a shell", completions),
    ("detach", "Let a running job go on without its terminal", detach),
    ("logs", "Print the output of a job that was detached", logs),
    ("man", "Print the man page", man),
    ("mpiexec", "Run a command line of mpiexec or mpirun", mpiexec),
    ("profile", "Sample the stacks of a running job, and compare its ranks", profile),
    ("report", "Print the report of a job", report),
    ("resume", "Go on with a job whose rankrun was killed", resume),
    ("restart", "Restart a running job as planned", restart),
    ("replay", "Print the report of a journal, or its trace", replay),
    ("stacks", "Print each rank's call and the outlier", stacks),
    ("status", "Print what running jobs and their ranks are doing", status),
    ("stop", "Stop a running job", stop),
    ("top", "Watch a running job and its ranks on the terminal", top),
    ("torchrun", "Run a command line of torchrun", torchrun),
    ("wait", "Wait for the end of a job, and exit with its exit code", wait),
    ("web", "Watch running jobs and their ranks in a browser", web),
];

/// The definitions of all subcommands.
pub(crate) fn all() -> [Command; 20] {
    SUBCOMMANDS.map(|(_, _, make)| make())
}

/// What makes the definition of a subcommand.
pub(crate) fn subcommand(name: &str) -> Option<Maker> {
    SUBCOMMANDS.iter().find(|(known, ..)| *known == name).map(|(_, _, make)| *make)
}

/// The definition of a subcommand, without its arguments.
fn named(name: &'static str) -> Command {
    let about = SUBCOMMANDS.iter().find(|(known, ..)| *known == name).map_or("", |(_, about, _)| about);
    Command::new(name).bin_name(format!("rankrun {name}")).about(about)
}

fn mpiexec() -> Command {
    named("mpiexec")
        .long_about(texts::MPIEXEC)
        .override_usage("rankrun mpiexec [OPTIONS] COMMAND [ARG]... [: [OPTIONS] COMMAND [ARG]...]...")
        .after_help(crate::mpiexec::options())
        .disable_help_flag(true)
        .arg(Arg::new("help").long("help").short('h').action(ArgAction::HelpLong).help("Print help"))
        .arg(Arg::new("words").num_args(0..).trailing_var_arg(true).hide(true).value_parser(ValueParser::os_string()))
}

fn torchrun() -> Command {
    named("torchrun")
        .long_about(texts::TORCHRUN)
        .override_usage("rankrun torchrun [OPTIONS] SCRIPT [ARG]...")
        .after_help(crate::torchrun::options())
        .disable_help_flag(true)
        .arg(Arg::new("help").long("help").short('h').action(ArgAction::HelpLong).hide(true).help("Print help"))
        .arg(Arg::new("words").num_args(0..).trailing_var_arg(true).hide(true).value_parser(ValueParser::os_string()))
}

fn report() -> Command {
    named("report")
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

fn status() -> Command {
    named("status")
        .long_about(
            "Without JOB, lists your jobs that run on this machine. With JOB, prints what each of its ranks is doing, since when, \
             until when and why; ranks that do the same share a line.",
        )
        .arg(running_job())
        .arg(Arg::new("json").long("json").help("Print JSON, with every rank").action(ArgAction::SetTrue))
        .arg(
            Arg::new("watch")
                .long("watch")
                .value_name("SECONDS")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("1")
                .help(
                    "Print it again each second, or after these seconds, until the job ends: on a terminal in place, elsewhere a \
                     line for each change; with --json one object a line",
                ),
        )
        .arg(
            Arg::new("prometheus")
                .long("prometheus")
                .help("Print metrics in the text format of Prometheus")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["json", "watch"]),
        )
        .arg(
            Arg::new("ranks")
                .long("ranks")
                .help("With --prometheus: series of each rank also without JOB")
                .action(ArgAction::SetTrue)
                .requires("prometheus"),
        )
        .arg(
            Arg::new("output")
                .long("output")
                .value_name("FILE")
                .help("With --prometheus: replace FILE, at once and as a whole, instead of printing")
                .value_parser(ValueParser::path_buf())
                .value_hint(clap::ValueHint::FilePath)
                .requires("prometheus"),
        )
        .args_override_self(true)
}

fn top() -> Command {
    named("top")
        .long_about(
            "Shows a running job on the terminal, once a second: what each rank does, its CPU time, memory, storage and GPUs, its progress \
             bar and its last line, and which ranks differ from the others. Keys sort and filter ranks, show the stack of one, restart or \
             stop the job; \"?\" lists them. Without JOB, shows your only running job, or has you choose one.",
        )
        .arg(running_job())
        .args_override_self(true)
}

fn web() -> Command {
    named("web")
        .long_about(
            "Serves a page on loopback that shows your running jobs as \"rankrun top\" does, and prints its address: what each rank does, the \
             output and the stack of one, the attempts of a job, and the reports of jobs that have ended. Nobody sees anything without \
             the token in the address. The page changes nothing. ^C ends it; the jobs go on.",
        )
        .arg(running_job().help("The job to begin with: its id or the beginning of it; \"rankrun status\" lists them"))
        .arg(
            Arg::new("port")
                .long("port")
                .value_name("PORT")
                .allow_negative_numbers(true)
                .help("The port on 127.0.0.1, instead of one that is free"),
        )
        .args_override_self(true)
}

fn stacks() -> Command {
    named("stacks")
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

fn profile() -> Command {
    named("profile")
        .long_about(
            "Samples the stacks of all ranks of a running job from outside, and prints the functions that take the time, and the ranks \
             that differ: a rank for which the others wait is named with the function in which it spends that time. Writes \
             collapsed stacks (.folded) and a file for https://www.speedscope.app (.speedscope.json). ^C ends it early.",
        )
        .arg(running_job().required(true))
        .arg(Arg::new("seconds").long("seconds").value_name("S").default_value("10").help("How long"))
        .arg(Arg::new("rate").long("rate").value_name("HZ").default_value("20").help("Looks at each rank per second"))
        .arg(Arg::new("ranks").long("ranks").value_name("RANKS").help("Only these ranks, as in 0,4-7"))
        .arg(
            Arg::new("output")
                .long("output")
                .value_name("FILE")
                .value_hint(clap::ValueHint::FilePath)
                .value_parser(ValueParser::path_buf())
                .help("The name of the files, instead of rankrun-profile-JOB in this directory"),
        )
        .arg(
            Arg::new("native")
                .long("native")
                .help("With the frames of the Python interpreter itself, and those of a program's start")
                .action(ArgAction::SetTrue),
        )
        .arg(Arg::new("json").long("json").help("Print the table as JSON").action(ArgAction::SetTrue))
        .args_override_self(true)
}

fn stop() -> Command {
    named("stop")
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

fn restart() -> Command {
    named("restart")
        .long_about(
            "Ends all ranks of a running job and starts a new attempt, which does not count against --restart. Waits until every rank \
             of the new attempt runs. A job with --restart-scope rank cannot be restarted.",
        )
        .arg(running_job().required(true))
        .arg(no_wait().help("Return when the restart has begun"))
        .args_override_self(true)
}

/// The job of a command that also reads what is kept of one that has ended.
fn any_job() -> Arg {
    Arg::new("job").value_name("JOB").required(true).value_hint(clap::ValueHint::AnyPath).help(
        "The id of the job or the beginning of it; \"rankrun status\" lists those that run. For one that has ended also its --report-dir",
    )
}

fn tail(help: &'static str) -> Arg {
    Arg::new("tail").long("tail").value_name("N").help(help)
}

fn shown_ranks() -> Arg {
    Arg::new("rank").long("rank").value_name("RANKS").help("Only the output of these ranks, as in 0,4-7")
}

fn attach() -> Command {
    named("attach")
        .long_about(
            "Shows the output of a job as its own terminal does, from now on; of a job that is detached, from where the last one has left \
             it. Exits with the exit code of the job, or with 0 when you leave it. Keys: ~. leaves; ^C asks whether to stop the job or to \
             leave it. Several may look at a job, and a slow one never slows it.",
        )
        .arg(any_job())
        .arg(tail("Begin with the last N lines, or with all that is kept (all)"))
        .arg(shown_ranks())
        .arg(
            Arg::new("stdin")
                .long("stdin")
                .action(ArgAction::SetTrue)
                .help("Give the ranks what you type, or a file or pipe (of a job that was started with --detach --stdin RANK or all)"),
        )
        .args_override_self(true)
}

fn logs() -> Command {
    named("logs")
        .long_about(
            "Prints the output that is kept of a job: of one that is or was detached, all of it up to --transcript-size. The output of \
             a job that never was is on its terminal, and in its --log-dir.",
        )
        .arg(any_job())
        .arg(Arg::new("follow").long("follow").short('f').action(ArgAction::SetTrue).help("Go on until the job ends"))
        .arg(tail("Only the last N lines"))
        .arg(shown_ranks())
        .args_override_self(true)
}

fn detach() -> Command {
    named("detach")
        .long_about(
            "Lets a running job go on without its terminal: its shell gets the prompt, and the terminal may be closed. Its output is kept \
             from then on (--transcript-size); \"rankrun attach\" shows it. Also for a job that was stopped by ^Z, which goes on.",
        )
        .arg(running_job().required(true))
}

fn resume() -> Command {
    named("resume")
        .long_about(
            "Takes the place of a rankrun that was killed: the ranks have run on, and what they have written since is kept. For jobs that \
             were started with --detach and --on-front-lost wait:TIME, within that time, on the machine where they were started. Prints \
             the job's id when all agents are reached.",
        )
        .arg(running_job().required(true))
}

fn wait() -> Command {
    named("wait")
        .long_about(
            "Waits until a job is over, and exits with its exit code; at once if it is over already and its report is kept, which it is of \
             every job that was detached. Prints one line.",
        )
        .arg(any_job())
}

fn check() -> Command {
    named("check").long_about(
        "Prints one line for each thing that jobs need: cgroups, pseudo-terminals, ptrace, limits, shared memory, MPI libraries, \
         GPUs, Python. Problems come with a hint. The exit code is 1 if jobs cannot run.",
    )
}

fn replay() -> Command {
    named("replay")
        .long_about(
            "Reads the events of a job, as --journal wrote them, and prints the report that this version of rankrun makes of them. \
             For tests, and for bug reports. With --otlp it prints the trace of the job, also where the journal has no end.",
        )
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(ValueParser::path_buf())
                .value_hint(clap::ValueHint::FilePath)
                .help("A file that --journal wrote"),
        )
        .arg(
            Arg::new("otlp")
                .long("otlp")
                .help("Print the trace of the job instead, as JSON of OpenTelemetry (OTLP)")
                .action(ArgAction::SetTrue),
        )
        .args_override_self(true)
}

fn clean() -> Command {
    let dry_run = Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue);
    named("clean")
        .long_about(
            "Kills the processes, and removes the cgroups, the shared memory and the private directories of your jobs on this \
             machine whose rankrun processes are all gone. Running jobs are never touched.",
        )
        .arg(dry_run.help("List what would be removed, and exit"))
        .args_override_self(true)
}

fn completions() -> Command {
    let shell = Arg::new("shell").value_name("SHELL").required(true);
    named("completions").arg(shell.value_parser(PossibleValuesParser::new(Shell::NAMES)).help("The shell"))
}

fn man() -> Command {
    named("man")
}
