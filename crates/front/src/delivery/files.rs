//! The front's access to file systems while a job runs (ADR 32).
//!
//! A thread that waits for a file system that does not answer is in state D: nothing ends it, and its process cannot be
//! reaped. So no thread of the front calls such a file system. Each destination has a *storage process*
//! ([`super::storage`]), started with its first task, and a thread of the front that passes tasks and answers over a socket. Nobody
//! waits for a storage process: at the end of the job it is killed, and named if it stays.
//!
//! The loop hands over [`Task`]s, in order for each destination, and gets one [`Done`] for each. The sources bound the waiting tasks:
//! the ranks' bytes by their credit, which is returned only when they are written, their results by the room of their node, the others by
//! their number.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rankrun_agent::tidy::Places;
use rankrun_core::{JobId, Purpose, Rank, Stream};
use rankrun_output::LogPlaces;
use rankrun_sys::limits;
use rankrun_sys::poll::{Waker, pause};
use rankrun_sys::proc;
use rankrun_sys::process::Child;
use rankrun_sys::signal::{self, SIGKILL};
use rankrun_sys::spawn::{Spawner, UnderWay};
use rankrun_sys::wait::{self, Look};

use crate::delivery::storage::{Storage, receive, send};
use crate::delivery::task::{Destination, Done, Task};

/// Tasks that a thread may have at a time. When it has so many, the others wait on the loop's side.
const TASKS: usize = 64;
/// Tasks that are sent before their answers are read. The answers fit into the socket's buffer.
const BATCH: usize = 32;
/// How often writing to full log files is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long an idle storage process may take to end by itself.
const END_BOUND: Duration = Duration::from_millis(200);
/// After so long in state D a killed one is left behind: it waits for its file system. A slow disk or a lock of the kernel takes less.
const STUCK: Duration = Duration::from_secs(2);
/// How long a killed one may take that waits for a CPU or a disk.
const KILL_BOUND: Duration = Duration::from_secs(30);

/// What a thread gets.
#[derive(Debug)]
enum Item {
    Task(Task),
    /// Remove a directory of the job. It is where the agent has made it, in /tmp or in memory: the thread does this itself.
    Remove(Places),
}

/// What an unanswered task works on.
#[derive(Debug)]
enum Label {
    /// The same as the task before it.
    Same,
    Path(PathBuf),
    Log(Rank, Stream),
}

/// The destinations, seen from the loop.
#[derive(Debug)]
pub(crate) struct Files {
    job: JobId,
    lanes: BTreeMap<Destination, Lane>,
    /// The places of the log files, and of ranks that were started again.
    logs: Option<(Box<LogPlaces>, u32)>,
    moved: HashMap<Rank, Box<LogPlaces>>,
    /// Storage processes that were given up, with the path that did not answer.
    given_up: Vec<(Helper, PathBuf)>,
    /// Nothing more is written.
    is_over: bool,
    waker: Waker,
}

/// A destination, its thread and its storage process.
#[derive(Debug)]
struct Lane {
    items: SyncSender<Item>,
    done: Receiver<Done>,
    /// Items for which there was no room yet.
    waiting: VecDeque<Item>,
    /// What the items without an answer work on, the waiting ones included.
    outstanding: VecDeque<Label>,
    /// What the last item with an answer worked on.
    last: PathBuf,
    /// When the thread last answered, or got an item after a rest.
    progress: Duration,
    helper: Helper,
    /// Why there is no thread.
    refused: Option<String>,
}

/// A storage process, as the loop and a thread know it.
#[derive(Clone, Debug, Default)]
struct Helper {
    child: Arc<Mutex<Option<Child>>>,
    under_way: Arc<UnderWay>,
    /// It has ended before its socket was closed.
    has_failed: Arc<AtomicBool>,
}

impl Helper {
    fn child(&self) -> Option<Child> {
        // Held for both: the thread moves the child from one to the other.
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.or_else(|| self.under_way.child())
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    fn kill(&self) {
        if let Some(child) = self.child() {
            // It has not been reaped: it is still ours.
            let _ = child.signal(SIGKILL);
        }
    }

    /// Whether its process waits for something, which is a file system while it has a task. One that lacks a CPU does not. (State S counts:
    /// that is how a process waits for FUSE until somebody kills it.)
    fn waits(&self) -> bool {
        self.child().and_then(|child| proc::process(child.pid())).is_some_and(|process| process.state != 'R')
    }

    /// Whether its process waits where no signal ends it (state D, proc(5)).
    fn waits_for_files(&self) -> bool {
        self.child().and_then(|child| proc::process(child.pid())).is_some_and(|process| process.state == 'D')
    }

    /// Waits a moment for the end of a process that has closed its socket.
    fn ends(&self) -> bool {
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() >= END_BOUND {
                return false;
            }
            pause(Duration::from_millis(1));
        }
        true
    }

