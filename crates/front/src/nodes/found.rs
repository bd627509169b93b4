//! What the devices of the nodes tell the loop.

use rankrun_core::NodeId;
use rankrun_core::job::Event;

/// What was found out.
#[derive(PartialEq, Debug, Default)]
pub(crate) struct Found {
    pub(crate) events: Vec<Event>,
    /// For the user; what ssh, srun and the agents write may be much.
    pub(crate) notes: Vec<String>,
    pub(crate) words: Vec<String>,
    /// What these agents have sent may have come with their greeting.
    pub(crate) greeted: Vec<NodeId>,
    /// Nodes lack rankrun: it is to be read for them.
    pub(crate) lacks_program: bool,
}
