//! Which hosts a job runs on, and which rank goes to which of them: lists and files of hosts as people, other launchers
//! and batch systems write them, and the placement of ranks.
//!
//! Nothing here opens a file or asks a resolver. What is read is bounded: see [`MAX_HOSTS`].

mod allocation;
mod file;
mod fold;
mod list;
mod placement;
mod slots;

pub use allocation::{AllocationError, Slurm, are_like_tasks, grid_engine_lines, lsf_counts, slurm_nodes};
pub use file::{FileError, HostFile, parse_file};
pub use fold::fold;
pub use list::{Host, ListError, MAX_HOSTS, parse_list, parse_names};
pub use placement::{Mapping, PlacementError, Wanted, place};
pub use slots::{MergeError, NodeSlots, mentions, merge};
