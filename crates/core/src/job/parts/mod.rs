//! The states of a job: each has data of its own, and knows nothing of the others but what it is made of.

pub(super) mod about;
pub(super) mod alone;
pub(super) mod attempts;
pub(super) mod closing;
pub(super) mod exclusions;
pub(super) mod groups;
pub(super) mod hooks;
pub(super) mod inquiry;
pub(super) mod joining;
pub(super) mod lines;
pub(super) mod looks;
pub(super) mod members;
pub(super) mod missing;
pub(super) mod muster;
pub(super) mod node;
pub(super) mod nodes;
pub(super) mod notice;
pub(super) mod planned;
pub(super) mod profiling;
pub(super) mod returns;
pub(super) mod roll;
pub(super) mod route;
pub(super) mod states;
pub(super) mod successors;
pub(super) mod words;
