//! What the kernel tells of a thread with a few reads: its state, its CPU time, its system call.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rankrun_core::stacks::ThreadState;
use rankrun_core::stacks::profile::Cost;

use crate::kernel::{self, Call};

/// Longer than any of these files.
const ROOM: usize = 1024;
/// Microseconds of a clock tick: USER_HZ is 100 on every architecture that matters.
const TICK_US: u64 = 10_000;

/// Files of a thread. Those of a main thread are kept open: all processes have one.
#[derive(Debug)]
pub(super) struct Files {
    directory: String,
    kept: Option<[File; 3]>,
}

#[derive(Clone, Copy)]
enum Name {
    Stat,
    Schedstat,
    Syscall,
}

const NAMES: [&str; 3] = ["stat", "schedstat", "syscall"];

/// What the kernel counts of a thread, or of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stat {
    pub(super) state: ThreadState,
    /// What was used so far.
    pub(super) used: Cost,
    /// Where the program and its stack begin: others after each exec.
    pub(super) program: [u64; 2],
}

/// Time on a CPU and time without one, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Schedule {
    pub(super) ran: u64,
    pub(super) delayed: u64,
}

impl Files {
    /// Of a process: its counters are those of all threads, and its state is that of the main thread.
    pub(super) fn of_process(pid: i32) -> Files {
        let directory = format!("/proc/{pid}");
        let open = |name: &str| File::open(format!("{directory}/{name}"));
        let [stat, schedstat, syscall] = NAMES.map(open);
        let kept = stat.and_then(|stat| Ok([stat, schedstat?, syscall?])).ok();
        Files { directory, kept }
    }

    pub(super) fn of_thread(pid: i32, tid: i32) -> Files {
        Files { directory: format!("/proc/{pid}/task/{tid}"), kept: None }
    }

    fn read(&self, name: Name) -> Option<String> {
        let mut room = [0; ROOM];
        let length = match &self.kept {
            Some(files) => files[name as usize].read_at(&mut room, 0).ok()?,
            None => {
                File::open(format!("{}/{}", self.directory, NAMES[name as usize])).ok()?.read_at(&mut room, 0).ok()?
            }
        };
        Some(String::from_utf8_lossy(&room[..length]).into_owned())
    }

    pub(super) fn stat(&self) -> Option<Stat> {
        parse_stat(&self.read(Name::Stat)?)
    }

    pub(super) fn schedule(&self) -> Option<Schedule> {
        let text = self.read(Name::Schedstat)?;
        let mut words = text.split_ascii_whitespace().map(str::parse);
        Some(Schedule { ran: words.next()?.ok()?, delayed: words.next()?.ok()? })
    }

    pub(super) fn call(&self) -> Option<Call> {
        Call::parse(&self.read(Name::Syscall)?)
    }
}

fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let state = words.first()?.chars().next()?;
    // proc(5): the third field is the first here.
    let number = |field: usize| words.get(field - 3)?.parse::<u64>().ok();
    let cost = Cost {
        faults: number(10)?,
        major_faults: number(12)?,
        user_us: number(14)? * TICK_US,
        system_us: number(15)? * TICK_US,
        delay_us: 0,
    };
    let program = [number(26).unwrap_or_default(), number(28).unwrap_or_default()];
    Some(Stat { state: kernel::state(state), used: cost, program })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_a_process_are_read_whatever_its_name_is() {
        let text = "77 (a) R (b) S 1 77 77 0 -1 4194304 120 5 7 9 30 4 0 0 20 0 3 0 100 1 2 3 4096 5000 8192 0";
        let Stat { state, used: cost, program } = parse_stat(text).expect("it is one");
        assert_eq!(state, ThreadState::Sleeping);
        assert_eq!((cost.faults, cost.major_faults, cost.user_us, cost.system_us), (120, 7, 300_000, 40_000));
        assert_eq!(program, [4096, 8192]);
        assert_eq!(parse_stat("77 (a) S 1 2"), None);
    }

    #[test]
    fn the_files_of_this_process_are_read_again_and_again() {
        let link = std::fs::read_link("/proc/thread-self").expect("it is there");
        let own = link.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
        let pid = std::process::id() as i32;
        // The main thread may do nothing while this one runs: what it has used does not change then.
        let files = Files::of_thread(pid, own);
        let first = files.schedule().expect("it runs");
        while files.schedule() == Some(first) {
            std::hint::spin_loop();
        }
        assert!(files.stat().is_some());
        assert!(Files::of_process(pid).stat().is_some());
    }
}
