//! Ending all that is left below this process, and proving that nothing is (K-4, K-5).
//!
//! Used by the guard when its agent is gone, and by the front when both are. It allocates nothing until all is dead.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::proc::ChildList;
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{shm, signal};
use rustix::event::{PollFd, Timespec, poll};

use crate::runtime::Places;

/// How long what was killed may take to be gone before it counts as left behind.
const BOUND_STEPS: u32 = 5000;
/// How long what is ending by itself may take.
const PATIENCE_STEPS: u32 = 1000;
/// One step of waiting.
const STEP: Duration = Duration::from_millis(1);

/// What remains to be done when nobody else is left to do it.
#[derive(Debug)]
pub struct Remains {
    /// The job's cgroup, if it has one.
    pub cgroup: Option<GuardedCgroup>,
    pub children: ChildList,
    /// Where the directory of the job may be, with the list of its shared memory.
    pub places: Places,
    /// The shared memory that the job left is to be removed (`--clean-shm job`).
    pub clean_shm: bool,
}

/// Children that are none of the job's: those that this process had before it started anything.
pub const MAX_FOREIGN: usize = 64;

impl Remains {
    /// Kills everything of the job that is below this process, and waits until it is gone. `foreign` are children that
    /// are not the job's. Returns whether nothing is left.
    pub fn end(&self, foreign: &[i32]) -> bool {
        let mut pids = [0i32; 512];
        for step in 0..BOUND_STEPS {
            // SIGKILL is repeated now and then, since orphans arrive one generation after the other.
            if let Some(cgroup) = &self.cgroup
                && step % 16 == 0
                && !cgroup.empty()
            {
                cgroup.kill();
            }
            let count = self.children.read(&mut pids);
            for &pid in pids[..count].iter().filter(|pid| !foreign.contains(pid)) {
                let _ = signal::send(pid, signal::SIGKILL);
            }
            if self.reap(foreign) && self.cgroup.as_ref().is_none_or(GuardedCgroup::empty) {
                return true;
            }
            if count == 0 || step > 0 {
                pause(STEP);
            }
        }
        false
    }

    /// Lets what is ending by itself do so: an agent that has said that all is over is tidying up.
    pub fn let_end(&self, foreign: &[i32]) {
        for _ in 0..PATIENCE_STEPS {
            if self.reap(foreign) {
                return;
            }
            pause(STEP);
        }
    }

    /// Reaps what has ended. Returns whether no child of the job is left.
    fn reap(&self, foreign: &[i32]) -> bool {
        let mut pids = [0i32; 512];
        if foreign.is_empty() {
            loop {
                match wait::peek() {
                    Look::Found(child) => {
                        wait::reap(child.pid);
                    }
                    Look::Nothing => return false,
                    Look::NoChildren => return true,
                }
            }
        }
        let count = self.children.read(&mut pids);
        let mut alive = false;
        for &pid in pids[..count].iter().filter(|pid| !foreign.contains(pid)) {
            alive |= wait::reap(pid) == Look::Nothing;
        }
        !alive && self.children.read(&mut pids) <= foreign.len()
    }

    /// Removes the shared memory that the agent noted, and the job's directories. Only after [`Remains::end`].
    ///
    /// `unattended`: since when no agent may have looked who makes shared memory, if it did not end in order. What was
    /// made since then by this user, and is neither mapped nor open anywhere now, goes too.
    pub fn tidy(&self, unattended: Option<SystemTime>) {
        let mut names = self.places.noted_shared_memory();
        names.extend(unattended.map(shm::made_since).unwrap_or_default());
        for name in names {
            if self.clean_shm && Path::new(&name).exists() && !shm::in_use(&name) {
                shm::unlink(&name);
            }
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        self.places.remove();
    }
}

/// Waits without allocation.
fn pause(time: Duration) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let mut none: [PollFd<'_>; 0] = [];
    let _ = poll(&mut none, Some(&timeout));
}
