//! What a job is: who its ranks are, what they run, in which environment.

pub mod env;
pub mod ids;
pub mod job;
pub mod rankmap;
pub mod ranks;
pub mod template;
pub mod units;
