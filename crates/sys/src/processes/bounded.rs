//! Calls that may block, made by a thread, which the caller waits for only a moment.
//!
//! For reads that are answered in microseconds unless something is wrong, and whose answer is needed at once: the environment of a
//! process that may hold the lock on its own memory for ever, the answer of a process that reads an error file. SIGKILL ends either wait:
//! a call that it would not end keeps this process from ending, and belongs into another process.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::{proc, signal};

/// Calls that may be blocked at a time on a loop. With so many, nothing is asked any more until one has returned.
const BLOCKED: usize = 4;
/// A thread that waits in state D at some looks in a row, this time after its begin, waits for something that does not come.
const STUCK: (Duration, u32) = (Duration::from_millis(100), 3);
/// How long a call may take that waits for a CPU.
const STARVED: Duration = Duration::from_secs(5);

/// How often to look whether a call that takes long is stuck.
const STEP: Duration = Duration::from_millis(20);

/// How much longer a call is waited for whose thread waits for nothing but a CPU.
const BUSY_BOUND: Duration = Duration::from_secs(1);

type Work = Box<dyn FnOnce() + Send>;

/// The thread, started with the first call. One that is blocked is left, and ends when its call returns.
#[derive(Debug)]
pub struct Bounded {
    thread: Option<Thread>,
    /// Each call has a clone of it until it returns.
    under_way: Arc<()>,
    most_blocked: usize,
}

#[derive(Debug)]
struct Thread {
    inbox: SyncSender<Work>,
    /// Its id, once it runs.
    id: Arc<AtomicI32>,
}

impl Thread {
    fn start() -> std::io::Result<Thread> {
        let (inbox, outbox) = sync_channel::<Work>(1);
        let id = Arc::new(AtomicI32::new(0));
        let own = Arc::clone(&id);
        std::thread::Builder::new().name("bounded".to_owned()).stack_size(128 * 1024).spawn(move || {
            signal::block_all();
            own.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
            outbox.into_iter().for_each(|work| work());
        })?;
        Ok(Thread { inbox, id })
    }

    /// Its state, once it runs.
    fn state(&self) -> Option<char> {
        let id = self.id.load(Ordering::Acquire);
        if id == 0 { None } else { proc::own_thread_state(id) }
    }

    /// Whether it waits for something. A thread that lacks a CPU does not.
    fn waits(&self) -> bool {
        self.state().is_some_and(|state| state != 'R')
    }
}

impl Default for Bounded {
    fn default() -> Bounded {
        Bounded::with_room(BLOCKED)
    }
}

impl Bounded {
    /// So many of its threads may be blocked at a time.
    pub fn with_room(most_blocked: usize) -> Bounded {
        Bounded { thread: None, under_way: Arc::new(()), most_blocked }
    }

