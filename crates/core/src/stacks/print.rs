//! What two looks into a rank are compared by: it leaves out what changes while a rank only waits, and keeps what changes while it
//! goes on.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::calls::{Wait, place, shown};
use super::fold::Seen;
use super::libraries::{inside, waits_for_gpu};
use super::{OtherProcess, ProcessStack, ThreadStack, ThreadState};
use crate::ids::{Pid, Rank};

/// What a rank does, as far as it matters for a stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    Waits,
    /// It wakes by itself, or a thread or process does that it may wait for.
    Sleeps,
    /// It waits for its stdin, or a process does that it may wait for.
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
    /// How long a wait lasts at most that ends by itself, of those in which the rank is.
    pub(super) limit: Option<Duration>,
    /// Only other ranks can end its wait.
    pub(super) waits_for_others: bool,
    /// Bytes that it has written.
    written: Option<u64>,
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
        let is_held =
            process.threads.iter().any(|thread| matches!(thread.state, ThreadState::Stopped | ThreadState::Traced));
        let shown = shown(process).filter(|(_, place)| !place.calls.is_empty());
        let waits_for_others = shown.as_ref().is_some_and(|(_, chosen)| chosen.wait.is_for_others());
        // What waits for a thread or a process of its own waits as long as that does.
        let is_asleep = |thread: &ThreadStack| !thread.is_idle && thread.sleeps() && inside(thread).is_empty();
        let has_sleeper = process.threads.iter().any(is_asleep) || process.others.iter().any(|other| other.sleeps);
        // Somebody outside may still write, whatever the other threads wait for.
        let has_reader = process.threads.iter().any(ThreadStack::reads_stdin)
            || process.others.iter().any(|other| other.reads_stdin);
        let has_limit = |thread: &&ThreadStack| !thread.is_idle && inside(thread).is_empty();
        let own_limits = process.threads.iter().filter(has_limit).filter_map(|thread| thread.limit_ms);
        let limit = own_limits.chain(process.others.iter().filter_map(|other| other.limit_ms)).max();
        let limit = limit.map(Duration::from_millis);
        let doing = match &shown {
            _ if is_held => Doing::Held,
            _ if has_reader => Doing::AtInput,
            _ if waits_for_others => Doing::Waits,
            Some((thread, _)) if waits_for_gpu(inside(thread)) => Doing::Computes,
            Some((thread, chosen)) if chosen.wait == Wait::Stdin && inside(thread).is_empty() => Doing::AtInput,
            Some((thread, chosen)) if chosen.wait == Wait::Nothing && inside(thread).is_empty() => Doing::Computes,
            _ if has_sleeper => Doing::Sleeps,
            Some(_) | None => Doing::Waits,
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
        let written = process.written;
        Print { place, doing, limit, waits_for_others, written, has_busy_child, has_busy_thread, threads }
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

    /// The same where a wait that lasts for so long is a sleep: it ends by itself, and not between two looks.
    pub(super) fn with_sleep_of(self, least: Duration) -> Print {
        let sleeps = self.doing == Doing::Waits && !self.waits_for_others && self.limit.is_some_and(|it| it >= least);
        if sleeps { Print { doing: Doing::Sleeps, ..self } } else { self }
    }

    /// Whether it goes on without a mark outside of itself: it computes or sleeps, at another place than at an earlier look, and has
    /// written nothing.
    pub(super) fn only_computes_since(&self, before: &Print) -> bool {
        let computes =
            |print: &Print| print.place.is_some() && (print.doing == Doing::Computes || print.doing == Doing::Sleeps);
        computes(self) && computes(before) && self.written == before.written
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
