//! Processes: started, found, signalled, waited for.

pub(crate) mod clone;
pub mod exec;
pub mod fork;
pub mod limits;
pub mod name;
pub mod oom;
pub mod proc;
pub mod process;
pub mod spawn;
pub mod vitals;
pub mod wait;
