//! For Rust programs that [rankrun](https://github.com/rankrun/rankrun) starts.
//!
//! A Rust program that uses MPI has the same problem as one in Python: when it panics, unwinding drops the MPI environment,
//! `MPI_Finalize` waits for ranks that never call it, and the job hangs. [`install`] reports the panic to rankrun, which then
//! ends the job and names the panic as its cause:
//!
//! ```
//! use rankrun_worker::OnPanic;
//!
//! rankrun_worker::install(OnPanic::Tell);
//! rankrun_worker::note("the program starts");
//! println!("{} of {}", rankrun_worker::rank(), rankrun_worker::world_size());
//! ```
//!
//! Everything here works without rankrun too: such a process is the only rank of its world, and nothing is sent. The
//! protocol is in `docs/worker-socket.md`.

mod connection;
mod line;
mod panic;

pub use crate::connection::{abort, note, progress, ready};
pub use crate::panic::{OnPanic, install};

/// This rank's position in the world, from 0.
pub fn rank() -> u32 {
    number("RANKRUN_RANK", 0)
}

/// How many ranks the job has.
pub fn world_size() -> u32 {
    number("RANKRUN_WORLD_SIZE", 1)
}

/// This rank's position among those of its node, from 0.
pub fn local_rank() -> u32 {
    number("RANKRUN_LOCAL_RANK", 0)
}

/// How often the job has been restarted: 0 in the first attempt.
pub fn attempt() -> u32 {
    number("RANKRUN_ATTEMPT", 0)
}

fn number(variable: &str, alone: u32) -> u32 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(alone)
}
