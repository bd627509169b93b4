//! Work that may block, in a child process: it is killed when its result is wanted no longer.
//!
//! A thread could not be ended, and would keep the process from forking.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::process::Child;
use crate::wait::{self, Look};
use crate::{fork, signal, socket};

/// How long a child that is killed may take to end.
const END_BOUND: Duration = Duration::from_secs(1);

/// How a wait for an errand has ended.
#[derive(Debug)]
pub struct Waited {
    /// It came to its end.
    pub is_over: bool,
    /// What it has written.
    pub result: Vec<u8>,
    /// Its pid, if it could not be ended: it waits for a file system that does not answer, and stays until that does.
    pub stays: Option<i32>,
}

/// A child that writes its result to a pipe. Dropped, it is ended and reaped.
#[derive(Debug)]
pub struct Errand {
    child: Child,
    pipe: File,
    result: Vec<u8>,
    /// It has been reaped.
    is_ended: bool,
}

impl Errand {
    /// Forks. What `work` has written counts even if it does not come to its end.
    ///
    /// # Errors
    ///
    /// There is no room for a process, or this one has several threads and cannot fork.
    pub fn start(work: impl FnOnce(&mut dyn Write)) -> io::Result<Errand> {
        if !fork::is_possible() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (ours, theirs) = socket::pipe()?;
        let parent = std::process::id() as i32;
        match fork::fork()? {
            fork::Side::Parent { child } => {
                socket::set_nonblocking(&ours)?;
                Ok(Errand { child: Child::unreaped(child), pipe: ours.into(), result: Vec::new(), is_ended: false })
            }
            fork::Side::Child => {
                // If it fails, the pipe has no reader when the parent is gone, or the work ends some time.
                let _ = fork::end_with_parent(parent, signal::SIGKILL);
                // It may outlive us in state D: it must not hold the streams that our caller reads to their end.
                let pipe = File::from(theirs);
                fork::run_with_only(&[pipe.as_fd()], || {
                    work(&mut &pipe);
                    0
                })
            }
        }
    }

    /// Reads what is there. Returns whether this was the end.
    pub fn read(&mut self) -> bool {
        match self.pipe.read_to_end(&mut self.result) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Waits for the end, for so long at most.
    pub fn wait(mut self, bound: Duration) -> Waited {
        let until = Instant::now() + bound;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            // An interrupted wait is only shorter.
            let _ = poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(&timespec(rest)));
            let is_over = self.read();
            if is_over || rest.is_zero() {
                let stays = !is_over && !self.end();
                return Waited {
                    is_over,
                    result: std::mem::take(&mut self.result),
                    stays: stays.then(|| self.child.pid()),
                };
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
    fn end(&mut self) -> bool {
        if self.is_ended {
            return true;
        }
        // It has not been reaped: it is still ours.
        let _ = self.child.signal(signal::SIGKILL);
        let until = Instant::now() + END_BOUND;
        loop {
            if wait::reap(self.child.pid()) != Look::Nothing {
                self.is_ended = true;
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            // An interrupted pause is only shorter.
            let _ = poll(&mut [], Some(&timespec(Duration::from_micros(200))));
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        self.end();
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
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
        use std::net::ToSocketAddrs;
        let errand = Errand::start(|pipe| {
            let text = match (host, port).to_socket_addrs() {
                Ok(addresses) => addresses.map(|address| format!("{address}\n")).collect(),
                Err(error) => format!("!{}", crate::reason(&error)),
            };
            // Without a reader nobody wants it.
            let _ = pipe.write_all(text.as_bytes());
        })?;
        Ok(Lookup(errand))
    }

    /// The addresses, or why there are none; `None`: not yet.
    pub fn result(&mut self) -> Option<Result<Vec<SocketAddr>, String>> {
        self.0.read().then(|| addresses(self.0.result()))
    }

    /// Waits for the result, for so long at most.
    pub fn wait(self, bound: Duration) -> Option<Result<Vec<SocketAddr>, String>> {
        let Waited { is_over, result: text, .. } = self.0.wait(bound);
        is_over.then(|| addresses(&text))
    }
}

impl AsFd for Lookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn addresses(text: &[u8]) -> Result<Vec<SocketAddr>, String> {
    let text = String::from_utf8_lossy(text);
    match text.strip_prefix('!') {
        Some(why) => Err(why.to_owned()),
        None => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
    }
}
