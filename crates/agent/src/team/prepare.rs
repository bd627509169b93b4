//! Makes the command of one rank, with its descriptors, from the job's description.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use rankrun_core::env::{NodeFacts, STDBUF_LIBRARIES, app_environment, rank_environment};
use rankrun_core::job::{MpiMode, StdinTarget, StdioKind};
use rankrun_core::{AppIndex, Attempt, JobSpec, Rank, preload};
use rankrun_sys::limits::Limits;
use rankrun_sys::spawn::{Command, Session, duplicate};
use rankrun_sys::{fork_server, pty, socket, terminal};
use rustix::fs::SeekFrom;

use super::slot::{Slot, TAG_BYTES};
use super::spawner::Program;
use crate::children::TAG;
use crate::services::fork_servers::{Key, Wish};
use crate::streams::{Capture, null};

/// The descriptor under which a rank finds its PMI socket.
pub(crate) const PMI_FD: i32 = 3;
/// A larger pipe saves wake-ups of the ranks and of us; with many ranks the kernel's limit for a user would be reached.
const PIPE_BYTES: usize = 256 * 1024;
const WIDE_PIPES_UP_TO: u32 = 64;

/// The stdio that the agent was forked with: the front's.
#[derive(Debug)]
pub(crate) struct Inherited {
    stdin: Option<OwnedFd>,
    /// Where it was when the job began, if it is a file.
    stdin_begins: Option<u64>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Inherited {
    /// Moves the front's stdio away from descriptors 0 to 2, so that the agent holds no stream by accident. `null` takes its place.
    pub(crate) fn take(null: &OwnedFd) -> io::Result<Inherited> {
        let stdio = Inherited {
            stdin: Some(duplicate(rustix::stdio::stdin())?),
            // Pipes and terminals have no place.
            stdin_begins: rustix::fs::seek(rustix::stdio::stdin(), SeekFrom::Current(0)).ok(),
            stdout: duplicate(rustix::stdio::stdout())?,
            stderr: duplicate(rustix::stdio::stderr())?,
        };
        rustix::stdio::dup2_stdin(null)?;
        rustix::stdio::dup2_stdout(null)?;
        Ok(stdio)
    }

    /// A rank has the front's stdin: only it shall hold it, unless `keep` is set for its successors.
    pub(crate) fn give_stdin(&mut self, keep: bool) {
        self.stdin.take_if(|_| !keep);
    }

    /// The job goes on without them.
    pub(crate) fn leave(&mut self) {
        let Ok(null) = rankrun_sys::null() else { return };
        // Where that fails they stay what they are.
        let _ = rustix::stdio::dup2_stderr(&null);
        for stream in [&mut self.stdout, &mut self.stderr] {
            if let Ok(nowhere) = duplicate(null.as_fd()) {
                *stream = nowhere;
            }
        }
        // A file or a pipe is read to its end.
        if self.stdin.as_ref().is_some_and(terminal::is_terminal) {
            (self.stdin, self.stdin_begins) = (None, None);
        }
    }

    /// Another attempt begins: it reads a file from where the first one did. What was read from a pipe or a terminal is
    /// gone.
    pub(crate) fn rewind_stdin(&self) {
        if let (Some(stdin), Some(begins)) = (&self.stdin, self.stdin_begins) {
            // The offset could be read before, so that a seek cannot fail.
            let _ = rustix::fs::seek(stdin, SeekFrom::Start(begins));
        }
    }
}

type Variables = BTreeMap<OsString, OsString>;

/// What is the same for all ranks of an app on this node, in one attempt.
struct AppParts {
    attempt: Attempt,
    /// The names that its ranks have of their own, in order.
    own: Vec<OsString>,
    /// Its variables, without those names. Of a name that comes twice, C sees the first value, and a shell the last.
    env: Arc<[CString]>,
    path: Option<OsString>,
}

/// Makes the commands of one attempt.
pub(crate) struct Preparer {
    facts: NodeFacts,
    apps: HashMap<AppIndex, AppParts>,
    limits: Limits,
    null: OwnedFd,
    parent: i32,
    /// What the ranks read of stdin comes from the front in messages.
    sends_stdin: bool,
    is_away: bool,
}

/// A command (without its program), and our ends of its descriptors.
pub(crate) struct Prepared {
    /// Without its program.
    pub(crate) command: Command,
    pub(crate) program: Program,
    pub(crate) captures: [Option<OwnedFd>; 2],
    pub(crate) pmi: Option<OwnedFd>,
    pub(crate) windows: Vec<OwnedFd>,
    pub(crate) stdin: Option<OwnedFd>,
}

/// Why a command could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    #[error("cannot {what}")]
    Io { what: &'static str, source: io::Error },
    #[error("a word of the command, of its environment or its directory has a NUL byte")]
    Nul,
}

/// Why there is no fork server for ranks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoServer {
    #[error("{0}")]
    Obstacle(String),
    #[error(transparent)]
    Failed(#[from] PrepareError),
}

impl Preparer {
    pub(crate) fn new(facts: NodeFacts, limits: Limits, sends_stdin: bool, is_away: bool) -> io::Result<Preparer> {
        let parent = std::process::id() as i32;
        Ok(Preparer { facts, apps: HashMap::new(), limits, null: null()?, parent, sends_stdin, is_away })
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The command of a worker, which starts in what `cgroup` gives.
    pub(crate) fn prepare(
        &mut self,
        spec: &JobSpec,
        worker: &Slot,
        inherited: &Inherited,
        cgroup: impl FnOnce() -> io::Result<Option<OwnedFd>>,
    ) -> Result<Prepared, PrepareError> {
        let rank = worker.rank();
        let of_attempt;
        let spec = match worker.id.attempt == spec.attempt {
            true => spec,
            // Of this rank alone (`--restart-scope rank`).
            false => {
                of_attempt = JobSpec { attempt: worker.id.attempt, ..spec.clone() };
                &of_attempt
            }
        };
        let app = spec.map.place(rank).map_or(AppIndex(0), |place| place.app);
        let words = spec.command(rank);
        let directory = spec.directory(rank);
        // On another node we are not where the front is.
        let wdir = (self.is_away || directory != spec.cwd).then(|| c_string(&directory)).transpose()?;
        let (pmi, keep) = match spec.mpi {
            MpiMode::Auto | MpiMode::Pmi1 => {
                let (ours, theirs) = socket::pair().map_err(io_error("make a PMI socket"))?;
                socket::set_nonblocking(&ours).map_err(io_error("make a PMI socket"))?;
                (Some(ours), Some((theirs, PMI_FD)))
            }
            MpiMode::Pmix | MpiMode::None => (None, None),
        };
        let mut own = rank_environment(spec, &self.facts, rank, keep.is_some().then_some(PMI_FD));
        own.insert(TAG.into(), OsString::from(&worker.tag));
        let parts = self.app_parts(spec, app, &own)?;
        let (shared_env, path) = (Arc::clone(&parts.env), parts.path.clone());
        let env = own.iter().map(|(name, value)| variable(name, value)).collect::<Result<_, _>>()?;
        let streams = self.streams(spec, rank, inherited).map_err(io_error("set up stdio"))?;
        let cgroup = cgroup().map_err(io_error("make a cgroup"))?;
        let session = match spec.io.tty {
            Some(grant) if grant.rank == rank => Session::Shared { foreground: grant.foreground },
            // The other ranks get a session of their own: in the terminal's they could read what is typed.
            Some(_) => Session::Own,
            None => Session::Shared { foreground: false },
        };
        let command = Command {
            program: CString::default(),
            argv: words.iter().map(|word| c_string(word)).collect::<Result<_, _>>()?,
            env,
            shared_env,
            wdir,
            stdio: streams.theirs,
            keep,
            keeps_no_other: false,
            cgroup,
            session,
            ignored: spec.ignored_signals.clone(),
            limits: self.limits,
            place: worker.place.clone(),
            parent: self.parent,
            outlives_parent: false,
        };
        let program = Program { word: words[0].clone(), app, path, directory: directory.into() };
        Ok(Prepared { command, program, captures: streams.ours, pmi, windows: streams.windows, stdin: streams.stdin })
    }

    /// What is to be started so that these ranks of an app can be forked from it.
    pub(crate) fn server(&mut self, spec: &JobSpec, app: AppIndex, ranks: &[Rank]) -> Result<Wish<Program>, NoServer> {
        let &first = ranks.first().ok_or_else(|| NoServer::Obstacle("it has no ranks".to_owned()))?;
        let pmi_fd = matches!(spec.mpi, MpiMode::Auto | MpiMode::Pmi1).then_some(PMI_FD);
        let environments: Vec<Variables> =
            ranks.iter().map(|rank| rank_environment(spec, &self.facts, *rank, pmi_fd)).collect();
        let of_rank = |own: &Variables| own.get(OsStr::new(preload::THREADS)).cloned();
        let threads: Vec<Option<OsString>> = environments.iter().map(of_rank).collect();
        if let Some(why) = spec.fork_obstacle(app, ranks, &threads) {
            return Err(NoServer::Obstacle(why));
        }
        let mut own = environments.into_iter().next().unwrap_or_default();
        own.insert(TAG.into(), OsString::new());
        let parts = self.app_parts(spec, app, &own)?;
        let (shared_env, path) = (Arc::clone(&parts.env), parts.path.clone());
        let modules = spec.preload.as_ref().map(ToString::to_string).unwrap_or_default();
        // The tag of a rank takes the place of this one.
        let tag = "0".repeat(2 * TAG_BYTES);
        let threads = threads.into_iter().flatten().next();
        let its = [(TAG, Some(tag.into())), (preload::SERVER, Some(modules.into())), (preload::THREADS, threads)];
        let its = its.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let env: Vec<CString> = its.map(|(name, value)| variable(name.as_ref(), &value)).collect::<Result<_, _>>()?;
        let is_threads = |entry: &&CString| {
            entry.as_bytes().strip_prefix(preload::THREADS.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
        };
        let threads = env.iter().chain(&*shared_env).find(is_threads).cloned();
        let words = spec.command(first);
        let argv: Vec<CString> = words.iter().map(|word| c_string(word)).collect::<Result<_, _>>()?;
        let directory = spec.directory(first);
        let wdir = (self.is_away || directory != spec.cwd).then(|| c_string(&directory)).transpose()?;
        let (connection, theirs) = fork_server::connection().map_err(io_error("make a socket"))?;
        let (captures, stdio) = server_streams(spec).map_err(io_error("set up stdio"))?;
        let command = Command {
            program: CString::default(),
            argv: argv.clone(),
            env,
            shared_env,
            wdir: wdir.clone(),
            stdio,
            keep: Some((theirs, fork_server::CONNECTION)),
            keeps_no_other: false,
            cgroup: None,
            session: Session::Shared { foreground: false },
            ignored: spec.ignored_signals.clone(),
            limits: self.limits,
            place: None,
            parent: self.parent,
            outlives_parent: false,
        };
        let program = Program { word: words[0].clone(), app, path, directory: directory.into() };
        Ok(Wish { key: Key { app, argv, wdir, threads }, program, command, connection, captures })
    }

    /// The parts of an app, which go with the variables of a rank of it. Ranks of one app have variables of the same names,
    /// so that they are made once.
    fn app_parts(&mut self, spec: &JobSpec, app: AppIndex, own: &Variables) -> Result<&AppParts, PrepareError> {
        let parts = match self.apps.entry(app) {
            Entry::Occupied(entry) if entry.get().attempt == spec.attempt && entry.get().own.iter().eq(own.keys()) => {
                return Ok(entry.into_mut());
            }
            entry => entry,
        };
        let mut env = app_environment(spec, &self.facts, app);
        env.retain(|name, _| !own.contains_key(name));
        let path = searched(spec.app(app).search.as_deref(), env.get(OsStr::new("PATH")));
        let env = env.iter().map(|(name, value)| variable(name, value)).collect::<Result<Vec<_>, _>>()?;
        let made = AppParts { attempt: spec.attempt, own: own.keys().cloned().collect(), env: env.into(), path };
        Ok(parts.insert_entry(made).into_mut())
    }

    fn streams(&self, spec: &JobSpec, rank: Rank, inherited: &Inherited) -> io::Result<Streams> {
        let grant = spec.io.tty.filter(|grant| grant.rank == rank);
        let mut streams = Streams {
            theirs: [self.stdin(spec, rank, inherited)?, duplicate(self.null.as_fd())?, duplicate(self.null.as_fd())?],
            ours: [None, None],
            windows: Vec::new(),
            stdin: None,
        };
        if self.is_sent_stdin(spec, rank) {
            let (theirs, ours) = socket::pipe()?;
            socket::set_nonblocking(&ours)?;
            streams.theirs[0] = theirs;
            streams.stdin = Some(ours);
        }
        let kinds = [
            (spec.io.stdout, grant.is_some_and(|grant| grant.stdout), &inherited.stdout),
            (spec.io.stderr, grant.is_some_and(|grant| grant.stderr), &inherited.stderr),
        ];
        for (index, (kind, granted, own)) in kinds.into_iter().enumerate() {
            if granted {
                streams.theirs[index + 1] = duplicate(own.as_fd())?;
                continue;
            }
            let (ours, theirs) = match kind {
                StdioKind::Pipe => {
                    let (ours, theirs) = socket::pipe()?;
                    if self.facts.cpus > 0 && spec.map.local_size(self.facts.node) <= WIDE_PIPES_UP_TO {
                        socket::widen_pipe(&ours, PIPE_BYTES);
                    }
                    (ours, theirs)
                }
                StdioKind::Pty => {
                    let pair = pty::open(spec.io.window)?;
                    streams.windows.push(duplicate(pair.master.as_fd())?);
                    (pair.master, pair.slave)
                }
            };
            socket::set_nonblocking(&ours)?;
            streams.ours[index] = Some(ours);
            streams.theirs[index + 1] = theirs;
        }
        Ok(streams)
    }

    /// Whether a rank reads what the front sends of its stdin.
    fn is_sent_stdin(&self, spec: &JobSpec, rank: Rank) -> bool {
        match spec.io.stdin {
            StdinTarget::All => true,
            StdinTarget::Rank(reader) => self.sends_stdin && reader == rank,
            StdinTarget::None | StdinTarget::Shared => false,
        }
    }

    fn stdin(&self, spec: &JobSpec, rank: Rank, inherited: &Inherited) -> io::Result<OwnedFd> {
        match (&spec.io.stdin, &inherited.stdin) {
            (StdinTarget::Rank(reader), Some(stdin)) if *reader == rank => duplicate(stdin.as_fd()),
            (StdinTarget::Shared, Some(stdin)) => duplicate(stdin.as_fd()),
            (StdinTarget::Rank(_) | StdinTarget::None | StdinTarget::All | StdinTarget::Shared, _) => {
                duplicate(self.null.as_fd())
            }
        }
    }
}

/// The stdio of a fork server, and our ends. Its streams are of the kind of its ranks': Python looks at them when it starts.
fn server_streams(spec: &JobSpec) -> io::Result<([Option<Capture>; 2], [OwnedFd; 3])> {
    let (mut captures, mut stdio) = ([None, None], [null()?, null()?, null()?]);
    for (index, kind) in [spec.io.stdout, spec.io.stderr].into_iter().enumerate() {
        let (ours, theirs) = match kind {
            StdioKind::Pipe => socket::pipe()?,
            StdioKind::Pty => pty::open(spec.io.window).map(|pair| (pair.master, pair.slave))?,
        };
        socket::set_nonblocking(&ours)?;
        captures[index] = Some(Capture::new(ours));
        stdio[index + 1] = theirs;
    }
    Ok((captures, stdio))
}

struct Streams {
    theirs: [OwnedFd; 3],
    ours: [Option<OwnedFd>; 2],
    windows: Vec<OwnedFd>,
    stdin: Option<OwnedFd>,
}

/// Where a program is looked for.
fn searched(first: Option<&OsStr>, path: Option<&OsString>) -> Option<OsString> {
    let Some(first) = first else { return path.cloned() };
    let mut all = first.to_owned();
    if let Some(path) = path {
        all.push(":");
        all.push(path);
    }
    Some(all)
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> PrepareError {
    move |source| PrepareError::Io { what, source }
}

fn c_string(text: &OsStr) -> Result<CString, PrepareError> {
    CString::new(text.as_bytes()).map_err(|_| PrepareError::Nul)
}

fn variable(name: &OsStr, value: &OsStr) -> Result<CString, PrepareError> {
    let mut bytes = name.to_owned().into_vec();
    bytes.push(b'=');
    bytes.extend_from_slice(value.as_bytes());
    CString::new(bytes).map_err(|_| PrepareError::Nul)
}

/// coreutils' library that makes libc buffer otherwise, where Debian, Fedora and Arch have it.
pub(super) fn stdbuf_library() -> Option<OsString> {
    STDBUF_LIBRARIES.iter().find(|place| std::path::Path::new(place).exists()).map(Into::into)
}
