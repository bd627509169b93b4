//! A command as the front has it: its host, and the thread that speaks with both.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rankrun_core::{JobId, Purpose, WorkerStatus};
use rankrun_sys::exec::OWN;
use rankrun_sys::poll::{Waker, pause, wait_for};
use rankrun_sys::{signal, socket};
use rustix::event::{PollFd, PollFlags};

use super::host::{CONTROL, Verdict};
use crate::starter::{Program, Request, Starter, Status};

/// What is kept of what a command writes: an answer is a few words.
const OUTPUT_MOST: usize = 4096;
/// How long the host may take to end a command that is unwanted, or out of time. It needs 5 s for one that the kernel cannot end.
const END_BOUND: Duration = Duration::from_secs(7);
/// How long the host may take to end when it has closed its socket, and how long when it has been killed.
const EXIT_BOUND: Duration = Duration::from_secs(1);

/// What a command has come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) status: WorkerStatus,
}

/// Why a command has no output.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("cannot start \"{name}\": {why}")]
    NotStarted { name: String, why: String },
    #[error("it was not done in time")]
    TimedOut,
    #[error("nobody wants to know any more")]
    Unwanted,
    #[error("the process of rankrun that ran \"{name}\" was lost")]
    Lost { name: String },
    #[error("processes of \"{name}\" could not be killed")]
    Left { name: String },
}

/// What is known of the host of a command.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    program: Program,
    state: Arc<AtomicU8>,
}

/// It has not been reaped.
const RUNS: u8 = 0;
/// It has ended, and nothing of its command is left.
const PROVED: u8 = 1;
/// It has ended, and somebody has killed it: orphans of the command may be ours now.
const LOST: u8 = 2;
/// It has ended, and something of its command could not be killed.
const LEFT: u8 = 3;

impl Known {
    /// Its pid, as long as it is our child.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.program.pid()
    }

    pub(crate) fn has_proved(&self) -> bool {
        self.state.load(Ordering::Acquire) == PROVED
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) == LOST
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Release);
    }
}

/// A command that runs, as the thread has it.
#[derive(Debug)]
pub(crate) struct Command {
    name: String,
    host: Known,
    stdin: Option<File>,
    stdout: File,
    control: OwnedFd,
    /// The other end is closed when nobody wants the output any more.
    unwanted: OwnedFd,
}

/// The same, as the loop has it.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) host: Known,
    wanted: OwnedFd,
}

impl Command {
    /// Asks for its host.
    pub(crate) fn start(starter: &mut Starter, job: &JobId, words: &[OsString]) -> io::Result<(Hold, Command)> {
        let name = words.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut arguments: Vec<OsString> =
            vec![OWN.into(), Purpose::CommandHost.argument().into(), job.0.as_str().into()];
        arguments.extend(words.iter().cloned());
        let (stdin, ours_in) = socket::pipe()?;
        let (ours_out, stdout) = socket::pipe()?;
        let (control, theirs) = socket::pair()?;
        let (unwanted, wanted) = socket::pipe()?;
        [&ours_in, &ours_out, &control].into_iter().try_for_each(socket::set_nonblocking)?;
        let stderr = rustix::stdio::stderr().try_clone_to_owned()?;
        let request = Request {
            keep: Some((theirs, CONTROL)),
            ignored: signal::ignored_at_start(),
            ..Request::of(arguments, [stdin, stdout, stderr])
        };
        let host = Known { program: starter.request(request)?, state: Arc::new(AtomicU8::new(RUNS)) };
        let (stdin, stdout) = (Some(File::from(ours_in)), File::from(ours_out));
        Ok((Hold { host: host.clone(), wanted }, Command { name, host, stdin, stdout, control, unwanted }))
    }

