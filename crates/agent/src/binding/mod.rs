//! Which CPUs the ranks of this node get: reads the machine, and keeps other jobs off the cores of this one
//! ([`rankrun_core::placement`] decides).

mod binder;
mod cores;
mod here;
pub(crate) mod topology_file;

pub(crate) use binder::Binder;
pub use binder::{Preview, preview};
