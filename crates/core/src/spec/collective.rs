//! What ranks of several nodes do together: a barrier of PMI-1, a fence of PMIx.

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, Rank};

/// One node's part of a collective operation, or all parts together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Collective {
    /// The first group that has a part in it.
    pub group: GroupId,
    /// The same on all nodes for the same operation, and different for each operation. Not consecutive.
    pub seq: u64,
    /// How many ranks the payloads stand for, and how many take part on all nodes together.
    pub members: u32,
    pub of: u32,
    /// Ranks that take part and are gone, on whichever node: nobody contributes for those whose node does not.
    pub gone: Vec<Rank>,
    /// One of each node, in the order of the nodes. Servers of the same version alone read them.
    pub payloads: Vec<Vec<u8>>,
}
