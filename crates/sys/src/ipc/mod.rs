//! What processes share: sockets, pipes, memory, and directories that are watched.

pub mod shared;
pub mod shm;
pub mod socket;
pub mod watched;
