//! The agent's ends of a PMIx host, and how it is waited for.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rankrun_core::lease::Vitals;
use rankrun_core::patience::Patience;
use rankrun_sys::poll::{Interest, Poller};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::{reason, socket};
use rankrun_wireup::messages::Decoder;
use rankrun_wireup::pmix::{FromHost, ToHost};

use crate::driver::token::Token;
use crate::helpers::control::Control;
use crate::streams::{Capture, Read};

/// Bytes of a line of the host's stderr that are kept.
const LINE: usize = 64 * 1024;
/// How long a host may take until ranks can connect, without the time for which it gets no CPU: it loads a library, and reads the machine's topology.
const START_BOUND: Duration = Duration::from_secs(60);
/// How often a host is asked whether libpmix's thread still works, and how long it may take to answer, likewise.
const PING: Duration = Duration::from_secs(5);
const PING_BOUND: Duration = Duration::from_secs(30);

/// Our ends of a host's descriptors.
struct Ends {
    control: Control,
    errors: Capture,
}

enum State {
    /// No rank has connected.
    Waiting(OwnedFd),
    /// A rank has connected: the host is to be started.
    Wanted(OwnedFd),
    /// It was given to the spawner, or runs and is not ready.
    Starting {
        ends: Ends,
        /// `None`: nobody waits for it.
        wait: Option<Patience>,
    },
    Running {
        ends: Ends,
        ping: Ping,
    },
    /// It has ended, or could not be started.
    Lost,
}

enum Ping {
    /// The next is due then.
    Due(Duration),
    /// One is under way.
    Sent(Patience),
}

impl Ping {
    fn at(&self) -> Duration {
        match self {
            Ping::Due(at) => *at,
            Ping::Sent(wait) => wait.due(),
        }
    }
}

/// The host, before it is started, and after.
pub(super) struct Host {
    state: State,
    /// The last line of the host's stderr, and the beginning of the next.
    last_line: String,
    partial: Vec<u8>,
}

/// What the host itself inherits: its end of the connection, the listening socket, and its stderr.
pub(super) type Inherited = [OwnedFd; 3];

impl Host {
    /// A host that is started when somebody connects to this socket, which is in the poll set.
    pub(super) fn new(listener: OwnedFd) -> Host {
        Host { state: State::Waiting(listener), last_line: String::new(), partial: Vec::new() }
    }

