//! One connection of a node to the front, from the first packet to the verdict. It waits for nothing: it is part of its caller's loop.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rankrun_core::contact::longest_silence;
use rankrun_sys::poll::{Interest, Registry};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::{reason, socket};
use rankrun_wire::Carrier;
use rankrun_wire::identity::{Accepted, Admission, Connector, JoinError, Node, Purpose};

/// Bytes read at a time.
const READ: usize = 16 * 1024;

/// Why one try failed; another one may not.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) why: String,
    /// The machine answers, and nobody listens there.
    pub(super) is_refused: bool,
    /// The front has answered: the node is to ask again.
    pub(super) was_answered: bool,
}

impl Failed {
    pub(super) fn new(why: impl Into<String>) -> Failed {
        Failed { why: why.into(), is_refused: false, was_answered: false }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed {
            why: reason(&error),
            is_refused: error.kind() == io::ErrorKind::ConnectionRefused,
            was_answered: false,
        }
    }
}

/// Why there is no verdict, or which one it is.
#[derive(Debug)]
pub(super) enum Trouble {
    Failed(Failed),
    /// Another try cannot help.
    Denied(JoinError),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Failed(error.into())
    }
}

fn failed(why: &str) -> Trouble {
    Trouble::Failed(Failed::new(why))
}

/// The connection.
#[derive(Debug)]
pub(super) struct Call {
    registry: Registry,
    token: u64,
    purpose: Purpose,
    state: State,
}

#[derive(Debug)]
enum State {
    Connecting(OwnedFd),
    Talking { conn: Conn, connector: Box<Connector> },
    Over,
}

impl Call {
    /// Begins to connect. It is ready under `token`.
    pub(super) fn begin(registry: Registry, token: u64, purpose: Purpose, address: SocketAddr) -> io::Result<Call> {
        let stream = socket::begin_connect(address)?;
        registry.add(&stream, token, Interest::Write)?;
        Ok(Call { registry, token, purpose, state: State::Connecting(stream) })
    }

    /// Whether the claim was sent: what follows is the front's decision.
    pub(super) fn has_claimed(&self) -> bool {
        match &self.state {
            State::Talking { connector, .. } => connector.has_claimed(),
            State::Connecting(_) | State::Over => false,
        }
    }

    /// It is ready. Returns the verdict of the front once it is here.
    pub(super) fn ready(&mut self, node: &Node) -> Result<Option<Accepted>, Trouble> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Connecting(stream) => {
                self.registry.remove(&stream)?;
                self.state = self.connected(node, stream)?;
                Ok(None)
            }
            State::Talking { mut conn, mut connector } => {
                let accepted = talk(&mut conn, &mut connector, &self.purpose)?;
                self.state = State::Talking { conn, connector };
                Ok(accepted)
            }
            State::Over => Err(failed("it closed the connection")),
        }
    }

    fn connected(&self, node: &Node, stream: OwnedFd) -> Result<State, Trouble> {
        socket::connected(&stream)?;
        if socket::is_its_own_peer(&stream) {
            // Where nobody listens, the kernel may connect a socket to itself, if it gave it the port that it asks for.
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        socket::watch_peer(&stream, std::time::Duration::ZERO)?;
        let mut connector = Connector::new(node, self.purpose.clone()).map_err(Trouble::Denied)?;
        let mut conn = Conn::of_socket(&self.registry, self.token, stream)?;
        conn.send([connector.take_output()])?;
        Ok(State::Talking { conn, connector: Box::new(connector) })
    }

    /// The node is admitted: the connection is polled under this token from now on.
    pub(super) fn admitted(
        mut self,
        node: &mut Node,
        admission: &Admission,
        registry: &Registry,
        token: u64,
    ) -> Result<Carrier, Failed> {
        let State::Talking { conn, connector } = std::mem::replace(&mut self.state, State::Over) else {
            return Err(Failed::new("it closed the connection"));
        };
        node.admitted(&connector, admission);
        let tls = connector.into_tls().ok_or_else(|| Failed::new("it closed the connection"))?;
        socket::watch_peer(&conn, longest_silence(admission.node_timeout))?;
        Ok(Carrier::secured(conn.move_to(registry, token)?, tls, Bytes::new()))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let State::Connecting(stream) = &self.state {
            // It is closed anyway.
            let _ = self.registry.remove(stream);
        }
    }
}

/// Moves the conversation on.
fn talk(conn: &mut Conn, connector: &mut Connector, purpose: &Purpose) -> Result<Option<Accepted>, Trouble> {
    conn.flush()?;
    let mut room = [0; READ];
    let count = match conn.read(&mut room)? {
        Incoming::Bytes(count) => count,
        Incoming::Nothing => return Ok(None),
        Incoming::End if connector.was_answered() => return Err(failed("it closed the connection")),
        Incoming::End => {
            return Err(failed("it closed the connection at once: it has another secret, or is no rankrun"));
        }
    };
    let step = connector.receive(&room[..count]);
    conn.send([connector.take_output()])?;
    step.map_err(|error| match error {
        error if error.is_final() => Trouble::Denied(error),
        error @ JoinError::Later(_) if *purpose != Purpose::Join => Trouble::Denied(error),
        error @ JoinError::Later(_) => Trouble::Failed(Failed { was_answered: true, ..Failed::new(error.to_string()) }),
        error => failed(&error.to_string()),
    })
}
