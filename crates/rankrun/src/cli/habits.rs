//! The options of other launchers, and their equivalents here: the parser accepts or refuses them by this table and those
//! of the dialects. docs/other-launchers.md shows this one.
//!
//! An option is accepted silently only if it means the same here, or asks for the default behaviour. Every other one is
//! refused before anything is started, with a hint what to write instead. An option of mpiexec, mpirun or torchrun has a
//! row here only if it is accepted in a way that the dialect's row does not say.
//!
//! Read from Hydra's `options.c` (MPICH 5), Intel's "Hydra Options" (2021.1x), mpirun(1) of Open MPI 4.1 and 5,
//! torchrun 2.15's `run.py`, srun(1) of Slurm 22.05, parallel(1) and xargs(1).

use std::ffi::OsStr;
use std::fmt;

use clap::{Arg, Command};

use crate::words::quote;
use crate::{dialect, mpiexec, torchrun};

/// The launchers that have the option.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Launcher {
    Mpiexec,
    Mpirun,
    Torchrun,
    Accelerate,
    Deepspeed,
    Srun,
    Parallel,
}

use Launcher::{Accelerate, Deepspeed, Mpiexec, Mpirun, Parallel, Srun, Torchrun};

impl Launcher {
    #[cfg(test)]
    pub(crate) const ALL: [Launcher; 7] = [Mpiexec, Mpirun, Torchrun, Accelerate, Deepspeed, Srun, Parallel];

    /// The heading of its table.
    #[cfg(test)]
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Mpiexec => "From mpiexec (Hydra: MPICH, Intel MPI, MVAPICH)",
            Mpirun => "From mpirun (Open MPI)",
            Torchrun => "From torchrun",
            Accelerate => "From accelerate",
            Deepspeed => "From deepspeed",
            Srun => "From srun",
            Parallel => "From GNU parallel and xargs",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mpiexec => "mpiexec",
            Mpirun => "mpirun",
            Torchrun => "torchrun",
            Accelerate => "accelerate",
            Deepspeed => "deepspeed",
            Srun => "srun",
            Parallel => "parallel",
        })
    }
}

/// The equivalent of another launcher's option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Here {
    /// These words of ours; `{}` stands for its value, `{1}` and `{2}` for the two words of a name and a value.
    Same(&'static [&'static str]),
    /// The same, if the job has one command; with several, our option would apply only to the first.
    SameForOne(&'static [&'static str]),
    /// It asks for the default behaviour, for the given reason.
    Already(&'static str),
    /// With one of these values it asks for the default behaviour; otherwise refused, with the advice.
    Only(&'static [&'static str], &'static str),
    /// Refused, with the advice.
    Refused(&'static str),
    /// Refused, since these words of ours differ in the way that the text says.
    Differs(&'static [&'static str], &'static str),
    /// Refused, since it changes nothing here, for the given reason.
    Needless(&'static str),
    /// Refused: the dialect of this subcommand reads its value, as the text says.
    InDialect(&'static str, &'static str),
}

use Here::{Already, Differs, InDialect, Needless, Only, Refused, Same, SameForOne};

impl Here {
    /// What an option of a dialect is outside of it.
    pub(crate) fn of_dialect<S>(here: &dialect::Here<S>, subcommand: &'static str) -> Here {
        match *here {
            dialect::Here::Same(words) => Same(words),
            dialect::Here::Differs(words, how) => Differs(words, how),
            dialect::Here::Already(why) | dialect::Here::Without(why) => Needless(why),
            dialect::Here::Refused(advice) => Refused(advice),
            dialect::Here::Special(_, text) => InDialect(subcommand, text),
        }
    }
}

/// One option of other launchers, in all its spellings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Habit {
    pub(crate) launchers: &'static [Launcher],
    pub(crate) names: &'static [&'static str],
    /// The name of its value: empty if it takes none, `[=X]` if the value needs an equals sign and may be left out, two
    /// words if it takes two.
    pub(crate) value: &'static str,
    pub(crate) here: Here,
}

