//! What was observed of a failure, each fact with its time and its rank (docs/failures.md).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{Pid, Rank};
use crate::status::WorkerStatus;
use crate::testimony::{Exception, StuckIn};

/// What became known of a rank's MPI life through its wire-up, and from itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MpiEvent {
    /// It called `MPI_Init`.
    Inited,
    /// It has come out of a barrier, so that its siblings were there too.
    PassedBarrier,
    /// Its program is over: only `MPI_Finalize` is left, which waits for the others. Known from its worker socket.
    Finalizing,
    /// It has come out of `MPI_Finalize`, or nearly.
    Finalized,
    /// It called `MPI_Abort`.
    Aborted { code: i32, message: Option<String> },
    /// It asked for something that could not be done, such as `MPI_Comm_spawn`, and got an error; and why.
    Refused { call: String, detail: Option<String> },
    /// It spoke nonsense; its connection was closed.
    Malformed { reason: String },
}

/// One fact that speaks for a failure of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Evidence {
    pub rank: Rank,
    /// Since the start of the job, on the clock of the rank's node.
    #[serde(with = "seconds")]
    pub at: Duration,
    pub pid: Option<Pid>,
    pub fact: Fact,
}

/// How an exception became known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The program said so over the worker socket: the interpreter hook, or a client of its own.
    Program,
    /// torch's error file.
    ErrorFile,
    /// The last lines of stderr.
    Stderr,
    /// The last lines of stdout.
    Stdout,
}

/// The fact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Fact {
    /// Its leader ended with a status that is a failure.
    Ended { status: WorkerStatus },
    /// An exception reached the top of its program.
    Exception { source: Source, exception: Exception },
    /// Its interpreter's exit work was done, with this code.
    Exiting { code: i32 },
    /// An exception that ended a thread, or nothing.
    Aside { place: String, exception: Exception },
    /// After its failure it could not end. `leader`: else the process was killed alone.
    Stuck {
        place: StuckIn,
        #[serde(with = "seconds")]
        since: Duration,
        leader: bool,
    },
    /// The kernel killed it because memory ran out.
    OutOfMemory { detail: String },
    /// The kernel killed another process of it than the leader because memory ran out. That ends nothing by itself.
    HelperOutOfMemory { name: String, detail: String },
    /// The CPU time that it had used when it was killed, and its hard limit (`ulimit -t`).
    CpuTime {
        #[serde(with = "seconds")]
        used: Duration,
        #[serde(with = "seconds")]
        limit: Duration,
    },
    /// It called `MPI_Abort`, or asked for the end of the job otherwise.
    Aborted { code: i32, message: Option<String> },
    /// It exited with 0, had called `MPI_Init` and not `MPI_Finalize`, and a sibling was still in MPI a second later.
    ExitWithoutFinalize,
    /// It exited with 0 and had not called `MPI_Init`, while a sibling waits for it there.
    ExitBeforeInit,
    /// It could not be started.
    SpawnFailed { step: String, error: String, command: String },
    /// It was stopped by somebody else.
    Stopped { signal: i32 },
    /// It has not said that it is ready, although it had this time for that (`--ready-timeout`).
    NotReady { after: Duration },
    /// Its stderr says that a peer is gone.
    PeerLost { line: String },
    /// The last line of its stderr, where it ended of its own decision.
    LastLine { line: String },
    /// Its stderr ends with a traceback, and it lives on.
    Suspect {
        exception: Exception,
        ended: bool,
        /// How long it had been silent.
        #[serde(default = "crate::testimony::suspect_after")]
        silent: Duration,
    },
    /// It said this of itself.
    Note { text: String },
    /// It called a function of MPI that rankrun could not do, for the reason `detail`, and got an error. `ended`: the error ended the thread
    /// that called.
    Refused {
        call: String,
        detail: Option<String>,
        #[serde(default)]
        ended: bool,
    },
    /// It spoke nonsense to the wire-up.
    Malformed { reason: String },
}

/// Times in the report are seconds, as a number.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// Bytes that are kept of a text: a message, a note, a reason.
const TEXT_KEPT: usize = 8 * 1024;
/// Bytes that are kept of a traceback.
const TRACEBACK_KEPT: usize = 16 * 1024;
/// Bytes that are kept of each, once much has been kept.
const LITTLE_KEPT: usize = 256;

