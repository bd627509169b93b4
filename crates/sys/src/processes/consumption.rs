//! What a process uses: its CPU time, its memory, its I/O. For processes of the ranks, read at most once a second.

use std::path::Path;
use std::time::Duration;

use crate::kernel;
use crate::proc;

/// A process at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Consumption {
    /// `R`, `S`, `T`, `Z` and so on (proc(5)).
    pub state: char,
    /// Clock ticks from boot to its start: with the pid, its identity.
    pub started: u64,
    /// CPU time of all its threads, also of those that have ended.
    pub cpu: Duration,
    pub threads: u32,
    /// Resident memory in bytes.
    pub memory: u64,
}

/// What a process uses; `None` when it is gone. This may block (see [`proc::all`]).
pub fn of(pid: i32) -> Option<Consumption> {
    parse(&kernel::read_piece(format!("/proc/{pid}/stat")).ok()?, rustix::param::page_size() as u64)
}

/// proc_pid_stat(5).
fn parse(stat: &[u8], page: u64) -> Option<Consumption> {
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    // The state is the third field; `nth` skips those between.
    let state = fields.next()?.chars().next()?;
    let [user, system] = [fields.nth(14 - 4)?, fields.next()?].map(|ticks| ticks.parse::<u64>().ok());
    let threads = fields.nth(20 - 16)?.parse().ok()?;
    let started = fields.nth(22 - 21)?.parse().ok()?;
    let pages: u64 = fields.nth(24 - 23)?.parse().ok()?;
    // USER_HZ is 100 on every architecture that matters.
    let cpu = Duration::from_millis((user? + system?) * 10);
    Some(Consumption { state, started, cpu, threads, memory: pages * page })
}

/// Bytes that a process has read from storage and written to it so far; `None` where that may not be read. This may block.
pub fn storage(pid: i32) -> Option<[u64; 2]> {
    parse_io(&kernel::read_piece(format!("/proc/{pid}/io")).ok()?)
}

/// proc_pid_io(5).
fn parse_io(io: &[u8]) -> Option<[u64; 2]> {
    let text = std::str::from_utf8(io).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some([field("read_bytes:")?, field("write_bytes:")?])
}

/// The children of a process that has so many threads. One list where there is one thread.
pub fn children(pid: i32, threads: u32) -> Vec<i32> {
    if threads > 1 {
        return proc::children_of(pid);
    }
    let list = kernel::text(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// CPU time of all processes that are or were in a cgroup.
pub fn cgroup_cpu(cgroup: &Path) -> Option<Duration> {
    let text = kernel::piece_text(cgroup.join("cpu.stat")).ok()?;
    let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok())?;
    Some(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_as_the_kernel_writes_it() {
        // Linux 6.1, `cat /proc/self/stat` of a program named "a) b (c".
        let stat =
            b"42 (a) b (c) S 1 42 40 0 -1 4194560 1 0 0 0 7 5 1 2 20 0 3 0 12345 8192 250 18446744073709551615 1 1";
        let expected =
            Consumption { state: 'S', started: 12345, cpu: Duration::from_millis(120), threads: 3, memory: 250 * 4096 };
        assert_eq!(parse(stat, 4096), Some(expected));
        assert_eq!(parse(b"42 (a) S 1 2", 4096), None);
        let io =
            b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n";
        assert_eq!(parse_io(io), Some([4096, 8192]));
    }

    #[test]
    fn what_this_process_uses_is_read() {
        let own = std::process::id() as i32;
        let read = of(own).expect("it is there");
        let known = proc::process(own).expect("it is there");
        assert_eq!((read.started, read.cpu >= known.cpu_time()), (known.started, true));
        assert!(read.memory > 100_000 && read.threads >= 2, "{read:?}");
        assert_eq!(of(i32::MAX), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        assert!(children(own, read.threads).contains(&(child.id() as i32)));
        child.kill().expect("it lives");
        child.wait().expect("it is a child");
    }
}
