//! Looks at processes: what they do, and what the report says about them.

use std::collections::HashMap;
use std::time::Duration;

use rankrun_core::Pid;
use rankrun_core::grace::Progress;
use rankrun_core::report::LeftProcess;
use rankrun_core::team::Activity;
use rankrun_core::testimony::Usage;
use rankrun_sys::proc::{self, Scheduling};
use rankrun_sys::process::ProcessId;
use rankrun_sys::written;

use super::lockable::Lockable;

/// What a process on its way out has written and waited for since its start.
pub(super) fn usage(process: ProcessId, lockable: &Lockable) -> Usage {
    let Scheduling { ran, waited, is_runnable } = proc::scheduling(process.pid);
    Usage { written: written_bytes(process, lockable), ran, waited, is_runnable }
}

/// Bytes that a process has caused to be written so far; 0 where that cannot be read.
fn written_bytes(id: ProcessId, lockable: &Lockable) -> u64 {
    lockable.read(id, move || proc::written_bytes(id.pid)).unwrap_or(0)
}

/// What a set of processes did so far, and whether all of them are idle: asleep, stopped or dead, with no file that they may yet
/// write to. A checkpoint may wait between two of its parts.
pub(super) fn activity(ids: &[ProcessId], lockable: &Lockable) -> Activity {
    let mut sum = ids.len() as u64;
    for id in ids {
        let Some(process) = proc::process(id.pid) else { continue };
        if !matches!(process.state, 'S' | 'I' | 'T' | 't' | 'Z') {
            // Nothing else matters as long as one is at work.
            return Activity { sum, quiet: false };
        }
        sum = sum.wrapping_add(process.started);
        sum = sum.wrapping_add(proc::run_time(id.pid).unwrap_or(0)).wrapping_add(written_bytes(*id, lockable));
    }
    Activity { sum, quiet: !ids.iter().any(|id| written::has_file_to_write(id.pid)) }
}

/// What the processes of a worker have done, added up from look to look: a process that ends takes nothing back.
#[derive(Debug, Default)]
pub(super) struct Account {
    known: HashMap<ProcessId, Known>,
    total: Progress,
}

/// One process, as it was at the last look.
#[derive(Debug, Default)]
struct Known {
    written: u64,
    ran: Duration,
    positions: HashMap<(i32, u64), u64>,
}

impl Account {
    /// Looks at all processes of a worker.
    ///
    /// `write_bytes` counts what will go to a disk, also through `mmap`. It does not count writes to file systems in memory
    /// and to some cluster file systems: for those, the positions of open files are read.
    pub(super) fn look(&mut self, ids: &[ProcessId], lockable: &Lockable) -> Progress {
        let mut before = std::mem::take(&mut self.known);
        self.total.waits_for_disk = false;
        for id in ids {
            let Some(process) = proc::process(id.pid).filter(|process| process.id() == *id) else { continue };
            let last = before.remove(id);
            let mut now = Known {
                written: written_bytes(*id, lockable),
                ran: process.cpu_time(),
                positions: written::written_positions(id.pid),
            };
            self.total.waits_for_disk |= process.state == 'D';
            // A new process may have inherited files: it did not write what is in them already.
            let last = last.unwrap_or_else(|| Known { positions: now.positions.clone(), ..Known::default() });
            now.written = now.written.max(last.written);
            now.ran = now.ran.max(last.ran);
            self.total.written = self.total.written.saturating_add(now.written - last.written);
            self.total.ran = self.total.ran.saturating_add(now.ran - last.ran);
            for (file, position) in &now.positions {
                let from = last.positions.get(file).copied().unwrap_or(0);
                // A process may set a position to any value.
                self.total.written = self.total.written.saturating_add(position.saturating_sub(from));
            }
            self.known.insert(*id, now);
        }
        self.total
    }
}

/// The report's text about processes that could not be killed.
pub(super) fn left_processes(ids: &[ProcessId]) -> Vec<LeftProcess> {
    ids.iter()
        .filter_map(|id| proc::process(id.pid).filter(|process| process.id() == *id))
        .filter(|process| process.state != 'Z')
        .map(|process| LeftProcess {
            pid: Pid(process.pid),
            name: process.name,
            state: process.state,
            wait_channel: proc::wait_channel(process.pid),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use super::*;

    /// A process may set the position of a file to any value: in memory, up to `i64::MAX`.
    #[test]
    fn positions_beyond_all_files_do_not_overflow_the_sum() {
        let me = proc::process(std::process::id() as i32).expect("it runs").id();
        let files: Vec<_> = (0..6).map(|_| tempfile::tempfile_in("/dev/shm").expect("memory")).collect();
        let mut account = Account::default();
        let lockable = Lockable::default();
        let before = account.look(&[me], &lockable);
        for mut file in &files {
            file.seek(SeekFrom::Start(i64::MAX as u64)).expect("the file system allows it");
        }
        assert!(account.look(&[me], &lockable).written > before.written);
    }
}
