//! Every option of torchrun, with what it is here. The translator reads a command line by this table; the help and
//! docs/torchrun.md show it.
//!
//! Read from `torch/distributed/run.py` of torch 2.15.

use crate::dialect;
use crate::dialect::Here::{Already, Refused, Same, Special};

/// What an option is here. The translator asks for the options that it reads itself by their names.
pub(super) type Here = dialect::Here<()>;

/// What an option is about, for the help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Topic {
    Workers,
    Program,
    Ending,
    Output,
    Meeting,
    Texts,
}

impl Topic {
    pub(super) const ALL: [Topic; 6] =
        [Topic::Workers, Topic::Program, Topic::Ending, Topic::Output, Topic::Meeting, Topic::Texts];

    /// Its heading in the help.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Topic::Workers => "Workers",
            Topic::Program => "The program",
            Topic::Ending => "Failures and the end",
            Topic::Output => "Output and log files",
            Topic::Meeting => "Nodes and rendezvous",
            Topic::Texts => "Texts and rankrun's own",
        }
    }
}

/// One option in all its spellings: each `-` in a long name may be `_`.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) topic: Topic,
    /// The long name.
    pub(super) name: &'static str,
    pub(super) short: Option<&'static str>,
    /// The name of its value; empty for a flag.
    pub(super) value: &'static str,
    /// Whether `PET_NAME` stands for it.
    pub(super) has_variable: bool,
    pub(super) here: Here,
}

impl Row {
    pub(super) fn is_flag(&self) -> bool {
        self.value.is_empty() || self.value.starts_with('[')
    }

    /// The variable that stands for it.
    pub(super) fn variable(&self) -> Option<String> {
        let name = self.name.trim_start_matches('-').replace('-', "_").to_uppercase();
        self.has_variable.then(|| format!("PET_{name}"))
    }
}

const fn option(topic: Topic, name: &'static str, value: &'static str, here: Here) -> Row {
    Row { topic, name, short: None, value, has_variable: true, here }
}

const fn short(topic: Topic, short: &'static str, name: &'static str, value: &'static str, here: Here) -> Row {
    Row { short: Some(short), ..option(topic, name, value, here) }
}

/// An option without a variable.
const fn typed(topic: Topic, name: &'static str, value: &'static str, here: Here) -> Row {
    Row { has_variable: false, ..option(topic, name, value, here) }
}

/// The translator reads it.
const fn read(text: &'static str) -> Here {
    Special((), text)
}

const LOCAL: &str = "all workers are on this machine, and each job has ports of its own";
const PROMPT: &str = "the end of a worker is reported by the kernel at once, nothing is polled";
pub(super) const EVENTS: &str = "events are not printed: --journal FILE writes what happened as JSON";

use Topic::{Ending, Meeting, Output, Program, Texts, Workers};

