//! The environments of other processes, read by a thread that nobody waits for.
//!
//! A process that is in `mmap` on a file system that does not answer holds the lock on its own memory, and whoever reads its environment
//! or its mappings waits for that lock (`mmap_read_lock_killable` in Linux).

use std::collections::HashSet;

use crate::bounded::Bounded;
use crate::kernel;

/// Threads that may be blocked at a time. A process that is not asked for that reason counts as one that does not answer.
pub const SILENT: usize = 32;

/// A process did not show its environment in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Silent;

/// Reads environments, and remembers which processes do not answer: each costs its time once.
#[derive(Debug)]
pub struct Environments {
    calls: Bounded,
    silent: HashSet<i32>,
}

impl Default for Environments {
    fn default() -> Environments {
        Environments { calls: Bounded::with_room(SILENT), silent: HashSet::new() }
    }
}

impl Environments {
    /// What a process was started with; `None` if we may not know it, or the process is gone.
    ///
    /// # Errors
    ///
    /// The process does not answer.
    pub fn read(&mut self, pid: i32) -> Result<Option<Vec<u8>>, Silent> {
        if self.silent.contains(&pid) {
            return Err(Silent);
        }
        let read = move || kernel::read(format!("/proc/{pid}/environ")).ok();
        self.calls.call_unless_stuck(read).ok_or_else(|| {
            self.silent.insert(pid);
            Silent
        })
    }
}
