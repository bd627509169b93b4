//! What the agent tells the guard: a byte a second, over a pipe that ends with either of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rankrun_sys::socket;

/// How often the agent renews its lease.
pub(crate) const RENEWAL: Duration = Duration::from_secs(1);
/// After so many of the guard's own ticks without a renewal the lease has lapsed. Ticks are counted, not time, so that a
/// machine that slept, or a frozen container, does not cost a job.
pub(crate) const LAPSE_TICKS: u32 = 3;

/// The agent is alive and hears from the front.
pub(crate) const ALIVE: u8 = b'a';
/// What is left when the agent ends was let go (`--descendants leave`).
pub(crate) const LEAVE: u8 = b'l';
/// The job's cgroup has been made under the name that was agreed on.
pub(crate) const CGROUP: u8 = b'c';
/// The shared memory that the job makes is to be removed after it.
pub(crate) const CLEAN_SHM: u8 = b's';

/// The agent's end.
#[derive(Debug)]
pub struct Lease {
    pipe: OwnedFd,
}

impl Lease {
    /// A lease: the agent's end and the guard's.
    pub fn new() -> io::Result<(Lease, OwnedFd)> {
        let (guard, agent) = socket::pipe()?;
        socket::set_nonblocking(&agent)?;
        socket::set_nonblocking(&guard)?;
        Ok((Lease { pipe: agent }, guard))
    }

    /// Says one of the bytes above. A full pipe means that the guard has enough of them to read.
    pub fn say(&self, byte: u8) {
        let _ = rustix::io::write(&self.pipe, &[byte]);
    }
}

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
