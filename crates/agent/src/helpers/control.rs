//! How an agent calls a process of its own, and the connection between the two.

use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use rankrun_core::{ExitCode, Purpose};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::Ready;
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::spawn::{Command, Session};
use rankrun_sys::{reason, signal};
use rankrun_wireup::messages::{Decoder, MessageError, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes read at a time.
const READ: usize = 64 * 1024;

/// The command of such a process, without its program. The first of its descriptors is its end of the connection.
pub(crate) fn command(
    purpose: Purpose,
    stdio: [OwnedFd; 3],
    env: Vec<CString>,
    cgroup: Option<OwnedFd>,
    limits: Limits,
) -> Command {
    Command {
        program: CString::default(),
        argv: vec![c"rankrun".into(), CString::new(purpose.argument()).unwrap_or_default()],
        env,
        shared_env: Vec::new().into(),
        wdir: Some(c"/".into()),
        stdio,
        keep: None,
        keeps_no_other: true,
        cgroup,
        session: Session::Own,
        ignored: Vec::new(),
        limits,
        place: None,
        parent: std::process::id() as i32,
        outlives_parent: false,
    }
}

/// In the process: its end of the connection. The agent ends it; a terminal's signals are for the ranks.
pub(super) fn own_end() -> io::Result<OwnedFd> {
    [signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGPIPE].into_iter().for_each(signal::ignore);
    Ok(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?)
}

/// In the process: works for the agent. Returns the exit code.
pub(super) fn serve(work: impl FnOnce(UnixStream) -> io::Result<()>) -> u8 {
    match own_end().and_then(|control| work(control.into())) {
        Ok(()) => ExitCode::SUCCESS.0,
        // The agent is gone, and nobody asks any more.
        Err(_) => ExitCode::FAILURE.0,
    }
}

/// What a process has sent, and why no more can come, if that is so.
pub(crate) type Turn<M> = (Vec<M>, Option<String>);

/// An end of the connection, in a loop.
#[derive(Debug)]
pub(crate) struct Control {
    conn: Conn,
    decoder: Decoder,
}

impl Control {
    /// `decoder` has what was received before.
    pub(crate) fn new(conn: Conn, decoder: Decoder) -> Control {
        Control { conn, decoder }
    }

    /// Sends messages, as far as there is room now.
    ///
    /// # Errors
    ///
    /// `InvalidData`: a message is too long, and was not sent.
    pub(crate) fn send<'a, M: Serialize + 'a>(&mut self, messages: impl IntoIterator<Item = &'a M>) -> io::Result<()> {
        let too_long = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let pieces = messages.into_iter().map(|message| encode(message).map(Bytes::from).map_err(too_long));
        self.conn.send(pieces.collect::<io::Result<Vec<Bytes>>>()?)
    }

    /// There is room again.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.conn.flush()
    }

    /// The connection of this process is ready: sends what waits, and reads what there is. That the process has ended is no news: it is
    /// reported when it is reaped, with its status.
    pub(crate) fn turn<M: DeserializeOwned>(&mut self, event: Ready, process: &str) -> Turn<M> {
        if event.writable
            && let Err(error) = self.flush()
        {
            return (Vec::new(), Some(format!("cannot send to {process}: {}", reason(&error))));
        }
        match event.readable {
            true => self.read_all(process),
            false => (Vec::new(), None),
        }
    }

    /// The same, for what is there to be read.
    pub(crate) fn read_all<M: DeserializeOwned>(&mut self, process: &str) -> Turn<M> {
        let mut messages = Vec::new();
        loop {
            let incoming = self.read();
            loop {
                match self.next_message() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, Some(format!("{process} wrote nonsense: {error}"))),
                }
            }
            if !matches!(incoming, Ok(Incoming::Bytes(_))) {
                return (messages, None);
            }
        }
    }

    /// Reads once: what comes is in [`Control::next_message`].
    pub(crate) fn read(&mut self) -> io::Result<Incoming> {
        let mut room = vec![0; READ];
        let incoming = self.conn.read(&mut room)?;
        if let Incoming::Bytes(count) = incoming {
            self.decoder.received(&room[..count]);
        }
        Ok(incoming)
    }

    pub(crate) fn next_message<M: DeserializeOwned>(&mut self) -> Result<Option<M>, MessageError> {
        self.decoder.next_message()
    }
}

/// The next message, for whoever may wait; `None` at the end.
pub(crate) fn receive<M: DeserializeOwned>(from: &mut UnixStream, decoder: &mut Decoder) -> io::Result<Option<M>> {
    let mut room = vec![0; READ];
    loop {
        if let Some(message) = decoder.next_message().map_err(io::Error::other)? {
            return Ok(Some(message));
        }
        match from.read(&mut room) {
            Ok(0) => return Ok(None),
            Ok(count) => decoder.received(&room[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
