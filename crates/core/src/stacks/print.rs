//! What two looks into a rank are compared by: it leaves out what changes while a rank only waits, and keeps what changes while it
//! goes on.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::calls::{Wait, place, place_of};
use super::fold::Seen;
use super::{Frame, OtherProcess, ProcessStack, ThreadStack, ThreadState};
use crate::ids::{Pid, Rank};

/// Libraries that spin while they wait, by the beginning of their files' names: what is inside of the call into them changes from
/// one microsecond to the next.
const SPINNING: [&str; 17] = [
    "libmpi",
    "libopen-pal",
    "libopen-rte",
    "libpmix",
    "libuc",
    "libfabric",
    "libpsm",
    "libhcoll",
    "libsharp",
    "libgloo",
    "libnccl",
    "librccl",
    "libgomp",
    "libiomp",
    "libomp",
    "libtbb",
    "libpsm2",
];
/// The same of GPUs. What waits for a GPU cannot be told from what lets it compute.
const GPU: [&str; 7] = ["libcuda", "libcublas", "libcudnn", "libamdhip64", "libhsa-runtime", "libze_", "libnvidia"];
/// What these libraries call to wait.
const SYSTEM: [&str; 5] = ["libc.so", "libc-", "libpthread", "ld-", "[vdso]"];
/// Calls that end by themselves after a time.
const SLEEPS: [&str; 4] = ["nanosleep", "clock_nanosleep", "usleep", "sleep"];

/// What a rank does, as far as it matters for a stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    Waits,
    /// It wakes by itself.
    Sleeps,
    /// It waits for somebody who types.
    AtInput,
    /// It runs, and not in a wait that spins; or its GPU may.
    Computes,
    /// Somebody has stopped it: a debugger, or SIGSTOP.
    Held,
}

/// Where a rank was at a look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Print {
    /// Equal at two looks if it was at the same place. `None`: it could not be looked into.
    pub(super) place: Option<u64>,
    pub(super) doing: Doing,
    /// A process that it has started runs.
    pub(super) has_busy_child: bool,
    /// A thread runs that is at work.
    pub(super) has_busy_thread: bool,
    threads: Vec<Thread>,
}

/// The CPU time of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Thread {
    tid: Pid,
    ran: Duration,
    /// What it uses is for something else than a wait.
    is_at_work: bool,
}

/// Those of all ranks that live.
pub fn prints(seen: &[Seen]) -> BTreeMap<Rank, Print> {
    seen.iter().map(|seen| (seen.rank, Print::of(&seen.stack))).collect()
}

impl Print {
    pub fn of(process: &ProcessStack) -> Print {
        let mut threads: Vec<Thread> = process.threads.iter().map(|thread| Thread::of(process, thread)).collect();
        threads.sort_unstable_by_key(|thread| thread.tid);
        let has_busy_child = process.others.iter().any(|other| other.state == ThreadState::Running);
        let is_busy =
            |thread: &&ThreadStack| thread.state == ThreadState::Running && Thread::of(process, thread).is_at_work;
        let has_busy_thread = process.threads.iter().any(|thread| is_busy(&thread));
        let is_held = process.threads.iter().any(|thread| thread.state == ThreadState::Stopped);
        let chosen = place_of(process).filter(|place| !place.calls.is_empty());
        let shown = chosen.and_then(|chosen| {
            let thread = process.threads.iter().find(|thread| place(process, thread) == chosen)?;
            Some((thread, chosen))
        });
        let doing = match &shown {
            _ if is_held => Doing::Held,
            None => Doing::Waits,
            Some((_, chosen)) if chosen.wait.is_for_others() => Doing::Waits,
            Some((thread, _)) if inside(thread).iter().any(|frame| is_of(frame, &GPU)) => Doing::Computes,
            Some((thread, _)) if !inside(thread).is_empty() => Doing::Waits,
            Some((_, chosen)) if chosen.wait == Wait::Stdin => Doing::AtInput,
            Some((_, chosen)) if chosen.wait == Wait::Nothing => Doing::Computes,
            Some((_, chosen)) if chosen.wait == Wait::Time => Doing::Sleeps,
            Some((thread, chosen)) if chosen.wait == Wait::Event && sleeps(thread) => Doing::Sleeps,
            Some(_) => Doing::Waits,
        };
        let place = shown.map(|(thread, chosen)| {
            let mut hasher = DefaultHasher::new();
            (process.pid, thread.tid).hash(&mut hasher);
            if chosen.wait.is_for_others() {
                // No thread and no process of its own ends that: they matter only if they use the CPU.
                chosen.calls.hash(&mut hasher);
            } else {
                process.threads.iter().filter(|thread| !thread.is_idle).for_each(|it| hash_thread(it, &mut hasher));
                process.others.iter().for_each(|other| hash_other(other, &mut hasher));
            }
            hasher.finish()
        });
        Print { place, doing, has_busy_child, has_busy_thread, threads }
    }

