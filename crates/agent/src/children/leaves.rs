//! The cgroups of workers, below the job's.

use std::io;
use std::os::fd::OwnedFd;

use rankrun_core::WorkerId;

use super::registry::Children;

impl Children {
    /// The cgroup for a worker that is about to be started.
    pub(crate) fn take_leaf(&mut self, worker: WorkerId) -> io::Result<Option<OwnedFd>> {
        let Some(cgroup) = self.boundary.cgroup() else { return Ok(None) };
        let (name, directory) = match self.free_leaves.pop() {
            Some(name) => {
                let directory = cgroup.open_leaf(&name)?;
                (name, directory)
            }
            None => {
                let name = format!("w{}", self.next_leaf);
                self.next_leaf += 1;
                let directory = cgroup.make_leaf(&name)?;
                (name, directory)
            }
        };
        self.by_leaf.insert(name.clone(), worker);
        self.members.entry(worker).or_default().leaf = Some(name);
        Ok(Some(directory))
    }

    /// A worker's cgroup is not needed any more. `reuse`: other workers will need one. After an error it is removed together
    /// with the job's cgroup.
    pub(crate) fn free_leaf(&mut self, worker: WorkerId, reuse: bool) {
        let Some((name, is_frozen)) = self.drop_leaf(worker) else { return };
        let Some(cgroup) = self.boundary.cgroup() else { return };
        if is_frozen {
            // The next worker in it would never start.
            let _ = cgroup.freeze_leaf(&name, false);
        }
        if reuse && cgroup.is_leaf_clean(&name).unwrap_or(false) {
            self.free_leaves.push(name);
        } else {
            // It is removed with the job's cgroup at the end.
            let _ = cgroup.remove_leaf(&name);
        }
    }

    /// The name of a worker's cgroup, and whether it is frozen. The worker has none from now on.
    pub(super) fn drop_leaf(&mut self, worker: WorkerId) -> Option<(String, bool)> {
        let member = self.members.get_mut(&worker)?;
        let name = member.leaf.take()?;
        self.by_leaf.remove(&name);
        Some((name, std::mem::take(&mut member.is_frozen)))
    }

    /// A file that has an exceptional condition when a worker's cgroup becomes empty. Without it the agent polls.
    pub(crate) fn events(&self, worker: WorkerId) -> Option<OwnedFd> {
        self.boundary.cgroup()?.leaf_events(self.leaf(worker)?).ok()
    }

    /// The cgroup of a worker.
    pub(super) fn leaf(&self, worker: WorkerId) -> Option<&str> {
        self.members.get(&worker)?.leaf.as_deref()
    }
}
