//! The shared memory that the workers create (K-8): noted while they live, since a dead process maps nothing.
//!
//! A thread of its own does it: it reads much of /proc, and a process that does not let us read its maps must not hold up
//! the agent. The kernel notifies it when a name appears in /dev/shm; the thread then looks up which processes have the
//! file open. A file is the job's if it appeared during the job, belongs to its user, is held for writing by a process of
//! the job, and by nobody outside it. Doubtful files are listed and never removed
//! (docs/adr/0007-whose-shared-memory-it-is.md).
//!
//! What was found is also written to the job's directory, for the guard and for `rankrun clean`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use rankrun_core::job::CleanShm;
use rankrun_sys::poll::Waker;
use rankrun_sys::proc::{self, Snapshot};
use rankrun_sys::shm::{self, File};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::watched::{self, Watched};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::runtime::SHARED_MEMORY;

/// New names for which no holder has been found yet. A job that makes more at a time (a DataLoader that makes and
/// removes thousands) loses the oldest, which it has most likely removed itself.
const MAX_PENDING: usize = 1024;
/// Doubtful names that are kept.
const MAX_DOUBTFUL: usize = 64;
/// When the holders of a new name are looked up, after it appeared: at once, since its creator has it open, and again,
/// since others may map it later and the first look may come before the `open` has returned.
const LOOKS: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_secs(1),
];
/// The looks may take this part of a CPU at most (1 / n). Only CPU time counts: on a busy machine wall time would delay the
/// next look too much.
const DUTY: u32 = 10;
/// How often to look for new names if the kernel does not notify us.
const UNHINTED: Duration = Duration::from_secs(1);
/// Requests that may wait for the thread. One pending look is enough, and the end is requested once.
const REQUESTS: usize = 4;
/// How long the end of the job waits for the last look.
pub(crate) const FINISH_BOUND: Duration = Duration::from_secs(5);

/// A request to the thread.
enum Request {
    /// An attempt begins; the policy for what it leaves.
    Begin(CleanShm),
    /// The processes are about to be signalled: look at once.
    Look,
    /// All processes of the attempt are gone.
    Finish,
}

/// An answer of the thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// It has read the directory before the first rank of an attempt.
    Ready,
    Finished(Left),
}

/// What the job has left in /dev/shm.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Left {
    /// What it had created: removed, or under `--clean-shm list` only listed.
    pub(crate) created: Vec<OsString>,
    /// What it may have created. It was not removed.
    pub(crate) doubtful: Vec<OsString>,
}

/// The thread, seen from the agent's loop.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    requests: SyncSender<Request>,
    answers: Receiver<Answer>,
    waker: Waker,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Request::Begin(_) => "Begin",
            Request::Look => "Look",
            Request::Finish => "Finish",
        })
    }
}

impl SharedMemory {
    /// Starts the thread. It wakes the loop through `loop_waker` for each answer; the first is [`Answer::Ready`].
    /// [`SharedMemory::begin`] sets what is done with what the job leaves.
    pub(crate) fn start(runtime_dir: &Path, loop_waker: Waker) -> io::Result<SharedMemory> {
        let (requests, inbox) = sync_channel(REQUESTS);
        let (outbox, answers) = sync_channel(2);
        let waker = Waker::new()?;
        let own_waker = waker.handle()?;
        let list = runtime_dir.join(SHARED_MEMORY);
        std::thread::Builder::new().name("shm".to_owned()).stack_size(256 * 1024).spawn(move || {
            signal::block_all();
            // Both must be made on this thread: the kernel notifies the thread that began to watch.
            let signals = SignalFd::new(&[watched::TOLD]).ok();
            let mut watch = Watch::begin(list.clone());
            // The first attempt is answered before it begins: that saves it a wait.
            let mut is_first = true;
            // The agent may have ended.
            let answer = |answer| {
                let _ = outbox.send(answer);
                loop_waker.wake();
            };
            answer(Answer::Ready);
            loop {
                wait(&own_waker, signals.as_ref(), watch.due_in());
                own_waker.clear();
                let notified =
                    signals.as_ref().is_some_and(|signals| std::iter::from_fn(|| signals.next()).count() > 0);
                watch.has_news |= notified;
                loop {
                    match inbox.try_recv() {
                        Ok(Request::Begin(policy)) => {
                            if !std::mem::take(&mut is_first) {
                                // What is on it is removed: another may have these names now. There may be no list.
                                let _ = std::fs::remove_file(&list);
                                watch = Watch::begin(list.clone());
                                answer(Answer::Ready);
                            }
                            watch.policy = policy;
                            watch.has_news = true;
                        }
                        Ok(Request::Look) => watch.look(true),
                        Ok(Request::Finish) => {
                            answer(Answer::Finished(watch.finish()));
                            watch.policy = CleanShm::No;
                        }
                        Err(TryRecvError::Disconnected) => return,
                        Err(TryRecvError::Empty) => break,
                    }
                }
                watch.look_if_due();
            }
        })?;
        Ok(SharedMemory { requests, answers, waker })
    }

