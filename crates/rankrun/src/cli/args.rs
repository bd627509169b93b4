//! The options of rankrun, defined once for `--help`, the man page, completions, configuration files and `RANKRUN_*`. `settings` interprets them.

use std::ffi::OsString;

use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, Command};

use crate::choices::{self, Choice};
use crate::subcommands;
use crate::texts;

const RANKS: &str = "Ranks";
const HOSTS: &str = "Hosts";
const BINDING: &str = "Binding to CPUs";
const NODES: &str = "Multi-node without ssh";
const ENDING: &str = "How the job ends";
const RESTART: &str = "Restart";
const OUTPUT: &str = "Output";
const INPUT: &str = "Input and terminal";
const GENERAL: &str = "rankrun itself";

/// The id of the positional argument that holds the command.
pub(crate) const COMMAND: &str = "command";

/// Options that belong to one command of a job of several; all others concern the whole job.
pub(crate) const PER_COMMAND: &[&str] = &["nproc", "env", "env-remove", "wdir", "wrap"];

/// Options that make no sense as a lasting setting, neither in a file nor in the environment.
pub(crate) const ONLY_TYPED: &[&str] = &["config", "detach", "dry-run", "help", "version", COMMAND];

/// Options that may be given several times, each adding to what was there.
pub(crate) const REPEATED: &[&str] = &["env", "env-remove", "wrap", "match-stdout", "match-stderr"];

/// Options without a value.
pub(crate) const SWITCHES: &[&str] = &[
    "expand-args",
    "tf-config",
    "oversubscribe",
    "copy",
    "keep-going",
    "strict",
    "die-with-parent",
    "breaker",
    "timestamps",
    "dry-run",
];

/// The options that the short help shows; the long one shows all.
const COMMON: &[&str] = &[
    "nproc",
    "hosts",
    "ppn",
    "wdir",
    "env",
    "wrap",
    "timeout",
    "grace",
    "keep-going",
    "restart",
    "output",
    "tag",
    "only",
    "log-dir",
    "stdin",
    "tty",
    "dry-run",
    "verbose",
    "quiet",
    "help",
    "version",
];

/// The command line of a job.
pub(crate) fn job() -> Command {
    let command = job_without_texts();
    match texts::is_described() {
        true => command
            .mut_args(|arg| {
                let is_common = COMMON.contains(&arg.get_id().as_str());
                arg.hide_short_help(!is_common)
            })
            .long_about(texts::LONG_ABOUT)
            .after_help(texts::AFTER_HELP)
            .after_long_help(texts::after_long_help()),
        false => command,
    }
}

fn job_without_texts() -> Command {
    Command::new("rankrun")
        .bin_name("rankrun")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Run a distributed job: start its ranks, stop all when one fails, report why")
        .override_usage("rankrun [OPTIONS] COMMAND [ARG]... [: [OPTIONS] COMMAND [ARG]...]...")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args_override_self(true)
        .args(rank_args())
        .args(crate::hosts::args(HOSTS))
        .args(crate::binding::args(BINDING))
        .args(ending_args())
        .args(crate::joining::args(NODES))
        .args(crate::restarting::args(RESTART))
        .args(crate::planned::args(RESTART))
        .args(output_args())
        .args(crate::leaving::args(OUTPUT))
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
    job().args_conflicts_with_subcommands(true).subcommands(subcommands::all())
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
    let arg = arg.long(id).value_name(value).value_parser(ValueParser::os_string());
    match texts::is_described() {
        true => arg.help_heading(heading).help(help).long_help(format!("{help}.\n\n{more}")),
        false => arg,
    }
}

