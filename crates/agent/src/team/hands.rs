//! What a team works with.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rankrun_core::{GroupId, WorkerId};
use rankrun_sys::poll::Poller;
use rankrun_sys::spawn::Command;
use rankrun_sys::wait::Change;
use rankrun_wire::ToFront;

use super::prepare::Inherited;
use super::site::Site;
use super::spawner::{Job, NotSpawned, Program, Spawners};
use crate::binding::Binder;
use crate::children::{Children, Helper, Interpreters, Libraries};
use crate::driver::clock::Clock;
use crate::guard::lease::Lease;
use crate::services::fork_servers::ForkServers;
use crate::services::looker::Looker;
use crate::services::meter::Meter;
use crate::services::pmi::News;
use crate::services::pmix::Pmix;
use crate::services::profiler::Profiler;
use crate::services::torch_store::TorchStore;
use crate::services::worker_socket::{Received, WorkerSocket};

/// What a team uses and does not own: it outlives the team.
pub(crate) struct Hands {
    pub(crate) poller: Poller,
    pub(crate) clock: Clock,
    /// Messages to the front, in order.
    pub(crate) outbox: Vec<ToFront>,
    pub(crate) children: Children,
    pub(crate) spawner: Spawners,
    pub(crate) worker_socket: WorkerSocket,
    pub(crate) torch_store: TorchStore,
    pub(crate) interpreters: Interpreters,
    pub(crate) libraries: Libraries,
    /// PMIx for all groups of the present attempt.
    pub(crate) pmix: Option<Pmix>,
    pub(crate) lease: Lease,
    pub(crate) binder: Binder,
    pub(crate) site: Site,
    pub(crate) inherited: Inherited,
    pub(crate) looker: Looker,
    pub(crate) meter: Meter,
    pub(crate) profiler: Profiler,
    pub(crate) fork_servers: ForkServers<Program>,
    /// The children that were under way when they were stopped or continued, and what happened to each last.
    pub(crate) early_changes: HashMap<i32, Change>,
    /// Messages for workers of other groups that came with the last ones of a worker.
    pub(crate) misled: Vec<Received>,
    /// What the ranks of other groups do in MPI, found while one group was looked at.
    pub(crate) misled_news: Vec<News>,
    /// When the ranks last used what connects them: PMI, PMIx, torch's store.
    pub(crate) traffic: Option<Duration>,
    /// The front is on another node: its environment, its stdin and its limits are not ours.
    pub(crate) is_away: bool,
}

impl Hands {
    /// These workers are over.
    pub(super) fn forget(&mut self, is_over: impl Fn(WorkerId) -> bool) {
        self.children.forget(&is_over);
        self.worker_socket.forget(is_over);
    }

    /// The workers of a group are over, or were not started: forgets them, and gives back the CPUs that it has held for them.
    pub(super) fn give_back(&mut self, group: GroupId) {
        self.forget(|worker| worker.group() == group);
        self.binder.release(group);
    }

    /// Has the spawner start a process of rankrun's own. Returns why that cannot be.
    pub(super) fn start_helper(&mut self, helper: Helper, command: io::Result<Command>) -> Result<(), String> {
        let command = command.map_err(|error| rankrun_sys::reason(&error))?;
        match self.spawner.spawn(Job::Helper(helper), Program::ourselves(), command) {
            true => Ok(()),
            false => Err("there is no room for another start".to_owned()),
        }
    }

    /// The spawner has done so, or not. From here on the end of the process is reported as a helper's.
    pub(super) fn helper_spawned(
        &mut self,
        helper: Helper,
        result: Result<i32, NotSpawned>,
    ) -> Result<i32, NotSpawned> {
        result.inspect(|pid| self.children.add_helper(helper, *pid))
    }
}
