//! The connection to the agent.

use std::env;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use crate::line::Line;

/// The time-out for sending to an agent that does not read (it is stopped): the process then ends anyway.
const PATIENCE: Duration = Duration::from_millis(250);

/// The connection that notes go over, made with the first of them.
static NOTES: Mutex<Option<Connection>> = Mutex::new(None);

/// A connection of one process. After a fork the child makes its own.
struct Connection {
    pid: u32,
    stream: UnixStream,
    /// The unsent rest of a line that was begun.
    pending: Vec<u8>,
}

impl Connection {
    fn open() -> Option<Connection> {
        let path = PathBuf::from(env::var_os("RANKRUN_SOCKET")?);
        let stream = UnixStream::connect(path).ok()?;
        let program = env::args_os().next().unwrap_or_default();
        let hello = Line::new("hello").number("pid", process::id().into()).number("rank", crate::rank().into());
        let hello = hello.text("kind", "rust").text("version", env!("CARGO_PKG_VERSION"));
        let hello = hello.text("tag", &env::var("RANKRUN_WORKER").unwrap_or_default());
        let pending = hello.text("argv0", &program.to_string_lossy()).end();
        Some(Connection { pid: process::id(), stream, pending })
    }

    /// Sends what is pending, as far as it goes. Returns whether all is sent.
    fn flush(&mut self) -> std::io::Result<bool> {
        while !self.pending.is_empty() {
            match self.stream.write(&self.pending) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A write timeout is reported as one or the other.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Sends a progress note. While notes come, a rank that is busy exiting does not count as stuck.
///
/// It never waits: what cannot be sent at once is dropped. Without rankrun it does nothing.
pub fn note(text: &str) {
    say(|| Line::new("note").text("text", text));
}

/// Tells rankrun that this rank has done a step of its work that a restart will not repeat, such as a checkpoint. Where none is
/// done between two failures that are alike, rankrun does not start the job again.
///
/// It never waits, as [`note`].
pub fn progress() {
    say(|| Line::new("progress"));
}

/// Tells rankrun that this rank is ready to work: a restart is done when all ranks are. Only for jobs with `--ready-timeout`.
pub fn ready() {
    // Without rankrun nobody waits for it.
    let _ = send(Line::new("ready"));
}

fn say(line: impl FnOnce() -> Line) {
    // Another thread, or the function that a signal handler has interrupted, is sending: drop this note.
    let mut notes = match NOTES.try_lock() {
        Ok(notes) => notes,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    if notes.as_ref().is_none_or(|connection| connection.pid != process::id()) {
        *notes = Connection::open().filter(|connection| connection.stream.set_nonblocking(true).is_ok());
    }
    let Some(connection) = notes.as_mut() else { return };
    let sent = connection.flush().and_then(|free| {
        if free {
            connection.pending = line().end();
            let whole = connection.pending.len();
            if !connection.flush()? && connection.pending.len() == whole {
                // Nothing of it has been sent, so that it can be dropped.
                connection.pending.clear();
            }
        }
        Ok(())
    });
    if sent.is_err() {
        *notes = None;
    }
}

/// Ends the whole job at once, with this rank as the culprit and the message as the cause.
///
/// No destructor runs. The exit code of the job is `code`, where that is in 1..=255, and else 1, since a job that was
/// aborted has not succeeded.
pub fn abort(code: i32, message: &str) -> ! {
    if !send(Line::new("abort").number("code", code.into()).text("message", message)) {
        // Without a connection, print it on stderr.
        let _ = writeln!(std::io::stderr(), "rankrun: rank {} aborted: {message}", crate::rank());
    }
    #[expect(clippy::disallowed_methods, clippy::exit, reason = "ending the process is what this function is for")]
    process::exit(if (1..256).contains(&code) { code } else { 1 })
}

/// Sends a line on a connection of its own, after a hello. Returns whether the agent has it.
pub(crate) fn send(line: Line) -> bool {
    let Some(mut connection) = Connection::open() else { return false };
    connection.pending.extend(line.end());
    connection.stream.set_write_timeout(Some(PATIENCE)).is_ok() && connection.flush().unwrap_or(false)
}