    /// Whether there is no process, or it has ended and is reaped now.
    fn has_ended(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        match child.map(|child| wait::reap(child.pid())) {
            Some(Look::Nothing) => false,
            Some(Look::Found(_) | Look::NoChildren) => {
                *child = None;
                true
            }
            None => self.under_way.child().is_none(),
        }
    }
}

impl Files {
    /// Starts the thread of the report where ranks may use up the limit on processes.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub(crate) fn start(job: JobId, waker: Waker) -> io::Result<Files> {
        let mut files = Files::new(job, waker);
        if limits::processes_are_scarce() {
            let lane = Lane::start(Destination::Report, &files.job, files.waker.clone())?;
            files.lanes.insert(Destination::Report, lane);
        }
        Ok(files)
    }

    /// The thread of a destination is started for its first task. It wakes the loop through `waker`.
    pub(crate) fn new(job: JobId, waker: Waker) -> Files {
        let (lanes, moved) = (BTreeMap::new(), HashMap::new());
        Files { job, lanes, logs: None, moved, given_up: Vec::new(), is_over: false, waker }
    }

    /// Hands over a task.
    pub(crate) fn submit(&mut self, now: Duration, task: Task) {
        let label = match &task {
            Task::Log { rank, stream, .. } | Task::CloseLog { rank, stream } => Label::Log(*rank, *stream),
            other => other.path().map_or(Label::Same, |path| Label::Path(path.to_owned())),
        };
        match &task {
            Task::OpenLogs { places, world_size } => self.logs = Some((places.clone(), *world_size)),
            Task::MoveLog { rank, places } => {
                self.moved.insert(*rank, places.clone());
            }
            _ => {}
        }
        self.push(now, task.destination(), label, Item::Task(task));
    }

    /// Removes the directories of the job.
    pub(crate) fn remove(&mut self, now: Duration, places: &Places) {
        for (path, place) in places.each() {
            self.push(now, Destination::Report, Label::Path(path.to_owned()), Item::Remove(place));
        }
    }

    fn push(&mut self, now: Duration, destination: Destination, label: Label, item: Item) {
        if self.is_over {
            return;
        }
        if self.lanes.get(&destination).is_none_or(|lane| lane.refused.is_some()) {
            let lane = Lane::start(destination, &self.job, self.waker.clone());
            let mut lane = lane.unwrap_or_else(|error| Lane::without_thread(&error));
            // Those that no thread was there for: there may be room for it now.
            if let Some(before) = self.lanes.remove(&destination) {
                (lane.waiting, lane.outstanding, lane.progress) = (before.waiting, before.outstanding, before.progress);
            }
            self.lanes.insert(destination, lane);
        }
        if let Some(lane) = self.lanes.get_mut(&destination) {
            if lane.outstanding.is_empty() {
                lane.progress = now;
            }
            lane.outstanding.push_back(label);
            lane.waiting.push_back(item);
            lane.pump();
        }
    }

    /// The next answer.
    pub(crate) fn next(&mut self, now: Duration) -> Option<Done> {
        let Files { lanes, logs, moved, .. } = self;
        let (lane, done) = lanes.values_mut().find_map(|lane| lane.done.try_recv().ok().map(|done| (lane, done)))?;
        if !matches!(done, Done::Recovered { .. } | Done::TranscriptRecovered { .. })
            && let Some(label) = lane.outstanding.pop_front()
            && let Some(path) = path_of(&label, logs.as_ref(), moved)
        {
            lane.last = path;
        }
        lane.progress = now;
        lane.pump();
        Some(done)
    }

    /// Since when a destination has not answered; `None` if it has nothing to do.
    pub(crate) fn busy_since(&self, destination: Destination) -> Option<Duration> {
        self.lanes.get(&destination).filter(|lane| !lane.outstanding.is_empty()).map(|lane| lane.progress)
    }

    /// Whether a destination has tasks and has not answered for so long while its process waits for its file system, or will never answer.
    pub(crate) fn is_stuck(&self, destination: Destination, now: Duration, bound: Duration) -> bool {
        let lane = self.lanes.get(&destination).filter(|lane| !lane.outstanding.is_empty());
        let is_silent = |lane: &Lane| now >= lane.progress + bound && lane.helper.waits();
        lane.is_some_and(|lane| lane.helper.has_failed() || is_silent(lane))
    }

    /// Whether a destination has tasks that nothing will answer.
    pub(crate) fn has_failed(&self, destination: Destination) -> bool {
        self.lanes.get(&destination).is_some_and(|lane| !lane.outstanding.is_empty() && lane.helper.has_failed())
    }

    pub(crate) fn is_idle(&self, destination: Destination) -> bool {
        self.busy_since(destination).is_none()
    }

    /// The path that a destination works on, or worked on last.
    pub(crate) fn at(&self, destination: Destination) -> PathBuf {
        self.lanes.get(&destination).map(|lane| self.at_lane(lane)).unwrap_or_default()
    }

    fn at_lane(&self, lane: &Lane) -> PathBuf {
        let label = lane.outstanding.front();
        label.and_then(|label| path_of(label, self.logs.as_ref(), &self.moved)).unwrap_or_else(|| lane.last.clone())
    }

    /// Whether the process that writes there has ended.
    pub(crate) fn has_ended(&self, destination: Destination) -> bool {
        self.lanes.get(&destination).is_some_and(|lane| lane.helper.has_failed())
    }

    /// Why a destination has not answered for so long.
    pub(crate) fn why(&self, destination: Destination, bound: Duration) -> String {
        let refused = self.lanes.get(&destination).and_then(|lane| lane.refused.clone());
        match (refused, self.has_ended(destination)) {
            (Some(refused), _) => refused,
            (None, true) => "the process that writes there has ended".to_owned(),
            (None, false) => format!("no answer from its file system for {} s", bound.as_secs_f64()),
        }
    }

    /// Gives up a destination with all its tasks. A later task starts another process.
    pub(crate) fn give_up(&mut self, destination: Destination) {
        if let Some(lane) = self.lanes.get(&destination) {
            let at = self.at_lane(lane);
            lane.helper.kill();
            self.given_up.push((lane.helper.clone(), at));
        }
        self.lanes.remove(&destination);
    }

    /// A destination that does not answer.
    #[cfg(test)]
    pub(crate) fn silence(&mut self, destination: Destination) {
        self.lanes.insert(destination, Lane::of(sync_channel(0).0, sync_channel(0).1));
    }

    /// The process of a destination has ended, whose thread has seen it.
    #[cfg(test)]
    pub(crate) fn lose(&mut self, destination: Destination) {
        self.lanes.insert(destination, Lane::broken());
    }

    /// The processes of rankrun itself among the front's children.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let given_up = self.given_up.iter().map(|(helper, _)| helper);
        let helpers = self.lanes.values().map(|lane| &lane.helper).chain(given_up);
        helpers.filter_map(|helper| helper.child().map(Child::pid)).collect()
    }

    /// The job is over: ends all storage processes. Returns those that stay, and the path that each waits for.
    pub(crate) fn end(&mut self) -> Vec<(i32, PathBuf)> {
        self.is_over = true;
        for destination in self.lanes.keys().copied().collect::<Vec<_>>() {
            if !self.is_idle(destination) {
                self.give_up(destination);
            }
        }
        // The threads see the end of their channels, and close the sockets.
        let idle = std::mem::take(&mut self.lanes).into_values().map(|lane| (lane.helper, lane.last));
        let mut open: Vec<(Helper, PathBuf)> = idle.chain(std::mem::take(&mut self.given_up)).collect();
        let begun = Instant::now();
        let (mut is_killed, mut moved) = (false, begun);
        loop {
            open.retain(|(helper, _)| !helper.has_ended());
            let time = begun.elapsed();
            if open.is_empty() || time >= KILL_BOUND {
                break;
            }
            if time >= END_BOUND {
                if !std::mem::replace(&mut is_killed, true) {
                    open.iter().for_each(|(helper, _)| helper.kill());
                }
                if !open.iter().all(|(helper, _)| helper.waits_for_files()) {
                    moved = Instant::now();
                }
                if moved.elapsed() >= STUCK {
                    break;
                }
            }
            let step = if is_killed { Duration::from_millis(5) } else { Duration::from_micros(200) };
            pause(step);
        }
        open.into_iter().filter_map(|(helper, path)| Some((helper.child()?.pid(), path))).collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.end();
    }
}

