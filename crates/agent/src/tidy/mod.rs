//! Removes what a job leaves on a node besides processes: directories, shared memory, cgroups.

mod mounts;
mod names;
mod remains;
mod runtime;
mod search;
pub(crate) mod shm;
mod watch;

pub use names::own_names;
pub(crate) use remains::end_helpers;
pub use remains::{Children, Known, Readers, Remains, end_children, remove};
pub use runtime::{Places, RuntimeDir, RuntimeDirError, bases, check, lone_directories, noted_shared_memory};
pub(crate) use runtime::{base_of, keep};
pub(crate) use search::{Holders, holders};
pub use search::{Search, named_of_dead};