    /// An attempt begins. `false` if the request could not be sent.
    pub(crate) fn begin(&self, policy: CleanShm) -> bool {
        let sent = self.requests.try_send(Request::Begin(policy)).is_ok();
        self.waker.wake();
        sent
    }

    /// Requests a look at once: the processes of the job are about to be signalled.
    pub(crate) fn look(&self) {
        // Full: a look is already requested.
        let _ = self.requests.try_send(Request::Look);
        self.waker.wake();
    }

    /// Requests the last look; [`Answer::Finished`] follows. `false` if the request could not be sent: the thread
    /// hangs.
    pub(crate) fn finish(&self) -> bool {
        let sent = self.requests.try_send(Request::Finish).is_ok();
        self.waker.wake();
        sent
    }

    pub(crate) fn next_answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

/// The CPU time that this thread has used so far.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn wait(waker: &Waker, signals: Option<&SignalFd>, time: Option<Duration>) {
    let timeout = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
    let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
    fds.extend(signals.map(|signals| PollFd::new(signals, PollFlags::IN)));
    // An interrupted wait is only shorter.
    let _ = poll(&mut fds, timeout.as_ref());
}

/// The state of the thread.
#[derive(Debug)]
struct Watch {
    policy: CleanShm,
    user: u32,
    agent: i32,
    /// The kernel's notification of new names.
    hint: Option<Watched>,
    has_news: bool,
    /// The files that were there before the job.
    before: HashMap<OsString, File>,
    /// The files that were there at the last look: one that was removed and made again is new.
    seen: HashMap<OsString, File>,
    /// New files of this user, with the number of looks at their holders.
    pending: BTreeMap<OsString, usize>,
    noted: HashMap<OsString, File>,
    doubtful: BTreeSet<OsString>,
    /// The list of the noted names, once there is one.
    list: PathBuf,
    file: Option<std::fs::File>,
    next_look: Option<Instant>,
    not_before: Instant,
    no_walk_before: Instant,
    /// Noted names that have not been checked for holders outside the job. The check walks over all processes of the
    /// machine, so it has its own pace and does not delay the looks at the job's processes.
    unchecked: HashSet<OsString>,
    no_check_before: Instant,
}

impl Watch {
    fn begin(list: PathBuf) -> Watch {
        let now = Instant::now();
        // Without it the directory is read once a second. What appears from here on is new.
        let hint = Watched::new(Path::new(shm::DIRECTORY)).ok();
        let before = shm::files();
        let mut watch = Watch {
            // Until the job begins.
            policy: CleanShm::No,
            user: rustix::process::geteuid().as_raw(),
            agent: std::process::id() as i32,
            hint,
            has_news: false,
            seen: before.clone(),
            before,
            pending: BTreeMap::new(),
            noted: HashMap::new(),
            doubtful: BTreeSet::new(),
            list,
            file: None,
            next_look: None,
            not_before: now,
            no_walk_before: now,
            unchecked: HashSet::new(),
            no_check_before: now,
        };
        watch.next_look = watch.hint.is_none().then_some(now + UNHINTED);
        watch
    }