/// What log files lack that are given up. `left` bytes wait for them; the ranks go on writing.
pub(crate) fn not_in_them(left: u64) -> String {
    match left {
        0 => "what follows is not in them".to_owned(),
        1 => "1 byte that waited and all that follows are not in them".to_owned(),
        left => format!("{left} bytes that waited and all that follows are not in them"),
    }
}

/// The path that a task works on; `None`: the same as the task before it.
fn path_of(
    label: &Label,
    logs: Option<&(Box<LogPlaces>, u32)>,
    moved: &HashMap<Rank, Box<LogPlaces>>,
) -> Option<PathBuf> {
    match label {
        Label::Same => None,
        Label::Path(path) => Some(path.clone()),
        Label::Log(rank, stream) => {
            let (places, world_size) = logs?;
            moved.get(rank).unwrap_or(places).file(*rank, *stream, *world_size)
        }
    }
}

impl Lane {
    fn start(destination: Destination, job: &JobId, waker: Waker) -> io::Result<Lane> {
        let mut spawner = Spawner::new()?;
        let helper = Helper { under_way: spawner.under_way(), ..Helper::default() };
        let words =
            [Purpose::Storage.argument(), &job.0, &format!("{destination:?}").to_lowercase()].map(str::to_owned);
        Lane::with(helper, waker, move |helper| start_helper(&mut spawner, &words, helper))
    }

