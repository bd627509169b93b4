//! One node of a job: the guard, and the agent that starts, holds and ends the workers.
//!
//! The agent is one loop ([`agent`]) and one thread that spawns ([`spawner`]). Each source of the loop becomes an event;
//! what to do about a worker is decided by `rankrun_core::worker`, and this crate does it. It keeps:
//! * **K-2** peek, signal, reap: the agent is the only one that waits for children, and a leader is reaped after the
//!   signals that its end calls for ([`agent`]).
//! * **K-4** a worker is gone only when its boundary is empty ([`boundary`]).
//! * **K-6** killing and proving never wait for output ([`capture`], [`link`]).
//! * **K-8** shared memory is noted while the workers live ([`shm`]).

pub mod agent;
mod boundary;
mod capture;
pub mod clean;
mod clock;
mod guard;
mod hook;
mod io;
pub mod launch;
mod lease;
mod link;
mod mpi;
mod node;
mod orphans;
mod output;
mod prepare;
pub mod runtime;
mod shm;
mod spawner;
mod speakers;
mod starting;
mod stdin;
mod token;
mod worker;

pub use clock::Clock;
pub use launch::{Launched, launch};

/// Bytes of each stream's output that an agent may send before the front grants more: enough to keep a fast destination
/// busy over a round trip, little enough that the front of many nodes stays small.
pub const INITIAL_CREDIT: u64 = 1 << 20;
