//! What a loop waits on: descriptors, signals, connections.

pub mod poll;
pub mod reactor;
pub mod signal;
