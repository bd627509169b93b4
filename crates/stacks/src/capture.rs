//! What is copied from a thread while it stands still.
//!
//! A thread is stopped only if it has to be. One that sleeps in a system call that would fail with EINTR after a stop (epoll
//! and a few others: signal(7)), and one in an uninterruptible sleep, is read as it is: the kernel tells where it sleeps. If
//! it is stopped in such a call after all, the call is begun again.

use std::fs;
use std::time::{Duration, Instant};

use rankrun_core::stacks::ThreadState;
use rankrun_sys::trace::{self, NotHeld, Registers};

use crate::Bounds;
use crate::kernel::{self, Call};
use crate::maps::Mappings;
use crate::memory::Memory;
use crate::python::{RawFrames, Runtime};

/// How long a thread may take to stop, except for the main thread, which may take half of the time that is left. One that gets
/// a CPU needs microseconds.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// A thread, before anything of it was read.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) tid: i32,
    pub(crate) name: String,
    pub(crate) state: ThreadState,
    pub(crate) run_us: u64,
    pub(crate) call: Option<Call>,
    pub(crate) wchan: Option<String>,
}

impl Thread {
    /// Whether a stop would disturb what it waits for: a call that fails with EINTR, a request to a file system in user space,
    /// which would be told to give it up.
    fn is_fragile(&self) -> bool {
        let waits_for_fuse = self.wchan.as_deref().is_some_and(|place| place == "request_wait_answer");
        waits_for_fuse || self.call.is_some_and(|call| call.is_fragile())
    }
}

/// What was copied of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copied {
    pub(crate) registers: Registers,
    /// The frame pointer was not to be had.
    pub(crate) lacks_fp: bool,
    /// From the stack pointer on.
    pub(crate) stack: Vec<u8>,
    pub(crate) python: Option<RawFrames>,
    pub(crate) stopped: Duration,
}

/// Why nothing was copied.
#[derive(Debug)]
pub(crate) enum Missed {
    /// It is in an uninterruptible sleep.
    Asleep,
    Gone,
    Refused,
    /// The time is over, or it had no CPU to stop on.
    Late,
}

/// What the kernel says of a thread.
pub(crate) fn thread(pid: i32, tid: i32) -> Option<Thread> {
    let directory = format!("/proc/{pid}/task/{tid}");
    let stat = rankrun_sys::kernel::read_piece(format!("{directory}/stat")).ok()?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let letter = char::from(*stat.get(close + 2)?);
    let name = rankrun_sys::kernel::read_piece(format!("{directory}/comm")).unwrap_or_default();
    let schedstat = rankrun_sys::kernel::piece_text(format!("{directory}/schedstat")).unwrap_or_default();
    let nanoseconds: u64 = schedstat.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let wchan = rankrun_sys::kernel::piece_text(format!("{directory}/wchan")).ok();
    Some(Thread {
        tid,
        name: String::from_utf8_lossy(&name).trim_end().to_owned(),
        state: kernel::state(letter),
        run_us: nanoseconds / 1000,
        call: rankrun_sys::kernel::piece_text(format!("{directory}/syscall")).ok().as_deref().and_then(Call::parse),
        wchan: wchan.filter(|name| name != "0" && !name.is_empty()),
    })
}

/// The threads of a process, the main thread first.
pub(crate) fn tids(pid: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut tids: Vec<i32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable_by_key(|tid| (*tid != pid, *tid));
    tids
}

/// What the copying needs to know of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) memory: Memory,
    pub(crate) maps: &'a Mappings,
    pub(crate) runtime: Option<&'a Runtime>,
    pub(crate) bounds: &'a Bounds,
    pub(crate) until: Instant,
}