/// Cuts a text in its middle, since both its beginning and its end tell most. Returns how many bytes went.
pub fn shorten(text: &mut String, most: usize) -> usize {
    let length = text.len();
    if length <= most {
        return 0;
    }
    let head = (0..=most / 2).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let tail = (length - (most - most / 2)..=length).find(|&at| text.is_char_boundary(at)).unwrap_or(length);
    let gone = tail - head;
    *text = format!("{} [... {gone} bytes ...] {}", &text[..head], &text[tail..]);
    gone
}

/// What was not kept, so that a rank cannot make us hold whatever it likes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LeftOut {
    /// Facts.
    pub facts: u64,
    /// Bytes of the texts of those that were kept.
    pub bytes: u64,
    /// Ranks of which nothing out of the ordinary was known.
    #[serde(default)]
    pub ranks: u64,
    /// Attempts between the first and the last ones.
    #[serde(default)]
    pub attempts: u64,
}

impl Fact {
    /// Whether this is what a rank says, as often and at whatever length it likes, and not what happens to it once.
    pub fn is_word(&self) -> bool {
        match self {
            Fact::Exception { .. }
            | Fact::Exiting { .. }
            | Fact::Aside { .. }
            | Fact::Aborted { .. }
            | Fact::Stuck { leader: false, .. }
            | Fact::Stopped { .. }
            | Fact::NotReady { .. }
            | Fact::PeerLost { .. }
            | Fact::LastLine { .. }
            | Fact::Suspect { .. }
            | Fact::HelperOutOfMemory { .. }
            | Fact::Note { .. }
            | Fact::Refused { ended: false, .. }
            | Fact::Malformed { .. } => true,
            Fact::Ended { .. }
            | Fact::Stuck { leader: true, .. }
            | Fact::OutOfMemory { .. }
            | Fact::CpuTime { .. }
            | Fact::ExitWithoutFinalize
            | Fact::ExitBeforeInit
            | Fact::Refused { ended: true, .. }
            | Fact::SpawnFailed { .. } => false,
        }
    }

    /// The texts of a fact, each with the bytes that are kept of it.
    fn texts(&mut self) -> Vec<(&mut String, usize)> {
        match self {
            Fact::Exception { exception, .. } | Fact::Suspect { exception, .. } => texts_of(exception),
            Fact::Aside { place, exception } => {
                let mut texts = texts_of(exception);
                texts.push((place, LITTLE_KEPT));
                texts
            }
            Fact::Aborted { message: Some(text), .. }
            | Fact::OutOfMemory { detail: text }
            | Fact::PeerLost { line: text }
            | Fact::LastLine { line: text }
            | Fact::Note { text }
            | Fact::Malformed { reason: text } => vec![(text, TEXT_KEPT)],
            Fact::Refused { call, detail, .. } => {
                let detail = detail.as_mut().map(|detail| (detail, TEXT_KEPT));
                std::iter::once((call, LITTLE_KEPT)).chain(detail).collect()
            }
            Fact::HelperOutOfMemory { name, detail } => vec![(name, LITTLE_KEPT), (detail, TEXT_KEPT)],
            Fact::SpawnFailed { step, error, command } => {
                vec![(step, LITTLE_KEPT), (error, TEXT_KEPT), (command, TEXT_KEPT)]
            }
            Fact::Ended { .. }
            | Fact::CpuTime { .. }
            | Fact::Exiting { .. }
            | Fact::Stuck { .. }
            | Fact::Aborted { message: None, .. }
            | Fact::ExitWithoutFinalize
            | Fact::ExitBeforeInit
            | Fact::Stopped { .. }
            | Fact::NotReady { .. } => Vec::new(),
        }
    }

    /// Cuts texts that are too long: to a `little`, or to what is reasonable. Returns how many bytes went.
    pub fn shorten(&mut self, little: bool) -> usize {
        self.texts()
            .into_iter()
            .map(|(text, most)| shorten(text, if little { LITTLE_KEPT.min(most) } else { most }))
            .sum()
    }