    /// The result of a call, unless the kernel keeps it waiting. For callers that are no loop: they wait for a thread that lacks a CPU.
    pub fn call_unless_stuck<T: Send + 'static>(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let looks = Cell::new(0);
        let is_stuck = |thread: &Thread| {
            looks.set(if thread.state() == Some('D') { looks.get() + 1 } else { 0 });
            looks.get() >= STUCK.1
        };
        self.run(STUCK.0, STARVED, is_stuck, work)
    }

    /// The result of a call, if it returns within `bound`, or a little later because its thread lacks a CPU. Where no thread can be
    /// started, the call is made here.
    pub fn call<T: Send + 'static>(&mut self, bound: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.run(bound, bound + BUSY_BOUND, Thread::waits, work)
    }

    /// The same. After `bound` it is waited for up to `most` unless it is stuck.
    pub fn call_unless<T: Send + 'static>(
        &mut self,
        bound: Duration,
        most: Duration,
        is_stuck: impl Fn() -> bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.run(bound, most, |_| is_stuck(), work)
    }

    /// How many calls have not returned.
    fn blocked(&self) -> usize {
        Arc::strong_count(&self.under_way) - 1
    }

    fn run<T: Send + 'static>(
        &mut self,
        bound: Duration,
        most: Duration,
        is_stuck: impl Fn(&Thread) -> bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.blocked() >= self.most_blocked {
            return None;
        }
        // The thread waits for work, since every call before was answered.
        let Some(thread) = self.thread.take().or_else(|| Thread::start().ok()) else { return Some(work()) };
        let (outbox, answer) = sync_channel(1);
        let under_way = Arc::clone(&self.under_way);
        let work: Work = Box::new(move || {
            let result = work();
            // Before the answer: the caller may count the calls as soon as it has it.
            drop(under_way);
            // The caller may have stopped waiting.
            let _ = outbox.send(result);
        });
        let is_sent = thread.inbox.send(work).is_ok();
        let begun = Instant::now();
        let mut result = if is_sent { answer.recv_timeout(bound).ok() } else { None };
        while is_sent && result.is_none() && begun.elapsed() < most {
            // It waits for its next work, too, when it has just answered.
            let is_over = is_stuck(&thread);
            result = answer.recv_timeout(if is_over { Duration::ZERO } else { STEP }).ok();
            if is_over {
                break;
            }
        }
        self.thread = result.is_some().then_some(thread);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_call_that_blocks_costs_its_bound_and_no_later_call() {
        let mut bounded = Bounded::default();
        let (release, blocked) = sync_channel::<()>(1);
        assert_eq!(bounded.call(Duration::from_secs(60), || 1), Some(1));
        let begun = Instant::now();
        let answer = bounded.call(Duration::from_millis(20), move || blocked.recv().is_ok());
        assert_eq!(answer, None);
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert_eq!(bounded.call(Duration::from_secs(60), || 2), Some(2));
        drop(release);
    }

    #[test]
    fn a_call_that_is_not_stuck_gets_more_time() {
        let mut bounded = Bounded::default();
        let (release, blocked) = sync_channel::<()>(1);
        let looks = std::cell::Cell::new(0);
        let is_stuck = || {
            looks.set(looks.get() + 1);
            // It is done after the second look.
            let _ = (looks.get() == 2).then(|| release.send(()));
            false
        };
        let work = move || blocked.recv().is_ok();
        let (bound, most) = (Duration::from_millis(1), Duration::from_secs(60));
        assert_eq!(bounded.call_unless(bound, most, is_stuck, work), Some(true));
        assert_eq!(looks.get(), 2);
    }

    /// As vfork(2) waits for the child, in a state that only SIGKILL ends.
    #[test]
    fn a_call_that_the_kernel_keeps_waiting_is_stuck() {
        unsafe extern "C" fn wait_for_a_byte(raw: *mut std::ffi::c_void) -> ! {
            let mut byte = 0u8;
            // SAFETY: `raw` is the descriptor in the frame of the parent, which waits; `byte` has room for what is read.
            unsafe {
                libc::read(*raw.cast::<i32>(), (&raw mut byte).cast(), 1);
                libc::_exit(0)
            }
        }
        let (reader, writer) = crate::socket::pipe().expect("a pipe");
        let mut bounded = Bounded::with_room(1);
        let answer = bounded.call_unless_stuck(move || {
            let mut stack = crate::clone::ChildStack::new().expect("a stack");
            let (mut number, pid) = (reader.as_raw_fd(), AtomicI32::new(0));
            // SAFETY: the child makes system calls only, and the descriptor is there until it ends.
            let child =
                unsafe { crate::clone::clone_plain(&mut stack, &pid, wait_for_a_byte, (&raw mut number).cast()) };
            crate::wait::reap(child.expect("a child"));
        });
        assert_eq!(answer, None);
        rustix::io::write(&writer, b"x").expect("the child reads it");
    }

    #[test]
    fn a_call_that_waits_for_a_cpu_is_not_stuck() {
        let mut bounded = Bounded::with_room(1);
        // It works for longer than a stuck call would get.
        let works = || {
            let begun = Instant::now();
            while begun.elapsed() < 2 * STUCK.0 {
                std::hint::spin_loop();
            }
        };
        assert_eq!(bounded.call_unless_stuck(works), Some(()));
    }

    #[test]
    fn a_call_whose_thread_only_lacks_a_cpu_gets_more_time() {
        let work = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(100) {
                std::hint::spin_loop();
            }
            5
        };
        assert_eq!(Bounded::default().call(Duration::from_millis(1), work), Some(5));
    }

    #[test]
    fn after_some_calls_that_block_nothing_is_asked() {
        let mut bounded = Bounded::default();
        let (release, blocked) = sync_channel::<()>(1);
        let blocked = std::sync::Arc::new(std::sync::Mutex::new(blocked));
        for _ in 0..BLOCKED {
            let blocked = std::sync::Arc::clone(&blocked);
            bounded
                .call(Duration::from_millis(1), move || blocked.lock().map(|blocked| blocked.recv().is_ok()).is_ok());
        }
        assert_eq!(bounded.call(Duration::from_secs(60), || 3), None);
        drop(release);
    }

    #[test]
    fn calls_that_were_late_and_have_returned_count_no_more() {
        let mut bounded = Bounded::default();
        for _ in 0..=BLOCKED {
            let (release, late) = sync_channel::<()>(1);
            assert_eq!(bounded.call(Duration::from_millis(1), move || late.recv().is_ok()), None);
            drop(release);
            let until = Instant::now() + Duration::from_secs(60);
            while bounded.call(Duration::from_secs(60), || 4) != Some(4) {
                assert!(Instant::now() < until, "no call is answered any more");
                std::thread::yield_now();
            }
        }
    }
}
