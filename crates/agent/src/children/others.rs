//! Children that are no worker's: processes of rankrun's own, and the orphans that are left when every worker is gone.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rankrun_core::lease::Vitals;
use rankrun_core::report::LeftProcess;
use rankrun_core::team::Activity;
use rankrun_core::{GroupId, WorkerStatus};
use rankrun_sys::proc::{self, Process};
use rankrun_sys::process::{Child, ProcessId, ProcessRef};
use rankrun_sys::signal;
use rankrun_sys::vitals::{self, Reading};
use rankrun_sys::wait::{self, Look};

use super::looks::{activity, left_processes};
use super::registry::Children;
use super::role::{ENDING_BOUND, Ended, Helper, Role, status_of};

impl Children {
    pub(super) fn note_given_up(&mut self, ids: &[ProcessId]) -> Vec<LeftProcess> {
        let fresh: Vec<ProcessId> = ids.iter().copied().filter(|id| !self.given_up.contains_key(id)).collect();
        let left = left_processes(&fresh);
        self.given_up.extend(left.iter().filter_map(|left| Some((ProcessId::of(left.pid.0)?, left.clone()))));
        left
    }

    /// The processes that were given up and still exist.
    pub(crate) fn given_up(&self) -> Vec<LeftProcess> {
        let alive =
            |id: &ProcessId| proc::process(id.pid).is_some_and(|process| process.id() == *id && process.state != 'Z');
        let mut left: Vec<LeftProcess> =
            self.given_up.iter().filter(|(id, _)| alive(id)).map(|(_, left)| left.clone()).collect();
        left.sort_by_key(|left| left.pid);
        left
    }

    /// The cgroup for a process of rankrun's own, where the job has cgroups. It is removed with the job's.
    pub(crate) fn take_own_leaf(&self, helper: Helper) -> io::Result<Option<OwnedFd>> {
        let leaf = self.boundary.cgroup().zip(helper.leaf());
        leaf.map(|(cgroup, leaf)| cgroup.make_leaf_like(&leaf)).transpose()
    }

    pub(crate) fn add_helper(&mut self, helper: Helper, pid: i32) {
        self.roles.insert(pid, Role::Helper(helper));
        self.end_wait = ENDING_BOUND;
    }

    /// Kills the processes of rankrun's own of one kind, and does not wait for their end. Their cgroups are removed, if they have any and
    /// nothing is in them: the next one has its own.
    pub(crate) fn end_helpers(&mut self, helper: Helper) {
        for pid in self.of_kind(helper) {
            // It is not reaped, so that the pid is its own. If it has ended, there is nobody to signal.
            let _ = Child::unreaped(pid).signal(signal::SIGKILL);
            self.roles.remove(&pid);
            if let Look::Found(child) = wait::peek_at(pid)
                && status_of(child.change).is_some()
            {
                wait::reap(pid);
                continue;
            }
            match helper {
                // It may wait for a file system, as a reader may.
                Helper::Looker | Helper::Meter | Helper::Sampler => self.readers.add(pid),
                // If it does not die, it is a process that is left.
                Helper::PmixHost | Helper::ForkServer(_) => {
                    self.roles.insert(pid, Role::Killed(Instant::now()));
                }
            }
        }
        if let Some((cgroup, leaf)) = self.boundary.cgroup().zip(helper.leaf()) {
            cgroup.remove_leaves_like(&leaf);
        }
    }

    /// The processes that read files of the user's, or what a process can lock, and are not reaped: readers, a looker, a meter, a sampler.
    pub(crate) fn reading(&self) -> Vec<i32> {
        let helpers =
            [Helper::Looker, Helper::Meter, Helper::Sampler].into_iter().flat_map(|helper| self.of_kind(helper));
        helpers.chain(self.readers.pids()).collect()
    }

    /// Whether a process of rankrun's own runs, or could.
    pub(crate) fn vitals_of(&self, helper: Helper) -> Option<Vitals> {
        let pid = self.of_kind(helper).into_iter().next()?;
        let Reading { state, ran, delayed } = vitals::of_process(pid)?;
        Some(Vitals { state, ran, delayed })
    }