/// How many of the words after an option belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arity {
    None,
    AfterEquals,
    One,
    Two,
}

impl Habit {
    pub(crate) fn arity(&self) -> Arity {
        match self.value {
            "" => Arity::None,
            value if value.starts_with("[=") => Arity::AfterEquals,
            value if value.contains(' ') => Arity::Two,
            _ => Arity::One,
        }
    }

    /// Our words, with its values as a shell takes them, or with their names.
    pub(crate) fn written(&self, text: &str, values: &[String]) -> String {
        let (name, value) = self.value.split_once(' ').unwrap_or((self.value, ""));
        let (mut written, mut rest) = (String::new(), text);
        let places = [("{1}", 0, name), ("{2}", 1, value), ("{}", 0, self.value)];
        // A value may look like a place itself, and is not looked into.
        while let Some((at, (place, index, otherwise))) =
            places.iter().filter_map(|place| Some((rest.find(place.0)?, place))).min_by_key(|(at, _)| *at)
        {
            written.push_str(&rest[..at]);
            let quoted = values.get(*index).map(|value| quote(OsStr::new(value)));
            // Quotes do not nest.
            let is_within = written.matches('\'').count() % 2 == 1;
            let shown = quoted.filter(|quoted| !is_within || !quoted.contains('\''));
            written.push_str(shown.as_deref().unwrap_or(otherwise));
            rest = &rest[at + place.len()..];
        }
        written.push_str(rest);
        written.replace("--nproc=", "-n ")
    }

    /// What to write instead, for these values.
    pub(crate) fn advice(&self, values: &[String]) -> String {
        // mpirun reads some parameters itself.
        if let ([.., "-prtemca"], [name, value]) = (self.names, values)
            && let Some(advice) = mpiexec::parameter_advice(name, value)
        {
            return advice;
        }
        match self.here {
            Same(words) => format!("write {}", self.written(&words.join(" "), values)),
            SameForOne(words) => format!("write {} before each command", self.written(&words.join(" "), values)),
            Already(why) | Needless(why) => format!("leave it out: {why}"),
            Differs(words, how) => format!("write {}: {how}", self.written(&words.join(" "), values)),
            InDialect(subcommand, text) => {
                format!("\"rankrun {subcommand} ...\" takes it: {}", text.replace('`', ""))
            }
            Only(_, advice) | Refused(advice) => self.written(advice, values),
        }
    }
}

/// What counts of a name: long names may have one dash or two, and `_` for `-`, as their launchers take them.
fn key(name: &str) -> impl Iterator<Item = u8> {
    let bare = name.trim_start_matches('-');
    let name = if bare.chars().count() < 2 { name } else { bare };
    name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte })
}

/// The rows of this table and of the dialects.
pub(crate) fn all() -> impl Iterator<Item = Habit> {
    TABLE.iter().copied().chain(mpiexec::habits()).chain(torchrun::habits())
}

/// All rows that a name, as typed, may mean. Those of the dialects count where there is none here, and no option of ours.
pub(crate) fn named(command: &Command, typed: &str) -> Vec<Habit> {
    let is_named = |habit: &Habit| habit.names.iter().any(|name| key(name).eq(key(typed)));
    let is_ours = |arg: &Arg| {
        let is_letter =
            arg.get_short().is_some_and(|letter| typed.strip_prefix('-') == Some(letter.encode_utf8(&mut [0; 4])));
        is_letter || arg.get_long().is_some_and(|long| key(long).eq(key(typed)))
    };
    let rows: Vec<Habit> = TABLE.iter().copied().filter(is_named).collect();
    match rows.is_empty() && !command.get_arguments().any(is_ours) {
        true => mpiexec::habits().chain(torchrun::habits()).filter(is_named).collect(),
        false => rows,
    }
}

