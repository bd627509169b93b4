//! The texts around the list of options: what --help and the man page say first and last.

use std::cell::Cell;

pub(crate) const LONG_ABOUT: &str = "\
Run a distributed job: start its ranks, stop all when one fails, report why.

When a rank fails, rankrun stops all others. When rankrun returns, no process of the job is running and no shared memory \
is left. MPI programs (MPICH, Intel MPI, MVAPICH), torch programs and JAX programs need no further options to connect.

Options end at the first word of the command. A word \":\" separates commands; each has its own -n, -x, --env-remove, --wdir and \
--wrap. All other options apply to the whole job and come before the first command.";

pub(crate) const MPIEXEC: &str = "\
Runs a job from a command line of mpiexec or mpirun: write \"rankrun \" before it. mpirun, mpiexec.hydra, orterun and prterun are \
other names of it, also with a path. A link to rankrun that is called so does the same.

rankrun accepts the options of Hydra (MPICH, MVAPICH), Intel MPI and Open MPI 4 and 5, with one dash or two, whichever MPI the program \
uses, and its own options with two dashes. An option without effect here prints a warning; an option that cannot be \
ignored is an error that names the nearest equivalent. --dry-run prints the equivalent command line of rankrun.";

pub(crate) const TORCHRUN: &str = "\
Runs a job from a command line of torchrun: write \"rankrun \" before it. A link to rankrun that is called torchrun does the same.

rankrun accepts torchrun command lines: the options of torchrun 2.15, with - or _ in their names (unambiguous abbreviations work), its \
PET_* variables, and rankrun's own options. An option without effect here prints a warning; an option that cannot be ignored is an error \
that names the nearest equivalent. --dry-run prints the equivalent command line of rankrun.";

/// The subcommands, for the end of the help.
pub(crate) const COMMANDS: &str = "  rankrun attach JOB         Show the output of a running job
  rankrun check              Diagnose this machine
  rankrun clean              Remove what crashed jobs left behind
  rankrun completions SHELL  Print the completion script of bash, fish or zsh
  rankrun detach JOB         Let a running job go on without its terminal
  rankrun help [COMMAND]     Print help
  rankrun logs JOB           Print the output of a job that was detached
  rankrun man                Print the man page
  rankrun mpiexec ...        Run a command line of mpiexec or mpirun
  rankrun report [JOB]       Print the report of a job (default: the newest)
  rankrun restart JOB        Restart a running job as planned
  rankrun replay FILE        Print the report of a journal, or its trace (--otlp)
  rankrun resume JOB         Go on with a job whose rankrun was killed
  rankrun stacks JOB         Print each rank's call and the outlier
  rankrun profile JOB        Sample the ranks, and name the slow one and its function
  rankrun status [JOB]       Print what running jobs and their ranks are doing
  rankrun stop JOB           Stop a running job
  rankrun top [JOB]          Watch a running job and its ranks on the terminal
  rankrun torchrun ...       Run a command line of torchrun
  rankrun wait JOB           Wait for the end of a job
  rankrun web [JOB]          Watch running jobs in a browser";

pub(crate) const EXAMPLES: &str = "  rankrun -n 4 python train.py              four ranks
  rankrun -n auto -l ./solver input.dat     one for each CPU, lines tagged with the rank
  rankrun -n 1 ./master : -n 7 ./worker     two programs in one world
  rankrun -n 4 --timeout 2h -x OMP_NUM_THREADS=4 ./solver
  rankrun -n 4 --tty 3 --wrap '3:gdb --args' ./solver";

pub(crate) const SETTINGS: &str = "\
Every option that has a value or a switch can also be given as an environment variable, RANKRUN_GRACE=10s for --grace 10s, \
or in a TOML file (--config FILE or RANKRUN_CONFIG), grace = \"10s\". The command line overrides the environment, which \
overrides the file. --no-keep-going, --no-strict, --no-die-with-parent, --no-timestamps and --no-tf-config turn a switch off.";

pub(crate) const EXIT_CODES: &str = "\
The code of the rank that failed first, or 128 + n if signal n ended it. Also:";

pub(crate) const EXIT_CODE_TABLE: &str = "  0    every rank exited with 0
  1    also: a rank exited with 0 but failed (no MPI_Finalize, MPI_Abort(0)); --strict
  2    usage error; nothing was started
  75   a planned stop: --time-limit, --preempt-notice, SIGTERM with --on-planned-stop requeue
  121  a node, or the agent (the process that starts and watches the ranks), was lost
  122  --stall DURATION:kill ended a job that made no progress
  123  processes of the job could not be killed
  124  --timeout passed
  125  rankrun itself failed
  126  the program cannot be executed
  127  the program was not found";

pub(crate) const NOTES: &str = "An executable file without a #! line is run by /bin/sh, as shells do it.";

/// The end of the short help.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  rankrun -n 4 python train.py
  rankrun -n 1 ./master : -n 7 ./worker        two programs in one world

rankrun --help lists all options, and commands such as status, stop and report.";

/// The end of the long help.
pub(crate) fn after_long_help() -> String {
    let commands = "Other commands (as the first word; write ./check or -- check for a program of that name):";
    let start = format!("{commands}\n{COMMANDS}\n\nExamples:\n{EXAMPLES}");
    format!("{start}\n\nSettings:\n  {SETTINGS}\n\nExit codes:\n  {EXIT_CODES}\n{EXIT_CODE_TABLE}\n\n{NOTES}")
}

thread_local! {
    /// The options that are being made have their texts.
    static IS_DESCRIBED: Cell<bool> = const { Cell::new(false) };
}

/// What `make` makes, with the texts of the options: only those who print them need them.
pub(crate) fn described<T>(make: impl FnOnce() -> T) -> T {
    let before = IS_DESCRIBED.replace(true);
    let made = make();
    IS_DESCRIBED.set(before);
    made
}

pub(crate) fn is_described() -> bool {
    IS_DESCRIBED.get()
}

#[cfg(test)]
mod tests {
    use rankrun_core::ExitCode;
    use rankrun_core::stacks::stall;

    use super::EXIT_CODE_TABLE;

    #[test]
    fn the_help_and_the_readme_name_every_exit_code_of_rankrun() {
        let codes = [
            ExitCode::SUCCESS,
            ExitCode::FAILURE,
            ExitCode::USAGE,
            ExitCode::NODE_LOST,
            ExitCode::HANG,
            ExitCode::LEFT_BEHIND,
            ExitCode::TIMEOUT,
            ExitCode::INTERNAL,
            ExitCode::NOT_EXECUTABLE,
            ExitCode::NOT_FOUND,
        ];
        let readme = include_str!("../../../../README.md");
        for ExitCode(code) in codes {
            let is_first = |line: &&str| line.split_whitespace().next() == Some(code.to_string().as_str());
            assert_eq!(EXIT_CODE_TABLE.lines().filter(is_first).count(), 1, "{code} in the help");
            assert_eq!(readme.lines().filter(|line| line.starts_with(&format!("| {code} |"))).count(), 1, "{code}");
        }
    }

    #[test]
    fn the_help_and_the_page_say_how_often_stalled_ranks_are_looked_at() {
        assert_eq!(stall::LOOKS, 8, "the word in the help and in docs/hangs.md");
        let help = crate::cli::texts::described(crate::cli::args::job).render_long_help().to_string();
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("a stack that changes in one of eight samples"));
        let page = include_str!("../../../../docs/hangs.md");
        assert!(page.contains("eight samples"));
    }
}
