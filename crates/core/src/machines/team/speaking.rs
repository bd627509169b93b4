//! A process that reports for its rank, as a team knows it.

use crate::ids::Slot;
use crate::testimony::Speaker;

#[derive(Debug)]
pub(super) struct Speaking {
    pub(super) slot: Slot,
    pub(super) is_leader: bool,
    /// Its start, on a clock that all processes of the node share: of several, the last one started is used.
    pub(super) started: u64,
    pub(super) speaker: Speaker,
    pub(super) is_closed: bool,
    pub(super) in_mpi: bool,
}
