//! What a loop waits on: descriptors, signals, connections.

pub mod listener;
pub mod poll;
pub mod reactor;
pub mod signal;
