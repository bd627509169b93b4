//! The shared memory that the workers create (K-8): noted while they live, since a dead process maps nothing.
//!
//! A thread of its own does it: it reads much of /proc, and a process that does not let us read its maps must not hold up
//! the agent. The kernel notifies us when a name appears in /dev/shm: the first starts the thread, which then looks up which processes have
//! the file open. A file is the job's if it appeared during the job, belongs to its user, is held for writing by a process of
//! the job or has the job's hash in its name, and is held by nobody outside the job. Doubtful files are listed and never
//! removed (docs/adr/0007-whose-shared-memory-it-is.md).
//!
//! What was found is also written to the job's directory, for the guard and for `rankrun clean`.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rankrun_core::Pid;
use rankrun_core::job::CleanShm;
use rankrun_core::segments::Names;
use rankrun_sys::limits;
use rankrun_sys::poll::{Waker, wait_for};
use rankrun_sys::shm::{self, File};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::watched::{self, Watched};
use rankrun_wire::Memory;
use rustix::event::{PollFd, PollFlags};

use super::runtime::SHARED_MEMORY;
use super::watch::{Leaders, MAX_LEADERS, Watch};

/// Requests that may wait for the thread. One pending look is enough, and the end is requested once.
const REQUESTS: usize = 4;
/// How long the end of the job waits for the last look.
pub(crate) const FINISH_BOUND: Duration = Duration::from_secs(5);

/// A request to the thread.
enum Request {
    /// An attempt begins; the policy for what it leaves, and the names that are its own.
    Begin(CleanShm, Names),
    /// The processes are about to be signalled: look at once.
    Look,
    /// All processes of the attempt are gone.
    Finish,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The directory was read before the first rank of an attempt.
    Ready,
    /// The thread has looked as it was requested to.
    Looked,
    Finished(Memory),
}

/// The watch, seen from the agent's loop.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    list: PathBuf,
    loop_waker: Waker,
    leaders: Leaders,
    /// The attempt, as long as no name has appeared in it.
    quiet: Option<Quiet>,
    thread: Option<Thread>,
    /// Answers for which no thread was needed.
    own: VecDeque<Answer>,
}

/// An attempt in which no name has appeared: nobody has to look who has created it.
#[derive(Debug)]
struct Quiet {
    attempt: Attempt,
    /// The kernel notifies the loop of the first new name; after that it notifies the thread. `None` once it has done so: the thread could
    /// not be started.
    hint: Option<Watched>,
}

/// What the looks need to know of an attempt.
#[derive(Clone, Debug)]
struct Attempt {
    policy: CleanShm,
    names: Names,
    /// The files that were there before.
    before: HashMap<OsString, File>,
}

/// The thread.
#[derive(Debug)]
struct Thread {
    requests: SyncSender<Request>,
    answers: Receiver<Answer>,
    waker: Waker,
}

impl Thread {
    /// `false` if the request could not be sent: the thread hangs.
    fn request(&self, request: Request) -> bool {
        let sent = self.requests.try_send(request).is_ok();
        self.waker.wake();
        sent
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Request::Begin(..) => "Begin",
            Request::Look => "Look",
            Request::Finish => "Finish",
        })
    }
}

impl SharedMemory {
    /// Of a job with this directory. The thread wakes the loop through `loop_waker` for each answer.
    pub(crate) fn new(runtime_dir: &Path, loop_waker: Waker) -> SharedMemory {
        SharedMemory {
            list: runtime_dir.join(SHARED_MEMORY),
            loop_waker,
            leaders: Leaders::default(),
            quiet: None,
            thread: None,
            own: VecDeque::new(),
        }
    }

