//! Holds the agent of this node for a front elsewhere: moves bytes between the two, and ends when agent and guard have ended.
//!
//! When the front is gone the agent sees the end of the stream, and ends its workers; the holder waits until that is done.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::ExitCode;
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_wire::{Carrier, Memory, Transport};

use crate::driver::Clock;
use crate::guard::{GuardState, Keeper, LOOK_STEP, LastKnown, Launched, Proof};

/// Bytes moved at a time.
const READ: usize = 256 * 1024;
/// How long the guard may take to end after the agent.
const GUARD_BOUND: Duration = Duration::from_secs(15);

const AGENT: u64 = 0;
const SIGNALS: u64 = 1;

/// What a holder does besides.
pub trait Holder {
    /// A signal has come that is not about a child.
    fn signal(&mut self, held: &mut Held, number: i32);

    /// How long a front that is gone may take to come back, or another to take its place, where the stream lasts.
    fn waits_for_front(&self) -> Duration {
        Duration::ZERO
    }

    /// The front has sent something.
    fn heard(&mut self, _now: Duration) {}

    /// The agent has sent this.
    fn passed(&mut self, _now: Duration, _bytes: &[u8]) {}

    /// A descriptor of the holder's own is ready.
    fn ready(&mut self, _held: &mut Held, _event: Ready) {}

    /// When [`Holder::tick`] is due.
    fn deadline(&self, _now: Duration) -> Option<Duration> {
        None
    }

    /// Called in each turn of the loop.
    fn tick(&mut self, _held: &mut Held, _now: Duration) {}
}

/// The agent, its guard, and the connection to the front.
#[derive(Debug)]
pub struct Held {
    pub clock: Clock,
    pub poller: Poller,
    pub signals: SignalFd,
    pub keeper: Keeper,
    /// `None` once it is gone.
    front: Option<Transport>,
    agent: Option<Conn>,
    /// Bytes may have come with its connection.
    is_fresh: bool,
    /// Nothing can be sent to it any more. What it has sent before is still read.
    is_front_deaf: bool,
    /// The front went first: the agent still ends its workers, and the guard outlives it.
    is_orphan: bool,
    /// Since when no front is connected that could come back.
    missed_since: Option<Duration>,
}

impl Held {
    /// The front's connection is polled under this token.
    pub const FRONT: u64 = 2;
    /// The tokens from here on are the holder's own.
    pub const OTHERS: u64 = 3;

    /// An agent that was just launched. `signals` has SIGCHLD.
    pub fn new(launched: Launched, poller: Poller, signals: SignalFd, front: Transport) -> io::Result<Held> {
        let stream = launched.stream.as_fd().try_clone_to_owned()?;
        let agent = Some(Conn::of_socket(&poller.registry(), AGENT, stream)?);
        poller.add(&signals, SIGNALS, Interest::Read)?;
        let (keeper, front) = (Keeper::new(launched), Some(front));
        Ok(Held {
            clock: Clock::default(),
            poller,
            signals,
            keeper,
            front,
            agent,
            is_fresh: true,
            is_front_deaf: false,
            is_orphan: false,
            missed_since: None,
        })
    }

    /// A front that was gone is back, or another one has taken its place: the stream goes on over this connection, the old one is closed.
    pub fn take_back(&mut self, conn: impl Into<Carrier>) -> io::Result<()> {
        let Some(front) = &mut self.front else { return Ok(()) };
        front.disconnect();
        let connected = front.connect(conn, Vec::new());
        if connected.is_err() {
            front.disconnect();
            let now = self.clock.now();
            self.missed_since.get_or_insert(now);
            return connected;
        }
        self.missed_since = None;
        // That was the old connection.
        self.is_front_deaf = false;
        self.is_fresh = true;
        Ok(())
    }

    /// The connection to the front is gone. A stream that lasts waits for another one.
    fn miss_front(&mut self) {
        if self.front.as_mut().is_some_and(Transport::disconnect) {
            let now = self.clock.now();
            self.missed_since.get_or_insert(now);
        } else {
            self.lose_front();
        }
    }

    /// The front is gone, and may come back.
    pub fn misses_front(&self) -> bool {
        self.missed_since.is_some()
    }

    pub fn has_front(&self) -> bool {
        self.front.is_some()
    }

    pub fn is_orphan(&self) -> bool {
        self.is_orphan
    }

    pub fn send_to_front(&mut self, bytes: Bytes) {
        self.is_front_deaf |= self.front.as_mut().is_some_and(|front| front.send([bytes]).is_err());
    }

