//! What a job leaves on a node besides processes, and who removes it: directories, shared memory, cgroups.

mod remains;
mod runtime;
pub(crate) mod shm;

pub use remains::Remains;
pub use runtime::{Places, RuntimeDir, RuntimeDirError, SHARED_MEMORY, bases, noted_shared_memory};
