//! The options of rankrun, defined once: `--help`, the man page, the completions, the keys of a configuration file and
//! the `RANKRUN_*` variables all come from here. What was typed is kept as it is; `settings` makes sense of it.

use std::ffi::OsString;

use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, Command};

use crate::choices::{self, Choice};
use crate::completions::Shell;
use crate::texts;

const RANKS: &str = "Ranks";
const ENDING: &str = "How the job ends";
const OUTPUT: &str = "Output";
const INPUT: &str = "Input and terminal";
const GENERAL: &str = "rankrun itself";

/// The id of the positional argument that holds the command.
pub(crate) const COMMAND: &str = "command";

/// Options that belong to one command of a job of several; all others concern the whole job.
pub(crate) const PER_COMMAND: &[&str] = &["nproc", "env", "env-remove", "wdir", "wrap"];

/// Options that make no sense as a lasting setting, neither in a file nor in the environment.
pub(crate) const ONLY_TYPED: &[&str] = &["config", "dry-run", "help", "version", COMMAND];

/// Options that may be given several times, each adding to what was there.
pub(crate) const REPEATED: &[&str] = &["env", "env-remove", "wrap"];

/// Options without a value.
pub(crate) const SWITCHES: &[&str] = &["keep-going", "die-with-parent", "timestamps", "dry-run"];

/// The words that are commands of rankrun when they come first, with what each does.
pub(crate) const SUBCOMMANDS: &[(&str, &str)] = &[
    ("check", "Say what this machine offers to jobs, and what is amiss"),
    ("clean", "End and remove what dead jobs left behind"),
    ("completions", "Print the completions of a shell"),
    ("man", "Print the man page"),
    ("report", "Print the report of a job that failed"),
    ("replay", "Print the report that a journal comes to"),
];

/// The command line of a job.
pub(crate) fn job() -> Command {
    Command::new("rankrun")
        .bin_name("rankrun")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Start the ranks of a distributed job, watch them, end them all, say what failed")
        .long_about(texts::LONG_ABOUT)
        .override_usage("rankrun [OPTIONS] COMMAND [ARG]... [: [OPTIONS] COMMAND [ARG]...]...")
        .after_help(texts::after_help())
        .after_long_help(texts::after_long_help())
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(rank_args())
        .args(ending_args())
        .args(output_args())
        .args(input_args())
        .args(general_args())
        .arg(
            Arg::new(COMMAND)
                .value_name("COMMAND")
                .num_args(0..)
                .trailing_var_arg(true)
                .value_parser(ValueParser::os_string())
                .value_hint(clap::ValueHint::CommandWithArguments)
                .hide(true)
                .help("The program that every rank runs, with its arguments"),
        )
}

/// The same with the subcommands, as the man page and the completions show it.
pub(crate) fn whole() -> Command {
    job().args_conflicts_with_subcommands(true).subcommands([
        check(),
        clean(),
        completions(),
        man(),
        replay(),
        report(),
    ])
}

/// The definition of a subcommand.
pub(crate) fn subcommand(name: &str) -> Option<Command> {
    let all = [check(), clean(), completions(), man(), replay(), report()];
    all.into_iter().find(|command| command.get_name() == name)
}

pub(crate) fn report() -> Command {
    Command::new("report")
        .bin_name("rankrun report")
        .about(SUBCOMMANDS[4].1)
        .long_about(
            "Prints, as rankrun did when the job ended, what failed first and why, what became of the other ranks and what \
             was left. Without JOB it is the newest report of yours.",
        )
        .arg(
            Arg::new("job")
                .value_name("JOB")
                .value_parser(ValueParser::path_buf())
                .value_hint(clap::ValueHint::AnyPath)
                .help("The id of the job or the beginning of it; or its report.json, or the directory that holds one"),
        )
        .arg(Arg::new("list").long("list").help("List your reports, the newest first").action(ArgAction::SetTrue).conflicts_with("job"))
        .arg(Arg::new("json").long("json").help("Print JSON").action(ArgAction::SetTrue))
}

