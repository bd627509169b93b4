//! The front's I/O thread: the only one that uses file systems while a job runs. A file system that does not answer
//! blocks this thread, never the loop. The loop sets a time limit for each task and names the path that did not answer.
//!
//! The loop hands over [`Task`]s, in order, and gets one [`Done`] for each. The sources bound the waiting tasks: the
//! ranks' bytes by their credit, which is returned only when they are written, the others by their number.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rankrun_agent::tidy::Places;
use rankrun_core::core_dump::CoreDump;
use rankrun_core::result::ResultPiece;
use rankrun_core::{Attempt, JobId, Pid, Rank, Stream};
use rankrun_output::{LogError, LogFiles, LogPlaces};
use rankrun_sys::poll::Waker;
use rustix::fs::Access;

use crate::delivery::{core_file, prune};

/// Tasks that the thread may have at a time. When it has so many, the others wait on the loop's side.
const TASKS: usize = 64;
/// How often writing to full log files is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A task of the thread.
#[derive(Debug)]
pub(crate) enum Task {
    /// Make the directory of the log files.
    OpenLogs { places: Box<LogPlaces>, world_size: u32 },
    /// A rank is started again: from now on its files are those that it has there.
    MoveLog { rank: Rank, places: Box<LogPlaces> },
    /// Append to a log file.
    Log { rank: Rank, stream: Stream, bytes: Vec<u8> },
    /// A stream has ended: write its last line and close its file.
    CloseLog { rank: Rank, stream: Stream },
    /// Write no more log files.
    GiveUpLogs,
    /// Check whether a directory exists or may be made.
    Probe(Directory),
    /// Append to a file of output that no destination took; the first bytes create it.
    Keep { stream: Stream, directory: Directory, bytes: Vec<u8>, credits: [u64; 2] },
    /// Write a whole file.
    Save { directory: Option<Directory>, path: PathBuf, bytes: Vec<u8> },
    /// A piece of what a rank returns to `rankrun.launch`: this file is there when the last piece is.
    Result { path: PathBuf, piece: ResultPiece },
    /// Begin the journal.
    OpenJournal(PathBuf),
    /// Append to the journal.
    Journal(Vec<u8>),
    /// Remove the directories of the job.
    Remove(Places),
    /// Remove the oldest reports beside this directory until so many are left.
    Prune { own: PathBuf, keep: u32 },
    /// Remove the reports of attempts of other jobs from this directory, which has a report of this one.
    Forget { directory: PathBuf, own: JobId },
    /// Look whether a file has changed (`--progress-file`).
    Stamp { attempt: Attempt, path: PathBuf },
    /// Look for the core of a process that ran in `directory`, in a job that `took` so long.
    FindCore { pid: Pid, signal: i32, directory: PathBuf, took: Duration },
}

/// The result of a task.
#[derive(Debug)]
pub(crate) enum Done {
    LogsOpened(Result<(), LogError>),
    /// A write to log files: so many bytes of each stream are written now.
    Logged {
        bytes: [u64; 2],
        failure: Option<LogError>,
    },
    /// All that could not be written before is written. Not the result of a task: the thread tries again by itself.
    Recovered {
        bytes: [u64; 2],
    },
    GivenUp,
    Probed(Result<(), Unusable>),
    Kept {
        stream: Stream,
        credits: [u64; 2],
        result: io::Result<()>,
    },
    Saved {
        path: PathBuf,
        result: io::Result<()>,
    },
    JournalOpened(io::Result<()>),
    Journaled {
        bytes: usize,
        result: io::Result<()>,
    },
    Removed,
    CoreFound(Option<CoreDump>),
    /// Asked about this attempt.
    Stamped(Attempt, Stamp),
}

/// What changes when a file is written: its time and its size. `None`: there is no such file.
pub(crate) type Stamp = Option<(std::time::SystemTime, u64)>;

/// A directory that is made when it is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// It is made only below this directory, which must exist: a missing home is not made.
    pub(crate) below: Option<PathBuf>,
    /// The user has named it. Any other is used only if no directory above it belongs to another user.
    pub(crate) is_chosen: bool,
}

/// Why a directory is not used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("\"{}\" is no directory", .0.display())]
    NoHome(PathBuf),
    #[error("\"{}\" belongs to another user", .0.display())]
    OfAnother(PathBuf),
    #[error("cannot write to \"{}\": {why}", .path.display())]
    Unwritable { path: PathBuf, why: String },
}

impl Directory {
    fn check(&self) -> Result<(), Unusable> {
        if let Some(below) = self.below.as_deref().filter(|below| !below.is_dir()) {
            return Err(Unusable::NoHome(below.to_owned()));
        }
        if self.is_chosen {
            return Ok(());
        }
        self.check_owners()?;
        self.check_access()
    }

    /// What is missing of the path is made later: the nearest directory that is there counts.
    fn check_access(&self) -> Result<(), Unusable> {
        let Some(nearest) = self.path.ancestors().find(|path| path.exists()) else { return Ok(()) };
        let may = rustix::fs::access(nearest, Access::WRITE_OK | Access::EXEC_OK);
        let why = |errno: rustix::io::Errno| rankrun_sys::reason(&errno.into());
        may.map_err(|errno| Unusable::Unwritable { path: nearest.to_owned(), why: why(errno) })
    }

