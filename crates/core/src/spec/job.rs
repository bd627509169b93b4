//! What to start, and how to stop it: everything that an agent must know about its job.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{AppIndex, Attempt, GangId, GroupId, JobId, Rank, WorkerId};
use crate::outer::matches;
use crate::placement::Binding;
use crate::preload::Preload;
use crate::rankmap::{Place, RankMap};
use crate::ranks::RankSet;
pub use crate::spec::restart::{
    Backoff, Budget, Codes, NodeLoss, OnFailureCommand, OnGiveup, RESTARTABLE, Recent, RestartError, RestartScope,
    RestartSpec, StartRetries, parse_classes,
};
use crate::template::{Field, Template};
use crate::testimony::Graces;
use crate::trace::Trace;

/// One command of a job. Most jobs have one; `rankrun -n 1 ./a : -n 7 ./b` has two.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct App {
    /// The program and its arguments, as the user typed them. Never empty.
    pub command: Vec<OsString>,
    /// How many ranks run it.
    pub size: u32,
    /// Changes to the environment, in the order given.
    pub env: Vec<EnvEdit>,
    /// The working directory, if not the front's. Absolute.
    pub wdir: Option<Template>,
    /// Directories in which its program is looked for before those of `PATH`, as that has them.
    pub search: Option<OsString>,
    /// Commands to put in front of the program of some ranks; the first given is outermost.
    pub wraps: Vec<Wrap>,
}

/// One change to the environment of an app.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EnvEdit {
    Set {
        name: OsString,
        value: OsString,
    },
    /// The value differs from rank to rank.
    Fill {
        name: OsString,
        value: Template,
    },
    /// `name` may end in `*`, which stands for any rest.
    Remove {
        name: OsString,
    },
}

/// The pattern that removes all variables which a rank would inherit. What rankrun sets stays.
pub(crate) const EVERYTHING: &str = "*";

impl App {
    /// Whether the user sets or removes a variable that rankrun sets.
    pub(crate) fn edits(&self, variable: &OsStr) -> bool {
        let is_everything = |edit: &EnvEdit| matches!(edit, EnvEdit::Remove { name } if name == EVERYTHING);
        self.env.iter().any(|edit| !is_everything(edit) && edit.is_of(variable))
    }
}

impl EnvEdit {
    /// Whether it sets or removes this variable.
    pub(crate) fn is_of(&self, variable: &OsStr) -> bool {
        match self {
            EnvEdit::Set { name, .. } | EnvEdit::Fill { name, .. } => name == variable,
            EnvEdit::Remove { name } => matches(name, variable),
        }
    }
}

/// A command to put in front of the program of some ranks: `gdb --args`, `valgrind`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wrap {
    pub ranks: RankSet,
    /// The words of the command. Never empty.
    pub command: Vec<Template>,
}

/// What one agent needs to start, hold and stop its part of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobSpec {
    pub job: JobId,
    pub group: GroupId,
    pub attempt: Attempt,
    /// How the group came to be, if a rank has asked for it.
    pub spawned: Option<Spawned>,
    /// How many ranks all groups together may have, if the user says so.
    pub universe: Option<u32>,
    /// How many ranks the hosts have room for, if that is known.
    pub room: Option<u32>,
    pub apps: Vec<App>,
    pub map: RankMap,
    /// The environment that ranks start from: the front's own.
    pub base_env: Vec<(OsString, OsString)>,
    /// The front's working directory. Absolute.
    pub cwd: OsString,
    pub stop: StopPolicy,
    /// How long a process that has failed may take to end.
    pub graces: Graces,
    /// What an interpreter imports from which the ranks are forked; `None`: each rank is started by itself.
    pub preload: Option<Preload>,
    /// Whether Python interpreters get the hook that reports how they end.
    pub hook: bool,
    pub io: IoPolicy,
    pub mpi: MpiMode,
    /// The `libpmix.so.2` that serves Open MPI, if the user names one. Absolute.
    pub pmix_library: Option<OsString>,
    /// Who serves torch's store.
    pub torch_store: TorchStore,
    /// Where rankrun listens and holds ports for others; `None` is wherever the kernel finds one.
    pub ports: Option<PortRange>,
    pub gpus_per_rank: Option<u32>,
    /// Which CPUs the ranks get.
    pub binding: Binding,
    /// Whether the ranks get `TF_CONFIG`.
    pub tf_config: bool,
    /// Where torch's `@record` writes the exception of a rank; `None` is a file in the job's private directory. Absolute.
    pub error_file: Option<Template>,
    /// Whether fields in the words of the commands are replaced.
    pub expands_args: bool,
    pub clean_shm: CleanShm,
    /// Whether, and how often, the job is started again after a failure.
    pub restart: RestartSpec,
    /// Signals that were ignored when the front started; workers start with them ignored too (nohup).
    pub ignored_signals: Vec<i32>,
    /// The trace of the job. With it each rank gets its own `TRACEPARENT`.
    pub trace: Option<Trace>,
}

