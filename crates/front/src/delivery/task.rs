//! What is asked of file systems, and the answers. Both pass between the front and its storage processes.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::core_dump::CoreDump;
use rankrun_core::result::ResultPiece;
use rankrun_core::{Attempt, JobId, NodeId, Pid, Rank, Stream, portable};
use rankrun_output::{Head, LogError, LogPlaces, Recorded};
use rustix::fs::Access;
use serde::{Deserialize, Serialize};

use crate::ReportPlace;

use crate::delivery::termination;

/// The directory of the transcript, in that of the report.
pub const TRANSCRIPT: &str = "transcript";

/// A destination. Each has a process of its own, so that one whose file system does not answer delays no other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Destination {
    /// The directory of the report, and what is kept there.
    Report,
    /// The error file of torchrun.
    ErrorFile,
    Logs,
    /// The transcript.
    Transcript,
    Journal,
    /// What ranks return to `rankrun.launch`.
    Results,
    /// The file of `--progress-file`.
    Progress,
    /// The file of `--preempt-notice`.
    Notice,
    /// The working directory of a rank that dumped its core.
    Core,
    /// Where Kubernetes reads why a container has ended.
    Termination,
    /// Where this program lies.
    Binary,
}

/// A task for a file system. Each has one answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Make the directory of the log files.
    OpenLogs { places: Box<LogPlaces>, world_size: u32 },
    /// A rank is started again: from now on its files are those that it has there.
    MoveLog { rank: Rank, places: Box<LogPlaces> },
    /// Append to a log file.
    Log {
        rank: Rank,
        stream: Stream,
        #[serde(with = "portable::bytes")]
        bytes: Vec<u8>,
    },
    /// A stream has ended: write its last line and close its file.
    CloseLog { rank: Rank, stream: Stream },
    /// Try again to write what log files did not take.
    RetryLogs,
    /// Write no more log files.
    GiveUpLogs,
    /// Begin the transcript, in a directory below that of the report, or go on with the job's own at this position.
    OpenTranscript {
        directory: Directory,
        #[serde(with = "portable::paths")]
        path: PathBuf,
        head: Box<Head>,
        bound: u64,
        from: u64,
    },
    /// Go on with a transcript whose writer is gone, up to the position `end`, before which it was to have these bytes.
    ReopenTranscript {
        #[serde(with = "portable::paths")]
        path: PathBuf,
        left: Box<Recorded>,
    },
    /// Append to the transcript.
    Transcript {
        #[serde(with = "portable::bytes")]
        bytes: Vec<u8>,
        credits: [u64; 2],
    },
    /// Try again to write what the transcript did not take.
    RetryTranscript,
    /// Check whether a directory exists or may be made.
    Probe(Directory),
    /// Append to a file of output that no destination took; the first bytes create it.
    Keep {
        stream: Stream,
        directory: Directory,
        #[serde(with = "portable::bytes")]
        bytes: Vec<u8>,
        credits: [u64; 2],
    },
    /// Write a whole file. With a directory it is part of the report, else it is the error file of torchrun.
    Save {
        directory: Option<Directory>,
        #[serde(with = "portable::paths")]
        path: PathBuf,
        #[serde(with = "portable::bytes")]
        bytes: Vec<u8>,
    },
    /// A piece of what a rank returns to `rankrun.launch`: this file is there when the last piece is.
    Result {
        node: NodeId,
        #[serde(with = "portable::paths")]
        path: PathBuf,
        piece: ResultPiece,
    },
    /// Begin the journal.
    OpenJournal(#[serde(with = "portable::paths")] PathBuf),
    /// Append to the journal.
    Journal(#[serde(with = "portable::bytes")] Vec<u8>),
    /// Remove the oldest reports beside this directory until so many are left.
    Prune {
        #[serde(with = "portable::paths")]
        own: PathBuf,
        keep: u32,
    },
    /// Let the job be found in this directory of the default place, whose report is in another.
    Point {
        from: Directory,
        #[serde(with = "portable::paths")]
        to: PathBuf,
    },
    /// Remove the reports of attempts of other jobs from this directory, which has a report of this one.
    Forget {
        #[serde(with = "portable::paths")]
        directory: PathBuf,
        own: JobId,
    },
    /// Look whether a file has changed.
    Stamp {
        of: Stamped,
        #[serde(with = "portable::paths")]
        path: PathBuf,
    },
    /// Look for the core of a process that ran in `directory`, in a job that `took` so long.
    FindCore {
        pid: Pid,
        signal: i32,
        #[serde(with = "portable::paths")]
        directory: PathBuf,
        took: Duration,
    },
    /// Write why this container has ended, if it is one of Kubernetes.
    SayWhyEnded(String),
    /// Read this program, for a node that lacks it.
    ReadBinary,
}

impl Task {
    pub(crate) fn destination(&self) -> Destination {
        match self {
            Task::OpenLogs { .. }
            | Task::MoveLog { .. }
            | Task::Log { .. }
            | Task::CloseLog { .. }
            | Task::RetryLogs
            | Task::GiveUpLogs => Destination::Logs,
            Task::Save { directory: None, .. } => Destination::ErrorFile,
            Task::Save { directory: Some(_), .. }
            | Task::Probe(_)
            | Task::Keep { .. }
            | Task::Prune { .. }
            | Task::Point { .. }
            | Task::Forget { .. } => Destination::Report,
            Task::OpenTranscript { .. }
            | Task::ReopenTranscript { .. }
            | Task::Transcript { .. }
            | Task::RetryTranscript => Destination::Transcript,
            Task::Result { .. } => Destination::Results,
            Task::OpenJournal(_) | Task::Journal(_) => Destination::Journal,
            Task::Stamp { of: Stamped::Progress(_), .. } => Destination::Progress,
            Task::Stamp { of: Stamped::Notice, .. } => Destination::Notice,
            Task::FindCore { .. } => Destination::Core,
            Task::SayWhyEnded(_) => Destination::Termination,
            Task::ReadBinary => Destination::Binary,
        }
    }

    /// Whether another process can do it as well, and again: it needs no open file, and leaves none.
    pub(crate) fn may_be_repeated(&self) -> bool {
        match self {
            Task::Save { .. }
            | Task::Probe(_)
            | Task::Prune { .. }
            | Task::Point { .. }
            | Task::Forget { .. }
            | Task::Stamp { .. }
            | Task::FindCore { .. }
            | Task::SayWhyEnded(_)
            | Task::ReadBinary => true,
            Task::OpenLogs { .. }
            | Task::MoveLog { .. }
            | Task::Log { .. }
            | Task::CloseLog { .. }
            | Task::RetryLogs
            | Task::GiveUpLogs
            | Task::OpenTranscript { .. }
            | Task::ReopenTranscript { .. }
            | Task::Transcript { .. }
            | Task::RetryTranscript
            | Task::Keep { .. }
            | Task::Result { .. }
            | Task::OpenJournal(_)
            | Task::Journal(_) => false,
        }
    }

    /// The path that it is about, unless that is the same as of the task before.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Task::OpenLogs { places, .. } | Task::MoveLog { places, .. } => Some(places.first()),
            Task::Log { .. }
            | Task::CloseLog { .. }
            | Task::RetryLogs
            | Task::GiveUpLogs
            | Task::Transcript { .. }
            | Task::RetryTranscript
            | Task::Journal(_) => None,
            Task::ReadBinary => Some(Path::new("/proc/self/exe")),
            Task::SayWhyEnded(_) => Some(Path::new(termination::FILE)),
            Task::Probe(directory) | Task::Keep { directory, .. } | Task::Point { from: directory, .. } => {
                Some(&directory.path)
            }
            Task::Save { path, .. }
            | Task::Result { path, .. }
            | Task::OpenJournal(path)
            | Task::OpenTranscript { path, .. }
            | Task::ReopenTranscript { path, .. }
            | Task::Prune { own: path, .. }
            | Task::Forget { directory: path, .. }
            | Task::Stamp { path, .. }
            | Task::FindCore { directory: path, .. } => Some(path),
        }
    }
}

