//! The one thing that a loop of ours waits on: a set of descriptors, each under a token.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// What a loop is told when its descriptor is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// The other end is gone, or an exceptional condition (a cgroup's events file has changed).
    pub hangup: bool,
}

/// What a loop wants to know of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    Read,
    ReadWrite,
    Write,
    /// Only that the other end is gone.
    Hangup,
    /// An exceptional condition: `cgroup.events`.
    Exception,
}

/// A level-triggered epoll set.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// Events taken per wait: enough to drain a burst, few enough to look at control frames in between.
const BATCH: usize = 256;

impl Poller {
    pub fn new() -> io::Result<Poller> {
        Ok(Poller { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, events: Vec::with_capacity(BATCH) })
    }

    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), flags(interest))?)
    }

    pub fn change(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags(interest))?)
    }

    /// A descriptor that is closed leaves the set by itself only if no duplicate of it is open anywhere.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits until a descriptor is ready or the time-out has passed, and puts what is ready into `ready`.
    pub fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        let timeout = timeout.map(|timeout| {
            // Rounded up to a microsecond, so that a timer is never early by a hair and the loop does not spin.
            let rounded = timeout + Duration::from_micros(1);
            Timespec { tv_sec: rounded.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(rounded.subsec_nanos()) }
        });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            Ready {
                token: data.u64(),
                readable: flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR),
                writable: flags.intersects(EventFlags::OUT | EventFlags::ERR),
                hangup: flags.intersects(EventFlags::HUP | EventFlags::ERR | EventFlags::PRI),
            }
        }));
        Ok(())
    }
}

fn flags(interest: Interest) -> EventFlags {
    match interest {
        Interest::Read => EventFlags::IN,
        Interest::ReadWrite => EventFlags::IN | EventFlags::OUT,
        Interest::Write => EventFlags::OUT,
        Interest::Hangup => EventFlags::empty(),
        Interest::Exception => EventFlags::PRI,
    }
}

/// Wakes a loop from another thread.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
}

impl Waker {
    pub fn new() -> io::Result<Waker> {
        Ok(Waker { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Another handle to the same wake-up.
    pub fn handle(&self) -> io::Result<Waker> {
        Ok(Waker { fd: self.fd.try_clone()? })
    }

    pub fn wake(&self) {
        // The counter cannot overflow in practice; if it would, the loop is awake already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Forgets the wake-ups so far.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