    /// The same, with another way to start its process.
    fn with(
        helper: Helper,
        waker: Waker,
        start: impl FnMut(&Helper) -> io::Result<Backend> + Send + 'static,
    ) -> io::Result<Lane> {
        let (items, inbox) = sync_channel(TASKS);
        // This may wait for room: the task is finished, and the loop always reads.
        let (outbox, done) = sync_channel(TASKS);
        let thread = Passing { outbox, waker, helper: helper.clone(), again: None, may_start_again: true };
        std::thread::Builder::new().name("files".to_owned()).stack_size(256 * 1024).spawn(move || {
            signal::block_all();
            thread.run(&inbox, start);
        })?;
        Ok(Lane { helper, ..Lane::of(items, done) })
    }

    /// One that never answers, since no thread could be started for it.
    fn without_thread(error: &io::Error) -> Lane {
        let refused = Some(format!("cannot start a thread: {}", rankrun_sys::reason(error)));
        Lane { refused, ..Lane::broken() }
    }

    /// One that never answers.
    fn broken() -> Lane {
        let lane = Lane::of(sync_channel(0).0, sync_channel(0).1);
        lane.helper.has_failed.store(true, Ordering::Release);
        lane
    }

    fn of(items: SyncSender<Item>, done: Receiver<Done>) -> Lane {
        Lane {
            items,
            done,
            waiting: VecDeque::new(),
            outstanding: VecDeque::new(),
            last: PathBuf::new(),
            progress: Duration::ZERO,
            helper: Helper::default(),
            refused: None,
        }
    }

    fn pump(&mut self) {
        while let Some(item) = self.waiting.pop_front() {
            if let Err(TrySendError::Full(item) | TrySendError::Disconnected(item)) = self.items.try_send(item) {
                self.waiting.push_front(item);
                return;
            }
        }
    }
}

/// The socket to a storage process; or, where none can be started, the work itself.
enum Backend {
    Helper { reader: io::BufReader<File>, writer: File },
    Here(Box<Storage>),
}

/// Starts the storage process of a destination.
fn start_helper(spawner: &mut Spawner, words: &[String], helper: &Helper) -> io::Result<Backend> {
    let variable = |(name, value): (OsString, OsString)| CString::new([name.into_vec(), value.into_vec()].join(&b'='));
    let env = std::env::vars_os().map(variable).collect::<Result<_, _>>()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match spawner.start_own(&words, env) {
        Ok((pid, ours)) => {
            let mut child = helper.child.lock().unwrap_or_else(PoisonError::into_inner);
            *child = Some(Child::unreaped(pid));
            helper.under_way.clear();
            drop(child);
            Ok(Backend::Helper { reader: io::BufReader::new(File::from(ours.try_clone()?)), writer: ours.into() })
        }
        Err(error) => {
            error.pid.map(wait::reap);
            helper.under_way.clear();
            Err(error.source)
        }
    }
}

/// The thread of a destination.
struct Passing {
    outbox: SyncSender<Done>,
    waker: Waker,
    helper: Helper,
    /// Files have not taken all bytes: what tries again.
    again: Option<fn() -> Task>,
    /// All tasks so far can be repeated by another process, and there was no other process yet.
    may_start_again: bool,
}

