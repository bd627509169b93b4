//! Where another front comes in whose predecessor is gone: it calls `rankrun --as=relay again JOB MARKER` on this node, which hands its streams
//! to the relay that has held the agent since its start.
//!
//! The door has a name and no file. Only processes of the same user are let in: the name, which the job's front has made at random, keeps jobs
//! apart, and is no secret.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rankrun_core::{ExitCode, JobId};
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::reactor::Conn;
use rankrun_sys::{signal, socket};
use rankrun_wire::greeting::Greeting;

use super::held::Held;

/// The door is polled under this token.
const DOOR: u64 = Held::OTHERS;
/// Callers that wait.
const BACKLOG: i32 = 4;

/// The word after [`rankrun_core::Purpose::Relay`] by which another front goes on with the relay of a job.
pub const AGAIN: &str = "again";

/// The door of a relay.
#[derive(Debug)]
pub(super) struct Door {
    listener: OwnedFd,
    marker: String,
    greeting: Greeting,
    /// How long the ranks go on without a front.
    pub(super) keep: Duration,
    /// The process that has handed over the streams that lead to the front: it gets our exit code.
    caller: Option<UnixStream>,
}

fn name(job: &JobId, marker: &str) -> Vec<u8> {
    format!("{marker}/{job}").into_bytes()
}

impl Door {
    pub(super) fn open(
        poller: &Poller,
        job: &JobId,
        marker: &str,
        greeting: Greeting,
        keep: Duration,
    ) -> io::Result<Door> {
        let listener = socket::listen_under(&name(job, marker), BACKLOG)?;
        poller.add(&listener, DOOR, Interest::Read)?;
        Ok(Door { listener, marker: marker.to_owned(), greeting, keep, caller: None })
    }

    pub(super) fn ready(&mut self, held: &mut Held, event: Ready) {
        if event.token == DOOR {
            // One in a turn: one that says nothing is waited for.
            if let Ok(caller) = socket::accept(&self.listener) {
                // Who is a stranger, or is gone again, changes nothing.
                let _ = self.let_in(held, caller);
            }
        }
    }

    /// Takes the streams of a caller.
    fn let_in(&mut self, held: &mut Held, caller: OwnedFd) -> io::Result<()> {
        if !held.has_front() || socket::peer(&caller)?.1 != rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        // It sends them at once. Nobody else waits meanwhile for longer than that.
        rustix::net::sockopt::set_socket_timeout(
            &caller,
            rustix::net::sockopt::Timeout::Recv,
            Some(Duration::from_millis(500)),
        )?;
        let Some([stdin, stdout, stderr]) = socket::receive_descriptors(&caller)? else { return Ok(()) };
        let mut conn = Conn::of_pair(&held.poller.registry(), Held::FRONT, stdin, stdout)?;
        conn.send([self.greeting.line(&self.marker).into()])?;
        held.take_back(conn)?;
        // What we say at our end is for this front.
        rustix::stdio::dup2_stderr(&stderr)?;
        self.caller = Some(UnixStream::from(caller));
        Ok(())
    }

    /// Tells our exit code to whom the front has called.
    pub(super) fn close(self, code: u8) {
        if let Some(mut caller) = self.caller {
            // Then nobody wants to know it.
            let _ = caller.write_all(&[code]);
        }
    }
}

/// Hands our streams to the relay of a job that runs on this node. Returns the exit code of that relay, when it has ended. `words` are the
/// job and the marker.
pub fn relay_again(words: &[OsString]) -> u8 {
    let [job, marker] = words else { return ExitCode::USAGE.0 };
    let (Some(job), Some(marker)) = (job.to_str(), marker.to_str()) else { return ExitCode::USAGE.0 };
    for ignored in [signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGQUIT, signal::SIGPIPE] {
        signal::ignore(ignored);
    }
    hand_over(&JobId(job.to_owned()), marker).unwrap_or_else(|error| {
        // The front reads it, and says it.
        let _ = writeln!(io::stderr(), "rankrun: relay: {}", rankrun_sys::reason(&error));
        ExitCode::INTERNAL.0
    })
}

/// The same where there may be no such relay: `None`.
pub(super) fn try_again(job: &JobId, marker: &str) -> Option<u8> {
    let code = hand_over(job, marker);
    code.ok()
}

fn hand_over(job: &JobId, marker: &str) -> io::Result<u8> {
    let connection = socket::connect_under(&name(job, marker)).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            io::Error::other("no front came in time (--on-front-lost), or the process that held the agent was killed")
        }
        _ => error,
    })?;
    if socket::peer(&connection)?.1 != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("another user has the name of the job"));
    }
    let streams = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    socket::send_descriptors(&connection, streams)?;
    // Whoever reads these must see their end when the relay closes them.
    let null = rankrun_sys::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let mut code = [ExitCode::INTERNAL.0];
    // A relay that was killed says none.
    let _ = UnixStream::from(connection).read(&mut code)?;
    Ok(code[0])
}
