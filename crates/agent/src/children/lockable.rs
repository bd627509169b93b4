//! Reads of what a process can keep locked: its command line, its environment, its mappings, its account of I/O.
//!
//! The first three wait for the lock on the memory of the process, all of them for the end of an exec. Either takes for ever where a file
//! system does not answer: to a thread of the process that maps a file there, or to the exec, which closes one. So the loop asks a
//! thread, and gets no answer from such a process.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rankrun_sys::bounded::Bounded;
use rankrun_sys::process::ProcessId;

/// How long the loop waits for an answer.
const BOUND: Duration = Duration::from_millis(50);

/// The thread, and what it has been asked.
#[derive(Debug, Default)]
pub(crate) struct Lockable {
    calls: RefCell<Bounded>,
    silent: Silent,
}

/// Processes of which a read has not returned: they are not asked again until then.
type Silent = Arc<Mutex<HashSet<ProcessId>>>;

/// A read that has not returned.
struct Asked {
    silent: Silent,
    process: ProcessId,
}

impl Asked {
    /// `None` if another read of this process has not returned.
    fn new(silent: &Silent, process: ProcessId) -> Option<Asked> {
        let is_first = silent.lock().unwrap_or_else(PoisonError::into_inner).insert(process);
        is_first.then(|| Asked { silent: Arc::clone(silent), process })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.process);
    }
}

impl Lockable {
    /// What `read` returns for a process; `None` if it does not return in time.
    pub(crate) fn read<T: Send + 'static>(
        &self,
        process: ProcessId,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let asked = Asked::new(&self.silent, process)?;
        self.calls.borrow_mut().call(BOUND, move || {
            let answer = read();
            drop(asked);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_that_does_not_answer_is_asked_again_when_it_has() {
        let lockable = Lockable::default();
        let [locked, other] = [1, 2].map(|pid| ProcessId { pid, started: 1 });
        let (release, lock) = sync_channel::<()>(1);
        assert_eq!(lockable.read(locked, move || lock.recv().is_ok()), None);
        for _ in 0..100 {
            assert_eq!(lockable.read(locked, || true), None, "it is not asked");
        }
        assert_eq!(lockable.read(other, || 7), Some(7));
        drop(release);
        let until = Instant::now() + Duration::from_secs(60);
        while lockable.read(locked, || true) != Some(true) {
            assert!(Instant::now() < until, "it is never asked again");
            std::thread::yield_now();
        }
    }
}
