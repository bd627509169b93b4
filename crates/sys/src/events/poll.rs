//! A loop waits on one set of descriptors, each with a token.
//!
//! A loop receives several events at once and handles them one after the other. Handling one may close a descriptor
//! that has another event pending, and the next descriptor that is opened may get the same number. So each entry of the
//! set has a generation. The kernel returns it with the event, and [`Poller::is_current`] says whether the event still
//! belongs to the entry that is in the set now.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{self, EventfdFlags, PollFd, Timespec, eventfd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

/// How often to look whether something is free.
const FREE_STEP: Duration = Duration::from_millis(2);

/// Bits of a token for the number of its owner. The bits above are the kind of the owner.
const NUMBER_BITS: u32 = 56;

/// The token of an owner: its kind, and its number among the owners of this kind. Use [`kinds!`](crate::kinds).
pub const fn token(kind: u8, number: u64) -> u64 {
    debug_assert!(number >> NUMBER_BITS == 0, "the number of an owner fits below its kind");
    (kind as u64) << NUMBER_BITS | number & (u64::MAX >> u8::BITS)
}

/// The kind and the number of a token's owner.
pub const fn owner(token: u64) -> (u8, u64) {
    ((token >> NUMBER_BITS) as u8, token & (u64::MAX >> u8::BITS))
}

/// Declares the kinds of a loop's descriptors, and makes their tokens. The compiler numbers the kinds, and a kind and a number have
/// bits of their own in a token: two owners never share one.
#[macro_export]
macro_rules! kinds {
    ($(#[$doc:meta])* $vis:vis enum $Kind:ident { $($(#[$about:meta])* $name:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        $vis enum $Kind { $($(#[$about])* $name),+ }

        impl $Kind {
            /// All kinds, each at its number.
            const ALL: &'static [$Kind] = &[$($Kind::$name),+];

            /// The token of the owner of this kind with this number.
            $vis const fn token(self, number: u64) -> u64 {
                $crate::poll::token(self as u8, number)
            }

            /// The kind and the number of a token's owner. `None`: this loop has given no such token.
            $vis fn owner(token: u64) -> Option<($Kind, u64)> {
                let (kind, number) = $crate::poll::owner(token);
                Some((*Self::ALL.get(usize::from(kind))?, number))
            }
        }
    };
}

/// Waits until one of these is ready, or the time has passed; an interrupted wait is shorter. Whoever waits looks in any case at
/// what it waits for, and at the time.
pub fn wait_for(ends: &mut [PollFd<'_>], time: Option<Duration>) {
    let timeout = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
    // A wait that fails is over.
    let _ = event::poll(ends, timeout.as_ref());
}

/// Waits for so long, without allocation. An interrupted pause is shorter.
pub fn pause(time: Duration) {
    wait_for(&mut [], Some(time));
}

/// Tries again what a process holds that was killed, and is about to let go of: `busy` is its error until then.
///
/// # Errors
///
/// Those of the last attempt, `busy` after this time.
pub fn once_free<T>(busy: io::ErrorKind, bound: Duration, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let until = Instant::now() + bound;
    loop {
        match attempt() {
            Err(error) if error.kind() == busy && Instant::now() < until => pause(FREE_STEP),
            done => return done,
        }
    }
}

/// A descriptor is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    entry: Entry,
}

/// One descriptor in a set, from its addition to its removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    fd: u32,
    generation: u32,
}

impl Entry {
    fn encode(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.fd)
    }

    fn decode(data: u64) -> Entry {
        Entry { fd: data as u32, generation: (data >> 32) as u32 }
    }
}

/// What a loop waits for on a descriptor.
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

/// The entries of a level-triggered epoll set. Clones share the set: a connection keeps one, to set itself what it waits
/// for.
#[derive(Clone, Debug)]
pub struct Registry {
    epoll: Rc<OwnedFd>,
    /// By descriptor.
    rows: Rc<RefCell<Vec<Row>>>,
}

/// The state of a descriptor's number.
#[derive(Clone, Copy, Default, Debug)]
struct Row {
    /// That of its last entry.
    generation: u32,
    /// The token of its present entry.
    token: Option<u64>,
}

impl Registry {
    /// Adds a descriptor. An earlier entry of the same number is replaced: its descriptor was closed.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let number = fd.as_fd().as_raw_fd() as usize;
        let mut rows = self.rows.borrow_mut();
        if rows.len() <= number {
            rows.resize(number + 1, Row::default());
        }
        let entry = Entry { fd: number as u32, generation: rows[number].generation.wrapping_add(1) };
        epoll::add(&self.epoll, fd, EventData::new_u64(entry.encode()), flags(interest))?;
        rows[number] = Row { generation: entry.generation, token: Some(token) };
        Ok(())
    }

    /// Changes the interest and the token of a descriptor.
    pub fn change(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let number = fd.as_fd().as_raw_fd() as usize;
        let mut rows = self.rows.borrow_mut();
        let row = rows.get_mut(number).ok_or(rustix::io::Errno::NOENT)?;
        let entry = Entry { fd: number as u32, generation: row.generation };
        epoll::modify(&self.epoll, fd, EventData::new_u64(entry.encode()), flags(interest))?;
        row.token = Some(token);
        Ok(())
    }

    /// Closing a descriptor removes it from the set only if no duplicate of it is open anywhere.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        if let Some(row) = self.rows.borrow_mut().get_mut(fd.as_fd().as_raw_fd() as usize) {
            row.token = None;
        }
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// The token of an entry, if it is still in the set.
    fn token(&self, entry: Entry) -> Option<u64> {
        let row = *self.rows.borrow().get(entry.fd as usize)?;
        row.token.filter(|_| row.generation == entry.generation)
    }
}