/// The answer to a task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Done {
    LogsOpened(Result<(), LogFailure>),
    /// A write to log files: so many bytes of each stream are written now.
    Logged {
        bytes: [u64; 2],
        failure: Option<LogFailure>,
        /// Some bytes are not written, and are to be tried again.
        is_behind: bool,
    },
    /// All that could not be written before is written. The front asks for this by itself.
    Recovered {
        bytes: [u64; 2],
    },
    /// It is still not written.
    NotRecovered,
    GivenUp,
    TranscriptOpened(Result<(), Failure>),
    /// A write to the transcript: so much credit may be returned.
    Transcribed {
        credits: [u64; 2],
        failure: Option<Failure>,
        /// Some bytes are not written, and are to be tried again.
        is_behind: bool,
    },
    /// All of it is written. The front asks for this by itself.
    TranscriptRecovered {
        credits: [u64; 2],
    },
    Probed(Result<(), Unusable>),
    Kept {
        stream: Stream,
        credits: [u64; 2],
        result: Result<(), Failure>,
    },
    Saved {
        #[serde(with = "portable::paths")]
        path: PathBuf,
        result: Result<(), Failure>,
    },
    /// A piece of a result, which has cost so much of the room of a node.
    ResultAdded {
        node: NodeId,
        cost: u64,
        #[serde(with = "portable::paths")]
        path: PathBuf,
        result: Result<(), Failure>,
    },
    JournalOpened(Result<(), Failure>),
    Journaled {
        bytes: usize,
        result: Result<(), Failure>,
    },
    Removed,
    CoreFound(Option<CoreDump>),
    Stamped(Stamped, Stamp),
    BinaryRead {
        #[serde(with = "portable::bytes")]
        bytes: Vec<u8>,
        result: Result<(), Failure>,
    },
}

