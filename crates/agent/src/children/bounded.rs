//! Calls that may block, made by a thread, which the loop waits for only a moment.
//!
//! For reads that are answered in microseconds unless something is wrong, and whose answer is needed at once: the environment of a
//! process that may hold the lock on its own memory for ever, the answer of a process that reads an error file. SIGKILL ends either wait:
//! a call that may leave its thread in state D does not belong here ([`super::reader`]).

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rankrun_sys::signal;

/// Threads that may be blocked at a time. With so many, nothing is asked any more.
const BLOCKED: usize = 4;

/// How often to look whether a call that takes long is stuck.
const STEP: Duration = Duration::from_millis(20);

type Work = Box<dyn FnOnce() + Send>;

/// The thread, started with the first call. One that is blocked is left, and ends when its call returns.
#[derive(Debug, Default)]
pub(crate) struct Bounded {
    thread: Option<SyncSender<Work>>,
    blocked: usize,
}

impl Bounded {
    /// The result of a call, if it returns within `bound`. Where no thread can be started, the call is made here.
    pub(crate) fn call<T: Send + 'static>(
        &mut self,
        bound: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.call_unless(bound, bound, || true, work)
    }

    /// The same. After `bound` it is waited for up to `most` unless it is stuck.
    pub(crate) fn call_unless<T: Send + 'static>(
        &mut self,
        bound: Duration,
        most: Duration,
        is_stuck: impl Fn() -> bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.blocked >= BLOCKED {
            return None;
        }
        if self.thread.is_none() {
            let (thread, inbox) = sync_channel::<Work>(1);
            let started =
                std::thread::Builder::new().name("bounded".to_owned()).stack_size(128 * 1024).spawn(move || {
                    signal::block_all();
                    inbox.into_iter().for_each(|work| work());
                });
            if started.is_err() {
                return Some(work());
            }
            self.thread = Some(thread);
        }
        let (outbox, answer) = sync_channel(1);
        let work: Work = Box::new(move || {
            // The caller has stopped waiting.
            let _ = outbox.send(work());
        });
        // The thread waits for work, since every call before was answered.
        let is_sent = self.thread.as_ref().is_some_and(|thread| thread.send(work).is_ok());
        let begun = Instant::now();
        let mut result = if is_sent { answer.recv_timeout(bound).ok() } else { None };
        while is_sent && result.is_none() && begun.elapsed() < most && !is_stuck() {
            result = answer.recv_timeout(STEP).ok();
        }
        if result.is_none() {
            self.thread = None;
            self.blocked += 1;
        }
        result
    }
}

#[cfg(test)]
mod tests {
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
}