    /// The CPU time since an earlier look that was not spent in a wait.
    pub(super) fn worked_since(&self, before: &Print) -> Duration {
        self.pairs(before).filter(|(now, then)| now.is_at_work || then.is_at_work).map(grown).sum()
    }

    /// Whether no thread has run since an earlier look, so that nothing can have changed. Not known where nothing is known of its
    /// threads.
    pub(super) fn has_slept_since(&self, before: &Print) -> bool {
        let is_same = self.threads.len() == before.threads.len() && self.pairs(before).count() == self.threads.len();
        let has_run = self.pairs(before).any(|(now, then)| now.ran != then.ran);
        is_same && !self.threads.is_empty() && !has_run && !self.has_busy_child
    }

    /// The threads that are in both.
    fn pairs<'a>(&'a self, before: &'a Print) -> impl Iterator<Item = (&'a Thread, &'a Thread)> {
        self.threads.iter().filter_map(|thread| {
            let at = before.threads.binary_search_by_key(&thread.tid, |known| known.tid).ok()?;
            Some((thread, &before.threads[at]))
        })
    }
}

fn grown((now, then): (&Thread, &Thread)) -> Duration {
    now.ran.saturating_sub(then.ran)
}

impl Thread {
    fn of(process: &ProcessStack, thread: &ThreadStack) -> Thread {
        let is_waiting = || !inside(thread).is_empty() || place(process, thread).wait.is_for_others();
        let is_at_work = !thread.is_idle && !is_waiting();
        Thread { tid: thread.tid, ran: Duration::from_micros(thread.run_us), is_at_work }
    }
}

fn is_of(frame: &Frame, libraries: &[&str]) -> bool {
    let file = frame.file.as_deref().filter(|_| !frame.is_python).unwrap_or_default();
    libraries.iter().any(|library| file.starts_with(library))
}

/// The innermost frames, if they are of a library that spins while it waits.
fn inside(thread: &ThreadStack) -> &[Frame] {
    let is_spinning = |frame: &Frame| is_of(frame, &SPINNING) || is_of(frame, &GPU);
    let own = thread.frames.iter().position(|frame| !is_spinning(frame) && !is_of(frame, &SYSTEM));
    let frames = &thread.frames[..own.unwrap_or(thread.frames.len())];
    &frames[..frames.iter().rposition(is_spinning).map_or(0, |at| at + 1)]
}

/// Whether it is in a call that ends after a time.
fn sleeps(thread: &ThreadStack) -> bool {
    let is_sleep = |name: &str| SLEEPS.contains(&name.trim_start_matches("__GI_").trim_start_matches('_'));
    let call = thread.kernel.as_deref().and_then(|kernel| kernel.split([' ', '(']).next());
    match (call, thread.frames.first()) {
        (Some(call), _) if is_sleep(call) => true,
        (_, Some(frame)) => !frame.is_python && is_sleep(&frame.function),
        (_, None) => false,
    }
}

/// A thread without what is inside of a library that spins. Addresses where a program has no names count: they move as it does.
fn hash_thread(thread: &ThreadStack, hasher: &mut DefaultHasher) {
    let inside = inside(thread);
    thread.tid.hash(hasher);
    if let Some(call) = inside.last() {
        // The call into it, if it has a name.
        (&call.file, Some(&call.function).filter(|name| !name.starts_with("0x"))).hash(hasher);
    }
    thread.frames[inside.len()..].hash(hasher);
}

fn hash_other(other: &OtherProcess, hasher: &mut DefaultHasher) {
    (other.pid, other.state == ThreadState::Zombie, &other.frames).hash(hasher);
}