    /// With `sudo -E` and `su` we get the variables of another user. For root, all directories above must be root's:
    /// the owner of one can replace what is in it. For other users only the parent directory is checked: they cannot
    /// write elsewhere anyway.
    fn check_owners(&self) -> Result<(), Unusable> {
        use std::os::unix::fs::MetadataExt;
        let user = rustix::process::geteuid();
        let owned = self.path.ancestors().filter_map(|path| Some((path, std::fs::metadata(path).ok()?.uid())));
        let counts = if user.is_root() { usize::MAX } else { 1 };
        let other = owned.take(counts).find(|(_, owner)| ![0, user.as_raw()].contains(owner));
        other.map_or(Ok(()), |(path, _)| Err(Unusable::OfAnother(path.to_owned())))
    }

    fn make(&self) -> io::Result<()> {
        self.check().map_err(io::Error::other)?;
        std::fs::create_dir_all(&self.path)
    }
}

/// The thread, seen from the loop.
#[derive(Debug)]
pub(crate) struct Files {
    tasks: SyncSender<Task>,
    done: Receiver<Done>,
    /// Tasks for which there was no room yet.
    waiting: VecDeque<Task>,
    /// Tasks without an answer, the waiting ones included.
    outstanding: usize,
    /// When the thread last answered, or got a task after a rest.
    progress: Duration,
    /// The path that it works on.
    at: Arc<Mutex<PathBuf>>,
    waker: Waker,
}

impl Files {
    /// Starts the thread, which wakes the loop through `waker`.
    pub(crate) fn start(waker: Waker) -> io::Result<Files> {
        let (tasks, inbox) = sync_channel(TASKS);
        // This may wait for room: the task is finished, and the loop always reads.
        let (outbox, done) = sync_channel(TASKS);
        let at = Arc::new(Mutex::new(PathBuf::new()));
        let handle = waker.handle()?;
        let worker = Worker {
            outbox,
            waker: handle,
            at: Arc::clone(&at),
            logs: None,
            uncredited: [0, 0],
            kept: [None, None],
            journal: None,
        };
        std::thread::Builder::new().name("files".to_owned()).stack_size(256 * 1024).spawn(move || {
            rankrun_sys::signal::block_all();
            worker.run(&inbox);
        })?;
        Ok(Files { tasks, done, waiting: VecDeque::new(), outstanding: 0, progress: Duration::ZERO, at, waker })
    }

    /// Abandons a blocked thread with all its tasks, and starts another for new tasks.
    pub(crate) fn replace(&mut self) -> io::Result<()> {
        *self = Files::start(self.waker.handle()?)?;
        Ok(())
    }

    /// Hands over a task.
    pub(crate) fn submit(&mut self, now: Duration, task: Task) {
        if self.outstanding == 0 {
            self.progress = now;
        }
        self.outstanding += 1;
        self.waiting.push_back(task);
        self.pump();
    }

    fn pump(&mut self) {
        while let Some(task) = self.waiting.pop_front() {
            if let Err(refused) = self.tasks.try_send(task) {
                let (std::sync::mpsc::TrySendError::Full(task) | std::sync::mpsc::TrySendError::Disconnected(task)) =
                    refused;
                self.waiting.push_front(task);
                return;
            }
        }
    }

