//! Running one launcher once, and what is made of many runs.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::NanosleepRelativeResult;
use rustix::time::{ClockId, Timespec};

/// Time on the monotonic clock of the machine, which C programs can read as well.
pub(super) fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

pub(super) fn pause(time: Duration) {
    let mut rest = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as _ };
    while let NanosleepRelativeResult::Interrupted(left) = rustix::thread::nanosleep(&rest) {
        rest = left;
    }
}

/// The middle one of some times.
pub(super) fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// A child with all its descendants: a launcher that hangs must not outlive its case.
pub(super) struct Run {
    child: Child,
    pub(super) started: Instant,
}

impl Run {
    pub(super) fn start(command: &mut Command) -> Result<Run> {
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Run { child, started })
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for the launcher, at most until `bound`: its life and its exit code; `None` if it had to be killed.
    pub(super) fn wait(&mut self, bound: Duration) -> Result<Option<(Duration, Option<i32>)>> {
        let pid = Pid::from_raw(self.pid()).context("a child has a pid")?;
        // The kernel wakes us when it ends: looking again and again would cost what is to be measured.
        let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        loop {
            let rest = bound.saturating_sub(self.started.elapsed());
            let rest = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos() as _ };
            match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&rest)) {
                Ok(0) => {
                    self.kill()?;
                    return Ok(None);
                }
                Ok(_) => {
                    let time = self.started.elapsed();
                    return Ok(Some((time, self.child.wait()?.code())));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the launcher has ended.
    pub(super) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Ends the launcher and what it started.
    pub(super) fn kill(&mut self) -> Result<()> {
        let mut all = descendants(self.pid());
        all.push(self.pid());
        for pid in all.into_iter().filter_map(Pid::from_raw) {
            // What is gone already is as it should be.
            #[expect(clippy::disallowed_methods, reason = "a process that this program has just found below itself")]
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        self.child.wait()?;
        Ok(())
    }
}

/// The ids of all processes below one.
pub(super) fn descendants(root: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let after_name = stat.rfind(')').map(|at| &stat[at + 1..]);
        if let Some(parent) = after_name.and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            next.push(child);
            found.push(child);
        }
    }
    found
}

/// The proportional set size, in bytes, of a launcher's own processes: those of its tree that do not run `program`.
pub(super) fn own_memory(root: i32, program: &str) -> u64 {
    let mut pids = descendants(root);
    pids.push(root);
    let own = pids.into_iter().filter(|pid| {
        let file = fs::read_link(format!("/proc/{pid}/exe"));
        file.is_ok_and(|file| file.file_name().is_none_or(|name| name != program))
    });
    own.map(proportional_memory).sum()
}

fn proportional_memory(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
