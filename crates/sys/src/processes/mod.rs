//! Processes: started, found, signalled, waited for.

pub mod bounded;
pub mod build;
pub(crate) mod clone;
pub mod consumption;
pub mod cpus;
pub mod entry;
pub mod environments;
pub mod errand;
pub mod exec;
pub mod fork;
pub mod fork_server;
pub mod kernel;
pub mod libraries;
pub mod limits;
pub mod memory;
pub mod name;
pub mod nearby;
pub mod oom;
pub mod proc;
pub mod process;
pub mod spawn;
pub mod trace;
pub mod vitals;
pub mod wait;
pub mod written;
