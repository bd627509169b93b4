//! What the agent holds of one worker.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::worker::Worker;
use rankrun_core::{JobId, Rank, WorkerId};

use crate::boundary::Member;
use crate::capture::Capture;

/// One worker, with what belongs to it on this side.
pub(crate) struct Slot {
    pub(crate) id: WorkerId,
    pub(crate) worker: Worker,
    /// The leader's pid from its spawn on, also after its end.
    pub(crate) leader: Option<i32>,
    pub(crate) leader_alive: bool,
    pub(crate) captures: [Option<Capture>; 2],
    /// Whether a capture is in the poll set now.
    pub(crate) polled: [bool; 2],
    /// Output that is on its way to the front: records, by stream.
    pub(crate) under_way: [u32; 2],
    /// The end of a stream has been told to the front.
    pub(crate) closed: [bool; 2],
    pub(crate) pmi: Option<PmiClient>,
    /// The front has been told that the rank came out of a barrier of its present program.
    pub(crate) passed_barrier: bool,
    /// The masters of ptys, for changes of the window.
    pub(crate) windows: Vec<OwnedFd>,
    /// The processes that a pause has stopped, in the fallback tier.
    pub(crate) paused: Vec<i32>,
    /// The write end of a stdin that is shared out (`--stdin all`).
    pub(crate) stdin: Option<SharedStdin>,
    /// The cgroup's events file, while the worker's end is waited for.
    pub(crate) events: Option<OwnedFd>,
    /// A speaker that was told to end before its leader is, and when to look whether it is gone.
    pub(crate) stopped_speaker: Option<i32>,
    pub(crate) next_speaker_look: Option<Duration>,
    /// What the rest of the worker did up to a time, while it is watched for idleness.
    pub(crate) idle: Option<(Duration, u64)>,
    pub(crate) next_idle_look: Option<Duration>,
}

/// The agent's end of a rank's PMI connection.
pub(crate) struct PmiClient {
    pub(crate) socket: OwnedFd,
    pub(crate) out: VecDeque<Bytes>,
    /// It is polled for room to write to, and not read before.
    pub(crate) awaits_room: bool,
}

/// One rank's copy of the front's stdin.
pub(crate) struct SharedStdin {
    pub(crate) pipe: OwnedFd,
    pub(crate) queue: VecDeque<Bytes>,
}

impl Slot {
    pub(crate) fn new(id: WorkerId) -> Slot {
        Slot {
            id,
            worker: Worker::default(),
            leader: None,
            leader_alive: false,
            captures: [None, None],
            polled: [false, false],
            under_way: [0, 0],
            // Nothing is open before the spawn.
            closed: [true, true],
            pmi: None,
            passed_barrier: false,
            windows: Vec::new(),
            paused: Vec::new(),
            stdin: None,
            events: None,
            stopped_speaker: None,
            next_speaker_look: None,
            idle: None,
            next_idle_look: None,
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.id.rank
    }

    pub(crate) fn member<'a>(&self, job: &'a JobId) -> Member<'a> {
        Member { job, rank: self.id.rank, leader: self.leader, leader_alive: self.leader_alive }
    }
}