/// An option that takes one of a few words. The short help lists them, the long help says what each means.
pub(crate) fn choice<T>(
    id: &'static str,
    value: &'static str,
    heading: &'static str,
    help: &'static str,
    more: &str,
    choices: &[Choice<T>],
) -> Arg {
    if !texts::is_described() {
        let values = PossibleValuesParser::new(choices.iter().map(|choice| choice.word));
        return option(id, value, heading, help, more).value_parser(values);
    }
    let words: Vec<&str> = choices.iter().map(|choice| choice.word).collect();
    let meanings: String = choices.iter().map(|choice| format!("\n- {}: {}", choice.word, choice.help)).collect();
    let values = choices.iter().map(|choice| PossibleValue::new(choice.word).help(choice.help));
    option(id, value, heading, help, &format!("{more}\n{meanings}"))
        .help(format!("{help}: {}", words.join(", ")))
        .value_parser(PossibleValuesParser::new(values))
        .hide_possible_values(true)
}

/// An option without a value, and its opposite, which overrides a file or the environment.
pub(crate) fn switch(
    id: &'static str,
    opposite: &'static str,
    heading: &'static str,
    help: &'static str,
    more: &str,
) -> [Arg; 2] {
    let (mut yes, mut no) = (Arg::new(id).long(id), Arg::new(opposite).long(opposite).hide(true));
    if texts::is_described() {
        yes = yes.help_heading(heading).help(help).long_help(format!("{help}.\n\n{more}"));
        no = no.help_heading(heading).help(format!("The opposite of --{id}"));
    }
    let no = no.action(ArgAction::SetTrue).overrides_with(id);
    [yes.action(ArgAction::SetTrue).overrides_with(opposite), no]
}

fn rank_args() -> Vec<Arg> {
    let mut args = vec![
        option(
            "nproc",
            "N",
            RANKS,
            "Number of ranks: N, auto (CPUs) or gpu (GPUs)",
            "\"auto\" (or \"cpu\") starts one rank for each CPU that rankrun may use: the CPUs of its affinity \
             mask, limited by the quota of its cgroup. \"gpu\" starts one rank for each GPU: those listed in \
             CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES or ZE_AFFINITY_MASK, or else all of \
             the machine. \"gpu-or-cpu\" is one for each GPU, or for each CPU where there is no GPU (torchrun's \
             auto). The default is 1.",
        )
        .short('n')
        .allow_negative_numbers(true),
        option(
            "wdir",
            "DIR",
            RANKS,
            "Working directory of the ranks",
            "Programs such as ./solver are looked up there. Relative paths in other options, such as --log-dir, \
             start at the directory where rankrun was started. The fields {rank}, {local_rank}, {job}, {attempt} \
             and {node} are replaced.",
        )
        .value_hint(clap::ValueHint::DirPath),
        option(
            "env",
            "NAME[=VALUE]",
            RANKS,
            "Set a variable for the ranks [repeatable]",
            "Ranks inherit the whole environment of rankrun, except variables that describe a rank of an outer \
             launcher (SLURM_PROCID, PMI_RANK, ...). NAME alone passes such a variable on; NAME* passes on \
             all variables that begin with NAME. Values set here override those that rankrun sets, except for \
             PMI_* and RANKRUN_*. In VALUE the fields {rank}, {local_rank}, {job}, {attempt} and {node} are \
             replaced; other braces stay.",
        )
        .short('x'),
        option(
            "env-remove",
            "NAME",
            RANKS,
            "Unset a variable for the ranks [repeatable]",
            "NAME* unsets all variables that begin with NAME, and * all that the ranks would inherit. -x and --env-remove apply in the order given, after \
             those of the configuration file.",
        ),
        option(
            "wrap",
            "[RANKS:]COMMAND",
            RANKS,
            "Prefix the program, as in 'gdb --args'",
            "For some ranks only: --wrap '0:gdb --args', --wrap '2-3:valgrind'. The command is split into words \
             as a shell does it, with quotes. The fields {rank}, {local_rank}, {job}, {attempt} and {node} are \
             replaced: --wrap 'perf record -o perf.{rank}'. Repeatable; the first --wrap is the outermost command.",
        ),
    ];
    args.extend(switch(
        "expand-args",
        "no-expand-args",
        RANKS,
        "Replace fields in the words of the command too",
        "{rank}, {local_rank}, {job}, {attempt} and {node}, as in -x. Other braces stay, and {{rank}} stands for {rank}.",
    ));
    args.extend(crate::frameworks::args(RANKS));
    args
}