/// The loop does not want answers any more.
struct Unwanted;

impl Passing {
    fn run(mut self, inbox: &Receiver<Item>, mut start: impl FnMut(&Helper) -> io::Result<Backend>) {
        let mut backend = None;
        loop {
            let first = match self.again {
                None => inbox.recv().ok(),
                Some(again) => match inbox.recv_timeout(RETRY) {
                    Ok(item) => Some(item),
                    Err(RecvTimeoutError::Timeout) => Some(Item::Task(again())),
                    Err(RecvTimeoutError::Disconnected) => None,
                },
            };
            let Some(first) = first else { return };
            let mut batch = Vec::new();
            for item in std::iter::once(first).chain(inbox.try_iter().take(BATCH - 1)) {
                match item {
                    Item::Task(task) => batch.push(task),
                    Item::Remove(places) => {
                        if self.pass(&mut backend, &mut start, std::mem::take(&mut batch)).is_err() {
                            return;
                        }
                        places.remove();
                        if self.answer(Done::Removed).is_err() {
                            return;
                        }
                    }
                }
            }
            if self.pass(&mut backend, &mut start, batch).is_err() {
                return;
            }
        }
    }

    /// Passes tasks on, and their answers back.
    fn pass(
        &mut self,
        backend: &mut Option<Backend>,
        start: &mut impl FnMut(&Helper) -> io::Result<Backend>,
        tasks: Vec<Task>,
    ) -> Result<(), Unwanted> {
        self.may_start_again &= tasks.iter().all(Task::may_be_repeated);
        let mut left = VecDeque::from(tasks);
        while !left.is_empty() {
            // Where no process can be started, the job does not lose its report for that.
            let present =
                backend.get_or_insert_with(|| start(&self.helper).unwrap_or_else(|_| Backend::Here(Box::default())));
            let (reader, writer) = match present {
                Backend::Here(storage) => {
                    return left.into_iter().try_for_each(|task| self.answer(storage.perform(task)));
                }
                Backend::Helper { reader, writer } => (reader, writer),
            };
            let mut sent = left.iter().try_for_each(|task| send(writer, task));
            while !left.is_empty() {
                let Ok(done) = sent.and_then(|()| receive(reader)) else { break };
                self.answer(done)?;
                left.pop_front();
                sent = Ok(());
            }
            if left.is_empty() {
                break;
            }
            // Somebody has killed it.
            *backend = None;
            if !std::mem::take(&mut self.may_start_again) || !self.helper.ends() {
                self.helper.has_failed.store(true, Ordering::Release);
                self.waker.wake();
                return Err(Unwanted);
            }
        }
        Ok(())
    }

