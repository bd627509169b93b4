//! The looker's work.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use rankrun_core::Pid;
use rankrun_core::stacks::ProcessStack;
use rankrun_stacks::{Bounds, Looker};
use rankrun_sys::proc;
use rankrun_sys::process::ProcessId;
use rankrun_wireup::messages::{Decoder, encode};

use super::message::{Found, Request, Subject};
use crate::helpers::control::{self, receive};

/// Threads that look into ranks: most of the time goes into reading and computing.
const MOST_THREADS: usize = 4;
/// How long after the end of its time a look is waited for: each step looks at the clock, and a step may wait for the kernel.
const SPARE: Duration = Duration::from_millis(500);
/// Results that wait for the thread that sends them to the agent. A full queue only delays the next look.
const QUEUED: usize = 16;

/// Programs that start another one and wait for it. What is between a leader of this kind and its only child is of no interest.
const WRAPPERS: [&str; 19] = [
    "sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox", "time", "timeout", "numactl", "setsid",
    "stdbuf", "sudo", "su", "conda", "uv", "tini",
];
/// How many of them one after another.
const WRAPPED: usize = 8;

/// Looks into what the agent names. Returns the exit code.
pub fn serve() -> u8 {
    control::serve(work)
}

fn work(mut control: UnixStream) -> io::Result<()> {
    control.set_nonblocking(false)?;
    let request = receive(&mut control, &mut Decoder::default())?;
    let Request { subjects, bound, native } = request.ok_or(io::ErrorKind::UnexpectedEof)?;
    let until = Instant::now() + bound;
    let shared = Arc::new(Shared { subjects, until, native, next: AtomicUsize::new(0) });
    let count = shared.subjects.len();
    let (sender, results) = mpsc::sync_channel(QUEUED);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(count);
    start_some(threads, || {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        // Nobody joins it: a step that does not return ends with the process.
        thread::Builder::new().spawn(move || look_at_all(&shared, &sender)).map(drop)
    })?;
    drop(sender);
    let mut is_answered = vec![false; count];
    let mut is_late = false;
    while is_answered.contains(&false) {
        match results.recv_timeout((until + SPARE).saturating_duration_since(Instant::now())) {
            Ok((index, stack)) => {
                is_answered[index] = true;
                say(&mut control, &Found::Subject(index as u32, Box::new(stack)))?;
            }
            Err(error) => {
                // A thread that has panicked has left its subject without an answer, which the agent sees.
                is_late = error == RecvTimeoutError::Timeout;
                break;
            }
        }
    }
    if is_late {
        for (index, subject) in shared.subjects.iter().enumerate().filter(|(index, _)| !is_answered[*index]) {
            let stack = ProcessStack::not_seen(Pid(subject.pid), &why_late(subject.pid));
            say(&mut control, &Found::Subject(index as u32, Box::new(stack)))?;
        }
    }
    say(&mut control, &Found::Done)
}

/// Starts as many threads as can be started: one does the work of all.
fn start_some(most: usize, mut start: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for number in 0..most {
        match start() {
            Ok(()) => {}
            Err(error) if number == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(())
}

/// What the threads work on.
struct Shared {
    subjects: Vec<Subject>,
    until: Instant,
    native: bool,
    /// The subject that is looked into next.
    next: AtomicUsize,
}

fn look_at_all(shared: &Shared, results: &SyncSender<(usize, ProcessStack)>) {
    // Each thread has its own cache of object files: most of the time goes into reading stacks.
    let mut looker = Looker::new(Bounds { is_native_whole: shared.native, ..Bounds::default() });
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(subject) = shared.subjects.get(index) else { return };
        let stack = match Instant::now() < shared.until {
            true => look(&mut looker, *subject, shared.until),
            false => ProcessStack::not_seen(Pid(subject.pid), &why_late(subject.pid)),
        };
        if results.send((index, stack)).is_err() {
            return;
        }
    }
}

/// Why there was no time for a process: who traces it may have taken it.
fn why_late(pid: i32) -> String {
    let late = "there was no time left to look into it";
    rankrun_stacks::tracer_of(pid).map_or_else(|| late.to_owned(), |tracer| format!("{tracer}; {late}"))
}

fn say(control: &mut UnixStream, found: &Found) -> io::Result<()> {
    control.write_all(&encode(found).map_err(io::Error::other)?)
}

fn look(looker: &mut Looker, subject: Subject, until: Instant) -> ProcessStack {
    if ProcessId::of(subject.pid) != Some(subject.id()) {
        return ProcessStack::not_seen(Pid(subject.pid), "it has ended");
    }
    looker.look_until(Pid(program_of(subject)), Pid(subject.pid), until)
}

/// The process of interest: of a wrapper, the program that it waits for.
pub(crate) fn program_of(subject: Subject) -> i32 {
    let mut pid = subject.pid;
    for _ in 0..WRAPPED {
        let is_wrapper = |process: &proc::Process| WRAPPERS.contains(&process.name.as_str());
        if !subject.is_leader || !proc::process(pid).as_ref().is_some_and(is_wrapper) {
            break;
        }
        let [child] = proc::children_of(pid)[..] else { break };
        pid = child;
    }
    pid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_leaves_its_work_to_the_others() {
        let start = |limit: usize| {
            let mut running = 0;
            let result = start_some(MOST_THREADS, || {
                running += usize::from(running < limit);
                if running < limit { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
            });
            result.is_ok()
        };
        assert_eq!([1, 2, 9].map(start), [false, true, true]);
    }
}
