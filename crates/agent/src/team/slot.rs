//! The agent's side of one worker: streams, window, stdin.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rankrun_core::{Rank, WorkerId};
use rankrun_sys::spawn::Place;

use crate::streams::Capture;

/// The bytes of a worker's tag before it is written in hexadecimal.
pub(super) const TAG_BYTES: usize = 16;

/// One worker.
pub(crate) struct Slot {
    pub(crate) id: WorkerId,
    /// Its processes have it in their environment and send it on the worker socket.
    pub(crate) tag: String,
    pub(crate) captures: [Option<Capture>; 2],
    /// Whether a capture is in the poll set now.
    pub(crate) polled: [bool; 2],
    /// Records on the way to the front, by stream.
    pub(crate) under_way: [u32; 2],
    /// The end of a stream was sent to the front.
    pub(crate) closed: [bool; 2],
    /// The CPUs that it is bound to.
    pub(crate) place: Option<Place>,
    /// It has been started.
    pub(crate) started: bool,
    /// The front was sent that its process reports its own failures.
    pub(crate) reports: bool,
    /// The masters of ptys, for changes of the window.
    pub(crate) windows: Vec<OwnedFd>,
    /// The write end of a stdin that is copied to all (`--stdin all`).
    pub(crate) stdin: Option<SharedStdin>,
    /// It has not been prepared for its start yet.
    pub(crate) awaits_start: bool,
    /// Stdin that was received before it was prepared.
    pub(crate) stdin_backlog: VecDeque<Bytes>,
    /// The cgroup's events file, while the agent waits for the worker's end.
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
            place: None,
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