fn ending_args() -> Vec<Arg> {
    let mut args = vec![
        option(
            "timeout",
            "DURATION",
            ENDING,
            "Stop the job after this time; exit code 124",
            "Durations are written 500ms, 5, 5s, 1m30s, 2h; 0 means no limit. MPIEXEC_TIMEOUT (in seconds) is \
             read too.",
        ),
        option(
            "grace",
            "DURATION",
            ENDING,
            "Time from the first signal to SIGKILL",
            "The default is 5s after a failure or --timeout, and 25s when rankrun receives a signal and at a planned stop.",
        ),
        option(
            "linger",
            "DURATION",
            ENDING,
            "Time for leftover processes to exit (default 2s)",
            "When the first process of a rank has exited and processes that it started are still running, they \
             have this long before they get SIGTERM.",
        ),
        option(
            "finalize-grace",
            "DURATION",
            ENDING,
            "Time for MPI_Finalize after an exception (default 500ms)",
            "Counts from the end of Python's exit handlers after an uncaught exception, in a process that called \
             MPI_Init, and from the beginning of JAX's shutdown; up to 10s while the process is writing files.",
        ),
        option(
            "exit-grace",
            "DURATION",
            ENDING,
            "Time for exit handlers after an exception (default 30s)",
            "After an uncaught exception, Python still runs atexit handlers and waits for threads and child \
             processes. Each note() of the rank restarts this time.",
        ),
        option(
            "stall",
            "DURATION[:ACTION]",
            ENDING,
            "Print stacks after this long without activity (default 10m:warn)",
            "Activity is output, progress, a request to PMI, PMIx or torch's store, or a stack that changes in one of eight \
             samples. ACTION is warn or kill: if every rank waits, kill ends the job with 122, or restarts it. \"off\" disables \
             this.",
        ),
        choice(
            "on-suspect",
            "WHAT",
            ENDING,
            "What to do with a rank that keeps running for 10s after a traceback on stderr",
            "Applies only to ranks without the Python hook: python -I, or a script that sets PYTHONPATH.",
            choices::ON_SUSPECT,
        ),
        choice(
            "hook",
            "WHAT",
            ENDING,
            "Detect uncaught Python exceptions",
            "The hook is a sitecustomize module, found through PYTHONPATH. The program itself is not changed.",
            choices::HOOK,
        ),
        choice(
            "stop-scope",
            "SCOPE",
            ENDING,
            "Which processes of a rank get the first signals",
            "After --grace, every process gets SIGKILL.",
            choices::STOP_SCOPE,
        ),
        choice(
            "descendants",
            "WHAT",
            ENDING,
            "Processes that a rank leaves behind",
            "What to do when a rank exits while processes that it started are still running, such as servers or \
             loggers.",
            choices::DESCENDANTS,
        ),
        choice(
            "clean-shm",
            "WHAT",
            ENDING,
            "Shared memory that the job leaves behind",
            "Only files in /dev/shm that processes of this job created are removed.",
            choices::CLEAN_SHM,
        ),
    ];
    args.extend(crate::stopping::args(ENDING));
    args.extend(switch(
        "keep-going",
        "no-keep-going",
        ENDING,
        "Do not stop the other ranks when one fails",
        "The exit code is that of the first failure.",
    ));
    args.extend(switch(
        "die-with-parent",
        "no-die-with-parent",
        ENDING,
        "Stop the job when the parent process exits",
        "As if rankrun had received SIGTERM. For programs that start rankrun and may be killed.",
    ));
    args
}

