//! What a job is: who its ranks are, what they run, in which environment.

pub mod collective;
pub mod env;
mod forking;
pub(crate) mod gpus;
pub mod hosts;
pub mod ids;
pub mod interface;
pub(crate) mod job;
pub mod open_files;
pub mod outer;
pub mod planned;
pub mod pmix;
pub mod portable;
pub mod preload;
pub mod rankmap;
pub mod ranks;
pub mod relay;
pub mod rendezvous;
pub(crate) mod restart;
pub mod scheduler;
pub mod segments;
pub mod spawning;
pub mod template;
pub mod trace;
pub mod travel;
pub mod units;