    /// The next answer.
    pub(crate) fn next(&mut self, now: Duration) -> Option<Done> {
        // A thread that has panicked never answers.
        let done = self.done.try_recv().ok()?;
        if !matches!(done, Done::Recovered { .. }) {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        self.progress = now;
        self.pump();
        Some(done)
    }

    /// Since when the thread has not answered; `None` if it has nothing to do.
    pub(crate) fn busy_since(&self) -> Option<Duration> {
        (self.outstanding > 0).then_some(self.progress)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// The path that the thread works on.
    pub(crate) fn at(&self) -> PathBuf {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Worker {
    outbox: SyncSender<Done>,
    waker: Waker,
    at: Arc<Mutex<PathBuf>>,
    logs: Option<LogFiles>,
    /// Bytes for log files without credit returned, by stream.
    uncredited: [u64; 2],
    kept: [Option<File>; 2],
    journal: Option<(PathBuf, File)>,
}

impl Worker {
    fn run(mut self, inbox: &Receiver<Task>) {
        loop {
            let is_behind = self.logs.as_ref().is_some_and(|logs| logs.unwritten() > 0);
            let task = match is_behind {
                false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                true => inbox.recv_timeout(RETRY),
            };
            let done = match task {
                Ok(task) => self.perform(task),
                Err(RecvTimeoutError::Timeout) => match self.retry() {
                    Some(done) => done,
                    None => continue,
                },
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if self.outbox.send(done).is_err() {
                return;
            }
            self.waker.wake();
        }
    }

    fn perform(&mut self, task: Task) -> Done {
        match task {
            Task::OpenLogs { places, world_size } => {
                self.go_to(places.first());
                let opened = LogFiles::create(*places, world_size);
                Done::LogsOpened(opened.map(|logs| self.logs = Some(logs)))
            }
            Task::MoveLog { rank, places } => {
                self.go_to(places.first());
                Done::LogsOpened(self.logs.as_mut().map_or(Ok(()), |logs| logs.move_rank(rank, &places)))
            }
            Task::Log { rank, stream, bytes } => {
                self.uncredited[stream.index()] += bytes.len() as u64;
                self.log(rank, stream, |logs| logs.write(rank, stream, &bytes))
            }
            Task::CloseLog { rank, stream } => self.log(rank, stream, |logs| logs.close(rank, stream)),
            Task::GiveUpLogs => {
                self.logs = None;
                Done::GivenUp
            }
            Task::Probe(directory) => {
                self.go_to(&directory.path);
                Done::Probed(directory.check())
            }
            Task::Keep { stream, directory, bytes, credits } => {
                let result = self.keep(stream, &directory, &bytes);
                Done::Kept { stream, credits, result }
            }
            Task::Save { directory, path, bytes } => {
                self.go_to(&path);
                let result = directory.map_or(Ok(()), |directory| directory.make()).and_then(|()| save(&path, &bytes));
                Done::Saved { path, result }
            }
            Task::Result { path, piece } => {
                self.go_to(&path);
                match add_to_result(&path, &piece) {
                    Ok(()) => Done::Removed,
                    Err(error) => Done::Saved { path, result: Err(error) },
                }
            }
            Task::OpenJournal(path) => {
                self.go_to(&path);
                Done::JournalOpened(create(&path).map(|file| self.journal = Some((path, file))))
            }
            Task::Journal(bytes) => {
                let Some((path, mut file)) = self.journal.take() else {
                    let error = io::Error::other("it was given up with the log files");
                    return Done::Journaled { bytes: bytes.len(), result: Err(error) };
                };
                self.go_to(&path);
                let result = file.write_all(&bytes);
                self.journal = Some((path, file));
                Done::Journaled { bytes: bytes.len(), result }
            }
            Task::Stamp { attempt, path } => {
                self.go_to(&path);
                let stamp = |found: std::fs::Metadata| Some((found.modified().ok()?, found.len()));
                Done::Stamped(attempt, std::fs::metadata(&path).ok().and_then(stamp))
            }
            Task::Remove(places) => {
                self.go_to(Path::new("/tmp"));
                places.remove();
                Done::Removed
            }
            Task::Prune { own, keep } => {
                self.go_to(&own);
                prune::prune(&own, keep);
                Done::Removed
            }
            Task::Forget { directory, own } => {
                self.go_to(&directory);
                prune::forget(&directory, &own);
                Done::Removed
            }
            Task::FindCore { pid, signal, directory, took } => {
                self.go_to(&directory);
                Done::CoreFound(core_file::find(pid, signal, &directory, took))
            }
        }
    }

    fn go_to(&self, path: &Path) {
        path.clone_into(&mut self.at.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn log(&mut self, rank: Rank, stream: Stream, write: impl FnOnce(&mut LogFiles) -> Result<(), LogError>) -> Done {
        let Some(mut logs) = self.logs.take() else { return Done::Logged { bytes: [0, 0], failure: None } };
        if let Some(path) = logs.path(rank, stream) {
            self.go_to(&path);
        }
        let failure = write(&mut logs).err();
        self.logged(logs, failure)
    }

    /// Tries to write the rest again. A failure was reported already.
    fn retry(&mut self) -> Option<Done> {
        let logs = self.logs.as_mut()?;
        logs.retry().ok()?;
        Some(Done::Recovered { bytes: std::mem::take(&mut self.uncredited) })
    }

    fn logged(&mut self, logs: LogFiles, failure: Option<LogError>) -> Done {
        let bytes = if logs.unwritten() == 0 { std::mem::take(&mut self.uncredited) } else { [0, 0] };
        self.logs = Some(logs);
        Done::Logged { bytes, failure }
    }

    fn keep(&mut self, stream: Stream, directory: &Directory, bytes: &[u8]) -> io::Result<()> {
        let path = directory.path.join(format!("unwritten.{stream}"));
        self.go_to(&path);
        let file = &mut self.kept[stream.index()];
        if file.is_none() {
            directory.make()?;
            *file = Some(create(&path)?);
        }
        file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }
}

/// Opens a file that is written from its start. Refuses what may block.
fn create(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    let mut options = File::options();
    options.create(true).write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if metadata.file_type().is_fifo() {
        return Err(io::Error::other("it is a FIFO, not a regular file"));
    }
    if metadata.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Appends a piece to the unfinished file, which gets its name with the last one.
fn add_to_result(path: &Path, piece: &ResultPiece) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut options = File::options();
    let mut file = match piece.is_first {
        true => options.create(true).write(true).truncate(true).open(&part)?,
        false => options.append(true).open(&part)?,
    };
    file.write_all(piece.data.as_bytes())?;
    file.write_all(b"\n")?;
    if piece.is_last { std::fs::rename(&part, path) } else { Ok(()) }
}

/// Writes a file as a whole.
pub(crate) fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}
