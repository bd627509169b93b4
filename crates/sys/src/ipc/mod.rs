//! What processes share: sockets, pipes, memory, and watched directories.

pub mod diag;
pub mod locks;
pub mod mapped;
pub mod network;
pub mod shared;
pub mod shm;
pub mod socket;
pub mod watched;