    /// Writes the input and reads the output, side by side, until the command has ended. All of it is killed when its time is over or
    /// nobody wants the output. A command has one conversation.
    ///
    /// # Errors
    ///
    /// There is no output that counts.
    pub(crate) fn converse(&mut self, input: &[u8], timeout: Duration) -> Result<Output, CommandError> {
        let Command { name, host, stdin, stdout, control, unwanted } = self;
        let (name, control, unwanted) = (name.clone(), &*control, &*unwanted);
        let mut until = Instant::now() + timeout;
        let mut unwritten = input;
        let (mut output, mut verdict, mut is_open) = (Vec::new(), Vec::new(), true);
        let (mut failure, mut has_begun) = (None, true);
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            if let Some(failure) = failure.clone().filter(|_| rest.is_zero()) {
                if host.pid().is_some() {
                    // Somebody has stopped it, or the kernel holds it.
                    host.program.kill();
                    return Err(if reap(host) == Reaped::Not { CommandError::Left { name } } else { failure });
                }
                // It is still being searched for, and will not be started.
                host.set(PROVED);
                return Err(failure);
            }
            let mut ends = vec![PollFd::new(control, PollFlags::IN)];
            if failure.is_none() {
                ends.push(PollFd::new(unwanted, PollFlags::IN));
            }
            ends.extend(is_open.then(|| PollFd::new(&*stdout, PollFlags::IN)));
            ends.extend(stdin.iter().map(|stdin| PollFd::new(stdin, PollFlags::OUT)));
            wait_for(&mut ends, Some(rest));
            let is_unwanted = failure.is_none() && !ends[1].revents().is_empty();
            if is_unwanted || (rest.is_zero() && failure.is_none()) {
                failure = Some(if is_unwanted { CommandError::Unwanted } else { CommandError::TimedOut });
                until = Instant::now() + END_BOUND;
                // The host sees the end, and kills. If it is gone, so is the socket.
                let _ = rustix::net::shutdown(control, rustix::net::Shutdown::Write);
                has_begun = host.program.look() != Status::Coming;
                if !has_begun {
                    host.program.kill();
                }
            }
            if let Some(open) = stdin {
                match open.write(unwritten) {
                    Ok(written) => unwritten = &unwritten[written..],
                    Err(error) if is_later(&error) => {}
                    // It does not read all of it, which is its own affair.
                    Err(_) => unwritten = &[],
                }
                if unwritten.is_empty() {
                    *stdin = None;
                }
            }
            is_open = is_open && read_some(stdout, &mut output);
            let mut piece = [0; 512];
            match rustix::io::read(control, &mut piece) {
                Ok(0) => break,
                Ok(count) => verdict.extend_from_slice(&piece[..count]),
                Err(error) if is_later(&error.into()) => {}
                Err(_) => break,
            }
        }
        // What it wrote is in the pipe, whoever else may hold its other end.
        while is_open && read_more(stdout, &mut output) {}
        let verdict = Verdict::of_bytes(&verdict);
        let is_empty = match reap(host) {
            Reaped::NotStarted(why) => return Err(failure.unwrap_or(CommandError::NotStarted { name, why })),
            reaped => reaped == Reaped::Proved && verdict != Some(Verdict::Left),
        };
        match (failure, verdict) {
            (Some(failure), _) if is_empty || !has_begun => Err(failure),
            (_, Some(Verdict::Left)) => Err(CommandError::Left { name }),
            (None, Some(Verdict::Ended(status))) => {
                output.truncate(OUTPUT_MOST);
                Ok(Output { text: String::from_utf8_lossy(&output).into_owned(), status })
            }
            (None, Some(Verdict::NotStarted(why))) => Err(CommandError::NotStarted { name, why }),
            (_, _) => Err(CommandError::Lost { name }),
        }
    }
}

/// Reads what is there. Returns whether more may come.
fn read_some(stdout: &mut File, output: &mut Vec<u8>) -> bool {
    let mut piece = [0; 512];
    match stdout.read(&mut piece) {
        Ok(0) => false,
        Ok(read) => {
            if output.len() < OUTPUT_MOST {
                output.extend_from_slice(&piece[..read]);
            }
            true
        }
        Err(error) => is_later(&error),
    }
}

/// The same, when nobody writes any more. Returns whether there was something.
fn read_more(stdout: &mut File, output: &mut Vec<u8>) -> bool {
    let before = output.len();
    read_some(stdout, output) && before < output.len()
}

/// How the host has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Reaped {
    /// It has proved that nothing of the command is left.
    Proved,
    Unproved,
    NotStarted(String),
    /// It does not end.
    Not,
}

/// Reaps the host, which is ending. One that does not is killed: its orphans are the front's then, which ends them.
fn reap(host: &Known) -> Reaped {
    let mut until = Instant::now() + EXIT_BOUND;
    let mut is_killed = false;
    loop {
        let (state, reaped) = match host.program.look() {
            Status::Ended(0) => (PROVED, Reaped::Proved),
            Status::Ended(code) if code < 128 => (LEFT, Reaped::Unproved),
            Status::Ended(_) => (LOST, Reaped::Unproved),
            // One that does not call exec and cannot be killed is there.
            Status::NotStarted(why) => (if host.pid().is_none() { PROVED } else { LEFT }, Reaped::NotStarted(why)),
            Status::Coming | Status::Runs if is_killed && Instant::now() >= until => return Reaped::Not,
            Status::Coming | Status::Runs if Instant::now() >= until => {
                host.program.kill();
                (is_killed, until) = (true, Instant::now() + EXIT_BOUND);
                continue;
            }
            Status::Coming | Status::Runs => {
                // An interrupted pause is only shorter.
                pause(Duration::from_millis(1));
                continue;
            }
        };
        host.set(state);
        return reaped;
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// What becomes of a command, worked out on a thread. When this is dropped, the command has ended, or cannot be ended.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    result: Receiver<T>,
    /// Closed when nobody waits for the result any more.
    wanted: Option<OwnedFd>,
}

impl<T: Send + 'static> Pending<T> {
    /// `work` speaks with the command, and must not return before that is over. The loop is woken for its result.
    ///
    /// # Errors
    ///
    /// There is no thread for it. The host sees that its socket is closed, and ends the command; nobody reaps it.
    pub(crate) fn new(hold: Hold, waker: Waker, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Pending<T>> {
        let (outbox, result) = sync_channel(1);
        let Hold { host: _, wanted } = hold;
        std::thread::Builder::new().name("command".to_owned()).stack_size(256 * 1024).spawn(move || {
            signal::block_all();
            // The front may have ended the wait.
            let _ = outbox.send(work());
            waker.wake();
        })?;
        Ok(Pending { result, wanted: Some(wanted) })
    }

    /// The result, once it is there.
    pub(crate) fn result(&self) -> Option<T> {
        self.result.try_recv().ok()
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.wanted = None;
        // The thread sends its result when the host has ended; it has gone if the result was taken.
        let _ = self.result.recv_timeout(END_BOUND + 2 * EXIT_BOUND);
    }
}