/// A level-triggered epoll set, and the wait for it.
pub struct Poller {
    registry: Registry,
    events: Vec<epoll::Event>,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("registry", &self.registry).finish_non_exhaustive()
    }
}

/// Events taken per wait: enough to drain a burst, few enough to look at control frames in between.
const BATCH: usize = 256;

impl Poller {
    pub fn new() -> io::Result<Poller> {
        let epoll = Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        Ok(Poller { registry: Registry { epoll, rows: Rc::default() }, events: Vec::with_capacity(BATCH) })
    }

    /// The entries, for something that adds and removes itself.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.registry.add(fd, token, interest)
    }

    pub fn change(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.registry.change(fd, token, interest)
    }

    /// See [`Registry::remove`].
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        self.registry.remove(fd)
    }

    /// Whether the descriptor of an event is still in the set. Call it just before handling the event: an earlier event
    /// may have removed the descriptor, and added another one with its number.
    pub fn is_current(&self, ready: Ready) -> bool {
        self.registry.token(ready.entry).is_some()
    }

    /// Waits until a descriptor is ready or the time-out has passed, and puts what is ready into `ready`.
    pub fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        let timeout = timeout.map(|timeout| {
            // Rounded up to a microsecond, so that a timer is never slightly early and the loop does not spin.
            let rounded = timeout + Duration::from_micros(1);
            Timespec { tv_sec: rounded.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(rounded.subsec_nanos()) }
        });
        match epoll::wait(&self.registry.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().filter_map(|event| {
            let (flags, data) = (event.flags, event.data);
            let entry = Entry::decode(data.u64());
            Some(Ready {
                token: self.registry.token(entry)?,
                readable: flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR),
                writable: flags.intersects(EventFlags::OUT | EventFlags::ERR),
                entry,
            })
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
        // A file of the kernel's has the condition until this very descriptor is read. Its state is read by its name: only a change may wake the
        // loop.
        Interest::Exception => EventFlags::PRI | EventFlags::ET,
    }
}

/// Wakes a loop from another thread.
#[derive(Clone, Debug)]
pub struct Waker {
    fd: Arc<OwnedFd>,
}

impl Waker {
    pub fn new() -> io::Result<Waker> {
        Ok(Waker { fd: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?) })
    }

    pub fn wake(&self) {
        // The counter cannot overflow in practice; if it would, the loop is awake already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Clears the wake-ups so far.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes a loop's set ready after a time, whatever else the loop waits for, and whoever waits.
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
}

impl Timer {
    pub fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Timer { fd: timerfd_create(TimerfdClockId::Monotonic, flags)? })
    }

    /// Is ready once, after this time.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        // Zero would disarm it.
        let after = after.max(Duration::from_nanos(1));
        let value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &timer)?;
        Ok(())
    }

    /// Is not ready any more, if it was.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(poller: &mut Poller) -> Vec<Ready> {
        let mut ready = Vec::new();
        poller.wait(Some(Duration::ZERO), &mut ready).expect("an epoll set can be waited for");
        ready
    }

    #[test]
    fn an_event_of_a_closed_descriptor_does_not_reach_its_successor() {
        let mut poller = Poller::new().expect("a poller");
        let first = Waker::new().expect("a waker");
        first.wake();
        poller.add(&first, 7, Interest::Read).expect("it can be added");
        let stale = ready(&mut poller)[0];
        assert!(poller.is_current(stale) && stale.token == 7);
        poller.remove(&first).expect("it is in the set");
        assert!(!poller.is_current(stale));
        // Another descriptor gets the number, with the same token.
        let second = Waker::new().expect("a waker");
        let second = in_place_of(first, &second);
        poller.add(&second, 7, Interest::Read).expect("it can be added");
        assert!(!poller.is_current(stale));
        second.wake();
        let event = ready(&mut poller)[0];
        assert!(poller.is_current(event));
    }

    /// Closes `first`, and gives its number to a duplicate of `second`.
    fn in_place_of(first: Waker, second: &Waker) -> Waker {
        let mut fd = Arc::into_inner(first.fd).expect("nobody else has it");
        rustix::io::dup3(&second.fd, &mut fd, rustix::io::DupFlags::CLOEXEC).expect("a duplicate");
        Waker { fd: Arc::new(fd) }
    }

    #[test]
    fn a_descriptor_that_was_closed_without_a_word_is_replaced() {
        let mut poller = Poller::new().expect("a poller");
        let first = Waker::new().expect("a waker");
        first.wake();
        poller.add(&first, 1, Interest::Read).expect("it can be added");
        let stale = ready(&mut poller)[0];
        let second = Waker::new().expect("a waker");
        let second = in_place_of(first, &second);
        poller.add(&second, 2, Interest::Read).expect("the first one left the set when it was closed");
        assert!(!poller.is_current(stale));
        assert!(ready(&mut poller).is_empty());
    }
}
