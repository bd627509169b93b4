//! The cores that jobs hold on this machine: a file in which each agent locks a byte for each CPU of its ranks. The kernel releases the locks
//! when the agent ends, however it ends.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rankrun_core::placement::{Claim, Taken};
use rankrun_core::topology::CpuSet;
use rankrun_sys::locks::{Held, LockFile};
use rankrun_sys::poll::pause;
use rankrun_sys::process;

use crate::tidy;

/// Where an administrator lets the jobs of all users keep clear of each other: a file that all may write.
const OF_ALL_USERS: &str = "/run/rankrun/cores";
/// The directory beside a user's jobs, and the file in it.
const OF_A_USER: (&str, &str) = ("cpus", "held");

/// The bytes: one for each CPU that a job has alone; one for each that it shares; one for whoever chooses.
const CPUS: u64 = 1 << 16;
const SHARED: u64 = CPUS;
const CHOICE: u64 = 2 * CPUS;

/// How often an agent asks for its turn to choose, and for how long in all: who has it may have been stopped.
const TURN_STEP: Duration = Duration::from_millis(1);
const TURN_STEPS: u32 = 50;

/// The file.
#[derive(Debug)]
pub(super) struct Cores {
    file: LockFile,
    /// A file that is removed for its age while jobs hold cores would let the next ones take them.
    _directory: Option<OwnedFd>,
}

/// What other jobs hold.
#[derive(Debug)]
pub(super) struct OfOthers {
    pub(super) taken: Taken,
    /// What the job holds in which this one runs, as a part of a rank: it has these CPUs for that.
    pub(super) around: CpuSet,
}

impl Cores {
    /// That of all users, or that beside this user's jobs, which are in `base`.
    pub(super) fn open(base: Option<&Path>) -> io::Result<Cores> {
        let open = |path: &Path, creates: bool| {
            let mut options = File::options();
            options.read(true).write(true).create(creates).truncate(false).mode(0o600);
            // Somebody may have put a link there, or a pipe, at which an open waits.
            let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
            options.custom_flags(flags.bits() as i32).open(path)
        };
        if let Ok(file) = open(Path::new(OF_ALL_USERS), false) {
            return Ok(Cores { file: LockFile::new(file.into()), _directory: None });
        }
        let directory = base.ok_or(io::ErrorKind::NotFound)?.join(OF_A_USER.0);
        let kept = tidy::keep(&directory).or_else(|_| {
            // An error shows when it is opened.
            let _ = DirBuilder::new().mode(0o700).create(&directory);
            tidy::keep(&directory)
        })?;
        let file = open(&directory.join(OF_A_USER.1), true)?;
        Ok(Cores { file: LockFile::new(file.into()), _directory: Some(kept) })
    }

    /// Does what chooses among the cores that are free, while no other agent does.
    pub(super) fn choose<T>(&self, choice: impl FnOnce(&Cores) -> T) -> T {
        let mut has_turn = false;
        for _ in 0..TURN_STEPS {
            // Without it two may choose the same at once: one of them gets the lock.
            match self.file.lock(CHOICE, 1, true) {
                Ok(true) => has_turn = true,
                Ok(false) => {
                    pause(TURN_STEP);
                    continue;
                }
                Err(_) => {}
            }
            break;
        }
        let chosen = choice(self);
        if has_turn {
            self.file.unlock(CHOICE, 1);
        }
        chosen
    }

    /// What other jobs hold of these CPUs.
    pub(super) fn of_others(&self, cpus: &CpuSet) -> OfOthers {
        let count = cpus.iter().last().map_or(0, |cpu| u64::from(cpu) + 1);
        let [alone, shared] = [0, SHARED].map(|first| self.file.all_held(first, count));
        let around: Vec<i32> = match alone.is_empty() && shared.is_empty() {
            true => Vec::new(),
            false => process::ancestors(),
        };
        let set = |held: &[Held], first: u64, is_around: bool| -> CpuSet {
            let wanted = held.iter().filter(|held| around.contains(&held.pid) == is_around);
            let cpus = |held: &Held| {
                let end = held.first.saturating_add(held.count).min(first + count);
                (held.first.max(first)..end).map(move |byte| (byte - first) as u32)
            };
            wanted.flat_map(cpus).collect()
        };
        OfOthers {
            taken: Taken { alone: set(&alone, 0, false), shared: set(&shared, SHARED, false) },
            around: set(&alone, 0, true).union(&set(&shared, SHARED, true)),
        }
    }

    /// Holds CPUs, those that it can get. Returns whether it got all.
    pub(super) fn hold(&self, cpus: &CpuSet, claim: Claim) -> bool {
        let (first, is_alone) = bytes(claim);
        let mut has_all = true;
        for (cpu, count) in cpus.ranges() {
            // Where there are no locks, every job has all cores.
            let hold = |cpu: u32, count: u32| {
                self.file.lock(first + u64::from(cpu), u64::from(count), is_alone).unwrap_or(true)
            };
            if !hold(cpu, count) {
                // Somebody has a part of the range.
                (cpu..cpu + count).for_each(|cpu| has_all &= hold(cpu, 1));
            }
        }
        has_all
    }

    pub(super) fn release(&self, cpus: &CpuSet, claim: Claim) {
        let (first, _) = bytes(claim);
        cpus.ranges().for_each(|(cpu, count)| self.file.unlock(first + u64::from(cpu), u64::from(count)));
    }
}

fn bytes(claim: Claim) -> (u64, bool) {
    match claim {
        Claim::Alone => (0, true),
        Claim::Share => (SHARED, false),
    }
}