    /// The agent sees the end of the stream, and ends its workers.
    pub fn lose_front(&mut self) {
        self.missed_since = None;
        self.is_orphan |= self.agent.is_some();
        (self.front, self.agent) = (None, None);
    }

    /// Moves bytes until agent and guard have ended. Returns whether nothing is left, as an exit code, and what the guard has found in
    /// /dev/shm.
    pub fn run(&mut self, holder: &mut impl Holder) -> io::Result<(ExitCode, Option<Memory>)> {
        let mut ready: Vec<Ready> = Vec::new();
        let mut ended_at = None;
        loop {
            if std::mem::take(&mut self.is_fresh) {
                self.read_front(holder);
            }
            let now = self.clock.now();
            if self.agent.is_none() {
                // The front is to see the end at once, and what holds the agent later.
                self.front.take_if(|front| front.unsent() == 0 && (front.unacknowledged() == 0 || front.is_finished()));
                ended_at = ended_at.filter(|_| self.missed_since.is_none());
                let is_late = now.saturating_sub(*ended_at.get_or_insert(now)) > GUARD_BOUND
                    && !self.is_orphan
                    && self.missed_since.is_none();
                if (self.keeper.state != GuardState::Alive && self.front.is_none()) || is_late {
                    break;
                }
            }
            let missed = self.missed_since.map(|since| since + holder.waits_for_front());
            let due = [self.keeper.watch.deadline(), holder.deadline(now), missed].into_iter().flatten().min();
            let due = due.map(|due| due.saturating_sub(now));
            let step = self.agent.is_none().then_some(LOOK_STEP);
            self.poller.wait([due, step].into_iter().flatten().min(), &mut ready)?;
            for &event in &ready {
                if self.poller.is_current(event) {
                    self.dispatch(holder, event);
                }
            }
            let now = self.clock.now();
            holder.tick(self, now);
            if self.missed_since.is_some_and(|since| now >= since + holder.waits_for_front()) {
                self.lose_front();
            }
            if std::mem::take(&mut self.is_front_deaf) {
                // The job's end may be among it.
                self.read_front(holder);
                self.miss_front();
            }
            // Guard and agent are given up if they hang.
            if self.keeper.end_what_hangs(now, self.agent.is_some()) {
                self.agent = None;
            }
        }
        let Proof { is_empty, memory } = self.keeper.prove(LastKnown::unknown(), &Vec::new);
        Ok((if is_empty { ExitCode::SUCCESS } else { ExitCode::LEFT_BEHIND }, memory))
    }

    fn dispatch(&mut self, holder: &mut impl Holder, event: Ready) {
        match event.token {
            Self::FRONT => {
                self.is_front_deaf |= event.writable && self.front.as_mut().is_some_and(|front| front.flush().is_err());
                if event.readable {
                    self.read_front(holder);
                }
            }
            AGENT => {
                if event.writable && self.agent.as_mut().is_some_and(|agent| agent.flush().is_err()) {
                    self.agent = None;
                }
                if event.readable {
                    self.read_agent(holder);
                }
            }
            SIGNALS => {
                while let Some((number, _)) = self.signals.next() {
                    if number != signal::SIGCHLD {
                        holder.signal(self, number);
                    }
                }
                self.keeper.children_changed(self.clock.now(), self.agent.is_some());
            }
            _ => holder.ready(self, event),
        }
    }

    /// Moves what the front has sent.
    fn read_front(&mut self, holder: &mut impl Holder) {
        loop {
            let Some(front) = &mut self.front else { return };
            let mut room = vec![0; READ];
            match front.read(&mut room) {
                Ok(Incoming::Bytes(count)) => {
                    holder.heard(self.clock.now());
                    let has_more = front.has_more();
                    // We have it until the agent takes it.
                    self.is_front_deaf |= front.is_safe(0).is_err();
                    room.truncate(count);
                    if let Some(agent) = &mut self.agent {
                        // If it is gone, its own end says so.
                        let _ = agent.send([Bytes::from(room)]);
                    }
                    if !has_more {
                        return;
                    }
                }
                Ok(Incoming::Nothing) => return,
                Ok(Incoming::End) | Err(_) => return self.miss_front(),
            }
        }
    }

    /// Moves what the agent has sent.
    fn read_agent(&mut self, holder: &mut impl Holder) {
        let Some(agent) = &mut self.agent else { return };
        let mut room = vec![0; READ];
        match agent.read(&mut room) {
            Ok(Incoming::Bytes(count)) => {
                room.truncate(count);
                holder.passed(self.clock.now(), &room);
                self.send_to_front(Bytes::from(room));
            }
            Ok(Incoming::Nothing) => {}
            Ok(Incoming::End) | Err(_) => self.agent = None,
        }
    }
}