pub(crate) fn check() -> Command {
    Command::new("check").bin_name("rankrun check").about(SUBCOMMANDS[0].1).long_about(
        "Says, one line each, what this machine offers to jobs: how ranks are contained, pseudo-terminals, tracing, limits, \
         MPI libraries, GPUs and Python. What is amiss comes with a hint. The exit code is 1 if jobs cannot run.",
    )
}

pub(crate) fn replay() -> Command {
    Command::new("replay")
        .bin_name("rankrun replay")
        .about(SUBCOMMANDS[5].1)
        .long_about(
            "Feeds the events of a job, as --journal wrote them, to the verdict again, and prints the report. A report that \
             differs from that of the job's end is a change of the verdict.",
        )
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(ValueParser::path_buf())
                .value_hint(clap::ValueHint::FilePath)
                .help("The journal of a job"),
        )
}

pub(crate) fn clean() -> Command {
    let dry_run = Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue);
    Command::new("clean")
        .bin_name("rankrun clean")
        .about(SUBCOMMANDS[1].1)
        .long_about(
            "Ends the processes, and removes the cgroups, the shared memory and the private directories, of jobs of yours on \
             this machine whose front, agent and guard are all gone. A job that is alive is never touched.",
        )
        .arg(dry_run.help("Only list what would be done"))
}

pub(crate) fn completions() -> Command {
    let shell = Arg::new("shell").value_name("SHELL").required(true);
    Command::new("completions")
        .bin_name("rankrun completions")
        .about(SUBCOMMANDS[2].1)
        .arg(shell.value_parser(PossibleValuesParser::new(Shell::NAMES)).help("The shell"))
}

pub(crate) fn man() -> Command {
    Command::new("man").bin_name("rankrun man").about(SUBCOMMANDS[3].1)
}

/// An option that takes a value, kept as typed.
pub(crate) fn option(
    id: &'static str,
    value: &'static str,
    heading: &'static str,
    help: &'static str,
    more: &str,
) -> Arg {
    let arg = Arg::new(id);
    let arg = match REPEATED.contains(&id) {
        true => arg.action(ArgAction::Append),
        false => arg.action(ArgAction::Set).overrides_with(id),
    };
    arg.long(id)
        .value_name(value)
        .help_heading(heading)
        .help(help)
        .long_help(format!("{help}.\n\n{more}"))
        .value_parser(ValueParser::os_string())
}

/// An option that takes one of a few words. The short help lists them, the long help says what each means.
fn choice<T>(
    id: &'static str,
    value: &'static str,
    heading: &'static str,
    help: &'static str,
    more: &str,
    choices: &[Choice<T>],
) -> Arg {
    let words: Vec<&str> = choices.iter().map(|choice| choice.word).collect();
    let meanings: String = choices.iter().map(|choice| format!("\n- {}: {}", choice.word, choice.help)).collect();
    let values = choices.iter().map(|choice| PossibleValue::new(choice.word).help(choice.help));
    option(id, value, heading, help, &format!("{more}\n{meanings}"))
        .help(format!("{help}: {}", words.join(", ")))
        .value_parser(PossibleValuesParser::new(values))
        .hide_possible_values(true)
}

/// An option without a value, and its opposite, which takes back what a file or the environment says.
fn switch(id: &'static str, opposite: &'static str, heading: &'static str, help: &'static str, more: &str) -> [Arg; 2] {
    let yes = Arg::new(id).long(id).help_heading(heading).help(help).long_help(format!(
        "{help}.

{more}"
    ));
    let no = Arg::new(opposite).long(opposite).hide(true).help_heading(heading);
    let no = no.help(format!("The opposite of --{id}")).action(ArgAction::SetTrue).overrides_with(id);
    [yes.action(ArgAction::SetTrue).overrides_with(opposite), no]
}

