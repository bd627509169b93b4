//! Which nodes a front is to call that has taken the place of another one, and when.

use std::collections::VecDeque;
use std::time::Duration;

use rankrun_core::NodeId;

/// The nodes of the front before this one that are to be called.
#[derive(Debug, Default)]
pub(crate) struct Recalls {
    /// With the times at which each may be called, the earliest first.
    pub(super) due: VecDeque<(Duration, NodeId)>,
    /// Until then the ranks go on without a front.
    pub(super) until: Duration,
    /// Until then those have time that come by themselves.
    pub(super) back_by: Option<Duration>,
    /// The user was told that these could not be called at once.
    pub(super) told: Vec<NodeId>,
}

impl Recalls {
    /// When the next one may be called. Those that only wait for others have none: the end of a call is heard.
    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        let due = self.due.front().map(|(at, _)| *at).filter(|at| *at > now);
        due.into_iter().chain(self.back_by).min()
    }
}
