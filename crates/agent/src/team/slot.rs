//! What the agent holds of one worker on its side: streams, window, stdin.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rankrun_core::{Rank, WorkerId};

use crate::streams::Capture;

/// One worker.
pub(crate) struct Slot {
    pub(crate) id: WorkerId,
    /// What its processes name themselves by, on the worker socket and in their environment.
    pub(crate) tag: String,
    pub(crate) captures: [Option<Capture>; 2],
    /// Whether a capture is in the poll set now.
    pub(crate) polled: [bool; 2],
    /// Output that is on its way to the front: records, by stream.
    pub(crate) under_way: [u32; 2],
    /// The end of a stream has been told to the front.
    pub(crate) closed: [bool; 2],
    /// It has been started.
    pub(crate) started: bool,
    /// The front has been told that its process reports its own failures.
    pub(crate) reports: bool,
    /// The masters of ptys, for changes of the window.
    pub(crate) windows: Vec<OwnedFd>,
    /// The write end of a stdin that is shared out (`--stdin all`).
    pub(crate) stdin: Option<SharedStdin>,
    /// It is to be started, and has not been made ready.
    pub(crate) awaits_start: bool,
    /// Stdin that came before it was made ready.
    pub(crate) stdin_backlog: VecDeque<Bytes>,
    /// The cgroup's events file, while the worker's end is waited for.
    pub(crate) events: Option<OwnedFd>,
}

/// One rank's copy of the front's stdin.
pub(crate) struct SharedStdin {
    pub(crate) pipe: OwnedFd,
    pub(crate) queue: VecDeque<Bytes>,
}

impl Slot {
    pub(crate) fn new(id: WorkerId, tag: String) -> Slot {
        Slot {
            id,
            tag,
            captures: [None, None],
            polled: [false, false],
            under_way: [0, 0],
            // Nothing is open before the spawn.
            closed: [true, true],
            started: false,
            reports: false,
            windows: Vec::new(),
            stdin: None,
            awaits_start: true,
            stdin_backlog: VecDeque::new(),
            events: None,
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.id.rank
    }
}