/// How a group came to be, if it is not the one with which the job began.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spawned {
    pub by: WorkerId,
    /// What its key-value store has from the start (PMI-1).
    pub preput: Vec<(String, String)>,
}

/// The ports of TCP that rankrun may choose from, for peers on other machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The ports from `first` to `last`; `None` if there are none, or the first is 0.
    pub fn new(first: u16, last: u16) -> Option<PortRange> {
        (first > 0 && first <= last).then_some(PortRange { first, last })
    }

    pub fn ports(self) -> std::ops::RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl JobSpec {
    pub fn app(&self, app: AppIndex) -> &App {
        &self.apps[app.index()]
    }

    /// `MPI_UNIVERSE_SIZE` as Open MPI has it: how many ranks all groups together may have, or for how many there is room.
    pub fn universe(&self) -> u32 {
        self.universe.or(self.room).unwrap_or(0).max(self.map.world_size())
    }

    /// `MPI_UNIVERSE_SIZE` as MPICH and Intel MPI have it: not set unless somebody says it. A program may take a number that is no more than its
    /// ranks to mean that it can start no others.
    pub fn stated_universe(&self) -> Option<u32> {
        self.universe.map(|universe| universe.max(self.map.world_size()))
    }

    /// The group and the attempt.
    pub fn gang(&self) -> GangId {
        GangId { group: self.group, attempt: self.attempt }
    }

    /// The whole command of a rank, wraps included.
    pub fn command(&self, rank: Rank) -> Vec<OsString> {
        let Some(place) = self.map.place(rank) else {
            return Vec::new();
        };
        let app = self.app(place.app);
        let wraps = app.wraps.iter().filter(|wrap| wrap.ranks.contains(rank)).flat_map(|wrap| &wrap.command);
        let own = app.command.iter().map(|word| match self.expands_args {
            true => self.expand(&Template::lenient(word), rank),
            false => word.clone(),
        });
        wraps.map(|word| self.expand(word, rank)).chain(own).collect()
    }

    /// The text of a template for a rank.
    pub fn expand(&self, template: &Template, rank: Rank) -> OsString {
        let value = |field, place: &Place| match field {
            Field::Rank => place.rank.to_string(),
            Field::LocalRank => place.local_rank.0.to_string(),
            Field::Job => self.job.0.clone(),
            Field::Attempt => self.attempt.0.to_string(),
            Field::Node => self.map.node_name(place.node).to_owned(),
        };
        template.fill(|field| self.map.place(rank).map_or_else(String::new, |place| value(field, place)))
    }

    /// The working directory of a rank. Absolute.
    pub fn directory(&self, rank: Rank) -> OsString {
        let wdir = self.map.place(rank).and_then(|place| self.app(place.app).wdir.as_ref());
        wdir.map_or_else(|| self.cwd.clone(), |wdir| self.expand(wdir, rank))
    }
}

/// How workers are stopped (K-3).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopPolicy {
    /// The first signal of every stop. `None`: the one that rankrun received, else SIGTERM.
    pub signal: Option<i32>,
    /// The time from the first signal to SIGKILL, after a failure.
    pub grace_failure: Duration,
    /// The time from the first signal to SIGKILL, when the stop comes from outside.
    pub grace_outside: Duration,
    /// The same after a failure, for a worker that is writing files.
    pub grace_saving: Duration,
    /// How long the processes that a leader left may take to end by themselves before they get SIGTERM.
    pub linger: Duration,
    pub scope: StopScope,
    pub descendants: Descendants,
}

impl Default for StopPolicy {
    fn default() -> Self {
        StopPolicy {
            signal: None,
            grace_failure: Duration::from_secs(5),
            grace_outside: Duration::from_secs(25),
            grace_saving: Duration::from_secs(30),
            linger: Duration::from_secs(2),
            scope: StopScope::Leader,
            descendants: Descendants::End,
        }
    }
}

/// The targets of the first signals of a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum StopScope {
    /// The process that reports for the rank; its helpers stay, so that a checkpoint can use them.
    #[default]
    Leader,
    /// The leader's process group.
    Group,
    /// Every process of the worker.
    Tree,
}