    /// A leader has been started.
    pub(crate) fn add_leader(&self, pid: Pid) {
        let mut leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner);
        if leaders.len() == MAX_LEADERS {
            leaders.pop_front();
        }
        leaders.push_back(pid);
    }

    /// An attempt begins; [`Answer::Ready`] follows. To be called on the loop's thread, which has [`watched::TOLD`] blocked.
    ///
    /// # Errors
    ///
    /// There is no thread where one is needed, or it hangs.
    pub(crate) fn begin(&mut self, policy: CleanShm, names: Names) -> io::Result<()> {
        if let Some(thread) = &self.thread {
            let sent = thread.request(Request::Begin(policy, names));
            return if sent { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) };
        }
        // What appears from here on is new.
        let hint = Watched::new(Path::new(shm::DIRECTORY)).ok();
        let attempt = Attempt { policy, names, before: shm::files() };
        match hint {
            None => self.thread = Some(self.start_thread(attempt)?),
            hint => self.quiet = Some(Quiet { attempt, hint }),
        }
        if limits::processes_are_scarce() {
            // Later there may be no room for the thread.
            self.told();
        }
        self.own.push_back(Answer::Ready);
        Ok(())
    }

    /// The kernel has notified the loop of a new name.
    pub(crate) fn told(&mut self) {
        let Some(Quiet { attempt, hint }) = self.quiet.take() else { return };
        drop(hint);
        let again = attempt.clone();
        match self.start_thread(attempt) {
            Ok(thread) => self.thread = Some(thread),
            Err(_) => self.quiet = Some(Quiet { attempt: again, hint: None }),
        }
    }

    /// Tries again where there was no room for the thread.
    pub(crate) fn retry(&mut self) {
        if self.quiet.as_ref().is_some_and(|quiet| quiet.hint.is_none()) {
            self.told();
        }
    }

    /// The thread, if anything is to be looked at.
    fn wanted_thread(&mut self) -> Option<&Thread> {
        if self.quiet.as_ref().is_some_and(|quiet| quiet.hint.is_none() || watched::is_told()) {
            self.told();
        }
        self.thread.as_ref()
    }

    /// Requests a look at once: the processes of the job are about to be signalled. [`Answer::Looked`] follows. `false` if there is nothing
    /// to be looked at, or if the request could not be sent: the thread hangs.
    pub(crate) fn look(&mut self) -> bool {
        self.wanted_thread().is_some_and(|thread| thread.request(Request::Look))
    }

    /// Requests the last look; [`Answer::Finished`] follows. `false` if the request could not be sent: the thread hangs.
    pub(crate) fn finish(&mut self) -> bool {
        if let Some(thread) = self.wanted_thread() {
            return thread.request(Request::Finish);
        }
        let is_quiet = self.quiet.take().is_some_and(|quiet| quiet.hint.is_some());
        self.own.extend(is_quiet.then(|| Answer::Finished(Memory::default())));
        is_quiet
    }

    pub(crate) fn next_answer(&mut self) -> Option<Answer> {
        self.own.pop_front().or_else(|| self.thread.as_ref()?.answers.try_recv().ok())
    }

    fn start_thread(&self, attempt: Attempt) -> io::Result<Thread> {
        let (requests, inbox) = sync_channel(REQUESTS);
        let (outbox, answers) = sync_channel(2);
        let waker = Waker::new()?;
        let (own_waker, loop_waker) = (waker.clone(), self.loop_waker.clone());
        let (list, leaders) = (self.list.clone(), Arc::clone(&self.leaders));
        std::thread::Builder::new().name("shm".to_owned()).stack_size(256 * 1024).spawn(move || {
            signal::block_all();
            // Both must be made on this thread: the kernel notifies the thread that began to watch.
            let signals = SignalFd::new(&[watched::TOLD]).ok();
            let Attempt { policy, names, before } = attempt;
            let mut watch = Watch::begin(list.clone(), leaders, || before);
            (watch.policy, watch.names, watch.has_news) = (policy, Some(names), true);
            // The agent may have ended.
            let answer = |answer| {
                let _ = outbox.send(answer);
                loop_waker.wake();
            };
            loop {
                wait(&own_waker, signals.as_ref(), watch.due_in());
                own_waker.clear();
                let notified =
                    signals.as_ref().is_some_and(|signals| std::iter::from_fn(|| signals.next()).count() > 0);
                watch.has_news |= notified;
                loop {
                    match inbox.try_recv() {
                        Ok(Request::Begin(policy, names)) => {
                            // What is on it is removed: another may have these names now. There may be no list.
                            let _ = std::fs::remove_file(&list);
                            watch = watch.begin_again();
                            answer(Answer::Ready);
                            (watch.policy, watch.names, watch.has_news) = (policy, Some(names), true);
                        }
                        Ok(Request::Look) => {
                            watch.has_news = true;
                            watch.look(true);
                            answer(Answer::Looked);
                        }
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
        Ok(Thread { requests, answers, waker })
    }
}

fn wait(waker: &Waker, signals: Option<&SignalFd>, time: Option<Duration>) {
    let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
    fds.extend(signals.map(|signals| PollFd::new(signals, PollFlags::IN)));
    wait_for(&mut fds, time);
}