    fn answer(&mut self, done: Done) -> Result<(), Unwanted> {
        match &done {
            Done::Logged { is_behind, .. } => self.again = is_behind.then_some(|| Task::RetryLogs),
            Done::Transcribed { is_behind, .. } => self.again = is_behind.then_some(|| Task::RetryTranscript),
            Done::Recovered { .. } | Done::TranscriptRecovered { .. } | Done::GivenUp => self.again = None,
            Done::NotRecovered => return Ok(()),
            _ => {}
        }
        self.outbox.send(done).map_err(|_| Unwanted)?;
        self.waker.wake();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rankrun_sys::socket;

    use super::*;

    fn files() -> (Files, Waker) {
        let waker = Waker::new().expect("a waker");
        let files = Files::new(JobId("0a1b2c3d".to_owned()), waker.clone());
        (files, waker)
    }

    #[test]
    fn a_storage_process_that_ends_is_no_silence_of_its_file_system() {
        let (mut files, waker) = files();
        let ends_at_once = |_: &Helper| {
            let (ours, _) = socket::pair()?;
            Ok(Backend::Helper { reader: io::BufReader::new(File::from(ours.try_clone()?)), writer: ours.into() })
        };
        let lane = Lane::with(Helper::default(), waker.clone(), ends_at_once).expect("a thread");
        files.lanes.insert(Destination::Journal, lane);
        assert!(!files.has_failed(Destination::Journal), "it has no task");
        files.submit(Duration::ZERO, Task::Journal(b"x".to_vec()));
        let begun = Instant::now();
        let says = |files: &Files| files.why(Destination::Journal, RETRY);
        while begun.elapsed() < Duration::from_secs(20) && says(&files).starts_with("no answer") {
            std::thread::yield_now();
        }
        assert_eq!(says(&files), "the process that writes there has ended");
        assert!(files.has_failed(Destination::Journal));
        assert!(files.is_stuck(Destination::Journal, Duration::ZERO, Duration::from_secs(4)), "nobody waits for it");
        assert_eq!(files.busy_since(Destination::Journal), Some(Duration::ZERO));
        assert_eq!(files.busy_since(Destination::Report), None, "another destination");
        assert_eq!((files.end(), files.pids()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_storage_process_that_is_killed_is_started_again_once_for_what_can_be_repeated() {
        let (mut files, waker) = files();
        let top = tempfile::tempdir().expect("a directory");
        let save = |name: &str| Task::Save { directory: None, path: top.path().join(name), bytes: b"all".to_vec() };
        let mut starts = 0;
        let (count, starts_of_thread) = sync_channel(8);
        // The first one does one task, and the second one two.
        let start = move |_: &Helper| {
            let (ours, theirs) = socket::pair()?;
            starts += 1;
            count.send(starts).map_err(io::Error::other)?;
            std::thread::spawn(move || {
                let (mut storage, mut socket) = (Storage::default(), File::from(theirs));
                for _ in 0..starts {
                    let Ok(task) = receive(&mut socket) else { return };
                    send(&mut socket, &storage.perform(task)).expect("the front reads it");
                }
            });
            Ok(Backend::Helper { reader: io::BufReader::new(File::from(ours.try_clone()?)), writer: ours.into() })
        };
        let lane = Lane::with(Helper::default(), waker.clone(), start).expect("a thread");
        files.lanes.insert(Destination::ErrorFile, lane);
        for name in ["a", "b", "c", "d"] {
            files.submit(Duration::ZERO, save(name));
        }
        let (begun, mut saved) = (Instant::now(), Vec::new());
        while begun.elapsed() < Duration::from_secs(20) && !files.has_failed(Destination::ErrorFile) {
            saved.extend(files.next(Duration::ZERO));
            std::thread::yield_now();
        }
        saved.extend(std::iter::from_fn(|| files.next(Duration::ZERO)));
        assert_eq!(saved.len(), 3, "{saved:?}");
        assert!(["a", "b", "c"].iter().all(|name| top.path().join(name).is_file()));
        assert_eq!(starts_of_thread.try_iter().collect::<Vec<_>>(), [1, 2]);
        assert!(files.has_failed(Destination::ErrorFile));
    }

    #[test]
    fn a_destination_without_a_thread_is_not_waited_for() {
        let (mut files, _waker) = files();
        files.lanes.insert(Destination::Logs, Lane::broken());
        let is_stuck = |files: &Files| files.is_stuck(Destination::Logs, Duration::ZERO, Duration::from_secs(4));
        assert!(!is_stuck(&files), "it has no task");
        files.submit(Duration::ZERO, Task::RetryLogs);
        assert!(is_stuck(&files));
    }

    #[test]
    fn each_place_of_the_jobs_directories_is_named_by_itself() {
        let (mut files, _waker) = files();
        files.lanes.insert(Destination::Report, Lane::broken());
        // Nothing is removed: the lane has no thread.
        files.remove(Duration::ZERO, &Places::of(&JobId("0a1b2c3d".to_owned())));
        let bases = rankrun_agent::tidy::bases();
        let mut named = Vec::new();
        for _ in &bases {
            named.push(files.at(Destination::Report));
            files.lanes.get_mut(&Destination::Report).and_then(|lane| lane.outstanding.pop_front());
        }
        assert_eq!(named, bases);
    }

    #[test]
    fn the_path_of_the_first_unanswered_task_is_blamed() {
        let (mut files, _waker) = files();
        let places = LogPlaces::directories(vec!["/logs".into()]);
        let lane = Lane::broken();
        files.lanes.insert(Destination::Logs, lane);
        files.submit(Duration::ZERO, Task::OpenLogs { places: Box::new(places), world_size: 2 });
        files.submit(Duration::ZERO, Task::Log { rank: Rank(1), stream: Stream::Stderr, bytes: Vec::new() });
        assert_eq!(files.at(Destination::Logs), PathBuf::from("/logs"));
        if let Some(lane) = files.lanes.get_mut(&Destination::Logs) {
            lane.outstanding.pop_front();
        }
        assert_eq!(files.at(Destination::Logs), PathBuf::from("/logs/rank-0001.stderr"));
        files.give_up(Destination::Logs);
        assert!(files.is_idle(Destination::Logs));
    }
}
