//! The only unsafe code of rankrun: the kernel's calls for starting, holding and ending processes.
//!
//! This crate is only mechanism. `rankrun-core` decides which process is signalled, when, and why.
//!
//! Invariants kept here (docs/architecture.md):
//! * **K-1** a worker is in its cgroup before its first instruction ([`spawn`], [`cgroup`]).
//! * **K-2** peek, signal, reap: [`wait::peek`] leaves the zombie, and with it its pid, in place.
//! * **K-7** between clone and exec only async-signal-safe calls ([`spawn`]).
#![expect(unsafe_code, reason = "this crate exists to hold it; every block says why it is sound")]

mod containment;
mod events;
mod ipc;
pub mod mpi;
pub mod pmix;
mod processes;
mod terminals;

pub use containment::cgroup;
pub use events::{listener, poll, reactor, signal};
pub use ipc::{diag, locks, mapped, network, shared, shm, socket, watched};
pub(crate) use processes::clone;
pub use processes::{
    bounded, build, consumption, cpus, entry, environments, errand, exec, fork, fork_server, kernel, libraries, limits,
    memory, name, nearby, oom, proc, process, spawn, trace, vitals, wait, written,
};
pub use terminals::{pty, terminal};

/// The stream that leads nowhere: /dev/null, for reading and writing.
///
/// # Errors
///
/// It cannot be opened, as in a root directory without devices. The error names it.
pub fn null() -> std::io::Result<std::os::fd::OwnedFd> {
    let opened = std::fs::File::options().read(true).write(true).open("/dev/null");
    opened.map(Into::into).map_err(|error| {
        let text = format!("cannot open \"/dev/null\": {}", reason(&error));
        std::io::Error::new(error.kind(), text)
    })
}

/// The operating system's text for an error, without Rust's "(os error 2)".
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
