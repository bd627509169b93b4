//! The threads that start workers: a thread waits until its child has called exec, so that several keep all CPUs busy. They live as
//! long as the agent: a worker's parent-death signal follows the thread that cloned it.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rankrun_core::{AppIndex, GroupId, WorkerId, preload};
use rankrun_sys::exec::{self, ResolveError};
use rankrun_sys::fork_server::{ForkError, ForkServer};
use rankrun_sys::poll::Waker;
use rankrun_sys::process::Child;
use rankrun_sys::spawn::{Command, SpawnError, Spawner, UnderWay};
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{cpus, signal};

use crate::children::{Helper, ServerId};

/// Ranks that are prepared ahead of the spawners. Each holds descriptors, which every clone copies.
pub(crate) const AHEAD: usize = 16;

/// A child's exec partly waits for memory and for locks of the kernel, and two threads for each CPU are quicker than one.
const THREADS_PER_CPU: usize = 2;
/// A script is run by what may be another.
const SCRIPTS: usize = 4;
/// More than these only wait for each other.
const MOST_THREADS: usize = 8;

/// A program that the spawner looks up: the file system may not answer, and the loop must not wait for it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Program {
    pub(super) word: OsString,
    pub(super) app: AppIndex,
    pub(super) path: Option<OsString>,
    pub(super) directory: PathBuf,
}

impl Program {
    /// This binary. The path is looked up by the child itself.
    pub(crate) fn ourselves() -> Program {
        Program { word: "/proc/self/exe".into(), app: AppIndex(0), path: None, directory: "/".into() }
    }

    /// Finds it, as `execvp` would.
    pub(crate) fn resolve(&self) -> Result<CString, ResolveError> {
        let found = exec::resolve(&self.word, self.path.as_deref(), &self.directory)?;
        CString::new(found.into_os_string().into_vec()).map_err(|_| ResolveError::NotFound)
    }

    /// Whether it is a Python interpreter that takes our hook: itself, or what its scripts are run by. The file systems of the user are read.
    ///
    /// # Errors
    ///
    /// Why it is not.
    fn can_serve(&self, command: &Command) -> Result<(), String> {
        let mut program = self.clone();
        let words = command.argv.iter().skip(1);
        let mut arguments: Vec<OsString> = words.map(|word| OsStr::from_bytes(word.as_bytes()).to_owned()).collect();
        let mut first: Option<OsString> = None;
        for _ in 0..SCRIPTS {
            // The start itself says what is wrong with it.
            let Ok(found) = program.resolve() else { return Ok(()) };
            let path = OsStr::from_bytes(found.as_bytes());
            first.get_or_insert_with(|| path.to_owned());
            let mut beginning = Vec::new();
            let read = std::fs::File::open(path)
                .and_then(|file| file.take(preload::FIRST_LINE as u64).read_to_end(&mut beginning));
            match preload::script(&beginning).filter(|_| read.is_ok()) {
                Some((word, options)) => {
                    program.word = word;
                    arguments = options;
                }
                None => {
                    let script = first.filter(|first| first != path);
                    return preload::obstacle(path, &arguments, script.as_deref()).map_or(Ok(()), Err);
                }
            }
        }
        Err(format!("\"{}\" is a script of a script", self.word.display()))
    }
}

/// What is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    Worker(WorkerId),
    /// Of rankrun's own.
    Helper(Helper),
}

impl Job {
    /// The group whose it is. Processes of rankrun's own are of no group.
    fn group(self) -> Option<GroupId> {
        match self {
            Job::Worker(worker) => Some(worker.group()),
            Job::Helper(
                Helper::PmixHost | Helper::Looker | Helper::Meter | Helper::Sampler | Helper::ForkServer(_),
            ) => None,
        }
    }
}

/// The result of one spawn.
pub(crate) struct Spawned {
    pub(crate) job: Job,
    pub(crate) result: Result<i32, NotSpawned>,
    /// The server that should have forked it, and why it has not.
    pub(crate) unserved: Option<(ServerId, String)>,
}

