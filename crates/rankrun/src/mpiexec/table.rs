//! Every option of mpiexec and mpirun, with what it is here. The translator reads a command line by this table, and
//! docs/mpiexec.md shows it.
//!
//! Read from `mpiexec -help` of MPICH 5.0 (Hydra) and Intel MPI 2021.18, `mpirun --help` of Open MPI 4.1 and 5.0, and tried
//! where that leaves it open how many words an option takes.

use super::lists::{DISPLAY, FAULT_TOLERANCE, OUTPUT, RUNTIME};
use super::row::Launcher::{Hydra, Intel, OpenMpi4, OpenMpi5};
use super::row::Scope::{Command, Job};
use super::row::{HYDRA, OPEN_MPI, Part, Special as S};
pub(super) use super::row::{Here, Launcher, Row, Scope, Special, Word};
use super::texts::{
    BIND, COPIES, DEBUGGER, HOSTS, INHERITED, KEPT_GOING, MERGE, NO_DVM, NO_FILES, NO_REMOTE, NO_RESTART, NODES,
    PER_NODE, PLACING, REPORT, RESERVED, SHOWN, SPAWNED, TRACE, WHOLE, XML,
};
use super::values::Resource;
use crate::dialect::Here::{Already, Differs, Refused, Same, Without};

/// The row of an option as typed, without its value. How many dashes it has does not count, nor
/// does it whether they are written with `-` or `_`.
pub(super) fn named(typed: &str) -> Option<&'static Row> {
    let typed = key(typed);
    TABLE.iter().find(|row| row.names.iter().any(|name| key(name) == typed))
}

fn key(name: &str) -> String {
    name.trim_start_matches('-').replace('_', "-")
}

const fn row(
    launchers: &'static [Launcher],
    names: &'static [&'static str],
    value: &'static str,
    scope: Scope,
    here: Here,
) -> Row {
    Row { launchers, names, value, scope, here }
}

const fn special(special: Special, text: &'static str) -> Here {
    Here::Special(special, text)
}

const ALL: &[Launcher] = &[Hydra, Intel, OpenMpi4, OpenMpi5];

