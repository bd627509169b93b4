//! The looker's work.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rankrun_core::Pid;
use rankrun_core::stacks::ProcessStack;
use rankrun_stacks::{Bounds, Looker};
use rankrun_sys::process::ProcessId;
use rankrun_sys::{proc, signal};
use rankrun_wireup::messages::{Decoder, encode};

use super::message::{Found, Request, Subject};

/// Threads that look into ranks: most of the time goes into reading and computing.
const MOST_THREADS: usize = 4;
/// Bytes read at a time.
const READ: usize = 64 * 1024;

/// Programs that start another one and wait for it. What is between a leader of this kind and its only child is of no interest.
const WRAPPERS: [&str; 19] = [
    "sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox", "time", "timeout", "numactl", "setsid",
    "stdbuf", "sudo", "su", "conda", "uv", "tini",
];
/// How many of them one after another.
const WRAPPED: usize = 8;

/// Looks into what the agent names. Returns the exit code.
pub fn serve() -> u8 {
    // The agent ends us. A terminal's signals are for the ranks.
    [signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGPIPE].into_iter().for_each(signal::ignore);
    match take_connection().and_then(work) {
        Ok(()) => 0,
        // The agent is gone, and nobody asks any more.
        Err(_) => 1,
    }
}

fn take_connection() -> io::Result<UnixStream> {
    let control: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    Ok(UnixStream::from(control))
}

fn work(mut control: UnixStream) -> io::Result<()> {
    control.set_nonblocking(false)?;
    let request = receive(&mut control)?;
    let until = Instant::now() + request.bound;
    let next = AtomicUsize::new(0);
    let out = Mutex::new(control);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    std::thread::scope(|scope| {
        let run = || -> io::Result<()> {
            // Each thread has its own cache of object files: most of the time goes into reading stacks.
            let mut looker = Looker::new(Bounds { is_native_whole: request.native, ..Bounds::default() });
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(subject) = request.subjects.get(index) else { return Ok(()) };
                let stack = match Instant::now() < until {
                    true => look(&mut looker, *subject),
                    false => ProcessStack::not_seen(Pid(subject.pid), "there was no time left to look into it"),
                };
                say(&out, &Found::Subject(index as u32, Box::new(stack)))?;
            }
        };
        let others: Vec<_> = (1..threads.min(request.subjects.len())).map(|_| scope.spawn(run)).collect();
        let own = run();
        // A thread that has panicked has left its subject without an answer, which the agent sees.
        others.into_iter().filter_map(|thread| thread.join().ok()).fold(own, io::Result::and)
    })?;
    say(&out, &Found::Done)
}

fn receive(control: &mut UnixStream) -> io::Result<Request> {
    let mut decoder = Decoder::default();
    let mut room = vec![0; READ];
    loop {
        if let Some(request) = decoder.next_message().map_err(io::Error::other)? {
            return Ok(request);
        }
        match control.read(&mut room)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => decoder.received(&room[..count]),
        }
    }
}

fn say(out: &Mutex<UnixStream>, found: &Found) -> io::Result<()> {
    let bytes = encode(found).map_err(io::Error::other)?;
    out.lock().map_err(|_| io::Error::other("another thread has panicked"))?.write_all(&bytes)
}

fn look(looker: &mut Looker, subject: Subject) -> ProcessStack {
    if ProcessId::of(subject.pid) != Some(subject.id()) {
        return ProcessStack::not_seen(Pid(subject.pid), "it has ended");
    }
    looker.look(Pid(program_of(subject)))
}

/// The process of interest: of a wrapper, the program that it waits for.
fn program_of(subject: Subject) -> i32 {
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
