//! What the job does about events, by subject.

mod alone;
mod between;
mod clearing;
mod closing;
pub(super) mod end;
mod going_on;
mod hooks;
mod joining;
mod looking;
mod losses;
mod meeting;
mod members;
mod muster;
mod planned;
mod profiling;
mod spawning;
mod states;
pub(super) mod status;
pub(super) mod stopping;
mod successors;
mod workers;
