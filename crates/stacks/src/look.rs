//! One look into a process.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rankrun_core::stacks::calls::is_for_disk;
use rankrun_core::stacks::{
    AT_STDIN, END_OF_THREAD, Frame, Interpreter, OtherProcess, ProcessStack, ThreadStack, ThreadState, UNTIL_A_TIME,
    WITHOUT_FILES, is_at_stdin, is_sleep,
};
use rankrun_core::{Pid, WorkerStatus};
use rankrun_sys::proc;

use crate::Bounds;
use crate::capture::{self, Copied, Missed, Source, Thread};
use crate::images::{Images, file_name};
use crate::kernel;
use crate::maps::Mappings;
use crate::memory::Memory;
use crate::native::{Stacks, Unwound};
use crate::python::{self, Codes, Found, RawFrames};
use crate::{idle, merge, reason};

/// Bytes of a command that are read.
const COMMAND_BYTES: u64 = 4096;

/// Threads of another process of a rank of which is asked whether they sleep.
const OTHER_THREADS: usize = 16;

/// Why a look is not complete.
const LATE: &str = "the time for it was over";

/// Looks into processes, one after the other. What it learns of object files serves for all of them.
#[derive(Debug)]
pub struct Looker {
    bounds: Bounds,
    images: Images,
}

/// The threads of one process.
struct Seen {
    threads: Vec<ThreadStack>,
    interpreter: Interpreter,
    unseen: Option<String>,
    stopped: Duration,
}

impl Looker {
    pub fn new(bounds: Bounds) -> Looker {
        Looker { bounds, images: Images::default() }
    }

    /// Where a process is, and what it has started. What could not be seen is said in the result.
    pub fn look(&mut self, pid: Pid) -> ProcessStack {
        self.look_until(pid, pid, Instant::now() + self.bounds.per_process)
    }

    /// The same, if the time for it does not end before. `leader`: the first process of the rank, such as a shell that has started `pid`
    /// with another stdin.
    pub fn look_until(&mut self, pid: Pid, leader: Pid, until: Instant) -> ProcessStack {
        let until = until.min(Instant::now() + self.bounds.per_process);
        let mut stdin: Vec<PathBuf> = [pid, leader].into_iter().filter_map(|pid| stdin_of(pid.0)).collect();
        stdin.dedup();
        let Seen { threads, interpreter, unseen, stopped } = self.see(pid.0, self.bounds.threads, &stdin, until);
        let others = self.others(pid.0, &stdin, until);
        let stopped_us = u32::try_from(stopped.as_micros()).unwrap_or(u32::MAX);
        let (command, written) = (command(living(pid.0)), written(pid.0));
        ProcessStack { pid, command, interpreter, threads, others, unseen, stopped_us, written }
    }

    fn others(&mut self, pid: i32, stdin: &[PathBuf], until: Instant) -> Vec<OtherProcess> {
        let others = proc::descendants(pid).into_iter().take(self.bounds.others);
        others.map(|process| self.other(process, stdin, until)).collect()
    }

    fn other(&mut self, process: proc::Process, stdin: &[PathBuf], until: Instant) -> OtherProcess {
        let mut other = OtherProcess {
            pid: Pid(process.pid),
            parent: Pid(process.parent),
            command: process.name,
            state: kernel::state(process.state),
            status: proc::exit_status(process.pid).map(WorkerStatus::of_wait),
            unseen: None,
            frames: Vec::new(),
            sleeps: false,
            limit_ms: None,
            reads_stdin: false,
        };
        if Instant::now() >= until {
            other.unseen = Some(LATE.to_owned());
            return other;
        }
        // Before it is stopped: after that it may be on its way back into its call.
        let threads = threads_until(process.pid, OTHER_THREADS, until);
        // The stdin of a program in a pipeline is written by another process of the rank.
        let calls: Vec<String> = threads.iter().filter_map(|thread| in_kernel(thread, stdin)).collect();
        other.limit_ms = threads.iter().filter_map(limit_ms).max();
        let mut seen = self.see(process.pid, 1, stdin, until);
        if !seen.threads.is_empty() {
            other.frames = seen.threads.swap_remove(0).frames;
        }
        let name = command(living(process.pid));
        if !name.is_empty() {
            other.command = name;
        }
        other.unseen = seen.unseen.filter(|_| other.frames.is_empty());
        other.sleeps = calls.iter().any(|call| is_sleep(call));
        other.reads_stdin = calls.iter().any(|call| is_at_stdin(call));
        other
    }

