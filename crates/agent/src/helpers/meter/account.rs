//! What the processes of one worker use, added up from one measurement to the next: a process that ends takes nothing back.

use std::collections::HashMap;
use std::time::Duration;

use rankrun_core::usage::Usage;
use rankrun_sys::cgroup;
use rankrun_sys::consumption::{self, Consumption};

use super::message::Place;

/// Processes of a worker that are measured. The others are counted no more: a rank does not start so many on purpose.
const MOST_PROCESSES: usize = 4096;

/// One worker.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The processes of the last measurement, by pid and start.
    known: HashMap<(i32, u64), Known>,
    cpu: Duration,
    read: u64,
    written: u64,
}

/// One process, as it was last.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    cpu: Duration,
    storage: Option<[u64; 2]>,
}

impl Account {
    /// Measures the worker. Returns what it uses, and its pids; `None` if none of its processes lives.
    pub(super) fn measure(&mut self, place: &Place) -> Option<(Usage, Vec<i32>)> {
        let living = match place {
            Place::Cgroup(path) => in_cgroup(cgroup::members_below(path)),
            Place::Trees(roots) => below(roots),
        };
        let mut usage = Usage { is_stopped: !living.is_empty(), ..Usage::default() };
        let before = std::mem::take(&mut self.known);
        let mut may_read = false;
        for (pid, consumption) in &living {
            let Consumption { state, started, cpu, threads, memory } = *consumption;
            let last = before.get(&(*pid, started)).copied().unwrap_or_default();
            let storage = consumption::storage(*pid).or(last.storage);
            may_read |= storage.is_some();
            self.cpu += cpu.saturating_sub(last.cpu);
            let [read, written] = storage.unwrap_or_default();
            let [last_read, last_written] = last.storage.unwrap_or_default();
            self.read = self.read.saturating_add(read.saturating_sub(last_read));
            self.written = self.written.saturating_add(written.saturating_sub(last_written));
            self.known.insert((*pid, started), Known { cpu, storage });
            usage.processes += 1;
            usage.threads = usage.threads.saturating_add(threads);
            usage.memory = usage.memory.saturating_add(memory);
            usage.is_stopped &= matches!(state, 'T' | 't');
        }
        if living.is_empty() {
            return None;
        }
        // The kernel's own sum is exact to a microsecond, and has processes that lived shorter than a second.
        let of_cgroup = match place {
            Place::Cgroup(path) => consumption::cgroup_cpu(path),
            Place::Trees(_) => None,
        };
        usage.cpu = of_cgroup.unwrap_or(self.cpu);
        (usage.read, usage.written) = if may_read { (Some(self.read), Some(self.written)) } else { (None, None) };
        Some((usage, living.into_iter().map(|(pid, _)| pid).collect()))
    }
}

/// Those that have not ended.
fn in_cgroup(pids: Vec<i32>) -> Vec<(i32, Consumption)> {
    let read = |pid: i32| Some((pid, consumption::of(pid)?));
    pids.into_iter().take(MOST_PROCESSES).filter_map(read).filter(|(_, it)| is_alive(it)).collect()
}

fn is_alive(consumption: &Consumption) -> bool {
    !matches!(consumption.state, 'Z' | 'X')
}

/// These processes and those below them that have not ended.
fn below(roots: &[i32]) -> Vec<(i32, Consumption)> {
    let (mut found, mut queue) = (Vec::new(), roots.to_vec());
    while let Some(pid) = queue.pop() {
        // The lists change while they are read: a process may be in two of them.
        if found.len() >= MOST_PROCESSES || found.iter().any(|(known, _)| *known == pid) {
            continue;
        }
        let Some(consumption) = consumption::of(pid).filter(is_alive) else { continue };
        queue.extend(consumption::children(pid, consumption.threads));
        found.push((pid, consumption));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rankrun_sys::{proc, signal};

    use super::*;

    #[test]
    fn the_processes_of_a_worker_are_added_up_and_one_that_ends_takes_nothing_back() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 600 & echo; i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let place = Place::Trees(vec![shell.id() as i32]);
        let mut account = Account::default();
        let until = proc::monotonic() + Duration::from_secs(60);
        let (usage, pids) = loop {
            let measured = account.measure(&place).expect("it lives");
            if measured.0.processes == 2 && !measured.0.cpu.is_zero() {
                break measured;
            }
            assert!(proc::monotonic() < until, "{measured:?}");
            std::thread::yield_now();
        };
        assert!(usage.memory > 100_000 && usage.threads == 2 && !usage.is_stopped, "{usage:?}");
        let hold = |pid: i32| rankrun_sys::process::ProcessRef::open(pid).expect("it lives");
        let sleeper = pids.into_iter().find(|pid| *pid != shell.id() as i32).expect("two");
        hold(sleeper).signal(signal::SIGKILL).expect("it is ours");
        while account.measure(&place).is_some_and(|(usage, _)| usage.processes == 2) {
            std::thread::yield_now();
        }
        // The shell ends with its last child.
        shell.wait().expect("it ends");
        assert_eq!(account.measure(&place), None);
        assert!(account.cpu >= usage.cpu);
    }

    #[test]
    fn a_worker_is_stopped_when_all_its_processes_are() {
        let mut sleeper = Command::new("sleep").arg("600").spawn().expect("sleep starts");
        let pid = sleeper.id() as i32;
        let is_stopped = || Account::default().measure(&Place::Trees(vec![pid])).map(|(usage, _)| usage.is_stopped);
        assert_eq!(is_stopped(), Some(false));
        let held = rankrun_sys::process::ProcessRef::open(pid).expect("it lives");
        held.signal(rustix::process::Signal::STOP.as_raw()).expect("it is ours");
        while is_stopped() != Some(true) {
            std::thread::yield_now();
        }
        sleeper.kill().expect("it lives");
        sleeper.wait().expect("it ends");
    }
}