fn output_args() -> Vec<Arg> {
    let mut args = vec![
        choice(
            "output",
            "MODE",
            OUTPUT,
            "Output mode",
            "The default is raw for one rank without --tag, --timestamps and --only, and line otherwise.",
            choices::OUTPUT,
        ),
        option(
            "tag",
            "TEMPLATE",
            OUTPUT,
            "Prefix each line with its rank",
            "The default template is \"[{rank}] \". Write another one after an equals sign: --tag='{node}:{rank}: \
             '. Its fields are {rank}, {local_rank}, {node}, {app}, {stream} and {time}.",
        )
        .short('l')
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value(""),
        option("only", "RANKS", OUTPUT, "Show only these ranks, such as 0-3,8", "Log files still contain all ranks."),
        choice("color", "WHEN", OUTPUT, "Use colours", "For tags and for rankrun's own messages.", choices::WHEN),
        option(
            "log-dir",
            "DIR",
            OUTPUT,
            "Also write a file per rank and stream here",
            "The directory is created if needed. The fields {rank}, {local_rank}, {job}, {attempt} and {node} are \
             replaced: --log-dir 'logs/{job}'.",
        )
        .value_hint(clap::ValueHint::DirPath),
        option(
            "stdout-file",
            "[RANKS:]FILE",
            OUTPUT,
            "Write the ranks' stdout to files instead",
            "FILE names the file of each rank: --stdout-file 'out.{rank}'. The fields are those of --log-dir. Ranks with the same \
             name share the file, line by line. An existing file is overwritten. RANKS limits the option to some ranks: '0-3:out.{rank}'.",
        )
        .value_hint(clap::ValueHint::FilePath),
        option(
            "stderr-file",
            "[RANKS:]FILE",
            OUTPUT,
            "Write the ranks' stderr to files instead",
            "As --stdout-file. rankrun's own messages stay on its stderr.",
        )
        .value_hint(clap::ValueHint::FilePath),
        option(
            "tee-stdout",
            "[RANKS:]FILE",
            OUTPUT,
            "Write the ranks' stdout to files too",
            "As --stdout-file, and the output is shown as well.",
        )
        .value_hint(clap::ValueHint::FilePath),
        option(
            "tee-stderr",
            "[RANKS:]FILE",
            OUTPUT,
            "Write the ranks' stderr to files too",
            "As --stderr-file, and the output is shown as well.",
        )
        .value_hint(clap::ValueHint::FilePath),
        option(
            "match-stdout",
            "[RANKS:]FILE::TEXT",
            OUTPUT,
            "Copy the lines of stdout that contain TEXT to a file [repeatable]",
            "The lines of all ranks go to one file, with the tag of --tag. To match several texts, repeat the option with the same \
             FILE: a line with any of the texts is copied.",
        ),
        option(
            "match-stderr",
            "[RANKS:]FILE::TEXT",
            OUTPUT,
            "Copy the lines of stderr that contain TEXT to a file [repeatable]",
            "As --match-stdout.",
        ),
        choice(
            "stdio",
            "KIND",
            OUTPUT,
            "Connect the ranks' output to pipes or pseudo-terminals",
            "Programs that write to a terminal buffer less, and use colours.",
            choices::STDIO,
        ),
        choice(
            "buffer",
            "MODE",
            OUTPUT,
            "Output buffering in the ranks",
            "\"line\" and \"none\" preload the library of coreutils' stdbuf, which does not work with sanitizers.",
            choices::BUFFER,
        ),
        option(
            "spool",
            "SIZE",
            OUTPUT,
            "Output to hold on disk while the reader is slow (default 1GiB)",
            "When it is full, the ranks wait. No output is dropped. Sizes are written 64K, 100M, 1GiB.",
        ),
        option(
            "drain",
            "DURATION",
            OUTPUT,
            "Time to write remaining output after the job (default 30s)",
            "Output that could not be written by then is saved in the report directory, with a message.",
        ),
    ];
    args.extend(switch(
        "timestamps",
        "no-timestamps",
        OUTPUT,
        "Prefix each line with the time",
        "The time at which the line began, in UTC.",
    ));
    args
}

