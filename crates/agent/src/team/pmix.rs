//! The PMIx host, and what concerns the ranks of all groups.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rankrun_core::collective::Collective;
use rankrun_core::job::AgentEvent;
use rankrun_core::names::{Protocol, Reply};
use rankrun_core::spawning::{GroupMap, SpawnAnswer, SpawnAsker};
use rankrun_core::{GroupId, JobSpec, NodeId, NodeRank, Rank, WorkerId, WorkerStatus, pmix};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::Ready;
use rankrun_sys::wait::Change;
use rankrun_wire::ToFront;
use rankrun_wireup::pmix::is_of_pmix;

use super::spawner::{Job, NotSpawned};
use super::{Hands, Teams};
use crate::children::Helper;
use crate::services::pmi::News;
use crate::services::pmix::Pmix;

const HOST: Helper = Helper::PmixHost;

impl Hands {
    /// Has PMIx serve a group that begins with ranks on this node. Returns what their environment must say of it. Where there is no network,
    /// Open MPI cannot connect either.
    #[expect(clippy::too_many_arguments, reason = "it is what a team is started with")]
    pub(super) fn join_pmix(
        &mut self,
        now: Duration,
        spec: &Rc<JobSpec>,
        node: NodeRank,
        hosts: Vec<String>,
        cpus: u32,
        limits: Limits,
        runtime: &Path,
    ) -> Option<pmix::Facts> {
        if self.pmix.as_ref().is_some_and(|pmix| !pmix.is_of(spec.attempt)) {
            self.end_pmix();
        }
        match &mut self.pmix {
            None => self.pmix = Some(Pmix::open(spec, node, hosts, limits, runtime, &self.poller).ok()?),
            Some(pmix) if !pmix.can_serve() => {
                self.children.end_helpers(HOST);
                pmix.renew(&self.poller).ok()?;
            }
            Some(_) => {}
        }
        let pmix = self.pmix.as_mut()?;
        let news = pmix.begin(spec, cpus);
        let facts = pmix.facts().clone();
        news.into_iter().for_each(|news| self.job_news(now, news));
        Some(facts)
    }

    /// No process of a group is left on this node.
    pub(super) fn leave_pmix(&mut self, now: Duration, group: GroupId) {
        let news = self.pmix.as_mut().map(|pmix| pmix.over(group));
        news.unwrap_or_default().into_iter().for_each(|news| self.job_news(now, news));
    }

    /// Ends the host of an attempt that is over.
    pub(super) fn end_pmix(&mut self) {
        if self.pmix.take().is_some() {
            self.children.end_helpers(HOST);
        }
    }

    /// What is of no group.
    pub(super) fn job_news(&mut self, now: Duration, news: News) {
        match news {
            News::Note(text) => self.outbox.push(ToFront::Note(text)),
            News::Tell(message) => self.outbox.push(message),
            News::WireUpLost(reason) => {
                self.outbox.push(ToFront::Event(AgentEvent::WireUpLost { reason, at: now }));
            }
            News::Answer { id, answer } => {
                let news = self.pmix.as_mut().map(|pmix| pmix.answer(id, answer));
                news.unwrap_or_default().into_iter().for_each(|news| self.job_news(now, news));
            }
            News::Mpi(..) | News::InPmix(..) | News::OutOfPmix(_) | News::Wrote(..) => self.misled_news.push(news),
        }
    }

    /// Reports the end of the host before that of a rank: ranks that lose it in `MPI_Init` exit with an error of their own.
    pub(super) fn look_at_pmix_host(&mut self, now: Duration) -> Vec<News> {
        let Some(pmix) = &mut self.pmix else { return Vec::new() };
        match self.children.ended_helper(HOST, self.spawner.starting(Job::Helper(HOST))) {
            Some(status) => pmix.host_ended(now, status),
            None => Vec::new(),
        }
    }

    /// Starts the host as soon as the spawner has room for it.
    fn start_pmix_host(&mut self, now: Duration) {
        let Some(pmix) = self.pmix.as_mut().filter(|pmix| pmix.wants_host()) else { return };
        if !self.spawner.has_room() || self.spawner.awaits(Job::Helper(HOST)) {
            return;
        }
        let leaf = self.children.take_own_leaf(HOST);
        let command = leaf.and_then(|cgroup| pmix.start_host(now, cgroup, &self.poller));
        if let Err(why) = self.start_helper(HOST, command) {
            let news = self.pmix.as_mut().map(|pmix| pmix.not_started(&why));
            news.unwrap_or_default().into_iter().for_each(|news| self.job_news(now, news));
        }
    }
}

impl Teams {
    /// All nodes have contributed to a collective.
    pub(crate) fn collective_done(&mut self, hands: &mut Hands, now: Duration, done: Collective) {
        if is_of_pmix(done.seq) {
            self.having(hands, now, |pmix| pmix.collective_done(done));
        } else {
            self.on(done.group, |team| team.barrier_done(hands, now, done));
        }
    }

    /// The names of the job have answered.
    pub(crate) fn name_answered(
        &mut self,
        hands: &mut Hands,
        now: Duration,
        group: GroupId,
        to: Protocol,
        id: u64,
        reply: Reply,
    ) {
        match to {
            Protocol::Pmi1 => self.on(group, |team| team.pmi_name_answered(hands, now, id, reply)),
            Protocol::Pmix => self.having(hands, now, |pmix| pmix.answered(id, reply)),
        }
    }

