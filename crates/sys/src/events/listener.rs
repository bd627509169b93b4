//! A listening socket of the loop. It leaves the poll set for a rest where too many connect in a time, or where there are no descriptors
//! left: a listener that stays readable would take the whole loop.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::poll::{Interest, Registry};

#[derive(Debug)]
pub struct Listener {
    registry: Registry,
    token: u64,
    socket: OwnedFd,
    /// How long a rest is, and the time in which connections are counted.
    step: Duration,
    /// When the present time of counting began, and how many connections were taken in it.
    window: (Duration, usize),
    /// It is out of the poll set until then.
    rests_until: Option<Duration>,
}

impl Listener {
    /// `socket` does not block. `step`: how long a rest is, and the time in which connections are counted.
    ///
    /// # Errors
    ///
    /// The socket cannot be polled.
    pub fn new(registry: Registry, token: u64, socket: OwnedFd, step: Duration) -> io::Result<Listener> {
        registry.add(&socket, token, Interest::Read)?;
        Ok(Listener { registry, token, socket, step, window: (Duration::ZERO, 0), rests_until: None })
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// How many connections were taken in the present time.
    pub fn taken(&mut self, now: Duration) -> usize {
        if now >= self.window.0 + self.step {
            self.window = (now, 0);
        }
        self.window.1
    }

    /// So many were taken now.
    pub fn count(&mut self, taken: usize) {
        self.window.1 += taken;
    }

    /// Takes no connections for a while.
    pub fn rest(&mut self, now: Duration) {
        if self.registry.remove(&self.socket).is_ok() {
            self.rests_until = Some(now + self.step);
        }
    }

    /// When [`Listener::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.rests_until
    }

    /// Takes connections again after a rest.
    pub fn tick(&mut self, now: Duration) {
        if self.rests_until.take_if(|until| *until <= now).is_some() {
            // In the set already: nothing is lost.
            let _ = self.registry.add(&self.socket, self.token, Interest::Read);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may be out of the set, for a rest.
        let _ = self.registry.remove(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::poll::Poller;
    use crate::socket;

    const WINDOW: Duration = Duration::from_millis(20);

    #[test]
    fn a_listener_that_rests_is_not_ready_until_its_rest_is_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let mut poller = Poller::new().expect("a poller");
        let socket = socket::listen(&path).expect("a socket");
        let mut listener = Listener::new(poller.registry(), 7, socket, WINDOW).expect("it can be polled");
        let _client = UnixStream::connect(&path).expect("it listens");
        let mut is_ready = || {
            let mut ready = Vec::new();
            poller.wait(Some(Duration::ZERO), &mut ready).expect("a poller");
            ready.iter().any(|ready| ready.token == 7)
        };
        assert!(is_ready());
        assert_eq!((listener.taken(WINDOW), listener.deadline()), (0, None));
        listener.count(3);
        assert_eq!(listener.taken(WINDOW * 3 / 2), 3);
        listener.rest(WINDOW * 3 / 2);
        assert!(!is_ready());
        listener.tick(WINDOW * 2);
        assert!(!is_ready() && listener.deadline() == Some(WINDOW * 5 / 2));
        listener.tick(WINDOW * 5 / 2);
        assert!(is_ready() && listener.deadline().is_none());
        assert_eq!(listener.taken(WINDOW * 5 / 2), 0);
    }
}
