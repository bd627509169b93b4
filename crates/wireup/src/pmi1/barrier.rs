//! The state of a group's barriers. It only counts; the server sends the replies.

use rankrun_core::Rank;

use super::Epoch;

/// The barrier that ranks are entering. There is one at most: see the module's text on epochs.
#[derive(Debug)]
pub(super) struct Barrier {
    /// The lowest epoch that no rank is known to have left, the only one whose barriers can complete.
    current: Epoch,
    /// Local ranks in the barrier of that epoch.
    entered: u32,
    /// How many barriers of that epoch this node has contributed to.
    contributed: u32,
    /// The barrier that waits for the other nodes.
    awaiting: Option<u64>,
    /// The first rank that left the last epoch, if known.
    last_left: Option<Rank>,
    /// Epochs below this have had their broken barrier reported.
    reported: u32,
}

impl Barrier {
    pub(super) fn new() -> Barrier {
        Barrier { current: Epoch::default(), entered: 0, contributed: 0, awaiting: None, last_left: None, reported: 0 }
    }

    pub(super) fn current(&self) -> Epoch {
        self.current
    }

    /// Whether a barrier of this epoch can still complete.
    pub(super) fn is_open(&self, epoch: Epoch) -> bool {
        epoch >= self.current
    }

    /// The barrier that waits for other nodes.
    pub(super) fn awaited(&self) -> Option<u64> {
        self.awaiting
    }

    /// One more local rank is in the barrier.
    pub(super) fn enter(&mut self) {
        self.entered += 1;
    }

    /// How many local ranks are.
    pub(super) fn entered(&self) -> u32 {
        self.entered
    }

    /// The local part is complete; returns the number of the barrier for all nodes.
    pub(super) fn contribute(&mut self) -> u64 {
        let seq = sequence(self.current, self.contributed);
        self.contributed += 1;
        self.awaiting = Some(seq);
        seq
    }

    /// Whether this is the result that is awaited.
    pub(super) fn awaits(&self, seq: u64) -> bool {
        self.awaiting == Some(seq)
    }

    /// The barrier is complete on all nodes.
    pub(super) fn complete(&mut self) {
        self.entered = 0;
        self.awaiting = None;
    }

    /// A rank has left `epoch`, which was open: no barrier of it can complete any more. Returns the number of the one
    /// that other nodes may be gathering.
    pub(super) fn close(&mut self, epoch: Epoch, left: Option<Rank>) -> u64 {
        let seq = sequence(epoch, self.contributed);
        self.last_left = left;
        self.current = Epoch(epoch.0.saturating_add(1));
        self.entered = 0;
        self.contributed = 0;
        self.awaiting = None;
        seq
    }

    pub(super) fn last_left(&self) -> Option<Rank> {
        self.last_left
    }

    /// Whether the broken barrier of this epoch is reported now for the first time.
    pub(super) fn report(&mut self, epoch: Epoch) -> bool {
        let first = epoch.0 >= self.reported;
        self.reported = self.reported.max(epoch.0.saturating_add(1));
        first
    }
}

fn sequence(epoch: Epoch, barrier: u32) -> u64 {
    u64::from(epoch.0) << 32 | u64::from(barrier)
}