    /// The ranks that a rank has asked for have been started, or will not be.
    pub(crate) fn spawn_answered(&mut self, hands: &mut Hands, now: Duration, asker: SpawnAsker, answer: &SpawnAnswer) {
        match asker.protocol {
            Protocol::Pmi1 => self.on(asker.worker.group(), |team| team.pmi_spawned(hands, now, asker, answer)),
            Protocol::Pmix => self.having(hands, now, |pmix| pmix.spawned(asker.id, answer)),
        }
    }

    /// A group begins that has no ranks on this node.
    pub(crate) fn group_elsewhere(&mut self, hands: &mut Hands, now: Duration, map: &GroupMap) {
        if hands.pmix.as_ref().is_some_and(|pmix| pmix.is_of(map.by.attempt)) {
            self.having(hands, now, |pmix| pmix.begin_elsewhere(map));
        }
    }

    /// These workers are gone, on whichever node, and the others run on.
    pub(super) fn lost(&mut self, hands: &mut Hands, now: Duration, workers: &[WorkerId]) {
        let ranks: Vec<Rank> = workers.iter().map(|worker| worker.rank).collect();
        self.having(hands, now, |pmix| pmix.lost(&ranks));
        self.all().for_each(|team| team.pmi_lost(hands, now, &ranks));
    }

    /// Another node asks for the PMIx data of a worker of this one.
    pub(crate) fn pmix_sought(&mut self, hands: &mut Hands, now: Duration, by: NodeId, id: u64, of: WorkerId) {
        let is_ours = self.of_worker(of).is_some_and(|(team, _)| team.has_in_pmix(of));
        if is_ours && hands.pmix.is_some() {
            self.having(hands, now, |pmix| pmix.seek(by, id, of));
        } else {
            hands.outbox.push(ToFront::Fetched { by, group: of.group(), id, data: None });
        }
    }

    /// Another node has sent the PMIx data of a rank.
    pub(crate) fn pmix_fetched(&mut self, hands: &mut Hands, now: Duration, id: u64, data: Option<Vec<u8>>) {
        self.having(hands, now, |pmix| pmix.fetched(id, data));
    }

    /// A rank has connected by PMIx, for the first time in this attempt.
    pub(super) fn pmix_connected(&mut self, hands: &mut Hands, now: Duration) {
        if let Some(pmix) = &mut hands.pmix {
            pmix.connected(&hands.poller);
        }
        hands.start_pmix_host(now);
    }

    pub(super) fn pmix_host_spawned(&mut self, hands: &mut Hands, now: Duration, result: Result<i32, NotSpawned>) {
        let stopped = match hands.helper_spawned(HOST, result) {
            // An earlier attempt asked for it, and is over.
            Ok(_) if hands.pmix.as_ref().is_none_or(Pmix::is_idle) => return hands.children.end_helpers(HOST),
            Ok(pid) => hands.early_changes.remove(&pid),
            // The job is being stopped.
            Err(NotSpawned::Cancelled) => None,
            Err(error) => return self.having(hands, now, |pmix| pmix.not_started(&error.to_string())),
        };
        if let Some(Change::Stopped { signal }) = stopped {
            self.pmix_host_stopped(hands, now, signal);
        }
    }

    pub(super) fn pmix_host_ended(&mut self, hands: &mut Hands, now: Duration, status: WorkerStatus) {
        self.having(hands, now, |pmix| pmix.host_ended(now, status));
    }

    pub(super) fn pmix_host_stopped(&mut self, hands: &mut Hands, now: Duration, signal: i32) {
        self.having(hands, now, |pmix| pmix.host_stopped(signal));
    }

    pub(super) fn pmix_host_ready(&mut self, hands: &mut Hands, now: Duration, event: Ready) {
        let before = hands.pmix.as_ref().map(Pmix::requests);
        self.having(hands, now, |pmix| pmix.ready(now, event));
        if hands.pmix.as_ref().map(Pmix::requests) != before {
            hands.traffic = Some(now);
        }
    }

    pub(super) fn pmix_errors_ready(&mut self, hands: &mut Hands, now: Duration) {
        let news = hands.pmix.as_mut().map(|pmix| pmix.errors_ready(&hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    pub(super) fn pmix_tick(&mut self, hands: &mut Hands, now: Duration) {
        let look = || hands.children.vitals_of(HOST);
        let news = hands.pmix.as_mut().map(|pmix| pmix.tick(now, look));
        self.mpi_news(hands, now, news.unwrap_or_default());
        hands.start_pmix_host(now);
    }

    fn having(&mut self, hands: &mut Hands, now: Duration, handle: impl FnOnce(&mut Pmix) -> Vec<News>) {
        let news = hands.pmix.as_mut().map(handle);
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// Leads what has happened in MPI to the teams of the ranks.
    pub(super) fn mpi_news(&mut self, hands: &mut Hands, now: Duration, news: Vec<News>) {
        for news in news {
            match news.group() {
                Some(group) => self.on(group, |team| team.mpi_news(hands, now, vec![news])),
                None => hands.job_news(now, news),
            }
        }
    }
}
