//! torch's TCPStore: a server for the protocol that `torch.distributed` speaks (torch 2.15, `TCPStoreBackend.hpp`).
//!
//! Nothing is served to a connection before it has sent the magic number. A connection that breaks the protocol is closed,
//! and no other one notices it. What is held of a connection is what it has sent of an unfinished request, and the replies
//! that it has not read: it is served no further while these exceed [`MAX_UNREAD`]. A client is served for a turn at a time, so that
//! others need not wait for its long requests. All together may make the store hold [`MOST`]; who adds more is closed.
//!
//! The protocol cannot authenticate: who may connect is for the driver to decide.

mod map;
mod names;
mod request;
mod server;
mod table;
mod tasks;
mod trunk;
mod waiting;

pub use request::{MAGIC, MAX_KEY, MAX_KEYS, MAX_VALUE, MOST, Violation};
pub use server::{ConnId, Effect, MAX_UNREAD, Server};
pub use trunk::{News, Trunk, WINDOW};

#[cfg(test)]
mod tests;