fn input_args() -> Vec<Arg> {
    vec![
        option(
            "stdin",
            "WHO",
            INPUT,
            "Who reads stdin: RANK, none, all or shared (default 0)",
            "A single rank reads rankrun's stdin directly: input that the rank does not read is left for the \
             next program. \"shared\" gives rankrun's own stdin to every rank, for programs in which one rank at a time reads, \
             such as torch.distributed.breakpoint: each byte goes to the rank that reads first. With --detach nobody reads by \
             default; with RANK or all, they read what \"rankrun attach --stdin\" gives them.",
        ),
        option(
            "tty",
            "RANK",
            INPUT,
            "Give one rank the terminal, for a debugger",
            "--timeout does not apply to such a job. In the other ranks, Python's breakpoint() does nothing. Example: rankrun -n 4 \
             --tty 3 --wrap '3:gdb --args' ./a",
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
            "Read settings from a TOML file",
            "Keys are the long names of the options: grace = \"10s\", tag = true, env = { A = \"1\" }, wrap = \
             [\"0:gdb --args\"]. The command line overrides environment variables, which override the file.",
        )
        .value_hint(clap::ValueHint::FilePath),
        option(
            "report-dir",
            "DIR",
            GENERAL,
            "Directory for the report",
            "The default is a directory for each job below $XDG_STATE_HOME/rankrun or ~/.local/state/rankrun. \
             With this option, jobs that succeed write a report too.",
        )
        .value_hint(clap::ValueHint::DirPath),
        option(
            "keep-reports",
            "N",
            GENERAL,
            "Number of reports to keep (default 100)",
            "After a job has saved its report in the default directory, the oldest reports there are removed.",
        ),
        option(
            "journal",
            "FILE",
            GENERAL,
            "Write the events of the job to a file",
            "One JSON object per line. \"rankrun replay FILE\" prints the report of these events, and \"rankrun \
             replay FILE --otlp\" a trace, in which each rank gets its span as TRACEPARENT. The file \
             contains the failures that ranks reported and the last lines of their stderr, and of the \
             environment TRACEPARENT and TRACESTATE alone.",
        )
        .value_hint(clap::ValueHint::FilePath),
        flag("dry-run", "Print what would be started, and exit")
            .action(ArgAction::SetTrue)
            .long_help("Print what would be started, and exit.\n\nShows the ranks, and for each the command, the directory and the variables that change; with -v the whole environment. Every setting is shown with its origin."),
        flag("detach", "Print the job's id when all ranks run, and exit")
            .action(ArgAction::SetTrue)
            .long_help("Print the job's id when all ranks run, and exit.\n\nThe job goes on without a terminal. \"rankrun attach\" shows its output, \"rankrun wait\" waits for its end and has its exit code, \"rankrun stop\" ends it. A job that fails before all ranks run fails in the foreground. The ranks have no stdin, but with --stdin RANK or all that of \"rankrun attach --stdin\"."),
        flag("verbose", "Print more; -vv prints even more").short('v').action(ArgAction::Count),
        flag("quiet", "Print only errors of rankrun itself").short('q').action(ArgAction::SetTrue).conflicts_with("verbose"),
        flag("help", "Print help: -h the common options, --help all").short('h').action(ArgAction::Help),
        flag("version", "Print the version").short('V').action(ArgAction::Version),
    ]
}

/// Names of options as they are typed, for near matches.
pub(crate) fn long_names(command: &Command) -> Vec<String> {
    let longs = command.get_arguments().filter_map(Arg::get_long);
    longs.map(|long| format!("--{long}")).collect()
}

/// The id of an option of ours, as it is written for our parser.
pub(crate) fn id_of(command: &Command, written: &str) -> Option<String> {
    let name = written.split('=').next().unwrap_or(written);
    let is_named = |arg: &&Arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        // Of several letters the last one may take a value.
        None => name.chars().last() == arg.get_short(),
    };
    command.get_arguments().find(is_named).map(|arg| arg.get_id().to_string())
}

/// Whether an option, as typed, takes the next word as its value; `None` if there is no such option.
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
    use crate::subcommands::SUBCOMMANDS;

    #[test]
    fn clap_finds_no_fault_with_the_definitions() {
        whole().debug_assert();
        for (name, ..) in SUBCOMMANDS {
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
