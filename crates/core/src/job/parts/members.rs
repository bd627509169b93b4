//! Which nodes may come to the job, and what the job waits for meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ids::NodeId;
use crate::job::parts::exclusions::Exclusions;
use crate::job::parts::returns::Returns;

/// What is known of the nodes that come and go.
#[derive(Clone, Debug, Default)]
pub(in crate::job) struct Members {
    pub(in crate::job) returns: Returns,
    pub(in crate::job) exclusions: Exclusions,
    /// The hosts of which the user was told that they are away.
    pub(in crate::job) told: BTreeSet<String>,
    /// The nodes for which others are sought (`--replace`).
    pub(in crate::job) replacing: BTreeSet<NodeId>,
    /// Until when the next attempt waits for nodes without which it cannot begin.
    pub(in crate::job) awaited_until: Option<Duration>,
    /// When the job is restarted with the nodes that have come.
    pub(in crate::job) grow_at: Option<Duration>,
}