    /// Looks into at most `most` threads of a process.
    fn see(&mut self, pid: i32, most: usize, stdin: &[PathBuf], until: Instant) -> Seen {
        let mut seen =
            Seen { threads: Vec::new(), interpreter: Interpreter::None, unseen: None, stopped: Duration::ZERO };
        let threads = threads_until(pid, most, until);
        if threads.is_empty() {
            seen.unseen = Some("it is gone".to_owned());
            return seen;
        }
        let living = living_of(pid, &threads);
        let memory = Memory { pid: living };
        let maps = match rankrun_sys::kernel::text(format!("/proc/{living}/maps")) {
            Ok(text) => Mappings::parse(&text),
            Err(_) => Mappings::default(),
        };
        if maps.0.is_empty() {
            let is_ended = threads.iter().all(|thread| thread.state == ThreadState::Zombie);
            let why = if is_ended {
                "it has ended, and its parent has not waited for it".to_owned()
            } else {
                reason::of_refusal(living)
            };
            seen.unseen = Some(why);
            seen.threads =
                threads.into_iter().map(|thread| stack(pid, thread, Vec::new(), false, true, stdin)).collect();
            return seen;
        }
        if Instant::now() >= until {
            // What is known of its threads costs nothing more.
            let why = reason::tracer_of(living).unwrap_or_else(|| LATE.to_owned());
            seen.unseen = Some(why);
            seen.threads =
                threads.into_iter().map(|thread| stack(pid, thread, Vec::new(), false, true, stdin)).collect();
            return seen;
        }
        let program =
            proc::executable(living).map(|path| file_name(&path.to_string_lossy()).to_owned()).unwrap_or_default();
        let found = python::find(memory, &maps, &mut self.images, &program, self.bounds.depth);
        let runtime = if let Found::Running(runtime) = &found { Some(&**runtime) } else { None };
        let source = Source { memory, maps: &maps, runtime, bounds: &self.bounds, until };
        let copied = capture::copy_all(source, &threads);
        // Names of Python cost little. Those of native code are looked up for all threads together.
        let mut codes = runtime.map(|runtime| Codes::new(memory, runtime.layout.clone()));
        let runs: Vec<Vec<Vec<Frame>>> = copied.iter().map(|copied| runs(codes.as_mut(), copied)).collect();
        let mut stacks = Stacks::new(memory, &maps, &mut self.images, until);
        let depth = self.bounds.depth;
        let mut unwind = |copied: &Copied| stacks.unwind(copied, depth);
        let unwound: Vec<Option<Unwound>> = copied.iter().map(|copied| copied.as_ref().ok().map(&mut unwind)).collect();
        stacks.learn(unwound.iter().flatten());
        for (((thread, copied), unwound), runs) in threads.into_iter().zip(copied).zip(unwound).zip(runs) {
            match copied {
                Ok(Copied { stopped, python, .. }) => {
                    seen.stopped = seen.stopped.max(stopped);
                    let native = unwound.map(|stack| (stacks.frames(&stack), stack.is_cut)).unwrap_or_default();
                    let is_whole = self.bounds.is_native_whole;
                    let frames = merge::merge(&native.0, &runs, native.1, is_whole);
                    seen.threads.push(merged(pid, thread, frames, native.1, python.as_ref(), stdin));
                }
                Err(Missed::Gone) => {}
                Err(missed) => {
                    let why = match missed {
                        Missed::Refused => Some(reason::of_refusal(living)),
                        Missed::Late => Some(LATE.to_owned()),
                        Missed::Asleep | Missed::Gone => None,
                    };
                    seen.unseen = seen.unseen.or(why);
                    seen.threads.push(stack(pid, thread, Vec::new(), false, true, stdin));
                }
            }
        }
        if stacks.is_late {
            seen.unseen.get_or_insert_with(|| LATE.to_owned());
        }
        let all = capture::tids(pid).len();
        if all > most && most > 1 {
            seen.unseen.get_or_insert_with(|| format!("it has {all} threads; {most} are shown"));
        }
        seen.interpreter = interpreter(found);
        seen
    }
}

/// What the kernel says of the threads of a process, the main thread first: of `most` at most, and of as many as there is time for.
fn threads_until(pid: i32, most: usize, until: Instant) -> Vec<Thread> {
    let is_time = |(at, _): &(usize, i32)| *at == 0 || Instant::now() < until;
    let tids = capture::tids(pid).into_iter().take(most).enumerate().take_while(is_time);
    tids.filter_map(|(_, tid)| capture::thread(pid, tid)).collect()
}

/// The thread by which the kernel tells of a process: the main thread, or where only that one has ended (`pthread_exit`), another. With
/// its end the main thread has lost the memory and the files of the process.
fn living_of(pid: i32, threads: &[Thread]) -> i32 {
    let has_ended = |thread: &&Thread| thread.state == ThreadState::Zombie;
    match threads.iter().find(|thread| thread.tid == pid).filter(has_ended) {
        Some(_) => threads.iter().find(|thread| !has_ended(thread)).map_or(pid, |thread| thread.tid),
        None => pid,
    }
}

fn living(pid: i32) -> i32 {
    match capture::thread(pid, pid).is_none_or(|main| main.state == ThreadState::Zombie) {
        true => {
            living_of(pid, &capture::tids(pid).iter().filter_map(|tid| capture::thread(pid, *tid)).collect::<Vec<_>>())
        }
        false => pid,
    }
}