/// Whether rows ask for different things, so that the meaning is ambiguous.
pub(crate) fn disagree(rows: &[Habit]) -> bool {
    rows.iter().any(|row| row.here != rows[0].here || row.arity() != rows[0].arity())
}

const NODES: &str =
    "name the hosts: write -H a,b --ppn N; inside an allocation of a batch system they are known: leave it out";
const REMOTE: &str = "rankrun reaches other hosts by ssh: leave it out, or write --ssh-command COMMAND";
const PLACING: &str = "write --map block or --map cyclic for the order in which ranks go to hosts, and --map-by and --rank-by for their CPUs";
const LEAVE: &str = "there is no such setting here: leave it out";
const ENDPOINT: &str = "on one machine leave it out, and --nnodes too: rankrun finds a port that is free; on several write --nnodes N --rendezvous HOST:PORT --secret-file FILE, or put rankrun before the whole line: rankrun torchrun ...";
const MEETING: &str = "rankrun gives the ranks MASTER_ADDR and a MASTER_PORT that is free: leave it out";
const LOCAL: &[&str] = &["localhost", "127.0.0.1"];
const FILES: &str = "write --log-dir DIR for files and the terminal, or --stdout-file 'out.{rank}' --stderr-file 'err.{rank}' for files alone";
const RESTART_RANKS: &str = "write --restart N --restart-scope rank --keep-going: a rank that fails is started again";
const ALLOCATION: &str = "rankrun asks no resource manager for anything: give it to sbatch or salloc";
const TASKS: &str = "rankrun runs one command on all ranks at once, and queues nothing: write -n {} for {} ranks";
const NO_LISTS: &str = "rankrun reads no list of arguments: write -n N for N ranks of one command";
const TIME: &str = "write --timeout DURATION, such as 90s, 10m or 1h30m";

