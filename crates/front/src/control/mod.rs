//! The control socket: `rankrun status`, `stop` and `restart` from other processes (docs/control.md).
//!
//! The socket costs the job nothing that matters: connections, requests and the time that one may be idle are bounded, and no
//! part of the job waits for a client (K-6).

mod clients;
mod profiling;
mod requests;

pub(crate) use clients::{Control, Gone, Ours};
