//! Profiles: the stacks of all ranks, sampled for some seconds and folded.
//!
//! * `request`: how it is asked for, and what comes of it;
//! * `samples`: what is counted of a rank, and how it is folded;
//! * `meaning`: what a thread with such a stack does;
//! * `tree`: the calls of all ranks together, with the share of each rank;
//! * `differ`: which ranks differ, and which of them the others wait for;
//! * `summary`: the table, and its text;
//! * `export`: collapsed stacks and speedscope's JSON.

mod differ;
mod export;
mod meaning;

mod request;
mod samples;
mod statistics;
mod summary;
mod tree;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;

pub use export::{collapsed, speedscope};
pub use meaning::{Kind, Meaning, PAGE_FAULT, meaning};
pub use request::{MAX_PROFILE, MAX_RATE, Profile, ProfileSpec, RankProfile};
pub use samples::{
    Activity, Cost, Count, Gathering, MAIN, MAX_STACKS, NOT_READABLE, Node, Sample, Samples, Stops, WINDOWS,
};
pub use summary::{Differing, Each, Function, Straggler, Summary, summarize};