    /// Bytes of its texts.
    pub fn size(&mut self) -> usize {
        self.texts().into_iter().map(|(text, _)| text.len()).sum()
    }

    /// Whether this fact by itself ends the gang.
    pub fn ends_the_gang(&self) -> bool {
        match self {
            Fact::Ended { .. }
            | Fact::Aborted { .. }
            | Fact::OutOfMemory { .. }
            | Fact::Stuck { leader: true, .. }
            | Fact::Suspect { ended: true, .. }
            | Fact::ExitWithoutFinalize
            | Fact::ExitBeforeInit
            | Fact::SpawnFailed { .. }
            | Fact::Stopped { .. }
            | Fact::Refused { ended: true, .. }
            | Fact::NotReady { .. } => true,
            Fact::Exception { .. }
            | Fact::Exiting { .. }
            | Fact::Aside { .. }
            | Fact::Stuck { leader: false, .. }
            | Fact::Suspect { ended: false, .. }
            | Fact::PeerLost { .. }
            | Fact::LastLine { .. }
            | Fact::HelperOutOfMemory { .. }
            | Fact::CpuTime { .. }
            | Fact::Note { .. }
            | Fact::Refused { ended: false, .. }
            | Fact::Malformed { .. } => false,
        }
    }
}

fn texts_of(exception: &mut Exception) -> Vec<(&mut String, usize)> {
    let Exception { kind, message, traceback, file, line: _, function } = exception;
    let mut texts = vec![(kind, LITTLE_KEPT), (message, TEXT_KEPT), (traceback, TRACEBACK_KEPT)];
    texts.extend(file.as_mut().map(|file| (file, TEXT_KEPT / 2)));
    texts.extend(function.as_mut().map(|function| (function, LITTLE_KEPT)));
    texts
}

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    SpawnFailed,
    OutOfMemory,
    Exception,
    Abort,
    Signal,
    ExitCode,
    StuckInFinalize,
    StuckInExitHandlers,
    ExitWithoutFinalize,
    ExitBeforeInit,
    /// It exited with 0, and others then lost it.
    LeftEarly,
    Stopped,
    /// A rank did not say in time that it is ready.
    NotReady,
    Timeout,
    /// The job was stopped before its end, to go on later.
    PlannedStop,
    /// All ranks waited, and none of them did anything (`--stall`).
    Hang,
    Interrupted,
    LauncherLost,
    /// A node of several was lost.
    NodeLost,
    /// Ranks ran MPI without being connected (`--strict`).
    Alone,
    OutputFailed,
    /// The job could not begin: no rank was started.
    Refused,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 22] = [
        Class::SpawnFailed,
        Class::OutOfMemory,
        Class::Exception,
        Class::Abort,
        Class::Signal,
        Class::ExitCode,
        Class::StuckInFinalize,
        Class::StuckInExitHandlers,
        Class::ExitWithoutFinalize,
        Class::ExitBeforeInit,
        Class::LeftEarly,
        Class::Stopped,
        Class::NotReady,
        Class::Timeout,
        Class::PlannedStop,
        Class::Hang,
        Class::Interrupted,
        Class::LauncherLost,
        Class::NodeLost,
        Class::Alone,
        Class::OutputFailed,
        Class::Refused,
    ];

    /// Its word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Class::SpawnFailed => "spawn-failed",
            Class::OutOfMemory => "out-of-memory",
            Class::Exception => "exception",
            Class::Abort => "abort",
            Class::Signal => "signal",
            Class::ExitCode => "exit-code",
            Class::StuckInFinalize => "stuck-in-finalize",
            Class::StuckInExitHandlers => "stuck-in-exit-handlers",
            Class::ExitWithoutFinalize => "exit-without-finalize",
            Class::ExitBeforeInit => "exit-before-init",
            Class::LeftEarly => "left-early",
            Class::Stopped => "stopped",
            Class::NotReady => "not-ready",
            Class::Timeout => "timeout",
            Class::PlannedStop => "planned-stop",
            Class::Hang => "hang",
            Class::Interrupted => "interrupted",
            Class::LauncherLost => "launcher-lost",
            Class::NodeLost => "node-lost",
            Class::Alone => "alone",
            Class::OutputFailed => "output-failed",
            Class::Refused => "refused",
        }
    }
}