const fn row(launchers: &'static [Launcher], names: &'static [&'static str], value: &'static str, here: Here) -> Habit {
    Habit { launchers, names, value, here }
}

/// Every known option of other launchers that differs from ours in name or meaning.
pub(crate) const TABLE: &[Habit] = &[
    // How many ranks.
    row(&[Mpiexec, Mpirun], &["-np", "--np"], "N", Same(&["--nproc={}"])),
    row(&[Mpirun], &["--n"], "N", Same(&["--nproc={}"])),
    row(&[Mpirun], &["-c"], "N", Same(&["--nproc={}"])),
    row(&[Srun], &["--ntasks"], "N", Same(&["--nproc={}"])),
    row(&[Torchrun], &["--nproc-per-node"], "N|gpu|cpu", Same(&["--nproc={}"])),
    row(&[Accelerate], &["--num-processes"], "N", Same(&["--nproc={}"])),
    row(&[Deepspeed], &["--num-gpus"], "N", Same(&["--nproc={}"])),
    row(&[Mpiexec], &["-perhost", "-grr"], "N", Same(&["--ppn={}"])),
    row(&[Mpirun], &["-N", "--npernode"], "N", Same(&["--ppn={}"])),
    row(&[Mpirun], &["--pernode"], "", Same(&["--ppn=1"])),
    row(&[Srun], &["--ntasks-per-node"], "N", Same(&["--ppn={}"])),
    row(&[Srun], &["-N", "--nodes"], "N", Only(&["1"], NODES)),
    row(&[Accelerate], &["--num-machines"], "N", Only(&["1"], NODES)),
    row(&[Deepspeed], &["--num-nodes"], "N", Only(&["1", "1:1"], NODES)),
    row(&[Accelerate], &["--machine-rank"], "N", Only(&["0"], NODES)),
    row(&[Mpirun], &["--allow-run-as-root"], "", Already("root may start ranks")),
    row(&[Srun], &["-O", "--overcommit"], "", Same(&["--oversubscribe"])),
    // Where they run.
    row(&[Mpiexec, Mpirun], &["--host"], "HOSTS", Same(&["--hosts={}"])),
    row(
        &[Mpiexec, Mpirun],
        &["-f", "-machinefile", "-machine", "--default-hostfile"],
        "FILE",
        Same(&["--hostfile={}"]),
    ),
    row(&[Mpiexec], &["-hosts-group", "-hostlist"], "HOSTS", Same(&["--hosts={}"])),
    row(&[Srun], &["--multi-prog"], "", Refused("write the commands on one line: rankrun -n 1 ./a : -n 3 ./b")),
    row(&[Mpiexec], &["-mps"], "", Refused("write --wrap 'aps --collection-mode=mpi'")),
    row(&[Srun], &["-w", "--nodelist"], "HOSTS", Same(&["--hosts={}"])),
    row(&[Srun], &["--exclude"], "HOSTS", Refused("name the other hosts: write -H a,b")),
    row(&[Mpiexec], &["-launcher", "-bootstrap"], "KIND", Only(&["fork", "ssh"], REMOTE)),
    row(&[Mpirun], &["-mca", "-gmca", "-pmixmca", "-prtemca"], "NAME VALUE", Refused("write -x OMPI_MCA_{1}={2}")),
    row(&[Mpirun], &["-am", "-amca", "--tune"], "FILE", Refused("write each parameter as -x OMPI_MCA_NAME=VALUE")),
    row(&[Mpiexec], &["-tune"], "FILE", Refused("write -x I_MPI_TUNING_BIN={}")),
    row(&[Mpiexec, Mpirun], &["-path"], "DIR", Refused("write -x PATH={}:$PATH")),
    row(&[Mpirun], &["--rsh"], "COMMAND", Refused("write --ssh-command {}: a command that takes the options of ssh")),
    // Which CPUs and GPUs.
    row(
        &[Mpiexec, Mpirun],
        &["-binding"],
        "WHAT",
        Refused("write --bind-to {}, if it is none, core, hwthread, l3, numa or package"),
    ),
    row(&[Mpiexec, Mpirun], &["-map-by", "-mapby", "-rank-by", "-rankby", "-rankmap"], "WHAT", Refused(PLACING)),
    row(
        &[Mpirun],
        &["-rf", "--rankfile"],
        "FILE",
        Refused(
            "write the hosts as -H a:4,b:4, in the order of the ranks, and --cpu-list 0-3:4-7 with the CPUs of each rank of a host",
        ),
    ),
    row(&[Mpirun], &["--bynode"], "", Same(&["--map=cyclic"])),
    row(&[Mpiexec], &["-rr"], "", Same(&["--map=cyclic"])),
    row(&[Mpirun], &["--bind-to-none"], "", Same(&["--bind-to=none"])),
    row(
        &[Srun],
        &["--cpu-bind"],
        "WHAT",
        Refused("write --bind-to none, core or hwthread, or --cpu-list A:B with the CPUs of each rank of a host"),
    ),
    row(&[Srun], &["--mem-bind"], "WHAT", Refused("write --membind bind: memory near the CPUs of each rank")),
    row(&[Srun], &["--distribution", "-m"], "WHAT", Refused(PLACING)),
    row(
        &[Srun],
        &["-c", "--cpus-per-task"],
        "N",
        Refused("write --cpus-per-rank {}, in cores; with --bind-to hwthread, in hardware threads"),
    ),
    row(&[Srun], &["--gpus-per-task"], "N", Same(&["--gpus-per-rank={}"])),
    row(
        &[Srun],
        &["-G", "--gpus", "--gpus-per-node", "--gres"],
        "N",
        Refused("write --gpus-per-rank N: the GPUs of each rank"),
    ),
    row(&[Srun], &["--gpu-bind"], "WHAT", Refused("write --gpus-per-rank 1: each rank sees a GPU of its own")),
    row(&[Accelerate], &["--multi-gpu"], "", Refused("write -n gpu: one rank for each GPU")),
    // The environment and the directory.
    row(&[Mpiexec], &["-genv"], "NAME VALUE", SameForOne(&["-x", "{1}={2}"])),
    row(&[Mpiexec], &["-env"], "NAME VALUE", Same(&["-x", "{1}={2}"])),
    row(&[Mpiexec], &["-genvall", "-envall"], "", Already("ranks have the whole environment")),
    row(
        &[Srun],
        &["--export"],
        "NAMES",
        Only(&["ALL"], "ranks have the whole environment: write -x NAME=VALUE for more, --env-remove '*' for none"),
    ),
    row(&[Srun], &["-D", "--chdir"], "DIR", Same(&["--wdir={}"])),
    row(&[Parallel], &["--workdir", "--wd"], "DIR", Same(&["--wdir={}"])),
    // What is run.
    row(&[Torchrun], &["-m", "--module"], "MODULE", Refused("write python -m {}")),
    row(&[Torchrun], &["--no-python"], "", Already("the command is run as it is")),
    row(&[Torchrun], &["--use-env"], "", Already("ranks read LOCAL_RANK from the environment")),
    row(&[Srun], &["--pty"], "", Refused("write --tty 0: rank 0 gets the terminal (a single rank has it anyway)")),
    // Output.
    row(&[Mpirun], &["--tag-output"], "", Same(&["--tag"])),
    row(&[Srun], &["--label"], "", Same(&["--tag"])),
    row(
        &[Mpirun],
        &["--output"],
        "WHAT",
        Refused("for mpirun's tag write --tag, for timestamp --timestamps, for dir= and file= --log-dir DIR"),
    ),
    row(&[Torchrun], &["-t", "--tee"], "MASK", Refused("write --log-dir DIR: files, and the terminal too")),
    row(
        &[Torchrun],
        &["-r", "--redirects"],
        "MASK",
        Refused("write --log-dir DIR --output none: files, and nothing on the terminal"),
    ),
    row(
        &[Torchrun],
        &["--duplicate-stdout-filters", "--duplicate-stderr-filters", "--logs-specs"],
        "TEXT",
        Refused("write --log-dir DIR, and search the files"),
    ),
    row(&[Torchrun], &["--local-ranks-filter"], "RANKS", Same(&["--only={}"])),
    row(&[Srun], &["--output", "-o", "-e", "--error"], "FILE", Refused(FILES)),
    row(
        &[Srun],
        &["-u", "--unbuffered"],
        "",
        Refused("write --output raw: bytes as they come, or --buffer none: libc does not hold them back"),
    ),
    row(
        &[Srun],
        &["-i", "--input"],
        "FILE",
        Refused("write --stdin RANK, none or all, and < FILE behind the command line"),
    ),
    row(&[Parallel], &["--line-buffer", "--linebuffer", "--lb"], "", Same(&["--output=line"])),
    row(&[Parallel], &["-u", "--ungroup"], "", Same(&["--output=raw"])),
    row(&[Parallel], &["-k", "--keep-order", "--group"], "", Same(&["--output=grouped"])),
    row(&[Parallel], &["--tagstring"], "TEXT", Refused("write --tag='{rank}: '; --help lists its fields")),
    row(&[Parallel], &["--results"], "DIR", Refused(FILES)),
    row(&[Parallel], &["--bar", "--eta", "--progress"], "", Refused("there is no such display: leave it out")),
    // How the job ends.
    row(&[Mpiexec], &["-cleanup"], "", Already("nothing of a job is ever left")),
    row(
        &[Mpirun],
        &["--abort-on-non-zero-status"],
        "[=0|1]",
        Only(&["", "1"], "write --keep-going: the other ranks run on when one fails"),
    ),
    row(
        &[Torchrun],
        &["--monitor-interval"],
        "SECONDS",
        Already("rankrun does not poll: it learns of an exit at once"),
    ),
    row(
        &[Srun],
        &["-K", "--kill-on-bad-exit"],
        "[=0|1]",
        Only(&["", "1"], "write --keep-going: the other ranks run on when one fails"),
    ),
    row(&[Srun], &["-k", "--no-kill"], "", Refused("write --keep-going: the other ranks run on when one fails")),
    row(
        &[Srun],
        &["-W", "--wait"],
        "SECONDS",
        Refused("a rank that fails ends the job at once, and one that succeeds is no reason to end it: leave it out"),
    ),
    row(&[Srun], &["-t", "--time"], "TIME", Refused(TIME)),
    row(&[Srun], &["--signal"], "SIGNAL", Refused(LEAVE)),
    row(
        &[Parallel],
        &["--halt", "--halt-on-error"],
        "WHEN",
        Only(&["now,fail=1", "2"], "the first failure ends the job; write --keep-going to let the others run on"),
    ),
    row(&[Parallel], &["--retries"], "N", Refused(RESTART_RANKS)),
    // How torch's ranks find each other.
    row(&[Torchrun], &["--standalone"], "", Already("every job has a rendezvous of its own")),
    row(&[Torchrun], &["--rdzv-backend"], "KIND", Only(&["c10d", "static"], MEETING)),
    row(&[Torchrun], &["--rdzv-endpoint"], "HOST[:PORT]", Only(&["localhost", "localhost:0", "127.0.0.1:0"], ENDPOINT)),
    row(&[Torchrun], &["--rdzv-id"], "NAME", SameForOne(&["-x", "TORCHELASTIC_RUN_ID={}"])),
    row(&[Torchrun], &["--master-addr"], "HOST", Only(LOCAL, ENDPOINT)),
    row(&[Accelerate], &["--main-process-ip"], "HOST", Only(LOCAL, ENDPOINT)),
    row(&[Torchrun], &["--master-port"], "PORT", SameForOne(&["-x", "MASTER_PORT={}"])),
    row(&[Accelerate], &["--main-process-port"], "PORT", SameForOne(&["-x", "MASTER_PORT={}"])),
    row(&[Torchrun], &["--role"], "NAME", SameForOne(&["-x", "ROLE_NAME={}"])),
    row(
        &[Accelerate],
        &["--config-file"],
        "FILE",
        Refused("write the options of rankrun, on the command line or in a file for --config"),
    ),
    row(
        &[Accelerate],
        &["--mixed-precision"],
        "KIND",
        Refused("set it in the program, or write -x ACCELERATE_MIXED_PRECISION={}"),
    ),
    // MPI.
    row(
        &[Srun],
        &["--mpi"],
        "pmi2|openmpi",
        Refused("MPICH, Intel MPI, MVAPICH and Open MPI need no option; PMI-2 is not supported"),
    ),
    // Slurm's allocation.
    row(
        &[Srun],
        &[
            "-p",
            "--partition",
            "-A",
            "--account",
            "-J",
            "--job-name",
            "--qos",
            "-C",
            "--constraint",
            "--reservation",
            "--jobid",
            "--mem",
            "--mem-per-cpu",
            "--dependency",
        ],
        "VALUE",
        Refused(ALLOCATION),
    ),
    row(&[Srun], &["-d"], "VALUE", Refused("dependencies are for sbatch; for a job without a terminal write --detach")),
    row(&[Srun], &["--exclusive", "--overlap", "--exact"], "", Refused(ALLOCATION)),
    row(
        &[Srun],
        &["--hint", "--ntasks-per-core", "--ntasks-per-socket"],
        "VALUE",
        Refused("write --threads-per-core 1 for nomultithread, --map-by package:BLOCK=N for N ranks on each socket"),
    ),
    // Queues of jobs.
    row(&[Parallel], &["-j", "--jobs", "-P", "--max-procs"], "N", Refused(TASKS)),
    row(
        &[Parallel],
        &["-a", "--arg-file", "-I", "--max-args", "-S", "--sshlogin", "--colsep"],
        "VALUE",
        Refused(NO_LISTS),
    ),
    row(&[Parallel], &["--nice"], "N", Refused("write --wrap 'nice -n {}'")),
    row(&[Parallel], &["--delay"], "SECONDS", Refused("rankrun starts all ranks at once: leave it out")),
    row(&[Parallel], &["--pipe", "-X", "-0", "--null"], "", Refused(NO_LISTS)),
    row(
        &[Parallel],
        &["--joblog"],
        "FILE",
        Refused("write --journal {} (events as JSON) or --report-dir DIR (the report)"),
    ),
    row(&[Parallel], &["--dryrun"], "", Same(&["--dry-run"])),
];

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;
    use crate::args;

    #[test]
    fn every_row_stands_for_options_of_ours() {
        let command = args::job();
        let is_ours = |name: &str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
        for habit in all() {
            let (Same(words) | SameForOne(words)) = habit.here else { continue };
            let option = words[0].strip_prefix("--").map_or("env", |long| long.split('=').next().unwrap_or(long));
            assert!(is_ours(option), "{:?} is said to be {words:?}", habit.names);
        }
    }

    #[test]
    fn options_that_are_named_in_advice_exist() {
        let command = args::job();
        let known = args::long_names(&command);
        let shorts: Vec<String> =
            command.get_arguments().filter_map(clap::Arg::get_short).map(|short| format!("-{short}")).collect();
        let of_others = ["--args", "-c", "--cpunodebind", "--collection-mode", "-m", "-u", "--preload-binary"];
        // Long options may have one dash.
        let is_ours = |word: &str| known.iter().chain(&shorts).any(|name| name == word || name[1..] == *word);
        let is_known = |word: &str| is_ours(word) || of_others.contains(&word);
        // A row of a dialect that one here stands for is not shown.
        let shown = |habit: &Habit| habit.names.iter().any(|name| named(&command, name).contains(habit));
        for habit in all().filter(|habit| !matches!(habit.here, InDialect(..)) && shown(habit)) {
            let advice = habit.advice(&[]);
            let words = advice.split([' ', '=', ':', ',', ';', ')', '\'']).filter(|word| word.starts_with('-'));
            for word in words {
                assert!(is_known(word) || habit.names.contains(&word), "{:?}: {advice}", habit.names);
            }
        }
    }

    #[test]
    fn an_option_that_only_a_dialect_reads_is_refused_with_what_it_is_there() {
        let command = args::job();
        let advice = |name: &str| named(&command, name)[0].advice(&[]);
        assert_eq!(
            advice("-run_path"),
            "\"rankrun torchrun ...\" takes it: python -u SCRIPT, which is a process of its own here too"
        );
        assert_eq!(
            advice("-dac"),
            "write --keep-going: the other ranks run on, also when one is killed or a node is lost; only processes in MPI that handle SIGUSR1 get it"
        );
        assert_eq!(advice("-topolib"), "leave it out: CPUs are those that the kernel describes");
        assert!(
            advice("--rsh").starts_with("write --ssh-command COMMAND:"),
            "a row here stands for that of the dialect"
        );
        assert_eq!(named(&command, "--cpu-bind")[0].launchers, [Srun]);
        assert!(named(&command, "-ppn").is_empty(), "ours");
    }

    #[test]
    fn parameters_of_mpirun_itself_are_our_options() {
        let command = args::job();
        let advice = |values: &[&str]| {
            let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
            named(&command, "--mca")[0].advice(&values)
        };
        assert_eq!(advice(&["plm_rsh_agent", "/opt/my ssh"]), "write --ssh-command '/opt/my ssh'");
        assert_eq!(advice(&["btl", "self"]), "write -x OMPI_MCA_btl=self");
        assert!(advice(&["rmaps_base_x", "1"]).starts_with("leave it out: only mpirun"));
    }

    #[test]
    fn an_option_of_ours_is_in_the_table_only_for_its_values() {
        let command = args::job();
        for habit in TABLE {
            for name in habit.names.iter().filter_map(|name| name.strip_prefix("--")) {
                let ours = command.get_arguments().any(|arg| arg.get_long() == Some(name));
                assert!(!ours || matches!(habit.here, Refused(_)), "--{name} is ours");
            }
        }
    }

    /// A text in a cell of a table; text between backquotes is code already.
    fn cell(text: &str) -> String {
        text.replace('|', "\\|").replace("'*'", "'\\*'")
    }

    /// One table for each launcher, in the order of the rows.
    fn page() -> String {
        let command = args::job();
        let mut page = String::from(
            "# Coming from another launcher\n\n\
             <!-- Written by `RANKRUN_UPDATE_DOCS=1 cargo test -p rankrun --bin rankrun the_page`. -->\n\n\
             An option of another launcher is *taken* where it means the same here, or asks for what rankrun does anyway.\n\
             Every other one is refused: exit code 2, nothing is started, and the message says what to write in its place.\n\
             Long options may be written with one dash or two, and with `_` for `-`. What two launchers mean differently by the\n\
             same letter (`-N`, `-t`, `-c`) is refused, with both meanings. Options that are spelt alike and mean the same here\n\
             (`-n`, `-x`, `-l`, `--wdir`, `--timeout`, `--stdin`) are not listed.\n\n\
             mpiexec, mpirun and torchrun have dialects, which take whole command lines: `rankrun mpiexec ...` ([mpiexec.md](mpiexec.md)) and\n\
             `rankrun torchrun ...` ([torchrun.md](torchrun.md)). The tables below list only those of their options that need a row of\n\
             their own. For any other see the page of the dialect: an option that is an option of rankrun there (`-iface NAME` is\n\
             `--interface=NAME`) is taken without the dialect too; else it is refused, and the message says what the dialect does with it.\n",
        );
        for launcher in Launcher::ALL {
            // Writing into a string does not fail.
            let _ = writeln!(page, "\n## {}\n\n| option | here |\n|---|---|", launcher.heading());
            for habit in TABLE.iter().filter(|habit| habit.launchers.contains(&launcher)) {
                let (clear, unclear): (Vec<&str>, Vec<&str>) =
                    habit.names.iter().partition(|name| !disagree(&named(&command, name)));
                let here = match habit.here {
                    Same(words) => format!("taken: `{}`", habit.written(&words.join(" "), &[])),
                    SameForOne(words) => {
                        format!(
                            "taken: `{}`; of several commands, write it before each",
                            habit.written(&words.join(" "), &[])
                        )
                    }
                    Already(why) => format!("taken, nothing to do: {why}"),
                    Only(values, advice) => {
                        let quote =
                            |value: &&str| if value.is_empty() { "no value".to_owned() } else { format!("`{value}`") };
                        let values: Vec<String> = values.iter().map(quote).collect();
                        format!(
                            "taken with {}, nothing to do; else refused: {}",
                            values.join(" or "),
                            habit.written(advice, &[])
                        )
                    }
                    _ => format!("refused: {}", habit.advice(&[])),
                };
                let unclear_here = format!("refused, since it has another meaning elsewhere: {}", habit.advice(&[]));
                for (names, here) in
                    [(clear, here), (unclear, unclear_here)].iter().filter(|(names, _)| !names.is_empty())
                {
                    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                    let value = if habit.value.is_empty() { String::new() } else { format!(" *{}*", habit.value) };
                    // As above.
                    let _ = writeln!(page, "| {}{} | {} |", names.join(", "), value.replace('|', "\\|"), cell(here));
                }
            }
        }
        page
    }

    #[test]
    fn the_page_shows_the_table() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/other-launchers.md");
        if std::env::var_os("RANKRUN_UPDATE_DOCS").is_some() {
            std::fs::write(&file, page()).expect("the page can be written");
        }
        let have = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(have == page(), "docs/other-launchers.md is not up to date: see the comment in it");
    }
}
