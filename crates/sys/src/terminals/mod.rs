//! Terminals: the one that we were started on, and those that we make.

pub mod pty;
pub mod terminal;