fn rank_args() -> Vec<Arg> {
    vec![
        option(
            "nproc",
            "N",
            RANKS,
            "Number of ranks that run the command: a number, auto or gpu (default 1)",
            "\"auto\" (or \"cpu\") is one rank for each CPU that rankrun may use: those of its affinity mask, and not more than \
             the quota of its cgroup. \"gpu\" is one for each GPU: those in CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, \
             ROCR_VISIBLE_DEVICES or ZE_AFFINITY_MASK, or else all of the machine. \"gpu-or-cpu\" is one for each GPU, or for \
             each CPU where there is no GPU: what torchrun calls auto.",
        )
        .short('n')
        .allow_negative_numbers(true),
        option(
            "wdir",
            "DIR",
            RANKS,
            "Run the command in this directory",
            "A command such as ./solver is looked for there. {rank}, {local_rank}, {job}, {attempt} and {node} are replaced. --log-dir and other paths of rankrun's own start from the directory in which rankrun was called.",
        )
        .value_hint(clap::ValueHint::DirPath),
        option(
            "env",
            "NAME[=VALUE]",
            RANKS,
            "Set a variable in the ranks' environment [repeatable]",
            "The ranks have the whole environment of rankrun, except for what an outer launcher said about itself (SLURM_PROCID, \
             PMI_*, OMPI_*, ...). NAME alone passes such a variable on; a final * stands for any rest. What is set here wins over \
             what rankrun sets, except for PMI_* and RANKRUN_*. In a VALUE, {rank}, {local_rank}, {job}, {attempt} and {node} are \
             replaced; other braces stay.",
        )
        .short('x'),
        option(
            "env-remove",
            "NAME",
            RANKS,
            "Remove a variable from the ranks' environment [repeatable]",
            "A final * stands for any rest, as in 'NCCL_*'. Edits are made in the order given, those of a configuration file first.",
        ),
        option(
            "wrap",
            "[RANKS:]COMMAND",
            RANKS,
            "Put a command in front of some ranks' program [repeatable]",
            "The command is split into words as a shell does, quotes respected: --wrap '0:gdb --args', --wrap 'perf record -o perf.{rank}'. \
             {rank}, {local_rank}, {job}, {attempt} and {node} are replaced. Without RANKS all ranks are wrapped. The first one given is outermost.",
        ),
        option(
            "gpus-per-rank",
            "N",
            RANKS,
            "Show each rank N GPUs of its own; \"none\" (default) shows all",
            "Slices CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, and ZE_AFFINITY_MASK, by local rank. Where \
             there is no such mask, devices are counted from 0. By default every rank sees all GPUs, and programs pick one by \
             their local rank.",
        ),
        choice(
            "mpi", "KIND",
            RANKS,
            "Which MPI wire-up the ranks are offered",
            "MPI libraries find each other over a socket that each rank inherits.",
            choices::MPI,
        ),
    ]
}

fn ending_args() -> Vec<Arg> {
    let mut args = vec![
        option(
            "timeout",
            "DURATION",
            ENDING,
            "End the job after this time, with exit code 124",
            "Durations are written 500ms, 5, 5s, 1m30s, 2h; 0 is no limit. MPIEXEC_TIMEOUT, in seconds, is read too.",
        ),
        option(
            "grace",
            "DURATION",
            ENDING,
            "Time from the first signal to SIGKILL when ranks are ended",
            "By default 5s after a failure or --timeout, and 25s when a signal asks rankrun to stop.",
        ),
        option(
            "linger",
            "DURATION",
            ENDING,
            "Time for what a rank leaves behind to end (default 2s)",
            "When the first process of a rank is gone and others of its tree are alive, they have this long before SIGTERM.",
        ),
        option(
            "finalize-grace",
            "DURATION",
            ENDING,
            "Time for MPI_Finalize after an uncaught exception (default 500ms)",
            "When Python's own exit work is done after a failure, and MPI was initialised, the rank has this long to end; up \
             to 10s while it writes files.",
        ),
        option(
            "exit-grace",
            "DURATION",
            ENDING,
            "Time for exit handlers after an uncaught exception (default 30s)",
            "An exception that reached the top may be followed by atexit handlers, threads and children that take their \
             time. A note of the rank begins this time anew.",
        ),
        choice(
            "on-suspect",
            "WHAT",
            ENDING,
            "A rank whose stderr ends with a traceback and that lives on for 10s",
            "For ranks that cannot be asked how they end: python -I, a script that sets PYTHONPATH.",
            choices::ON_SUSPECT,
        ),
        choice(
            "hook",
            "WHAT",
            ENDING,
            "How uncaught exceptions of Python are learnt of",
            "The hook is a sitecustomize module at the front of PYTHONPATH; the program is not changed.",
            choices::HOOK,
        ),
        choice(
            "stop-scope",
            "SCOPE",
            ENDING,
            "Who gets the first signals",
            "After --grace, SIGKILL goes to every process in any case.",
            choices::STOP_SCOPE,
        ),
        choice(
            "descendants",
            "WHAT",
            ENDING,
            "Processes that a rank leaves behind",
            "A rank that exits by itself may have started servers or loggers.",
            choices::DESCENDANTS,
        ),
        choice(
            "clean-shm",
            "WHAT",
            ENDING,
            "Shared memory that the job leaves",
            "Only files in /dev/shm that processes of this job mapped are ever touched.",
            choices::CLEAN_SHM,
        ),
    ];
    args.extend(crate::stopping::args(ENDING));
    args.extend(switch(
        "keep-going",
        "no-keep-going",
        ENDING,
        "Let the other ranks run on when one fails",
        "The ranks are independent of each other. The exit code is that of the first failure.",
    ));
    args.extend(switch(
        "die-with-parent",
        "no-die-with-parent",
        ENDING,
        "End the job when whoever started rankrun is gone",
        "As if SIGTERM had been sent to rankrun. For programs that start rankrun and may themselves be killed.",
    ));
    args
}