fn interpreter(found: Found) -> Interpreter {
    match found {
        Found::None => Interpreter::None,
        Found::Running(runtime) => Interpreter::Running { version: runtime.layout.version },
        Found::Gone => Interpreter::Gone,
        Found::Unknown(why) => Interpreter::Unknown { why },
    }
}

/// The Python frames of a thread: those of each call of the evaluation loop together.
fn runs(codes: Option<&mut Codes>, copied: &Result<Copied, Missed>) -> Vec<Vec<Frame>> {
    let (Some(codes), Ok(Copied { python: Some(python), .. })) = (codes, copied) else { return Vec::new() };
    python.runs.iter().map(|run| run.iter().map(|frame| codes.frame(*frame)).collect()).collect()
}

/// One stack of a thread's native frames, which may be cut, and its Python frames.
fn merged(
    pid: i32,
    thread: Thread,
    frames: Vec<Frame>,
    is_cut: bool,
    python: Option<&RawFrames>,
    stdin: &[PathBuf],
) -> ThreadStack {
    // All of Python is there, whatever is missing of what it is called from.
    let is_cut = is_cut && python.is_none_or(|python| python.is_cut || python.runs.is_empty());
    stack(pid, thread, frames, python.is_some_and(|python| python.holds_gil), is_cut, stdin)
}

fn stack(
    pid: i32,
    thread: Thread,
    frames: Vec<Frame>,
    holds_gil: bool,
    is_cut: bool,
    stdin: &[PathBuf],
) -> ThreadStack {
    let is_main = thread.tid == pid;
    let is_idle = idle::is_idle(is_main, thread.state, &thread.name, &frames);
    let kernel = in_kernel(&thread, stdin);
    let limit_ms = limit_ms(&thread);
    ThreadStack {
        tid: Pid(thread.tid),
        name: thread.name,
        is_main,
        state: thread.state,
        run_us: thread.run_us,
        holds_gil,
        kernel,
        limit_ms,
        frames,
        is_idle,
        is_cut,
    }
}

/// The system call, for calls on a descriptor also what it is; for one that waits for a disk, or in an
/// uninterruptible sleep, also the place in the kernel. `stdin`: what the rank may read as its stdin.
fn in_kernel(thread: &Thread, stdin: &[PathBuf]) -> Option<String> {
    let pid = thread.tid;
    let memory = Memory { pid };
    let call = thread.call.and_then(|call| call.restarted(thread.wchan.as_deref(), memory)).and_then(|call| {
        let name = call.name()?;
        let is_sibling =
            |tid: &i32| *tid > 0 && *tid != pid && fs::exists(format!("/proc/{pid}/task/{tid}")).unwrap_or(false);
        if let Some(thread) = call.value_of_futex().filter(is_sibling) {
            return Some(format!("{name} {END_OF_THREAD} {thread}"));
        }
        let file = |fd: i32| fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok();
        let reads = call.reads(memory);
        let is_stdin = |fd: &i32| file(*fd).filter(|file| stdin.contains(file));
        if let Some(stdin) = reads.iter().find_map(is_stdin) {
            return Some(match reads.len() {
                1 => format!("{name} {AT_STDIN}, {}", stdin.display()),
                _ => format!("{name} {AT_STDIN} and others, {}", stdin.display()),
            });
        }
        if call.is_until_a_time() {
            return Some(format!("{name}{UNTIL_A_TIME}"));
        }
        if call.is_without_files() {
            return Some(format!("{name}{WITHOUT_FILES}"));
        }
        let descriptor = i32::try_from(call.first).ok().filter(|_| call.is_on_descriptor());
        Some(match descriptor.and_then(file) {
            Some(file) => format!("{name} {}", file.display()),
            None => name.to_owned(),
        })
    });
    let is_deep = thread.state == ThreadState::Uninterruptible || thread.wchan.as_deref().is_some_and(is_for_disk);
    match (call, &thread.wchan) {
        (Some(call), Some(place)) if is_deep => Some(format!("{call} in {place}")),
        (None, Some(place)) => Some(place.clone()),
        (call, _) => call,
    }
}

/// How long the call of a thread lasts at most.
fn limit_ms(thread: &Thread) -> Option<u64> {
    let memory = Memory { pid: thread.tid };
    let call = thread.call.and_then(|call| call.restarted(thread.wchan.as_deref(), memory))?;
    call.limit(memory).map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
}

fn stdin_of(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/0")).ok()
}

/// Bytes that it has passed to write and the like.
fn written(pid: i32) -> Option<u64> {
    let io = rankrun_sys::kernel::piece_text(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("wchar: ")?.trim().parse().ok())
}

/// Its command, on one line.
pub(crate) fn command(pid: i32) -> String {
    let words = proc::arguments(pid, COMMAND_BYTES);
    let words: Vec<String> = words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    words.join(" ").replace(['\n', '\r'], " ")
}