/// Which file is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Stamped {
    /// That of `--progress-file`, during this attempt.
    Progress(Attempt),
    /// That of `--preempt-notice`.
    Notice,
}

/// What changes when a file is written: its time and its size. `None`: there is no such file.
pub(crate) type Stamp = Option<(std::time::SystemTime, u64)>;

/// Why a file system refused a task.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{0}")]
pub(crate) struct Failure(String);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure(rankrun_sys::reason(&error))
    }
}

/// What failed at a log file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{what}: {why}")]
pub(crate) struct LogFailure {
    what: String,
    #[serde(with = "portable::paths")]
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

impl From<LogError> for LogFailure {
    fn from(error: LogError) -> LogFailure {
        LogFailure { what: error.to_string(), why: rankrun_sys::reason(&error.source), path: error.path }
    }
}

/// A directory that is made when it is needed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Directory {
    #[serde(with = "portable::paths")]
    pub(crate) path: PathBuf,
    /// It is made only below this directory, which must exist: a missing home is not made.
    #[serde(with = "portable::paths")]
    pub(crate) below: Option<PathBuf>,
    /// The user has named it. Any other is used only if no directory above it belongs to another user.
    pub(crate) is_chosen: bool,
}

/// Why a directory is not used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum Unusable {
    #[error("\"{}\" is not a directory", .0.display())]
    NoDirectory(#[serde(with = "portable::paths")] PathBuf),
    #[error("\"{}\" belongs to another user", .0.display())]
    OfAnother(#[serde(with = "portable::paths")] PathBuf),
    #[error("cannot write to \"{}\": {why}", .path.display())]
    Unwritable {
        #[serde(with = "portable::paths")]
        path: PathBuf,
        why: String,
    },
}

impl Directory {
    /// That of the report, if there is one.
    pub(crate) fn of_report(place: &ReportPlace) -> Option<Directory> {
        let path = place.directory.clone()?;
        let below = place.home.clone().filter(|home| path.starts_with(home));
        Some(Directory { path, below, is_chosen: place.is_asked_for })
    }

    /// Where a job is looked for whose report is elsewhere.
    pub(crate) fn of_pointer(place: &ReportPlace) -> Option<Directory> {
        let path = place.usual.clone().filter(|_| place.is_asked_for)?;
        let below = place.home.clone().filter(|home| path.starts_with(home));
        Some(Directory { path, below, is_chosen: false })
    }

    pub(crate) fn check(&self) -> Result<(), Unusable> {
        if let Some(below) = self.below.as_deref().filter(|below| !below.is_dir()) {
            return Err(Unusable::NoDirectory(below.to_owned()));
        }
        if self.is_chosen {
            return Ok(());
        }
        self.check_owners()?;
        self.check_access()
    }

    /// What is missing of the path is made later: the nearest directory that is there counts.
    fn check_access(&self) -> Result<(), Unusable> {
        let found = self.path.ancestors().find_map(|path| Some((path, std::fs::metadata(path).ok()?)));
        let Some((nearest, meta)) = found else { return Ok(()) };
        if !meta.is_dir() {
            return Err(Unusable::NoDirectory(nearest.to_owned()));
        }
        let may = rustix::fs::access(nearest, Access::WRITE_OK | Access::EXEC_OK);
        let why = |errno: rustix::io::Errno| rankrun_sys::reason(&errno.into());
        may.map_err(|errno| Unusable::Unwritable { path: nearest.to_owned(), why: why(errno) })
    }

    /// With `sudo -E` and `su` we get the variables of another user. For root, all directories above must be root's:
    /// the owner of one can replace what is in it. For other users only the parent directory is checked: they cannot
    /// write elsewhere anyway.
    fn check_owners(&self) -> Result<(), Unusable> {
        let user = rustix::process::geteuid();
        let owned = self.path.ancestors().filter_map(|path| Some((path, std::fs::metadata(path).ok()?.uid())));
        let counts = if user.is_root() { usize::MAX } else { 1 };
        let other = owned.take(counts).find(|(_, owner)| ![0, user.as_raw()].contains(owner));
        other.map_or(Ok(()), |(path, _)| Err(Unusable::OfAnother(path.to_owned())))
    }

    pub(crate) fn make(&self) -> io::Result<()> {
        self.check().map_err(io::Error::other)?;
        std::fs::create_dir_all(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_used_says_why() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let file = scratch.path().join("file");
        std::fs::write(&file, "").expect("a file");
        let check = |path: &Path, below: Option<&Path>| {
            let directory = Directory { path: path.into(), below: below.map(Into::into), is_chosen: false };
            directory.check().map_err(|why| why.to_string().replace(&scratch.path().display().to_string(), ""))
        };
        assert_eq!(check(&scratch.path().join("a/b"), None), Ok(()));
        let refusal = || Err("\"/file\" is not a directory".to_owned());
        assert_eq!(check(&file.join("rankrun/job"), None), refusal());
        assert_eq!(check(&file.join(".local"), Some(&file)), refusal());
    }
}
