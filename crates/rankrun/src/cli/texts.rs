//! The texts around the list of options: what --help and the man page say first and last.

pub(crate) const LONG_ABOUT: &str = "\
Start the ranks of a distributed job, watch them, end them all, say what failed.

When one rank fails, all others are ended, and when rankrun returns, nothing of the job is left: no grandchild, no daemon, no \
shared memory. MPI programs (MPICH, Intel MPI, MVAPICH) and torch programs find each other without further help.

Options end at the first word of the command. Commands are separated by a word \":\", each with its own -n, -x, --env-remove, \
--wdir and --wrap; all other options concern the whole job and are written before the first command.";

/// What may stand in the place of a command, for the end of the help.
pub(crate) const COMMANDS: &str = "  rankrun check              Say what this machine offers to jobs, and what is amiss
  rankrun clean              End and remove what dead jobs left behind
  rankrun completions SHELL  Print the completions of a shell
  rankrun man                Print the man page
  rankrun report [JOB]       Print the report of a job: the last, or the one named
  rankrun replay FILE        Print the report that a journal comes to";

pub(crate) const EXAMPLES: &str = "  rankrun -n 4 python train.py              four ranks
  rankrun -n auto -l ./solver input.dat     one for each CPU, lines tagged with the rank
  rankrun -n 1 ./master : -n 7 ./worker     two programs in one world
  rankrun -n 4 --timeout 2h -x OMP_NUM_THREADS=4 ./solver
  rankrun -n 4 --tty 3 --wrap '3:gdb --args' ./solver";

pub(crate) const SETTINGS: &str = "\
Every option that has a value or a switch can also be given as an environment variable, RANKRUN_GRACE=10s for --grace 10s, \
or in a TOML file (--config FILE or RANKRUN_CONFIG), grace = \"10s\". The command line wins over the environment, the \
environment over the file. What a switch says is taken back by --no-keep-going, --no-die-with-parent, --no-timestamps.";

pub(crate) const EXIT_CODES: &str = "\
The code of the rank that failed first, or 128 + n if signal n ended it. Also:";

pub(crate) const EXIT_CODE_TABLE: &str = "  0    every rank exited with 0
  1    a rank failed although it left with 0: it called no MPI_Finalize, for instance
  2    usage error: nothing was started
  121  a node was lost
  123  processes of the job could not be killed
  124  --timeout passed
  125  rankrun itself failed
  126  the command could not be executed
  127  the command was not found";

pub(crate) const NOTES: &str = "Files that are executable but have no #! line are run by /bin/sh, as shells do.";

/// The end of the short help.
pub(crate) fn after_help() -> String {
    let commands = "Other commands (as the first word; a program of that name is run as ./check or after --):";
    format!("{commands}\n{COMMANDS}\n\nExamples:\n{EXAMPLES}")
}

/// The end of the long help.
pub(crate) fn after_long_help() -> String {
    let start = after_help();
    format!("{start}\n\nSettings:\n  {SETTINGS}\n\nExit codes:\n  {EXIT_CODES}\n{EXIT_CODE_TABLE}\n\n{NOTES}")
}
