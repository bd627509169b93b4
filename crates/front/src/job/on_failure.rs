//! `--on-failure COMMAND`: a command of the user's own that is asked about each failure. It reads the report's JSON on stdin and
//! writes its answer to stdout.
//!
//! A thread runs it, so that the loop waits for nothing. It has its time limit, and a process group of its own, which is
//! killed when it has answered or its time is over: nothing of it is left behind.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rankrun_core::job::OnFailureCommand;
use rankrun_core::restart::{Answer, parse_answer};
use rankrun_core::units::format_duration;
use rankrun_sys::poll::Waker;
use rankrun_sys::process::{self, ProcessRef};
use rankrun_sys::signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What it may write: an answer is a few words.
const ANSWER_MOST: usize = 4096;
/// How long the scheduler may take.
const REQUEUE_BOUND: Duration = Duration::from_secs(20);
/// How long it may take to end after it has answered.
const END_BOUND: Duration = Duration::from_secs(1);

/// A command that has been asked.
#[derive(Debug)]
pub(crate) struct Asked {
    answer: Receiver<Result<Answer, String>>,
}

impl Asked {
    /// Asks it. The loop is woken for the answer.
    ///
    /// # Errors
    ///
    /// There is no thread for it.
    pub(crate) fn ask(own: &OnFailureCommand, report: Vec<u8>, waker: Waker) -> io::Result<Asked> {
        let (outbox, answer) = sync_channel(1);
        let own = own.clone();
        std::thread::Builder::new().name("on-failure".to_owned()).stack_size(256 * 1024).spawn(move || {
            signal::block_all();
            // The front may have ended the wait.
            let _ = outbox.send(run(&own, &report));
            waker.wake();
        })?;
        Ok(Asked { answer })
    }

    /// Its answer, or why there is none.
    pub(crate) fn answer(&self) -> Option<Result<Answer, String>> {
        self.answer.try_recv().ok()
    }
}

fn run(own: &OnFailureCommand, report: &[u8]) -> Result<Answer, String> {
    let (text, status) = consult(&own.command, report, own.timeout)?;
    let name = own.command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    if !status.success() {
        return Err(format!("\"{name}\": {status}"));
    }
    parse_answer(&text).map_err(|error| format!("\"{name}\": {error}"))
}

/// Asks the scheduler that runs this job to run it again (`--on-giveup requeue`). It may take a few seconds.
pub(crate) fn requeue(environment: &[(OsString, OsString)]) -> Result<String, String> {
    let variable = |wanted: &str| environment.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    let Some(job) = variable("SLURM_JOB_ID") else {
        return Err("--on-giveup requeue: there is no scheduler: SLURM_JOB_ID is not set".to_owned());
    };
    let id = job.to_string_lossy().into_owned();
    let command = ["scontrol".into(), "requeue".into(), job];
    match consult(&command, b"", REQUEUE_BOUND)? {
        (_, status) if status.success() => Ok(format!("Slurm runs job {id} again (scontrol requeue)")),
        (_, status) => Err(format!("Slurm does not run job {id} again: scontrol requeue: {status}")),
    }
}

/// Runs a command with this on its stdin. Returns what it wrote to stdout, and how it ended.
fn consult(command: &[OsString], input: &[u8], timeout: Duration) -> Result<(String, ExitStatus), String> {
    let Some((program, arguments)) = command.split_first() else { return Err("there is no command".to_owned()) };
    let name = program.to_string_lossy();
    let mut command = Command::new(program);
    command.args(arguments).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| format!("cannot start \"{name}\": {}", rankrun_sys::reason(&error)))?;
    let answer = converse(&mut child, input, timeout);
    // What it has started goes with it. If this fails, there is none.
    let _ = process::Child::unreaped(child.id() as i32).signal_group(signal::SIGKILL);
    // It was killed: this takes no time.
    let status = child.wait();
    match (answer, status) {
        (Ok(Some(text)), Ok(status)) => Ok((text, status)),
        (Ok(None), _) => Err(format!("\"{name}\" has not answered within {}", format_duration(timeout))),
        (Err(error), _) | (_, Err(error)) => Err(format!("\"{name}\": {}", rankrun_sys::reason(&error))),
    }
}

/// Writes the report and reads the answer, side by side. `None`: its time was over.
fn converse(child: &mut Child, report: &[u8], timeout: Duration) -> io::Result<Option<String>> {
    let until = Instant::now() + timeout;
    let (mut stdin, Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else { return Ok(None) };
    for end in stdin.iter().map(AsFd::as_fd).chain([stdout.as_fd()]) {
        rustix::io::ioctl_fionbio(end, true)?;
    }
    let (mut unwritten, mut answer) = (report, Vec::new());
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Ok(None);
        }
        let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
        let mut ends = vec![PollFd::new(&stdout, PollFlags::IN)];
        ends.extend(stdin.iter().map(|stdin| PollFd::new(stdin, PollFlags::OUT)));
        // An interrupted wait is only shorter.
        let _ = poll(&mut ends, Some(&timeout));
        if let Some(open) = &mut stdin {
            match open.write(unwritten) {
                Ok(written) => unwritten = &unwritten[written..],
                Err(error) if is_later(&error) => {}
                // It does not read all of it, which is its own affair.
                Err(_) => unwritten = &[],
            }
            if unwritten.is_empty() {
                stdin = None;
            }
        }
        let mut piece = [0; 512];
        match stdout.read(&mut piece) {
            Ok(0) => {
                await_end(child, until.min(Instant::now() + END_BOUND));
                return Ok(Some(String::from_utf8_lossy(&answer).into_owned()));
            }
            Ok(read) if answer.len() < ANSWER_MOST => answer.extend_from_slice(&piece[..read]),
            Ok(_) => {}
            Err(error) if is_later(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// It has closed its stdout, and mostly ends at once. It may still write to a file; when the time is over it is killed.
fn await_end(child: &mut Child, until: Instant) {
    if let Some(process) = ProcessRef::open(child.id() as i32) {
        process.wait(until.saturating_duration_since(Instant::now()));
    }
}