/// What happens to the processes that a leader leaves alive when it exits by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Descendants {
    /// They may run for the linger, then they are ended.
    #[default]
    End,
    /// The worker lasts until they end by themselves.
    Wait,
    /// They are released, and outlive the job.
    Leave,
}

/// What the ranks' stdin, stdout and stderr are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IoPolicy {
    pub stdin: StdinTarget,
    pub stdout: StdioKind,
    pub stderr: StdioKind,
    /// The rank that gets the front's terminal, with the descriptors (0, 1, 2) that are terminals there.
    pub tty: Option<TtyGrant>,
    pub buffer: Buffer,
    /// Bytes of output that may wait in a file on each node before the ranks are slowed down.
    pub spool: u64,
    /// Rows and columns of the front's terminal, given to ptys.
    pub window: Option<(u16, u16)>,
}

/// A rank that gets the front's terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TtyGrant {
    pub rank: Rank,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    /// The rank is put into the foreground: rankrun itself was in it.
    pub foreground: bool,
}

/// Who reads the front's stdin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StdinTarget {
    None,
    /// This rank. A rank on the front's own node gets the descriptor itself.
    Rank(Rank),
    /// Every rank gets a copy.
    All,
    /// Every rank on the front's own node gets the descriptor itself: each byte goes to the one that reads it.
    Shared,
}

impl Default for StdinTarget {
    fn default() -> Self {
        StdinTarget::Rank(Rank(0))
    }
}

/// What carries a stream from a worker to its agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum StdioKind {
    #[default]
    Pipe,
    Pty,
}

/// Who decides how a worker buffers its output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Buffer {
    /// The program itself.
    #[default]
    Program,
    /// libc is asked for line buffering, through coreutils' stdbuf library.
    Line,
    /// libc is asked not to buffer, likewise.
    None,
}

/// Who serves the store at `MASTER_PORT` through which the ranks of torch find each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum TorchStore {
    /// The agent: it outlives every rank, and is there before the first.
    #[default]
    Agent,
    /// The agent of the first rank's node, and those of other nodes relay their ranks' connections to it.
    Relay,
    /// The first rank, as without a launcher. The port is free for it.
    Rank0,
}

/// Which MPI wire-up a rank is offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MpiMode {
    /// Both of these: each MPI takes the one that it knows.
    #[default]
    Auto,
    /// PMI-1 on an inherited socket: MPICH, Intel MPI, MVAPICH.
    Pmi1,
    /// PMIx at a socket of the agent: Open MPI.
    Pmix,
    None,
}

impl MpiMode {
    pub fn offers_pmi1(self) -> bool {
        matches!(self, MpiMode::Auto | MpiMode::Pmi1)
    }

    pub fn offers_pmix(self) -> bool {
        matches!(self, MpiMode::Auto | MpiMode::Pmix)
    }
}

/// The policy for shared memory that a job leaves (K-8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CleanShm {
    /// Names that the job's processes mapped are unlinked once no process maps them.
    #[default]
    Job,
    /// They are only listed.
    List,
    No,
}

/// What an agent does when it loses the front.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum OnFrontLost {
    /// It ends its workers.
    #[default]
    Kill,
    /// It waits this long for the front to come back, and then ends them.
    Wait(Duration),
}

#[cfg(test)]
impl JobSpec {
    /// A job of one program on the node "vm", for tests of what is derived from a job.
    pub(crate) fn sample(size: u32, base: &[(&str, &str)], env: Vec<EnvEdit>) -> JobSpec {
        JobSpec {
            job: JobId("7f3a91c2".into()),
            group: GroupId(0),
            attempt: Attempt(0),
            spawned: None,
            universe: None,
            room: None,
            apps: vec![App { command: vec!["true".into()], size, env, wdir: None, search: None, wraps: Vec::new() }],
            map: RankMap::single_node("vm", &[size]),
            base_env: base.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: "/".into(),
            stop: StopPolicy::default(),
            graces: Default::default(),
            preload: None,
            hook: true,
            io: IoPolicy::default(),
            mpi: MpiMode::Pmi1,
            pmix_library: None,
            gpus_per_rank: None,
            binding: Binding::default(),
            torch_store: TorchStore::Agent,
            ports: None,
            tf_config: false,
            error_file: None,
            expands_args: false,
            clean_shm: CleanShm::Job,
            restart: Default::default(),
            ignored_signals: Vec::new(),
            trace: None,
        }
    }
}
