//! The cores that jobs hold on this machine: a file in which each agent locks a byte for each CPU of its ranks. The kernel releases the locks
//! when the agent ends, however it ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rankrun_core::placement::{Claim, Taken};
use rankrun_core::topology::CpuSet;
use rankrun_sys::locks::{Held, LockFile};
use rankrun_sys::poll::pause;

/// Where an administrator lets the jobs of all users keep clear of each other: a file that all may write.
const OF_ALL_USERS: &str = "/run/rankrun/cores";
/// Its name beside a user's jobs.
const OF_A_USER: &str = "cores";

/// The bytes: one for each CPU that a job has alone; one for each that it shares; one for whoever chooses.
const CPUS: u64 = 1 << 16;
const SHARED: u64 = CPUS;
const CHOICE: u64 = 2 * CPUS;

/// How often to ask for the last of them, and how long in all: whoever holds it may have been stopped.
const CHOICE_STEP: Duration = Duration::from_millis(1);
const CHOICE_STEPS: u32 = 50;

/// The file.
#[derive(Debug)]
pub(super) struct Cores(LockFile);

impl Cores {
    /// That of all users, or that beside this user's jobs, which are in `base`.
    pub(super) fn open(base: Option<&Path>) -> io::Result<Cores> {
        let open = |path: &Path, creates: bool| {
            let mut options = File::options();
            options.read(true).write(true).create(creates).truncate(false).mode(0o600);
            // It may be a link of another user's to a file of ours; nothing is written.
            options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(path)
        };
        let file = open(Path::new(OF_ALL_USERS), false).or_else(|error| match base {
            Some(base) => open(&base.join(OF_A_USER), true),
            None => Err(error),
        })?;
        Ok(Cores(LockFile::new(file.into())))
    }

    /// Does what chooses among the cores that are free, while nobody else does.
    pub(super) fn choose<T>(&self, choice: impl FnOnce(&Cores) -> T) -> T {
        let mut has_turn = false;
        for _ in 0..CHOICE_STEPS {
            // Without it two may choose the same at once: one of them gets the lock.
            match self.0.lock(CHOICE, 1, true) {
                Ok(true) => has_turn = true,
                Ok(false) => {
                    pause(CHOICE_STEP);
                    continue;
                }
                Err(_) => {}
            }
            break;
        }
        let chosen = choice(self);
        if has_turn {
            self.0.unlock(CHOICE, 1);
        }
        chosen
    }

    /// What other jobs hold.
    pub(super) fn taken(&self) -> Taken {
        let of = |first: u64| -> CpuSet {
            let held = self.0.all_held(first, CPUS).into_iter();
            let cpus = |held: Held| {
                let end = held.first.saturating_add(held.count).min(first + CPUS);
                (held.first.max(first)..end).map(move |byte| (byte - first) as u32)
            };
            held.flat_map(cpus).collect()
        };
        Taken { alone: of(0), shared: of(SHARED) }
    }

    /// Holds CPUs. Returns whether nobody else has taken one meanwhile; none is held otherwise.
    pub(super) fn hold(&self, cpus: &CpuSet, claim: Claim) -> bool {
        let (first, is_alone) = bytes(claim);
        let is_held = cpus.ranges().all(|(cpu, count)| {
            // Where there are no locks, every job has all cores.
            self.0.lock(first + u64::from(cpu), u64::from(count), is_alone).unwrap_or(true)
        });
        if !is_held {
            self.release(cpus, claim);
        }
        is_held
    }

    pub(super) fn release(&self, cpus: &CpuSet, claim: Claim) {
        let (first, _) = bytes(claim);
        cpus.ranges().for_each(|(cpu, count)| self.0.unlock(first + u64::from(cpu), u64::from(count)));
    }
}

fn bytes(claim: Claim) -> (u64, bool) {
    match claim {
        Claim::Alone => (0, true),
        Claim::Share => (SHARED, false),
    }
}