    /// A rank has connected: the host is to be started.
    pub(super) fn connected(&mut self, poller: &Poller) {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Waiting(listener) => {
                // The host watches it from now on.
                let _ = poller.remove(&listener);
                State::Wanted(listener)
            }
            other => other,
        };
    }

    pub(super) fn is_wanted(&self) -> bool {
        matches!(self.state, State::Wanted(_))
    }

    pub(super) fn is_coming_up(&self) -> bool {
        matches!(self.state, State::Wanted(_) | State::Starting { .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Prepares its start, with the first messages.
    pub(super) fn start(&mut self, now: Duration, messages: &[ToHost], poller: &Poller) -> io::Result<Inherited> {
        let (ours, theirs) = socket::pair()?;
        let (errors, their_errors) = socket::pipe()?;
        socket::set_nonblocking(&errors)?;
        poller.add(&errors, Token::PmixErrors.encode(), Interest::Read)?;
        let conn = Conn::of_socket(&poller.registry(), Token::PmixHost.encode(), ours)?;
        let mut control = Control::new(conn, Decoder::default());
        control.send(messages)?;
        let ends = Ends { control, errors: Capture::new(errors) };
        // Not before all else is done: an error is that of a host which is wanted.
        let State::Wanted(listener) =
            std::mem::replace(&mut self.state, State::Starting { ends, wait: Some(Patience::new(now, START_BOUND)) })
        else {
            self.state = State::Lost;
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok([theirs, listener, their_errors])
    }

    /// It serves.
    pub(super) fn ready(&mut self, now: Duration) {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Starting { ends, .. } => State::Running { ends, ping: Ping::Due(now + PING) },
            other => other,
        };
    }

    /// The first connection did not come from a rank: nobody waits for the host.
    pub(super) fn has_no_client(&mut self) {
        self.wait_for_start(None);
    }

    /// After that a rank has connected.
    pub(super) fn has_client(&mut self, now: Duration) {
        self.wait_for_start(Some(Patience::new(now, START_BOUND)));
    }

    /// How the host is waited for, until it is ready.
    fn wait_for_start(&mut self, next: Option<Patience>) {
        if let State::Starting { wait, .. } = &mut self.state {
            *wait = next;
        }
    }

    pub(super) fn pong(&mut self, now: Duration) {
        if let State::Running { ping, .. } = &mut self.state {
            *ping = Ping::Due(now + PING);
        }
    }

    /// Sends what waits. An error ends the host.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        let flushed = self.ends().map_or(Ok(()), |ends| ends.control.flush());
        flushed.map_err(|error| cannot_send(&error))
    }

    /// Sends a message, if there is a host. An error ends the host.
    pub(super) fn send(&mut self, message: &ToHost) -> Result<(), String> {
        match self.ends().map(|ends| ends.control.send([message])) {
            // An answer that is too long: its request was as long.
            Some(Err(error)) if error.kind() != io::ErrorKind::InvalidData => Err(cannot_send(&error)),
            Some(Ok(()) | Err(_)) | None => Ok(()),
        }
    }

    /// Reads what there is. `false`: there is nothing more.
    pub(super) fn read(&mut self) -> Result<bool, String> {
        let Some(ends) = self.ends() else { return Ok(false) };
        match ends.control.read() {
            Ok(Incoming::Bytes(_)) => Ok(true),
            // Its end is reported when it is reaped, with its status.
            Ok(Incoming::Nothing | Incoming::End) => Ok(false),
            Err(error) => Err(format!("cannot read from the PMIx host: {}", reason(&error))),
        }
    }

    /// The next whole message of what was read.
    pub(super) fn next_message(&mut self) -> Result<Option<FromHost>, String> {
        let Some(ends) = self.ends() else { return Ok(None) };
        ends.control.next_message().map_err(|error| format!("the PMIx host wrote nonsense: {error}"))
    }

    /// The lines of its stderr that are there.
    pub(super) fn read_errors(&mut self, poller: &Poller) -> Vec<String> {
        let (lines, is_open) = self.read_lines();
        if !is_open && let Some(ends) = self.ends() {
            // It is in the set.
            let _ = poller.remove(&ends.errors);
        }
        lines
    }

    /// The lines that are there, and whether there may be more.
    fn read_lines(&mut self) -> (Vec<String>, bool) {
        let mut buffer = Vec::new();
        let mut lines = Vec::new();
        let is_open = loop {
            let Some(ends) = self.ends() else { break false };
            match ends.errors.read(&mut buffer) {
                Read::Bytes(bytes) => self.partial.extend_from_slice(&bytes),
                Read::Empty => break true,
                Read::End => break false,
            }
            while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                lines.push(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            // A line without an end is cut.
            self.partial.truncate(LINE);
        };
        if let Some(last) = lines.iter().rev().find(|line| !line.trim().is_empty()) {
            self.last_line = last.trim().to_owned();
        }
        (lines, is_open)
    }

    /// The last line of its stderr, after its end.
    pub(super) fn last_line(&mut self) -> &str {
        self.read_lines();
        &self.last_line
    }

    /// When [`Host::tick`] is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match &self.state {
            State::Starting { wait, .. } => wait.as_ref().map(Patience::due),
            State::Running { ping, .. } => Some(ping.at()),
            State::Waiting(_) | State::Wanted(_) | State::Lost => None,
        }
    }

    /// Does what is due. `look`: what the kernel knows of the host's process. An error ends the host.
    pub(super) fn tick(&mut self, now: Duration, look: impl FnOnce() -> Option<Vitals>) -> Result<(), String> {
        match &mut self.state {
            State::Starting { wait: Some(wait), .. } => match wait.tick(now, look) {
                true => Err(format!("the PMIx host was not ready within {} s", START_BOUND.as_secs())),
                false => Ok(()),
            },
            State::Running { ping: Ping::Sent(wait), .. } => match wait.tick(now, look) {
                true => Err(format!("libpmix did not answer for {} s", PING_BOUND.as_secs())),
                false => Ok(()),
            },
            State::Running { ping: ping @ Ping::Due(_), .. } if ping.at() <= now => {
                *ping = Ping::Sent(Patience::new(now, PING_BOUND));
                self.send(&ToHost::Ping)
            }
            State::Starting { .. } | State::Running { .. } | State::Waiting(_) | State::Wanted(_) | State::Lost => {
                Ok(())
            }
        }
    }

    /// It can serve no more, or is needed no more: it ends when its connection is closed. `false`: it was lost before.
    pub(super) fn end(&mut self) -> bool {
        !matches!(std::mem::replace(&mut self.state, State::Lost), State::Lost)
    }

    fn ends(&mut self) -> Option<&mut Ends> {
        match &mut self.state {
            State::Starting { ends, .. } | State::Running { ends, .. } => Some(ends),
            State::Waiting(_) | State::Wanted(_) | State::Lost => None,
        }
    }
}

fn cannot_send(error: &io::Error) -> String {
    format!("cannot send to the PMIx host: {}", reason(error))
}