    /// How a process of rankrun's own has ended that is not reaped yet. `under_way`: one that is just being started.
    pub(crate) fn ended_helper(&mut self, helper: Helper, under_way: Option<Child>) -> Option<WorkerStatus> {
        let known = self.of_kind(helper).into_iter();
        known.chain(under_way.map(Child::pid)).find_map(|pid| {
            // It closes its descriptors before it can be waited for, and whoever sees that may be quicker.
            if proc::is_ending(pid)
                && let Some(process) = ProcessRef::open(pid)
            {
                self.wait_for_end(|bound| {
                    let begun = Instant::now();
                    process.wait(bound);
                    begun.elapsed()
                });
            }
            match wait::peek_at(pid) {
                Look::Found(child) => status_of(child.change),
                Look::Nothing | Look::NoChildren => None,
            }
        })
    }

    /// Waits for the end of a helper by `wait`, which gets a limit and returns how long it took. The time left for that is kept.
    pub(super) fn wait_for_end(&mut self, wait: impl FnOnce(Duration) -> Duration) {
        if !self.end_wait.is_zero() {
            self.end_wait = self.end_wait.saturating_sub(wait(self.end_wait));
        }
    }

    /// Which process of rankrun's own this is, if it is one.
    pub(crate) fn helper(&self, pid: i32) -> Option<Helper> {
        match self.roles.get(&pid) {
            Some(&Role::Helper(helper)) => Some(helper),
            Some(Role::Leader(_) | Role::Killed(_)) | None => None,
        }
    }

    /// The processes of the job when every worker of a group is gone: all descendants of this process except helpers and processes
    /// that were given up. Few are left then: the cost of the look does not grow with the machine. While another group has workers, an
    /// orphan may be one of theirs: the last group ends it.
    fn orphans(&mut self, group: GroupId) -> Vec<ProcessId> {
        if self.has_others(group) {
            return Vec::new();
        }
        let (helpers, begun) = (self.helpers(), Instant::now());
        let below = proc::own_descendants(|pid| helpers.contains(&pid));
        self.cost = begun.elapsed();
        let living = below.iter().filter(|process| process.state != 'Z').map(Process::id);
        living.filter(|id| !self.given_up.contains_key(id)).collect()
    }

    /// The processes of rankrun's own, without one that has not died of its kill.
    fn helpers(&self) -> Vec<i32> {
        let is_helper = |role: &Role| match role {
            Role::Leader(_) => false,
            Role::Helper(_) => true,
            Role::Killed(at) => at.elapsed() < ENDING_BOUND,
        };
        let helpers = self.roles.iter().filter(|(_, role)| is_helper(role)).map(|(pid, _)| *pid);
        helpers.chain(self.readers.pids()).collect()
    }

    fn of_kind(&self, helper: Helper) -> Vec<i32> {
        self.helpers().into_iter().filter(|pid| self.helper(*pid) == Some(helper)).collect()
    }

    /// What is left when every worker of a group is gone; `None` if that is nothing, or only what was given up. Reaps what has ended,
    /// unless the spawner may have a child that is not registered yet.
    pub(crate) fn orphans_left(&mut self, group: GroupId, is_spawning: bool) -> Option<Activity> {
        if self.has_others(group) {
            return None;
        }
        while !is_spawning && let Some((child, status)) = Children::peek_end() {
            // A leader is reaped where its end is reported.
            if let Some(Ended::Leader(..)) = self.handle_end(child, status, &[]) {
                break;
            }
        }
        if self.helpers().is_empty() && wait::peek() == Look::NoChildren {
            return None;
        }
        let orphans = self.orphans(group);
        // A child that will be given to us next is still a grandchild: it is among our descendants too.
        (!orphans.is_empty() || self.has_unknown_children()).then(|| activity(&orphans, &self.lockable))
    }

    /// Whether there is a child that is neither a helper nor given up.
    fn has_unknown_children(&self) -> bool {
        let given_up: HashSet<i32> = self.given_up.keys().map(|id| id.pid).collect();
        // A list that cannot be read proves nothing.
        let Ok(children) = proc::try_own_children() else { return true };
        let helpers = self.helpers();
        children.into_iter().any(|pid| !helpers.contains(&pid) && !given_up.contains(&pid))
    }

    /// Sends signals to all orphans.
    pub(crate) fn signal_orphans(&mut self, group: GroupId, signals: &[i32]) {
        for process in self.orphans(group).into_iter().filter_map(ProcessRef::of) {
            for signal in signals {
                // It has ended meanwhile, or is another user's and will be reported.
                let _ = process.signal(*signal);
            }
        }
    }

    /// The orphans could not be killed.
    pub(crate) fn give_up_orphans(&mut self, group: GroupId) -> Vec<LeftProcess> {
        let orphans = self.orphans(group);
        self.note_given_up(&orphans)
    }
}
