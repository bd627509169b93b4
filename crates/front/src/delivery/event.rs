//! What becomes of what was to be delivered.

use std::time::Duration;

use rankrun_core::{NodeId, Stream};

/// After the job's end, a file system that does not answer is waited for no longer than this: the caller gets the exit code.
pub(crate) const SILENCE_BOUND: Duration = Duration::from_secs(4);
/// How often to look then whether log files that take longer wait for their file system.
pub(crate) const SILENCE_STEP: Duration = Duration::from_millis(500);

/// What the delivery reports to the front.
#[derive(Debug)]
pub(crate) enum DeliveryEvent {
    /// So many bytes of a stream were written: the agent may send as many more.
    Credit {
        stream: Stream,
        bytes: u64,
    },
    /// Pieces of results of a node are written, or dropped, that cost so much: it may send as many more.
    ResultsTaken {
        node: NodeId,
        cost: u64,
    },
    /// Results cannot be written, for this reason, and what is not written is dropped: the job ends.
    ResultsFailed(String),
    Note(String),
    /// The reader is gone: the job ends as SIGPIPE would end it.
    ReaderGone,
    /// The destination has been full for longer than `--drain`, or failed otherwise: the job ends.
    Failed,
    /// Log files could not be written for longer than `--drain`, and are given up: the job ends.
    LogsGivenUp,
    /// The transcript is there.
    TranscriptOpened,
    /// It could not be begun, for this reason.
    TranscriptFailed(String),
    /// The output of a job without a console could not be written for longer than `--drain`, for this reason: the job ends.
    TranscriptIsFull(String),
    /// The process that writes it was killed.
    TranscriptHasNoWriter,
    /// The log files of an attempt are there.
    LogsOpened,
    /// They could not be made, or cannot be written any more, for this reason: the job ends.
    LogsFailed(String),
}
