//! One node of a job: the guard, and the agent that starts, holds and ends the workers.
//!
//! The agent is one loop ([`driver`]), one thread that spawns, and one that watches /dev/shm. Each source of the loop becomes
//! an event; `rankrun_core::team` decides what to do, and this crate does it. It keeps:
//! * **K-2** peek, signal, reap: the agent is the only one that waits for children, and a leader is reaped after the
//!   signals that its end calls for ([`team`]).
//! * **K-4** a worker is gone only when its boundary is empty ([`children`]).
//! * **K-6** killing and proving never wait for output ([`streams`]).
//! * **K-8** shared memory is noted while the workers live ([`tidy`]).

mod away;
mod binding;
mod children;
mod driver;
mod guard;
mod helpers;
mod services;
pub mod staff;
mod streams;
mod team;
pub mod tidy;

pub use away::{AGAIN, ALIVE, Held, Holder, PROVE, RelayCall, answer_alive, relay, relay_again};
pub use binding::{Preview, preview};
pub use children::serve_reader;
pub use driver::{Clock, Options, Seat, Terms, soft_limits};
pub use guard::{
    Act, GuardNote, GuardState, Keeper, LOOK_STEP, LastKnown, Launched, Prepared, Proof, Watch, launch, launch_in,
    prepare,
};
pub use helpers::{Serving, serve_looker, serve_meter, serve_pmix, serve_sampler, serving_this_process};

/// Bytes of each stream's output that an agent may send before the front grants more: enough to keep a fast destination
/// busy over a round trip, little enough that the front of many nodes stays small.
pub const INITIAL_CREDIT: u64 = 1 << 20;