/// Why a worker was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSpawned {
    #[error("{}", why(.0))]
    Failed(SpawnError),
    /// The program is none that a fork server can be made of.
    #[error("{0}")]
    Unfit(String),
    /// There is no such program, or it cannot be executed.
    #[error("{}", rankrun_sys::reason(&io::Error::from_raw_os_error(*errno)))]
    Unresolved { errno: i32 },
    #[error("the job was stopped before its turn came")]
    Cancelled,
}

struct Request {
    job: Job,
    /// The server that is to fork it.
    server: Option<(ServerId, Arc<ForkServer>)>,
    program: Program,
    command: Command,
    /// How often its group had been cancelled.
    cancelled: u64,
}

/// How often the requests of each group, and those of no group, were cancelled.
#[derive(Clone, Debug, Default)]
struct Cancellations(Arc<Mutex<HashMap<Option<GroupId>, u64>>>);

impl Cancellations {
    fn of(&self, job: Job) -> u64 {
        // The other groups may still need it.
        if matches!(job, Job::Helper(Helper::PmixHost | Helper::ForkServer(_))) {
            return 0;
        }
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&job.group()).copied().unwrap_or(0)
    }

    fn cancel(&self, group: GroupId) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for of in [Some(group), None] {
            *counts.entry(of).or_default() += 1;
        }
    }
}

/// What a thread starts, and the child: both are of the same start while the lock is held.
#[derive(Debug, Default)]
struct Start {
    job: Mutex<Option<Job>>,
    child: Arc<UnderWay>,
}

impl Start {
    fn set(&self, job: Option<Job>) {
        *self.job.lock().unwrap_or_else(PoisonError::into_inner) = job;
    }

    fn now(&self) -> Option<(Job, Child)> {
        let job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
        (*job).zip(self.child.child())
    }
}

/// The commands that wait for a thread.
#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<Request>>,
    news: Condvar,
}

