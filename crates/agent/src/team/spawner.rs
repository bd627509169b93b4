//! The one thread that starts workers. It lives as long as the agent: a worker's parent-death signal follows the thread
//! that cloned it.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use rankrun_core::{AppIndex, GroupId, WorkerId};
use rankrun_sys::exec::{self, ResolveError};
use rankrun_sys::poll::Waker;
use rankrun_sys::process::Child;
use rankrun_sys::signal;
use rankrun_sys::spawn::{Command, SpawnError, Spawner, UnderWay};

use crate::children::Helper;

/// Ranks that are prepared ahead of the spawner. Each holds descriptors, which every clone copies.
pub(crate) const AHEAD: usize = 16;

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
}

/// What is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    Worker(WorkerId),
    /// Of rankrun's own.
    Helper(Helper),
}

impl Job {
    /// The group whose it is. A looker is of no group.
    fn group(self) -> Option<GroupId> {
        match self {
            Job::Worker(worker) => Some(worker.group),
            Job::Helper(Helper::PmixHost(group)) => Some(group),
            Job::Helper(Helper::Looker) => None,
        }
    }
}

/// The result of one spawn.
pub(crate) struct Spawned {
    pub(crate) job: Job,
    pub(crate) result: Result<i32, NotSpawned>,
}

/// Why a worker was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSpawned {
    #[error("{}", why(.0))]
    Failed(SpawnError),
    /// There is no such program, or it cannot be executed.
    #[error("{}", rankrun_sys::reason(&io::Error::from_raw_os_error(*errno)))]
    Unresolved { errno: i32 },
    #[error("the job was stopped before its turn came")]
    Cancelled,
}

struct Request {
    job: Job,
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

/// The agent's handle to its spawner.
pub(crate) struct SpawnerThread {
    requests: SyncSender<Request>,
    results: Receiver<Spawned>,
    /// Results that were received before they were asked for, in order.
    early: VecDeque<Spawned>,
    /// Requested spawns without a result, in order.
    outstanding: VecDeque<Job>,
    cancellations: Cancellations,
    under_way: Arc<UnderWay>,
}

impl SpawnerThread {
    /// Starts the thread. It wakes the loop through `waker` whenever a spawn is done.
    pub(crate) fn start(waker: Waker) -> io::Result<SpawnerThread> {
        let (requests, inbox) = sync_channel::<Request>(AHEAD);
        let (outbox, results) = sync_channel(AHEAD);
        let mut spawner = Spawner::new()?;
        let under_way = spawner.under_way();
        let cancellations = Cancellations::default();
        let now = cancellations.clone();
        std::thread::Builder::new().name("spawner".to_owned()).stack_size(128 * 1024).spawn(move || {
            signal::block_all();
            let mut programs: HashMap<Program, CString> = HashMap::new();
            for Request { job, program, mut command, cancelled } in inbox {
                let is_wanted = || cancelled == now.of(job);
                let found = match programs.get(&program) {
                    _ if !is_wanted() => Err(NotSpawned::Cancelled),
                    Some(found) => Ok(found.clone()),
                    None => program.resolve().map_err(|error| NotSpawned::Unresolved { errno: errno_of(&error) }),
                };
                let result = found.and_then(|found| {
                    programs.entry(program).or_insert_with(|| found.clone());
                    command.program = found;
                    if is_wanted() {
                        spawner.spawn(&command).map_err(NotSpawned::Failed)
                    } else {
                        Err(NotSpawned::Cancelled)
                    }
                });
                // The child has its descriptors; close ours before the loop gets the result, or it would miss the end
                // of a stream.
                drop(command);
                // There is room: requests are limited to the capacity of the results.
                let sent = outbox.send(Spawned { job, result }).is_ok();
                // From here on the loop finds the child in the results.
                spawner.under_way().clear();
                if !sent {
                    break;
                }
                waker.wake();
            }
            // The agent is ending. Returning would kill the released workers (parent-death signal), so the thread lasts
            // until the process exits.
            loop {
                std::thread::park();
            }
        })?;
        let (early, outstanding) = (VecDeque::new(), VecDeque::new());
        Ok(SpawnerThread { requests, results, early, outstanding, cancellations, under_way })
    }

    /// Whether there is room for another command.
    pub(crate) fn has_room(&self) -> bool {
        self.outstanding.len() < AHEAD
    }

    /// Sends the spawner a command. `false` if there was no room: check [`SpawnerThread::has_room`] first.
    pub(crate) fn spawn(&mut self, job: Job, program: Program, command: Command) -> bool {
        let cancelled = self.cancellations.of(job);
        match self.requests.try_send(Request { job, program, command, cancelled }) {
            Ok(()) => {
                self.outstanding.push_back(job);
                true
            }
            // The thread ends only with the process.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// Cancels requests of a group that have not begun.
    pub(crate) fn cancel(&self, group: GroupId) {
        self.cancellations.cancel(group);
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

    /// The child that was cloned and has no result yet. Read it before the results: a child that is in neither was not
    /// started by the spawner.
    pub(crate) fn under_way(&self) -> Option<Child> {
        self.under_way.child()
    }

    /// The child under way, if it is this one.
    pub(crate) fn starting(&mut self, job: Job) -> Option<Child> {
        let child = self.under_way()?;
        self.receive();
        // Without a result of the first command it is the first command's.
        (self.early.is_empty() && self.outstanding.front() == Some(&job)).then_some(child)
    }

    /// The child under way, unless it is known to be of another group.
    pub(crate) fn starting_for(&self, group: GroupId) -> Option<Child> {
        let is_foreign = |job: &Job| job.group().is_some_and(|of| of != group);
        self.under_way().filter(|_| !self.outstanding.front().is_some_and(is_foreign))
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
    }
}

#[cfg(test)]
mod tests {
    use rankrun_core::{Attempt, Rank};

    use super::*;

    #[test]
    fn a_group_gets_its_own_results_and_cancels_its_own_commands() {
        let job = |group| Job::Worker(WorkerId { group: GroupId(group), rank: Rank(0), attempt: Attempt(0) });
        let looker = Job::Helper(Helper::Looker);
        let (requests, inbox) = sync_channel(AHEAD);
        let (outbox, results) = sync_channel(AHEAD);
        let mut spawner = SpawnerThread {
            requests,
            results,
            early: VecDeque::new(),
            outstanding: VecDeque::from([job(0), job(1), looker]),
            cancellations: Cancellations::default(),
            under_way: Arc::default(),
        };
        for (job, pid) in [(job(0), 10), (job(1), 11), (looker, 12)] {
            assert!(outbox.send(Spawned { job, result: Ok(pid) }).is_ok());
        }
        let mut next = |group: Option<u32>| {
            let spawned = spawner.next_result(group.map(GroupId));
            (spawned.and_then(|spawned| spawned.result.ok()), spawner.is_busy())
        };
        let expected = [(Some(11), true), (None, true), (Some(12), true), (Some(10), false)];
        assert_eq!([Some(1), Some(1), None, Some(0)].map(&mut next), expected);

        spawner.cancel(GroupId(1));
        let cancelled = [job(0), job(1), looker].map(|job| spawner.cancellations.of(job));
        assert_eq!(cancelled, [0, 1, 1], "nobody knows for which group a looker is");
        drop(inbox);
    }
}