fn output_args() -> Vec<Arg> {
    let mut args = vec![
        choice(
            "output",
            "MODE",
            OUTPUT,
            "How the ranks' output is put together",
            "The default is raw for one rank, if none of --tag, --timestamps and --only is given, and line otherwise.",
            choices::OUTPUT,
        ),
        option(
            "tag",
            "TEMPLATE",
            OUTPUT,
            "Put the rank in front of each line",
            "The default template is \"[{rank}] \". A template of your own follows an equals sign, \
             as in --tag='{node}:{rank}: '. Its fields are {rank}, {local_rank}, {node}, {app}, {stream} and {time}.",
        )
        .short('l')
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value(""),
        option("only", "RANKS", OUTPUT, "Show only these ranks, such as 0-3,8", "Log files still have all ranks."),
        choice(
            "color",
            "WHEN",
            OUTPUT,
            "When to use colours",
            "Colours mark tags, and rankrun's own messages.",
            choices::WHEN,
        ),
        option(
            "log-dir",
            "DIR",
            OUTPUT,
            "Also write a file for each rank and stream into this directory",
            "The directory is made if it is missing. {rank}, {local_rank}, {job}, {attempt} and {node} in it are replaced: --log-dir logs/{job}.",
        )
        .value_hint(clap::ValueHint::DirPath),
        choice(
            "stdio",
            "KIND",
            OUTPUT,
            "What carries the ranks' output",
            "Programs buffer less, and use colours, when they write to a terminal.",
            choices::STDIO,
        ),
        choice(
            "buffer",
            "MODE",
            OUTPUT,
            "How the ranks buffer their output",
            "\"line\" and \"none\" preload coreutils' stdbuf library, which programs built with sanitizers do not bear.",
            choices::BUFFER,
        ),
        option(
            "spool",
            "SIZE",
            OUTPUT,
            "How much output may wait on disk (default 1GiB)",
            "Beyond that the ranks are slowed down; nothing is ever dropped. Sizes are written 64K, 1GiB.",
        ),
        option(
            "drain",
            "DURATION",
            OUTPUT,
            "Time for slow output after the job's end (default 30s)",
            "Output that its destination has not taken by then goes to the report directory, and rankrun says so.",
        ),
    ];
    args.extend(switch(
        "timestamps",
        "no-timestamps",
        OUTPUT,
        "Put the time in front of each line",
        "The time is that at which the line began.",
    ));
    args
}

