//! What the kernel's log has said of processes below ranks that it killed because memory ran out.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rankrun_core::WorkerId;

/// How long after the log has named a process a rank may tell of its end.
const BOUND: Duration = Duration::from_secs(2);
/// Processes that are remembered: more than are killed in that time.
const MOST: usize = 256;

/// By rank, what the log says of a process of it; and what it has said of processes that were gone when the log was read, and when that
/// was. Whose these were is not known: a rank whose exit status tells of a SIGKILL just then had started one.
#[derive(Debug, Default)]
pub(super) struct Killed {
    of: HashMap<WorkerId, (Duration, String)>,
    gone: VecDeque<(Duration, String)>,
    /// The processes that were named. The log has two lines about each, which may be read one after the other.
    named: VecDeque<i32>,
}

impl Killed {
    /// Whether the log has not named this process before.
    pub(super) fn is_new(&mut self, pid: i32) -> bool {
        let is_new = !self.named.contains(&pid);
        if is_new {
            self.named.truncate(MOST - 1);
            self.named.push_front(pid);
        }
        is_new
    }

    /// The log names a process of this rank.
    pub(super) fn add(&mut self, now: Duration, worker: WorkerId, line: String) {
        self.of.insert(worker, (now, line));
    }

    /// The log names a process that is gone.
    pub(super) fn add_gone(&mut self, now: Duration, line: String) {
        self.gone.truncate(MOST - 1);
        self.gone.push_back((now, line));
    }

    /// What explains that the leader of a rank tells of a SIGKILL by its exit status, as a shell does of its program.
    pub(super) fn take(&mut self, now: Duration, worker: WorkerId) -> Option<String> {
        let is_fresh = |(at, _): &(Duration, String)| now <= *at + BOUND;
        self.gone.retain(is_fresh);
        // One that the rank has survived for longer is no news.
        let own = self.of.remove(&worker).filter(is_fresh);
        own.or_else(|| self.gone.pop_front()).map(|(_, line)| line)
    }

    /// The rank is started again.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.of.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use rankrun_core::{Attempt, Rank};

    use super::*;

    fn worker(rank: u32) -> WorkerId {
        WorkerId { rank: Rank(rank), attempt: Attempt(0) }
    }

    /// A busy agent reads the log after the shell has reaped its program.
    #[test]
    fn a_program_that_was_reaped_before_the_log_was_read_explains_the_exit_status_of_its_shell() {
        let at = Duration::from_secs;
        let (line, other) = ("Killed process 7 (a)".to_owned(), "Killed process 8 (b)".to_owned());
        let mut killed = Killed::default();
        killed.add_gone(at(5), line.clone());
        assert_eq!(killed.take(at(5), worker(1)), Some(line.clone()));
        assert_eq!(killed.take(at(5), worker(1)), None, "it explains one end");
        killed.add_gone(at(5), line.clone());
        assert_eq!(killed.take(at(8), worker(1)), None, "too late");
        killed.add(at(8), worker(1), other.clone());
        killed.add_gone(at(9), line.clone());
        assert_eq!(killed.take(at(9), worker(1)), Some(other.clone()), "what is known of the rank counts first");
        assert_eq!(killed.take(at(9), worker(2)), Some(line.clone()), "and the other explains another rank's");
        killed.add_gone(at(9), line.clone());
        killed.add_gone(at(9), other.clone());
        assert_eq!([1, 2, 3].map(|slot| killed.take(at(10), worker(slot))), [Some(line), Some(other), None]);
        assert_eq!([7, 7, 8, 7].map(|pid| killed.is_new(pid)), [true, false, true, false]);
        killed.add(at(10), worker(2), String::new());
        killed.forget(worker(2));
        assert_eq!(killed.take(at(10), worker(2)), None, "it is started again");
        killed.add(at(20), worker(1), String::new());
        assert_eq!(killed.take(at(23), worker(1)), None, "it has survived that");
    }
}