/// All options.
pub(super) const TABLE: &[Row] = &[
    option(
        Workers,
        "--nproc-per-node",
        "N|auto|cpu|gpu",
        read("-n N; auto: the GPUs, or the CPUs where there is none"),
    ),
    option(Workers, "--role", "NAME", Same(&["-x", "ROLE_NAME={}"])),
    option(
        Workers,
        "--virtual-local-rank",
        "",
        read("LOCAL_RANK=0 for every worker, which sees one GPU, its own (--gpus-per-rank 1)"),
    ),
    typed(
        Workers,
        "--numa-binding",
        "node|socket|exclusive|core-complex",
        read(
            "--map-by gpu with --bind-to numa, --bind-to package, --cpus-per-rank all, or --bind-to l3: CPUs near the GPU with the worker's local rank",
        ),
    ),
    short(Program, "-m", "--module", "", read("python -u -m SCRIPT")),
    option(Program, "--no-python", "", read("SCRIPT is a program of its own")),
    option(Program, "--run-path", "", read("python -u SCRIPT, which is a process of its own here too")),
    option(Program, "--start-method", "spawn|fork|forkserver", Already("every worker is a new process")),
    option(
        Ending,
        "--max-restarts",
        "N",
        read(
            "--max-restarts N, and TORCHELASTIC_MAX_RESTARTS=N for the workers; N is for the whole job; starts again at once and after every failure (--backoff 0, --no-breaker, --start-retries 0)",
        ),
    ),
    option(Ending, "--monitor-interval", "SECONDS", Already(PROMPT)),
    option(
        Ending,
        "--shutdown-timeout",
        "SECONDS",
        read("--grace SECONDS: after a failure too; also TORCH_ELASTIC_SHUTDOWN_TIMEOUT; 30s by default"),
    ),
    option(
        Ending,
        "--signals-to-handle",
        "NAMES",
        read(
            "for the workers (TORCHELASTIC_SIGNALS_TO_HANDLE); SIGTERM, SIGINT and SIGHUP end the job, SIGUSR1 and SIGUSR2 reach the workers, which go on",
        ),
    ),
    typed(
        Ending,
        "--strict",
        "[=torchrun]",
        read("torchrun's exit codes (1 for each failure), and its summary after ours"),
    ),
    option(
        Output,
        "--log-dir",
        "DIR",
        read("the files are DIR/ID_JOB/attempt_N/RANK/{stdout.log,stderr.log,error.json}; /dev/null: none"),
    ),
    short(
        Output,
        "-r",
        "--redirects",
        "MASK",
        read("--stdout-file, --stderr-file: 1 stdout, 2 stderr, 3 both; 0:1,1:2 for each rank"),
    ),
    short(
        Output,
        "-t",
        "--tee",
        "MASK",
        read("--tee-stdout, --tee-stderr: files and the terminal; lines have the prefix"),
    ),
    option(
        Output,
        "--log-line-prefix-template",
        "TEMPLATE",
        read(
            "--tag: ${role_name}, ${local_rank}, ${rank}, ${hostname}; with --tee; also TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE; default [${role_name}${local_rank}]:",
        ),
    ),
    option(
        Output,
        "--local-ranks-filter",
        "RANKS",
        read("--only=RANKS, of each node; lines of other ranks are not in filtered_stdout.log either"),
    ),
    option(
        Output,
        "--duplicate-stdout-filters",
        "TEXTS",
        read("--match-stdout: tee'd lines with one of the texts, in attempt_N/filtered_stdout.log"),
    ),
    option(Output, "--duplicate-stderr-filters", "TEXTS", read("--match-stderr, in the same way")),
    typed(
        Output,
        "--logs-specs",
        "NAME",
        Refused(
            "write --log-dir, --redirects and --tee, or rankrun's own --stdout-file: a Python class cannot be called from here",
        ),
    ),
    option(Output, "--event-log-handler", "NAME", read("null: nothing to do; another one is not done, with a warning")),
    option(
        Meeting,
        "--nnodes",
        "N|MIN:MAX",
        read(
            "machines that run this command: they join node 0, with the secret of RANKRUN_SECRET_FILE; 1:MAX is one where no endpoint is given, or that of localhost without a secret",
        ),
    ),
    option(Meeting, "--node-rank", "N", read("this machine; with c10d, without it, as docs/hosts.md says")),
    option(Meeting, "--standalone", "", Already(LOCAL)),
    option(Meeting, "--rdzv-backend", "c10d|static", read("whether nodes need a number; etcd is refused")),
    option(
        Meeting,
        "--rdzv-endpoint",
        "HOST[:PORT]",
        read("several nodes: where node 0 is reached; one: c10d: nothing to do, static: MASTER_ADDR and MASTER_PORT"),
    ),
    option(
        Meeting,
        "--rdzv-id",
        "NAME",
        read(
            "TORCHELASTIC_RUN_ID, and the name of the log directory; as in torchrun, not with --standalone, and not where neither an endpoint nor a port is given: then it is the job's id",
        ),
    ),
    option(
        Meeting,
        "--rdzv-conf",
        "K=V,...",
        Already(
            "join_timeout is --start-timeout, last_call_timeout is --last-call, for several nodes; nothing else has to be waited for",
        ),
    ),
    option(
        Meeting,
        "--master-addr",
        "HOST",
        read("several nodes: where node 0 is reached; one: MASTER_ADDR, with --master-port"),
    ),
    option(Meeting, "--master-port", "PORT", read("MASTER_PORT: without it the job has a free port of its own")),
    option(Meeting, "--local-addr", "HOST", Already(LOCAL)),
    typed(Texts, "--print-completion", "bash|zsh|tcsh", read("prints the completion script for torchrun")),
    Row { short: Some("-h"), ..typed(Texts, "--help", "", read("prints this list")) },
    Row { short: Some("-V"), ..typed(Texts, "--version", "", read("prints the version of rankrun")) },
];