fn input_args() -> Vec<Arg> {
    vec![
        option(
            "stdin",
            "none|RANK|all",
            INPUT,
            "Who reads rankrun's stdin (default: rank 0)",
            "A single rank gets the descriptor itself, so that not a byte more is read than the rank reads.",
        ),
        option(
            "tty",
            "RANK",
            INPUT,
            "Put one rank on the terminal, for a debugger",
            "The rank gets rankrun's own terminal, and --timeout does not count meanwhile: rankrun -n 4 --tty 3 --wrap '3:gdb --args' ./a",
        ),
    ]
}

fn general_args() -> Vec<Arg> {
    let flag = |id: &'static str, help: &'static str| Arg::new(id).long(id).help_heading(GENERAL).help(help);
    vec![
        option(
            "config",
            "FILE",
            GENERAL,
            "Read settings from this TOML file",
            "Its keys are the long names of the options: grace = \"10s\", tag = true, env = { A = \"1\" }, wrap = [\"0:gdb --args\"]. The \
             command line wins over the environment, which wins over the file.",
        )
        .value_hint(clap::ValueHint::FilePath),
        option(
            "report-dir",
            "DIR",
            GENERAL,
            "Where the report is written",
            "The default is a directory of the job below $XDG_STATE_HOME/rankrun or ~/.local/state/rankrun.",
        )
        .value_hint(clap::ValueHint::DirPath),
        option(
            "keep-reports",
            "N",
            GENERAL,
            "How many reports are kept (default 100)",
            "When a job has saved its report in the default place, older ones there are removed, the oldest first.",
        ),
        option(
            "journal",
            "FILE",
            GENERAL,
            "Write the events of the job to this file",
            "Each is a line of JSON. \"rankrun replay FILE\" makes the report from them again. The file holds what the \
             ranks said of their failures and the last lines of their stderr, and not the environment.",
        )
        .value_hint(clap::ValueHint::FilePath),
        flag("dry-run", "Print what would be started, and start nothing")
            .action(ArgAction::SetTrue)
            .long_help("Print what would be started, and start nothing.\n\nThe rank map, and the command, the directory and the changed variables of each rank; with -v the whole environment."),
        flag("verbose", "Say more; twice, say still more").short('v').action(ArgAction::Count),
        flag("quiet", "Say nothing but errors of rankrun itself").short('q').action(ArgAction::SetTrue).conflicts_with("verbose"),
        flag("help", "Print help; -h is short, --help is long").short('h').action(ArgAction::Help),
        flag("version", "Print the version").short('V').action(ArgAction::Version),
    ]
}

/// Names of options as they are typed, for near matches.
pub(crate) fn long_names(command: &Command) -> Vec<String> {
    let longs = command.get_arguments().filter_map(Arg::get_long);
    longs.map(|long| format!("--{long}")).collect()
}

/// Whether an option, as typed, takes the next word for its value; `None` if there is no such option.
pub(crate) fn takes_next_word(command: &Command, typed: &str) -> Option<bool> {
    let takes_value = |arg: &Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    if let Some(long) = typed.strip_prefix("--") {
        let (name, inline) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name))?;
        return Some(takes_value(arg) && !inline);
    }
    let mut letters = typed.strip_prefix('-')?.chars();
    while let Some(letter) = letters.next() {
        let arg = command.get_arguments().find(|arg| arg.get_short() == Some(letter))?;
        if arg.get_action().takes_values() {
            return Some(takes_value(arg) && letters.as_str().is_empty());
        }
    }
    Some(false)
}

/// The name of the environment variable of an option.
pub(crate) fn variable(key: &str) -> OsString {
    format!("RANKRUN_{}", key.to_uppercase().replace('-', "_")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_no_fault_with_the_definitions() {
        whole().debug_assert();
        for (name, _) in SUBCOMMANDS {
            assert!(whole().find_subcommand(name).is_some(), "{name} is listed and not defined");
            assert!(texts::COMMANDS.contains(&format!("rankrun {name}")), "{name} is not in the help");
        }
    }

    #[test]
    fn options_that_may_be_repeated_and_switches_are_options() {
        let command = job();
        for id in REPEATED.iter().chain(SWITCHES).chain(PER_COMMAND) {
            assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
    }
}