impl Queue {
    fn push(&self, request: Request) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(request);
        self.news.notify_one();
    }

    fn next(&self) -> Request {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match waiting.pop_front() {
                Some(request) => return request,
                None => waiting = self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// What the threads share.
#[derive(Clone)]
struct Common {
    queue: Arc<Queue>,
    cancellations: Cancellations,
    /// Programs that were found.
    programs: Arc<Mutex<HashMap<Program, CString>>>,
    outbox: SyncSender<Spawned>,
    waker: Waker,
}

impl Common {
    /// Runs a thread: until the process exits. If it returned, the kernel would kill the workers that it has started (parent-death signal).
    fn run(&self, mut spawner: Spawner, start: &Start) -> ! {
        signal::block_all();
        loop {
            let request = self.queue.next();
            let job = request.job;
            start.set(Some(job));
            let spawned = self.serve(&mut spawner, request);
            // There is room, since commands are limited to the capacity of the results. At its end the loop wants no result any more.
            let _ = self.outbox.send(spawned);
            // From here on the loop finds the child in the results.
            start.child.clear();
            start.set(None);
            self.waker.wake();
        }
    }

    /// Starts what is asked for: by its server, or from the beginning.
    fn serve(&self, spawner: &mut Spawner, request: Request) -> Spawned {
        let Request { job, server, program, command, cancelled } = request;
        let is_wanted = || cancelled == self.cancellations.of(job);
        let mut unserved = None;
        if let Some((id, server)) = server
            && is_wanted()
        {
            let result = match spawner.fork(&server, &command, &is_wanted) {
                Ok(pid) => Ok(pid),
                Err(ForkError::Failed(error)) => Err(NotSpawned::Failed(error)),
                Err(ForkError::Unwanted) => Err(NotSpawned::Cancelled),
                Err(ForkError::Unserved(why)) => {
                    unserved = Some((id, why));
                    Err(NotSpawned::Cancelled)
                }
            };
            if unserved.is_none() {
                return Spawned { job, result, unserved };
            }
        }
        if let Job::Helper(Helper::ForkServer(_)) = job
            && let Err(why) = program.can_serve(&command)
        {
            return Spawned { job, result: Err(NotSpawned::Unfit(why)), unserved };
        }
        Spawned { job, result: self.spawn(spawner, program, command, &is_wanted), unserved }
    }

    /// The command is dropped before its result is sent: the child has its descriptors, and the loop would miss the end of a stream.
    fn spawn(
        &self,
        spawner: &mut Spawner,
        program: Program,
        mut command: Command,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<i32, NotSpawned> {
        if !is_wanted() {
            return Err(NotSpawned::Cancelled);
        }
        command.program = self.find(program)?;
        if !is_wanted() {
            return Err(NotSpawned::Cancelled);
        }
        spawner.spawn(&command).map_err(NotSpawned::Failed)
    }

    /// Looks up a program, unless that was done.
    fn find(&self, program: Program) -> Result<CString, NotSpawned> {
        let programs = || self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = programs().get(&program) {
            return Ok(found.clone());
        }
        let found = program.resolve().map_err(|error| NotSpawned::Unresolved { errno: errno_of(&error) })?;
        programs().insert(program, found.clone());
        Ok(found)
    }
}

/// The agent's handle to its spawners.
pub(crate) struct Spawners {
    common: Common,
    results: Receiver<Spawned>,
    /// Results that were received before they were asked for, in order.
    early: VecDeque<Spawned>,
    /// Requested spawns without a result, in order.
    outstanding: VecDeque<Job>,
    threads: Vec<Arc<Start>>,
    /// As many threads are made at most; `None`: not counted yet.
    most: Option<usize>,
}

impl Spawners {
    /// Starts the first thread; the others come with the work. They wake the loop through `waker` whenever a spawn is done.
    pub(crate) fn start(waker: Waker) -> io::Result<Spawners> {
        let mut spawners = Spawners::new(waker, None);
        spawners.add_thread()?;
        Ok(spawners)
    }

    fn new(waker: Waker, most: Option<usize>) -> Spawners {
        let (outbox, results) = sync_channel(AHEAD);
        let (cancellations, programs) = (Cancellations::default(), Arc::default());
        let common = Common { queue: Arc::default(), cancellations, programs, outbox, waker };
        let (early, outstanding) = (VecDeque::new(), VecDeque::new());
        Spawners { common, results, early, outstanding, threads: Vec::new(), most }
    }

    fn add_thread(&mut self) -> io::Result<()> {
        let spawner = Spawner::new()?;
        let start = Arc::new(Start { job: Mutex::default(), child: spawner.under_way() });
        let (common, own) = (self.common.clone(), Arc::clone(&start));
        let thread = std::thread::Builder::new().name("spawner".to_owned()).stack_size(128 * 1024);
        thread.spawn(move || common.run(spawner, &own))?;
        self.threads.push(start);
        Ok(())
    }

    /// Whether there is room for another command.
    pub(crate) fn has_room(&self) -> bool {
        self.outstanding.len() < AHEAD
    }

    /// Sends the spawners a command. `false` if there was no room: check [`Spawners::has_room`] first.
    pub(crate) fn spawn(&mut self, job: Job, program: Program, command: Command) -> bool {
        self.spawn_by(None, job, program, command)
    }

    /// The same for what a server is to fork. If that does not, it is started from the beginning.
    pub(crate) fn spawn_by(
        &mut self,
        server: Option<(ServerId, Arc<ForkServer>)>,
        job: Job,
        program: Program,
        command: Command,
    ) -> bool {
        if !self.has_room() {
            return false;
        }
        let cancelled = self.common.cancellations.of(job);
        self.common.queue.push(Request { job, server, program, command, cancelled });
        self.outstanding.push_back(job);
        if self.outstanding.len() > self.threads.len() && self.threads.len() < self.most() && self.add_thread().is_err()
        {
            // The limit on processes leaves room for no more: those that there are do all the work.
            self.most = Some(self.threads.len());
        }
        true
    }

    fn most(&mut self) -> usize {
        *self.most.get_or_insert_with(|| (cpus::allowed() as usize * THREADS_PER_CPU).min(MOST_THREADS))
    }

    /// Cancels requests of a group that have not begun.
    pub(crate) fn cancel(&self, group: GroupId) {
        self.common.cancellations.cancel(group);
    }

    /// The next result of a group, or of what is of no group.
    pub(crate) fn next_result(&mut self, group: Option<GroupId>) -> Option<Spawned> {
        self.receive();
        let at = self.early.iter().position(|spawned| spawned.job.group() == group)?;
        let spawned = self.early.remove(at)?;
        if let Some(at) = self.outstanding.iter().position(|job| *job == spawned.job) {
            self.outstanding.remove(at);
        }
        Some(spawned)
    }

    fn receive(&mut self) {
        self.early.extend(self.results.try_iter());
    }

    /// The children that were cloned and have no result yet. Read them before the results: a child that is in neither was not
    /// started by a spawner.
    pub(crate) fn under_way(&self) -> Vec<Child> {
        self.threads.iter().filter_map(|start| start.child.child()).collect()
    }

    /// The child of this that is under way. One that was forked by a server may have been reaped before the spawner has seen its pid: only the
    /// thread that reaps, which is the caller's, can tell.
    pub(crate) fn starting(&self, job: Job) -> Option<Child> {
        let mut starts = self.threads.iter().filter_map(|start| start.now());
        let child = starts.find_map(|(of, child)| (of == job).then_some(child))?;
        (wait::peek_at(child.pid()) != Look::NoChildren).then_some(child)
    }

    /// Whether a result of this is to come.
    pub(crate) fn awaits(&self, job: Job) -> bool {
        self.outstanding.contains(&job)
    }

    /// Whether a child may exist that the loop does not know yet.
    pub(crate) fn is_busy(&self) -> bool {
        !self.outstanding.is_empty()
    }
}

fn why(error: &SpawnError) -> String {
    format!("{error}: {}", rankrun_sys::reason(&error.source))
}

fn errno_of(error: &ResolveError) -> i32 {
    match error {
        ResolveError::NotFound => 2,
        ResolveError::NotExecutable { source, .. } => source.raw_os_error().unwrap_or(13),
        // Nobody refuses a spawner.
        ResolveError::Refused => 13,
    }
}

#[cfg(test)]
mod tests {
    use rankrun_core::{Attempt, Rank};

    use super::*;

    #[test]
    fn a_group_gets_its_own_results_and_cancels_its_own_commands() {
        let job = |group| Job::Worker(WorkerId { rank: Rank::of(GroupId(group), 0), attempt: Attempt(0) });
        let looker = Job::Helper(Helper::Looker);
        let mut spawner = Spawners::new(Waker::new().expect("a waker"), Some(0));
        spawner.outstanding = VecDeque::from([job(0), job(1), looker]);
        let outbox = spawner.common.outbox.clone();
        for (job, pid) in [(job(0), 10), (job(1), 11), (looker, 12)] {
            assert!(outbox.send(Spawned { job, result: Ok(pid), unserved: None }).is_ok());
        }
        let mut next = |group: Option<u32>| {
            let spawned = spawner.next_result(group.map(GroupId));
            (spawned.and_then(|spawned| spawned.result.ok()), spawner.is_busy())
        };
        let expected = [(Some(11), true), (None, true), (Some(12), true), (Some(10), false)];
        assert_eq!([Some(1), Some(1), None, Some(0)].map(&mut next), expected);

        spawner.cancel(GroupId(1));
        let cancelled = [job(0), job(1), looker].map(|job| spawner.common.cancellations.of(job));
        assert_eq!(cancelled, [0, 1, 1], "nobody knows for which group a looker is");
    }
}
