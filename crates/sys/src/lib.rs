//! The only unsafe code of rankrun: what the kernel offers for starting, holding and ending processes.
//!
//! Everything here is mechanism. Who is signalled, when, and why is decided in `rankrun-core`.
//!
//! Invariants kept here (docs/architecture.md):
//! * **K-1** a worker is in its cgroup before its first instruction ([`spawn`], [`cgroup`]).
//! * **K-2** peek, signal, reap: [`wait::peek`] leaves the zombie, and with it its pid, in place.
//! * **K-7** between clone and exec only async-signal-safe calls ([`spawn`]).
#![expect(unsafe_code, reason = "this crate exists to hold it; every block says why it is sound")]

pub mod cgroup;
mod clone;
pub mod exec;
pub mod fork;
pub mod limits;
pub mod name;
pub mod oom;
pub mod poll;
pub mod proc;
pub mod process;
pub mod pty;
pub mod reactor;
pub mod shared;
pub mod shm;
pub mod signal;
pub mod socket;
pub mod spawn;
pub mod terminal;
pub mod vitals;
pub mod wait;
pub mod watched;

/// What the operating system says of an error, without Rust's "(os error 2)".
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