/// Copies what is needed of each thread. This happens in a thread of its own: when that ends, however it does, the kernel
/// lets everything go that it holds.
pub(crate) fn copy_all(source: Source<'_>, threads: &[Thread]) -> Vec<Result<Copied, Missed>> {
    let mut copied = Vec::with_capacity(threads.len());
    while copied.len() < threads.len() {
        let rest = &threads[copied.len()..];
        let part = std::thread::scope(|scope| scope.spawn(|| copy_some(source, rest)).join());
        match part {
            Ok(part) if !part.is_empty() => copied.extend(part),
            _ => break,
        }
    }
    copied.resize_with(threads.len(), || Err(Missed::Late));
    copied
}

/// Copies until one thread does not stop: that one is released only by the end of the calling thread.
fn copy_some(source: Source<'_>, threads: &[Thread]) -> Vec<Result<Copied, Missed>> {
    let mut copied = Vec::new();
    for thread in threads {
        let mut is_pending = false;
        copied.push(copy(source, thread, &mut is_pending));
        if is_pending {
            break;
        }
    }
    copied
}

/// Copies what is needed of one thread. `is_pending` becomes true if it was seized and did not stop.
fn copy(source: Source<'_>, thread: &Thread, is_pending: &mut bool) -> Result<Copied, Missed> {
    let left = source.until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Missed::Late);
    }
    if thread.state == ThreadState::Zombie {
        return Err(Missed::Gone);
    }
    let is_uninterruptible = thread.state == ThreadState::Uninterruptible;
    if is_uninterruptible || thread.is_fragile() {
        if let Some(copied) = copy_asleep(source, thread) {
            return Ok(copied);
        }
        if is_uninterruptible {
            return Err(Missed::Asleep);
        }
    }
    let limit = if thread.tid == source.memory.pid { left / 2 } else { MAX_WAIT.min(left) };
    let held = match trace::hold(thread.tid, limit) {
        Ok(held) => held,
        Err(NotHeld::StillPending) => {
            *is_pending = true;
            let now = self::thread(source.memory.pid, thread.tid).ok_or(Missed::Gone)?;
            let missed = if now.state == ThreadState::Uninterruptible { Missed::Asleep } else { Missed::Late };
            return copy_asleep(source, &now).ok_or(missed);
        }
        Err(NotHeld::Gone) => return Err(Missed::Gone),
        Err(NotHeld::Refused(_)) => return Err(Missed::Refused),
    };
    let registers = held.registers().map_err(|_| Missed::Gone)?;
    // It may have begun such a call since its state was read.
    held.restart_call(kernel::fails_after_stop).map_err(|_| Missed::Gone)?;
    let stack = copy_stack(source, registers.sp);
    let python = source.runtime.and_then(|runtime| runtime.raw_frames(thread.tid, registers.tls));
    let stopped = held.release();
    Ok(Copied { registers, lacks_fp: false, stack, python, stopped })
}

/// Copies from a thread that sleeps, without stopping it; `None` if it woke up meanwhile.
pub(crate) fn copy_asleep(source: Source<'_>, thread: &Thread) -> Option<Copied> {
    let call = thread.call?;
    let registers = Registers { pc: call.pc, sp: call.sp, ..Registers::default() };
    let stack = copy_stack(source, call.sp);
    // A thread that has no id of the kernel's in Python (before 3.11) is found by its TLS, which only a stop shows.
    let python = source.runtime.and_then(|runtime| runtime.raw_frames(thread.tid, 0));
    let text =
        rankrun_sys::kernel::piece_text(format!("/proc/{}/task/{}/syscall", source.memory.pid, thread.tid)).ok()?;
    let is_same = Call::parse(&text) == Some(call);
    is_same.then_some(Copied { registers, lacks_fp: true, stack, python, stopped: Duration::ZERO })
}

pub(crate) fn copy_stack(source: Source<'_>, sp: u64) -> Vec<u8> {
    // What grew since the mappings were read begins below the mapping.
    let next = source.maps.0.partition_point(|mapping| mapping.end <= sp);
    let Some(mapping) = source.maps.0.get(next) else { return Vec::new() };
    let length = usize::try_from(mapping.end - sp).unwrap_or(usize::MAX).min(source.bounds.stack_bytes);
    source.memory.copy(sp, length)
}