    fn due_in(&self) -> Option<Duration> {
        let check = (!self.unchecked.is_empty()).then_some(self.no_check_before);
        let due = [self.look_due(), check].into_iter().flatten().min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn look_due(&self) -> Option<Instant> {
        let news = self.has_news.then_some(self.not_before);
        [news, self.next_look].into_iter().flatten().min()
    }

    fn look_if_due(&mut self) {
        if self.look_due().is_some_and(|due| due <= Instant::now()) {
            self.look(false);
        } else if self.no_check_before <= Instant::now() {
            // Only when no look at the job's processes is due: they may end soon.
            self.check_outside();
        }
    }

    /// Takes the names that are new.
    fn scan(&mut self) {
        if !std::mem::take(&mut self.has_news) && self.hint.is_some() {
            return;
        }
        let files = shm::files();
        self.pending.retain(|path, _| files.contains_key(path));
        for (path, file) in &files {
            let is_new = self.seen.get(path) != Some(file) && self.noted.get(path) != Some(file);
            if is_new && file.owner == self.user && self.pending.len() < MAX_PENDING {
                self.pending.insert(path.clone(), 0);
            }
        }
        self.seen = files;
    }

    /// Finds new names and their holders. It checks the agent's children first: mostly these create shared memory, and a quick
    /// look can find them before they end. `thorough` checks all processes at once.
    fn look(&mut self, thorough: bool) {
        if self.policy == CleanShm::No {
            (self.has_news, self.next_look) = (false, None);
            return;
        }
        let begun = worked();
        self.scan();
        let mut created = HashSet::new();
        if !self.pending.is_empty() {
            created = self.held_for_writing(proc::own_children());
        }
        let looked = worked();
        let is_open = |(path, looks): (&OsString, &usize)| *looks > 0 && !created.contains(path);
        let is_wanted = Instant::now() >= self.no_walk_before && self.pending.iter().any(is_open);
        if is_wanted || (thorough && !self.pending.is_empty()) {
            let below: Vec<i32> = Snapshot::take().below(self.agent).iter().map(|process| process.pid).collect();
            created.extend(self.held_for_writing(below));
            self.no_walk_before = Instant::now() + (worked() - looked) * DUTY;
        }
        if !created.is_empty() {
            self.note(created);
        }
        self.pending.retain(|_, looks| {
            *looks += 1;
            *looks < LOOKS.len()
        });
        let now = Instant::now();
        // Limit the CPU time of the looks, however much is new. The walk over all processes has its own pace, so that it does
        // not delay the looks at the leaders: they are few, and mostly the creators.
        let pause = (looked - begun) * DUTY;
        let next = self.pending.values().copied().min().map(|looks| LOOKS[looks] - LOOKS[looks - 1]);
        let unhinted = self.hint.is_none().then_some(UNHINTED);
        self.next_look = next.or(unhinted).map(|step| now + step.max(pause));
        self.not_before = now + pause;
    }

    /// The pending files that one of these processes of the job can write to.
    fn held_for_writing(&mut self, pids: Vec<i32>) -> HashSet<OsString> {
        let mut created = HashSet::new();
        for held in pids.into_iter().filter_map(shm::held_by).flatten() {
            if !self.pending.contains_key(&held.path) {
                continue;
            }
            if held.writable {
                created.insert(held.path);
            } else if self.doubtful.len() < MAX_DOUBTFUL {
                self.doubtful.insert(held.path);
            }
        }
        created
    }

    /// Notes the files at once: the search for other holders takes time, and we may be killed meanwhile.
    fn note(&mut self, created: HashSet<OsString>) {
        for path in &created {
            self.pending.remove(path);
            self.doubtful.remove(path);
            let Some(file) = self.seen.get(path).copied().or_else(|| shm::file_at(path)) else { continue };
            self.noted.insert(path.clone(), file);
        }
        self.list("", &created);
        self.unchecked.extend(created);
    }

    /// Takes back the noted files that a process outside the job holds too: they are doubtful.
    fn check_outside(&mut self) {
        if self.unchecked.is_empty() {
            return;
        }
        let begun = worked();
        let created = std::mem::take(&mut self.unchecked);
        let table = Snapshot::take();
        let job: HashSet<i32> = table.below(self.agent).iter().map(|process| process.pid).chain([self.agent]).collect();
        let outside = table.iter().filter(|process| !job.contains(&process.pid));
        let mut shared: HashSet<OsString> = HashSet::new();
        for process in outside {
            let held = shm::held_by(process.pid).unwrap_or_default().into_iter().map(|held| held.path);
            let held: Vec<OsString> = held.filter(|path| created.contains(path)).collect();
            // The table changed while it was read: a process that has just lost its parent seems to be outside.
            if !held.is_empty() && !self.is_below_agent(process.pid) {
                shared.extend(held);
            }
        }
        self.list("-", &shared);
        for path in shared {
            self.noted.remove(&path);
            if self.doubtful.len() < MAX_DOUBTFUL {
                self.doubtful.insert(path);
            }
        }
        self.no_check_before = Instant::now() + (worked() - begun) * DUTY;
    }

    /// Whether a process descends from the agent now. `false` for one that is gone.
    fn is_below_agent(&self, pid: i32) -> bool {
        let mut next = pid;
        for _ in 0..256 {
            match proc::process(next) {
                None => return true,
                Some(process) if process.parent == self.agent => return true,
                Some(process) if process.parent <= 1 => return false,
                Some(process) => next = process.parent,
            }
        }
        false
    }

    /// Adds lines to the list. If the agent is killed, guard, front and `rankrun clean` remove what is on it.
    fn list(&mut self, mark: &str, paths: &HashSet<OsString>) {
        if self.policy != CleanShm::Job || paths.is_empty() {
            return;
        }
        if self.file.is_none() {
            self.file = std::fs::OpenOptions::new().create(true).append(true).open(&self.list).ok();
        }
        let mut lines = Vec::new();
        for path in paths {
            let Some(file) = self.noted.get(path) else { continue };
            lines.extend_from_slice(format!("{mark}{} ", file.inode).as_bytes());
            lines.extend_from_slice(path.as_bytes());
            lines.push(b'\n');
        }
        if let Some(file) = &mut self.file {
            // On a full disk the agent still knows the file; it is left only if the agent is killed.
            let _ = file.write_all(&lines);
        }
    }

    /// After the job: removes what it created and nobody holds, or only lists it.
    fn finish(&mut self) -> Left {
        self.check_outside();
        let noted = std::mem::take(&mut self.noted);
        let doubtful = self.in_doubt(&noted);
        let created = match self.policy {
            CleanShm::Job => shm::unlink_unused(noted),
            CleanShm::List => shm::unused(noted),
            CleanShm::No => Vec::new(),
        };
        Left { created, doubtful: shm::unused(doubtful) }
    }

    /// What the job may have created: what it held and others too, or only for reading, and what has appeared during the
    /// job and was never seen to be held.
    fn in_doubt(&self, noted: &HashMap<OsString, File>) -> HashMap<OsString, File> {
        if self.policy == CleanShm::No {
            return HashMap::new();
        }
        let files = shm::files().into_iter().filter(|(_, file)| file.owner == self.user);
        let is_new =
            |path: &OsString, file: &File| self.before.get(path) != Some(file) && noted.get(path) != Some(file);
        files.filter(|(path, file)| self.doubtful.contains(path) || is_new(path, file)).take(MAX_DOUBTFUL).collect()
    }
}
