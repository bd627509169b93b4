//! Processes that only help their rank: their messages do not count for it.

use rankrun_sys::proc::{self, Process};

use super::registry::Children;

/// Bytes of a client's command line that are looked through.
const ARGUMENTS: u64 = 1 << 16;

/// Whether a process only helps its rank: forked from its parent, or started by `multiprocessing`.
///
/// Of the parent only what the kernel itself knows is read. The command line of the process is in its memory, which it can keep locked:
/// this may block for ever.
pub(super) fn is_helper(process: &Process) -> bool {
    const STARTED_AS: [&[u8]; 4] = [
        b"--multiprocessing-fork",
        b"from multiprocessing.spawn import",
        b"from multiprocessing.forkserver import",
        b"from multiprocessing.resource_tracker import",
    ];
    proc::is_forked_from(process.pid, process.parent)
        || proc::arguments(process.pid, ARGUMENTS)
            .iter()
            .any(|word| STARTED_AS.iter().any(|mark| word.windows(mark.len()).any(|window| window == *mark)))
}

impl Children {
    /// Whether a process only helps its worker; `None` if that cannot be read now.
    pub(crate) fn is_helper(&self, process: &Process) -> Option<bool> {
        // A leader leads, whatever its command line.
        if self.worker_of_leader(process.pid).is_some() {
            return Some(false);
        }
        let (id, process) = (process.id(), process.clone());
        self.lockable.read(id, move || is_helper(&process))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use rankrun_sys::proc::{descendants, process};

    use super::*;

    #[test]
    fn a_fork_is_a_helper_and_a_program_of_the_same_name_is_not() {
        // The inner shell is a fork, the outer one was executed; both wait for a line.
        let script = "(echo ready; read line; true); true";
        let mut outer = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        BufReader::new(outer.stdout.take().expect("piped")).read_line(&mut line).expect("it is ready");
        let pid = outer.id() as i32;
        let inner = descendants(pid).into_iter().next().expect("a fork");
        let is_outer_helper = is_helper(&process(pid).expect("it waits"));
        let is_inner_helper = is_helper(&inner);
        drop(outer.stdin.take());
        outer.wait().expect("it ends");
        assert_eq!((is_inner_helper, is_outer_helper), (true, false), "{inner:?}");

        let mut spawned = Command::new("sh")
            .args(["-c", "echo ready; read line", "--multiprocessing-fork"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        // During an exec a process has no arguments.
        BufReader::new(spawned.stdout.take().expect("piped")).read_line(&mut line).expect("it is ready");
        let is_spawned_helper = is_helper(&process(spawned.id() as i32).expect("it waits"));
        drop(spawned.stdin.take());
        spawned.wait().expect("it ends");
        assert!(is_spawned_helper);
    }
}