/// All options.
pub(super) const TABLE: &[Row] = &[
    // How many ranks.
    row(ALL, &["-n", "-np"], "N", Command, special(S::Count, "`-n N`")),
    row(OPEN_MPI, &["-c"], "N", Command, special(S::Count, "`-n N`")),
    row(HYDRA, &["-ppn"], "N", Job, special(S::Per(Resource::Node), PER_NODE)),
    row(&[Intel], &["-perhost", "-grr"], "N", Job, special(S::Per(Resource::Node), PER_NODE)),
    row(&[Intel], &["-rr"], "", Job, special(S::RoundRobin, "--map=cyclic")),
    row(OPEN_MPI, &["-N", "-npernode"], "N", Job, special(S::Per(Resource::Node), PER_NODE)),
    row(OPEN_MPI, &["-pernode"], "", Job, special(S::OnePerNode, "`--ppn 1`")),
    row(
        OPEN_MPI,
        &["-npersocket"],
        "N",
        Job,
        special(S::Per(Resource::Package), "`--ppn`: N ranks for each socket of this machine"),
    ),
    row(OPEN_MPI, &["-ppr"], "N:WHAT", Job, special(S::Ppr, "as -map-by ppr:N:WHAT")),
    row(OPEN_MPI, &["-oversubscribe"], "", Job, Same(&["--oversubscribe"])),
    row(OPEN_MPI, &["-allow-run-as-root"], "", Job, Already("root may start jobs")),
    row(
        OPEN_MPI,
        &["-nooversubscribe"],
        "",
        Job,
        Differs(&["--no-oversubscribe"], "the slots of hosts are a bound, the CPUs of a machine are none"),
    ),
    row(HYDRA, &["-usize"], "N", Job, Same(&["--universe={}"])),
    // Where they run.
    row(ALL, &["-host"], "HOSTS", Job, special(S::Hosts, HOSTS)),
    row(HYDRA, &["-hosts", "-hostlist"], "HOSTS", Job, special(S::Hosts, HOSTS)),
    row(OPEN_MPI, &["-H"], "HOSTS", Job, special(S::Hosts, HOSTS)),
    row(&[Intel], &["-hosts-group"], "HOSTS", Job, special(S::Hosts, HOSTS)),
    row(ALL, &["-hostfile", "-machinefile"], "FILE", Job, special(S::HostFile, HOSTS)),
    row(HYDRA, &["-f"], "FILE", Job, special(S::HostFile, HOSTS)),
    row(OPEN_MPI, &["-default-hostfile"], "FILE", Job, special(S::HostFile, HOSTS)),
    row(HYDRA, &["-machine", "-machines", "-machinelist"], "HOSTS|FILE", Job, special(S::HostsOrFile, HOSTS)),
    row(ALL, &["-nolocal"], "", Job, Refused(NODES)),
    row(&[Hydra], &["-skip-launch-node"], "", Job, Refused(NODES)),
    row(
        OPEN_MPI,
        &["-rankfile", "-rf"],
        "FILE",
        Job,
        Refused(
            "write the hosts as -H a:4,b:4, in the order of the ranks; \"rankrun --cpu-list 0-3:4-7\" has a list of CPUs for each rank of a host",
        ),
    ),
    row(&[Hydra], &["-rankmap"], "MAP", Job, Already(PLACING)),
    row(&[Hydra], &["-order-nodes"], "ORDER", Job, Already(NO_REMOTE)),
    row(&[Hydra], &["-hybrid-hosts"], "", Job, Already(NO_REMOTE)),
    row(HYDRA, &["-launcher", "-bootstrap", "-rmk"], "VALUE", Job, Already(NO_REMOTE)),
    row(HYDRA, &["-launcher-exec", "-bootstrap-exec"], "COMMAND", Job, Same(&["--ssh-command={}"])),
    row(HYDRA, &["-bootstrap-exec-args"], "WORDS", Job, Refused("write --ssh-command 'ssh WORDS'")),
    row(HYDRA, &["-enable-x", "-disable-x"], "", Job, Already(NO_REMOTE)),
    row(HYDRA, &["-disable-hostname-propagation", "-enable-hostname-propagation"], "", Job, Already(NO_REMOTE)),
    row(HYDRA, &["-iface"], "NAME", Job, Same(&["--interface={}"])),
    row(HYDRA, &["-localhost", "-nameserver", "-demux"], "VALUE", Job, Already(NO_REMOTE)),
    row(&[Hydra], &["-pmi-port"], "", Job, Already(NO_REMOTE)),
    row(&[Intel], &["-branch-count", "-tree-width", "-pmi-connect", "-rsh", "-r"], "VALUE", Job, Already(NO_REMOTE)),
    row(&[Intel, OpenMpi5], &["-tmpdir"], "DIR", Job, Already("ranks have a directory of their own, which is removed")),
    row(&[Intel], &["-pmi-aggregate", "-pmi-noaggregate", "-prefork", "-v6", "-noconf"], "", Job, Already(NO_REMOTE)),
    row(OPEN_MPI, &["-launch-agent", "-personality", "-max-vm-size"], "VALUE", Job, Already(NO_REMOTE)),
    row(OPEN_MPI, &["-noprefix", "-no-app-prefix", "-hetero-nodes"], "", Job, Already(NO_REMOTE)),
    row(&[OpenMpi5], &["-pset", "-gpu-support"], "VALUE", Job, Without("there is no such setting")),
    row(
        OPEN_MPI,
        &["-debug-daemons", "-debug-daemons-file", "-leave-session-attached", "-d", "-debug-devel"],
        "",
        Job,
        Already("there are no daemons"),
    ),
    row(
        &[OpenMpi4],
        &["-novm", "-use-regexp", "-do-not-resolve", "-fwd-mpirun-port", "-enable-instant-on-support"],
        "",
        Job,
        Already("there are no daemons"),
    ),
    row(OPEN_MPI, &["-dvm"], "VALUE", Job, Refused(NO_DVM)),
    row(OPEN_MPI, &["-hnp", "-ompi-server", "-report-uri", "-report-events"], "VALUE", Job, Refused(NO_DVM)),
    row(
        OPEN_MPI,
        &["-report-pid"],
        "WHERE",
        Job,
        Refused("in a shell, write & behind the command line: $! is the process id of rankrun"),
    ),
    row(OPEN_MPI, &["-preload-files"], "FILES", Command, Without(NO_FILES)),
    row(OPEN_MPI, &["-preload-binary"], "", Command, Without(NO_FILES)),
    // Binding.
    row(ALL, &["-bind-to", "-bindto"], "WHAT", Job, special(S::Binding(Part::BindTo), BIND)),
    row(HYDRA, &["-binding"], "WHAT", Job, special(S::Binding(Part::BindTo), "as -bind-to")),
    row(
        HYDRA,
        &["-membind"],
        "HOW",
        Job,
        special(
            S::Binding(Part::Memory),
            "bind:…: `--membind bind`; interleave and nexttouch are not done (a warning)",
        ),
    ),
    row(HYDRA, &["-topolib"], "WHAT", Job, Already("CPUs are those that the kernel describes")),
    row(
        &[Intel],
        &["-cpu-bind"],
        "WHAT",
        Job,
        special(S::Binding(Part::CpuBind), "list:0-1:2-3: `--cpu-list 0-1:2-3`; others are not followed, as there"),
    ),
    row(
        &[Intel],
        &["-use-app-topology"],
        "WHAT",
        Job,
        Without("ranks are placed by -ppn, hosts and their slots alone"),
    ),
    row(
        ALL,
        &["-map-by", "-mapby"],
        "WHAT",
        Job,
        special(
            S::MapBy,
            "node: `--map cyclic`, which is not done behind host options of Hydra, where it binds; seq: `--map seq`; ppr:N:node (package, numa): `--ppn`; core, hwthread, l3cache, numa, socket: `--map-by`, with `--bind-to`, `--rank-by` and PE=N as the launcher has them",
        ),
    ),
    row(
        OPEN_MPI,
        &["-rank-by", "-rankby"],
        "WHAT",
        Job,
        special(S::Binding(Part::RankBy), "`--rank-by`; slot and fill too; node is not done (a warning)"),
    ),
    row(OPEN_MPI, &["-bind-to-core"], "", Job, special(S::Binding(Part::BindToThe("core")), "as -bind-to core")),
    row(OPEN_MPI, &["-bind-to-socket"], "", Job, special(S::Binding(Part::BindToThe("socket")), "as -bind-to socket")),
    row(OPEN_MPI, &["-bycore"], "", Job, special(S::Binding(Part::MapByThe("core")), "as -map-by core")),
    row(&[OpenMpi4], &["-bysocket"], "", Job, special(S::Binding(Part::MapByThe("socket")), "as -map-by socket")),
    row(
        OPEN_MPI,
        &["-use-hwthread-cpus"],
        "",
        Job,
        special(S::Binding(Part::HardwareThreads), "a CPU is a hardware thread: PE=N counts those"),
    ),
    row(OPEN_MPI, &["-bynode"], "", Job, special(S::RoundRobin, "--map=cyclic")),
    row(OPEN_MPI, &["-byslot"], "", Job, Same(&["--map=block"])),
    row(
        OPEN_MPI,
        &["-cpus-per-proc", "-cpus-per-rank"],
        "N",
        Job,
        special(S::Binding(Part::PerRank), "as -map-by slot:PE=N; of Open MPI 4, numa:PE=N"),
    ),
    row(
        OPEN_MPI,
        &["-cpu-set", "-cpu-list"],
        "LIST",
        Job,
        special(
            S::Binding(Part::List),
            "`--core-list`: all ranks have all of it; with -bind-to cpu-list:ordered one each",
        ),
    ),
    row(&[OpenMpi4], &["-cf", "-cartofile"], "FILE", Job, Without("CPUs are those that the kernel describes")),
    row(ALL, &["-report-bindings"], "", Job, Same(&["--report-bindings"])),
    row(&[Hydra], &["-gpus-per-proc", "-g"], "N", Job, Same(&["--gpus-per-rank={}"])),
    row(&[Hydra], &["-gpu-subdevs-per-proc"], "N", Job, Refused("write --gpus-per-rank N: whole GPUs")),
    // The environment.
    row(HYDRA, &["-genv"], "NAME VALUE", Job, special(S::Set { everywhere: true }, "-x NAME=VALUE for every command")),
    row(HYDRA, &["-env"], "NAME VALUE", Command, special(S::Set { everywhere: false }, "-x NAME=VALUE")),
    row(HYDRA, &["-genvall", "-envall"], "", Job, Already(WHOLE)),
    row(HYDRA, &["-genvnone", "-envnone"], "", Job, Already(INHERITED)),
    row(HYDRA, &["-genvlist", "-envlist"], "NAMES", Job, Already(INHERITED)),
    row(
        &[Intel],
        &["-genvexcl"],
        "NAMES",
        Job,
        special(
            S::Drop { everywhere: true },
            "--env-remove A --env-remove B for every command (Intel MPI removes nothing on its own machine)",
        ),
    ),
    row(
        &[Intel],
        &["-envexcl", "-env-excl"],
        "NAMES",
        Command,
        special(S::Drop { everywhere: false }, "--env-remove A --env-remove B"),
    ),
    row(&[Intel], &["-env-prop"], "WHAT", Job, Already(WHOLE)),
    row(
        OPEN_MPI,
        &["-x"],
        "NAME[=VALUE]",
        Command,
        Differs(&["-x", "{}"], "for the command that follows, as in Open MPI 4; 5 sets it for every command"),
    ),
    row(&[OpenMpi5], &["-set-env"], "NAME=VALUE", Command, Same(&["-x", "{}"])),
    row(&[OpenMpi5], &["-unset-env"], "NAME", Command, Same(&["--env-remove", "{}"])),
    row(&[OpenMpi5], &["-prepend-env"], "NAME VALUE", Command, Refused("write -x NAME=VALUE:$NAME")),
    row(&[OpenMpi5], &["-append-env"], "NAME VALUE", Command, Refused("write -x NAME=$NAME:VALUE")),
    row(&[OpenMpi5], &["-fwd-environment"], "[=BOOL]", Job, Already(WHOLE)),
    row(
        OPEN_MPI,
        &["-mca", "-gmca", "-omca", "-gomca"],
        "NAME VALUE",
        Job,
        special(
            S::Mca("OMPI_MCA_"),
            "-x OMPI_MCA_NAME=VALUE for every command: the library reads it. Parameters of mpirun itself are followed as its options, or named in a warning",
        ),
    ),
    row(
        OPEN_MPI,
        &["-pmixmca"],
        "NAME VALUE",
        Job,
        special(S::Mca("PMIX_MCA_"), "-x PMIX_MCA_NAME=VALUE for every command"),
    ),
    row(
        OPEN_MPI,
        &["-prtemca"],
        "NAME VALUE",
        Job,
        special(
            S::Mca("PRTE_MCA_"),
            "parameters of mpirun itself are followed as its options, or named in a warning; there are no daemons for others",
        ),
    ),
    row(OPEN_MPI, &["-am", "-amca"], "FILE", Job, Refused("write --mca NAME VALUE for each line of the file")),
    row(
        ALL,
        &["-tune"],
        "FILE",
        Job,
        Refused("write -x I_MPI_TUNING_BIN=FILE (Intel MPI), or --mca NAME VALUE for each line of the file (Open MPI)"),
    ),
    row(ALL, &["-wdir"], "DIR", Command, Same(&["--wdir={}"])),
    row(OPEN_MPI, &["-wd"], "DIR", Command, Same(&["--wdir={}"])),
    row(&[Intel], &["-gwdir"], "DIR", Job, special(S::Everywhere(&["--wdir={}"]), "--wdir DIR for every command")),
    row(&[Intel, OpenMpi4, OpenMpi5], &["-path"], "DIR", Command, special(S::SearchPath, "-x PATH=DIR:$PATH")),
    row(&[Intel], &["-gpath"], "DIR", Command, special(S::SearchPath, "-x PATH=DIR:$PATH")),
    row(
        OPEN_MPI,
        &["-prefix", "-app-pmix-prefix"],
        "DIR",
        Job,
        special(S::Prefix, "DIR/bin in front of PATH, DIR/lib in front of LD_LIBRARY_PATH"),
    ),
    row(&[OpenMpi4], &["-set-cwd-to-session-dir"], "", Job, Refused("there is no session directory: write --wdir DIR")),
    // What is run.
    row(HYDRA, &["-configfile"], "FILE", Job, special(S::CommandLines, "the lines of the file are the commands")),
    row(OPEN_MPI, &["-app"], "FILE", Job, special(S::CommandLines, "the lines of the file are the commands")),
    row(&[Intel], &["-gtool"], "TOOLS", Job, special(S::Tool, "--wrap 'RANKS:COMMAND' for each")),
    row(&[Intel], &["-gtoolfile"], "FILE", Job, special(S::ToolFile, "--wrap 'RANKS:COMMAND' for each")),
    row(&[Intel], &["-aps"], "", Job, special(S::Everywhere(&["--wrap=aps"]), "--wrap aps")),
    row(&[Intel], &["-mps"], "", Job, Refused("write -aps, or --wrap 'aps --collection-mode=mpi'")),
    row(
        &[Intel],
        &["-trace", "-trace-imbalance", "-trace-pt2pt", "-trace-collectives", "-check-mpi", "-check"],
        "[=LIBRARY]",
        Job,
        Refused(TRACE),
    ),
    row(&[Intel], &["-ilp64"], "", Job, Refused("write -x LD_PRELOAD=libmpi_ilp64.so")),
    row(&[Intel], &["-gdb", "-gdb-ia", "-idb"], "", Job, Refused(DEBUGGER)),
    row(&[Intel], &["-gdba", "-tva", "-gdb-args"], "VALUE", Job, Refused(DEBUGGER)),
    row(ALL, &["-tv"], "", Job, Refused(DEBUGGER)),
    row(
        ALL,
        &["-debug"],
        "",
        Job,
        Refused("for Hydra's -debug write -v; to debug a rank, write --tty 0 --wrap '0:gdb --args'"),
    ),
    row(&[OpenMpi4], &["-debugger"], "NAMES", Job, Refused(DEBUGGER)),
    row(&[OpenMpi5], &["-stop-on-exec", "-stop-in-init", "-stop-in-app"], "", Job, Refused(DEBUGGER)),
    row(OPEN_MPI, &["-xterm"], "RANKS", Job, Refused("write --tty RANK to give one rank the terminal")),
    row(
        &[OpenMpi4],
        &["-index-argv-by-rank"],
        "",
        Job,
        Refused("a program knows its rank by RANKRUN_RANK: leave it out"),
    ),
    row(OPEN_MPI, &["-do-not-launch"], "", Job, Same(&["--dry-run"])),
    row(ALL, &["-memory-alloc-kinds", "-with-gpu-support"], "KINDS", Job, Refused("set it in the program")),
    row(&[OpenMpi5], &["-initial-errhandler"], "NAME", Job, Refused("set it in the program")),
    row(OPEN_MPI, &["-arch", "-file"], "VALUE", Job, Refused(RESERVED)),
    row(OPEN_MPI, &["-soft"], "", Job, Refused(RESERVED)),
    row(HYDRA, &["-pmi-args"], "VALUE", Job, Refused("mpiexec uses it between its own processes: leave it out")),
    // Output and input.
    row(HYDRA, &["-l", "-prepend-rank"], "", Job, Same(&["--tag"])),
    row(
        OPEN_MPI,
        &["-tag-output"],
        "",
        Job,
        Differs(&["--tag"], "the tag is [0], not [1,0]<stdout>:, and stands before every line"),
    ),
    row(
        HYDRA,
        &["-prepend-pattern"],
        "PATTERN",
        Job,
        special(S::TagPattern, "--tag with {rank} for %r, {node} for %h, {time} for %t"),
    ),
    row(&[Intel], &["-prepend-timestamp"], "", Job, Same(&["--timestamps"])),
    row(OPEN_MPI, &["-timestamp-output"], "", Job, Same(&["--timestamps"])),
    row(
        HYDRA,
        &["-outfile-pattern", "-outfile"],
        "PATTERN",
        Job,
        special(
            S::File("--stdout-file"),
            "--stdout-file with {rank} for %r, {node} for %h, 0 for %g and %p; the files begin empty",
        ),
    ),
    row(
        HYDRA,
        &["-errfile-pattern", "-errfile"],
        "PATTERN",
        Job,
        special(S::File("--stderr-file"), "--stderr-file, in the same way"),
    ),
    row(&[Intel], &["-ordered-output"], "", Job, Same(&["--output=line"])),
    row(&[Hydra], &["-output-from"], "RANK", Job, Same(&["--only={}"])),
    row(OPEN_MPI, &["-output-filename", "-output-directory"], "DIR", Job, Differs(&["--log-dir={}/{job}"], COPIES)),
    row(&[OpenMpi5], &["-output"], "WORDS", Job, special(S::Words(OUTPUT), "each word as the option of that name")),
    row(OPEN_MPI, &["-merge-stderr-to-stdout"], "", Job, Refused(MERGE)),
    row(OPEN_MPI, &["-xml"], "", Job, Refused(XML)),
    row(&[OpenMpi4], &["-xml-file"], "FILE", Job, Refused(XML)),
    row(OPEN_MPI, &["-output-proctable"], "[=FILE]", Job, Without(SHOWN)),
    row(&[OpenMpi5], &["-stream-buffering"], "N", Job, Refused("write --buffer none, line or program")),
    row(OPEN_MPI, &["-stdin"], "none|RANK|all", Job, Same(&["--stdin={}"])),
    row(
        &[Intel],
        &["-s"],
        "none|RANK|all",
        Job,
        Differs(
            &["--stdin={}"],
            "one rank, none or all; the -s of Open MPI, --preload-binary, takes no value: leave it out",
        ),
    ),
    row(
        &[OpenMpi5],
        &["-display"],
        "WORDS",
        Job,
        special(S::Words(DISPLAY), "not printed (a warning); --dry-run shows the plan"),
    ),
    row(
        OPEN_MPI,
        &[
            "-display-map",
            "-display-devel-map",
            "-display-diffable-map",
            "-display-allocation",
            "-display-devel-allocation",
        ],
        "",
        Job,
        Without(SHOWN),
    ),
    row(&[OpenMpi5], &["-display-comm", "-display-comm-finalize"], "", Job, Without(SHOWN)),
    row(
        OPEN_MPI,
        &["-display-topo"],
        "",
        Job,
        Refused("write rankrun check, or leave it out: Open MPI 5 takes a value here, and 4 none"),
    ),
    row(&[Intel], &["-print-rank-map", "-prot"], "", Job, Without(SHOWN)),
    row(HYDRA, &["-profile"], "", Job, Without(SHOWN)),
    row(OPEN_MPI, &["-show-progress"], "", Job, Already("a job starts in well under a second")),
    row(OPEN_MPI, &["-parseable", "-parsable", "-p"], "", Job, Already("nothing is printed about the launch")),
    row(ALL, &["-v", "-verbose"], "", Job, Same(&["--verbose"])),
    row(OPEN_MPI, &["-q", "-quiet"], "", Job, Same(&["--quiet"])),
    // How the job ends.
    row(HYDRA, &["-disable-auto-cleanup"], "", Job, Differs(&["--keep-going"], KEPT_GOING)),
    row(&[Intel], &["-dac"], "", Job, Differs(&["--keep-going"], KEPT_GOING)),
    row(HYDRA, &["-enable-auto-cleanup"], "", Job, Same(&["--no-keep-going"])),
    row(&[Intel], &["-cleanup"], "", Job, Already("nothing of a job is ever left")),
    row(HYDRA, &["-print-all-exitcodes"], "", Job, Already(REPORT)),
    row(&[Intel], &["-silent-abort"], "", Job, Differs(&["--quiet"], "there is no report at all")),
    row(OPEN_MPI, &["-enable-recovery", "-continuous"], "", Job, Same(&["--keep-going"])),
    row(OPEN_MPI, &["-disable-recovery"], "", Job, Same(&["--no-keep-going"])),
    row(OPEN_MPI, &["-max-restarts"], "N", Job, Refused(NO_RESTART)),
    row(&[OpenMpi5], &["-with-ft"], "KIND", Job, special(S::Words(FAULT_TOLERANCE), "for each word")),
    row(
        &[OpenMpi5],
        &["-runtime-options", "-rtos"],
        "WORDS",
        Job,
        special(S::Words(RUNTIME), "each word as the option of that name"),
    ),
    row(OPEN_MPI, &["-timeout"], "SECONDS", Job, Same(&["--timeout={}"])),
    row(&[OpenMpi5], &["-spawn-timeout"], "SECONDS", Job, Already(SPAWNED)),
    row(OPEN_MPI, &["-report-state-on-timeout"], "", Job, Already(REPORT)),
    row(
        OPEN_MPI,
        &["-get-stack-traces"],
        "",
        Job,
        Already(
            "shortly before --timeout ends the job rankrun reads the stacks of all ranks, and the report shows them",
        ),
    ),
    row(OPEN_MPI, &["-report-child-jobs-separately"], "", Job, Already(SPAWNED)),
    row(&[OpenMpi5], &["-forward-signals"], "SIGNALS", Job, Already("signals that rankrun receives reach the ranks")),
    row(&[OpenMpi5], &["-no-aggregate-help"], "", Job, Already("every line that a rank writes is shown")),
    // The launcher itself.
    row(
        &[],
        &["-strict"],
        "hydra|intel|openmpi4|openmpi5",
        Job,
        special(S::Strict, "the exit code that this launcher would have had"),
    ),
    row(ALL, &["-h", "-help"], "", Job, special(S::Help, "prints this list")),
    row(ALL, &["-V", "-version", "-info"], "", Job, special(S::Version, "prints the version of rankrun")),
];
