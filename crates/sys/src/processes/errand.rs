//! Work that may block, in a child process: it is killed when its result is wanted no longer.
//!
//! A thread could not be ended, and would keep the process from forking.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::poll::{pause, wait_for};
use crate::process::Child;
use crate::wait::{self, Look};
use crate::{fork, signal, socket};

/// How long a child that is killed may take to end.
const END_BOUND: Duration = Duration::from_secs(1);

/// What the child writes after its work.
const MARK: u8 = 0x17;

/// How a wait for an errand has ended.
#[derive(Debug)]
pub struct Waited {
    pub end: End,
    /// What it has written. Only that of a complete one is all of it.
    pub result: Vec<u8>,
}

/// How an errand has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Its work is done.
    Complete,
    /// It was killed, has crashed, or could not write its result.
    Killed,
    /// Its time was up.
    TimedOut {
        /// Its pid, if it could not be ended: it waits for a file system that does not answer, and stays until that does.
        stays: Option<i32>,
    },
}

/// Removes the mark from a complete result. Without it the child has not come to the end of its work.
fn take_mark(sent: &mut Vec<u8>) -> End {
    match sent.pop_if(|last| *last == MARK) {
        Some(_) => End::Complete,
        None => End::Killed,
    }
}

/// Has a child do `work`, and waits for it, for so long at most. A child that is killed is replaced, once.
///
/// # Errors
///
/// As [`Errand::start`].
pub fn perform(bound: Duration, work: impl Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<Waited> {
    let begun = Instant::now();
    let waited = Errand::start(&work)?.wait(bound);
    match waited.end {
        End::Killed => Ok(Errand::start(&work)?.wait(bound.saturating_sub(begun.elapsed()))),
        End::Complete | End::TimedOut { .. } => Ok(waited),
    }
}

/// A child that writes its result to a pipe. Dropped, it is ended and reaped.
#[derive(Debug)]
pub struct Errand {
    child: Child,
    pipe: File,
    result: Vec<u8>,
    /// The child has written all that it will.
    end: Option<End>,
    /// It has been reaped.
    is_reaped: bool,
}

impl Errand {
    /// Forks.
    ///
    /// # Errors
    ///
    /// There is no room for a process, or this one has several threads and cannot fork.
    pub fn start(work: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<Errand> {
        if !fork::is_possible() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (ours, theirs) = socket::pipe()?;
        let parent = std::process::id() as i32;
        match fork::fork()? {
            fork::Side::Parent { child } => {
                socket::set_nonblocking(&ours)?;
                let child = Child::unreaped(child);
                Ok(Errand { child, pipe: ours.into(), result: Vec::new(), end: None, is_reaped: false })
            }
            fork::Side::Child => {
                // If it fails, the pipe has no reader when the parent is gone, or the work ends some time.
                let _ = fork::end_with_parent(parent, signal::SIGKILL);
                // It may outlive us in state D: it must not hold the streams that our caller reads to their end.
                let pipe = File::from(theirs);
                fork::run_with_only(&[pipe.as_fd()], || {
                    let is_done = work(&mut &pipe).and_then(|()| (&pipe).write_all(&[MARK])).is_ok();
                    u8::from(!is_done)
                })
            }
        }
    }

    /// Reads what is there. Returns how it has ended, if it has.
    pub fn read(&mut self) -> Option<End> {
        if self.end.is_none() {
            let is_over = match self.pipe.read_to_end(&mut self.result) {
                Ok(_) => true,
                Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
            };
            self.end = is_over.then(|| take_mark(&mut self.result));
        }
        self.end
    }

    /// Waits for the end, for so long at most.
    pub fn wait(mut self, bound: Duration) -> Waited {
        let until = Instant::now() + bound;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            wait_for(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(rest));
            if let Some(end) = self.read() {
                return Waited { end, result: std::mem::take(&mut self.result) };
            }
            if rest.is_zero() {
                let stays = (!self.kill()).then(|| self.child.pid());
                take_mark(&mut self.result);
                return Waited { end: End::TimedOut { stays }, result: std::mem::take(&mut self.result) };
            }
        }
    }

    /// What was written so far.
    pub fn result(&self) -> &[u8] {
        &self.result
    }
}

impl AsFd for Errand {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Errand {
    /// Ends it, unless it waits in the kernel. Returns whether it is gone.
    fn kill(&mut self) -> bool {
        if self.is_reaped {
            return true;
        }
        // It has not been reaped: it is still ours.
        let _ = self.child.signal(signal::SIGKILL);
        let until = Instant::now() + END_BOUND;
        loop {
            if wait::reap(self.child.pid()) != Look::Nothing {
                self.is_reaped = true;
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            pause(Duration::from_micros(200));
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        if !self.kill() {
            STAYING.lock().unwrap_or_else(PoisonError::into_inner).push(self.child.pid());
        }
    }
}

/// The children that could not be ended when their errand was over.
static STAYING: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// The errands' children that wait for a file system, and that nobody waits for any more.
pub fn staying() -> Vec<i32> {
    STAYING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A name that is being looked up. The resolver may take a long time where a server does not answer.
#[derive(Debug)]
pub struct Lookup(Errand);

impl Lookup {
    /// Forks, as [`Errand::start`].
    ///
    /// # Errors
    ///
    /// There is no room for a process.
    pub fn start(host: &str, port: u16) -> io::Result<Lookup> {
        Ok(Lookup(Errand::start(|pipe| look_up(host, port, pipe))?))
    }

    /// The addresses, or why there are none; `None`: not yet.
    pub fn result(&mut self) -> Option<Result<Vec<SocketAddr>, String>> {
        self.0.read().map(|end| addresses(end, self.0.result()))
    }
}

/// The addresses of a host, or why there are none; `None`: the resolver has not answered within `bound`.
///
/// # Errors
///
/// As [`Errand::start`].
pub fn addresses_of(host: &str, port: u16, bound: Duration) -> io::Result<Option<Result<Vec<SocketAddr>, String>>> {
    let Waited { end, result } = perform(bound, |pipe| look_up(host, port, pipe))?;
    Ok((!matches!(end, End::TimedOut { .. })).then(|| addresses(end, &result)))
}

fn look_up(host: &str, port: u16, pipe: &mut dyn Write) -> io::Result<()> {
    use std::net::ToSocketAddrs;
    let text = match (host, port).to_socket_addrs() {
        Ok(addresses) => addresses.map(|address| format!("{address}\n")).collect(),
        Err(error) => format!("!{}", crate::reason(&error)),
    };
    pipe.write_all(text.as_bytes())
}

impl AsFd for Lookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn addresses(end: End, text: &[u8]) -> Result<Vec<SocketAddr>, String> {
    if end == End::Killed {
        return Err("the process that asked the resolver was killed, or has crashed".to_owned());
    }
    let text = String::from_utf8_lossy(text);
    match text.strip_prefix('!') {
        Some(why) => Err(why.to_owned()),
        None => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_without_its_mark_is_not_complete() {
        for (sent, end, result) in [
            (&b"all\x17"[..], End::Complete, &b"all"[..]),
            (b"\x17", End::Complete, b""),
            (b"al", End::Killed, b"al"),
            (b"", End::Killed, b""),
        ] {
            let mut left = sent.to_vec();
            assert_eq!((take_mark(&mut left), &left[..]), (end, result), "{sent:?}");
        }
    }

    #[test]
    fn a_lookup_that_was_killed_has_no_addresses() {
        assert!(addresses(End::Killed, b"127.0.0.1:1\n").is_err());
        assert_eq!(addresses(End::Complete, b"!none"), Err("none".to_owned()));
        assert_eq!(addresses(End::Complete, b"127.0.0.1:1\n"), Ok(vec![SocketAddr::from(([127, 0, 0, 1], 1))]));
    }
}
