//! What the ranks ask for by PMI-1 and PMIx, and the PMIx host.

use std::time::Duration;

use rankrun_core::evidence::MpiEvent;
use rankrun_core::job::{AgentEvent, WorkerEvent};
use rankrun_core::names::{Protocol, Reply};
use rankrun_core::spawning::{SpawnAnswer, SpawnAsker};
use rankrun_core::{NodeId, Slot as SlotIndex, WorkerId, WorkerStatus};
use rankrun_sys::poll::Ready;
use rankrun_sys::process::ProcessId;
use rankrun_sys::wait::Change;
use rankrun_wire::ToFront;
use rankrun_wire::message::Collective;

use super::spawner::{Job, NotSpawned};
use super::{Hands, Team};
use crate::children::Helper;
use crate::services::pmi::News;
use crate::services::pmix::Pmix;

impl Team {
    /// A rank's PMI socket is ready.
    pub(crate) fn pmi_ready(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, event: Ready) {
        hands.traffic = Some(now);
        self.hold_while_orders_wait(hands, slot);
        let news = self.pmi.as_mut().map(|pmi| pmi.ready(slot, event, &hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// All nodes have contributed to a collective.
    pub(crate) fn collective_done(&mut self, hands: &mut Hands, now: Duration, done: Collective) {
        // Each takes only what has a number of its own.
        let news = self.pmix.as_mut().map(|pmix| pmix.collective_done(done.clone()));
        self.mpi_news(hands, now, news.unwrap_or_default());
        let news = self.pmi.as_mut().map(|pmi| pmi.collective_done(done, &hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// The names of the job have answered.
    pub(crate) fn name_answered(&mut self, hands: &mut Hands, now: Duration, to: Protocol, id: u64, reply: Reply) {
        let news = match to {
            Protocol::Pmi1 => self.pmi.as_mut().map(|pmi| pmi.answered(id, reply, &hands.poller)),
            Protocol::Pmix => self.pmix.as_mut().map(|pmix| pmix.answered(id, reply)),
        };
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// The ranks that one of ours has asked for have been started, or will not be.
    pub(crate) fn spawn_answered(&mut self, hands: &mut Hands, now: Duration, asker: SpawnAsker, answer: &SpawnAnswer) {
        // A worker that has ended has a successor, which has not asked.
        let is_ours = self.slot_of(asker.worker).is_some();
        let news = self.pmi.as_mut().filter(|_| is_ours).map(|pmi| pmi.spawned(asker.id, answer, &hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// Another node asks for the PMIx data of a worker of this one.
    pub(crate) fn pmix_sought(&mut self, hands: &mut Hands, now: Duration, by: NodeId, id: u64, of: WorkerId) {
        let is_ours = self.slot_of(of).is_some();
        let news = match self.pmix.as_mut().filter(|_| is_ours) {
            Some(pmix) => pmix.seek(by, id, of.rank),
            None => vec![News::Tell(ToFront::Fetched { by, group: of.group(), id, data: None })],
        };
        self.mpi_news(hands, now, news);
    }

    /// Another node has sent the PMIx data of a rank.
    pub(crate) fn pmix_fetched(&mut self, hands: &mut Hands, now: Duration, id: u64, data: Option<Vec<u8>>) {
        let news = self.pmix.as_mut().map(|pmix| pmix.fetched(id, data));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// A rank has connected by PMIx, for the first time in this job.
    pub(crate) fn pmix_connected(&mut self, hands: &mut Hands, now: Duration) {
        if let Some(pmix) = &mut self.pmix {
            pmix.connected(&hands.poller);
        }
        self.start_pmix_host(hands, now);
    }

    /// Starts the host as soon as the spawner has room for it.
    pub(super) fn start_pmix_host(&mut self, hands: &mut Hands, now: Duration) {
        let Some(pmix) = self.pmix.as_mut().filter(|pmix| pmix.wants_host()) else { return };
        if !hands.spawner.has_room() {
            return;
        }
        let helper = Helper::PmixHost(self.spec.group);
        let leaf = hands.children.take_own_leaf(helper);
        let command =
            leaf.and_then(|cgroup| pmix.start_host(now, &self.spec, self.preparer.limits(), cgroup, &hands.poller));
        if let Err(why) = hands.start_helper(helper, command) {
            let news = pmix.not_started(&why);
            self.mpi_news(hands, now, news);
        }
    }

    pub(super) fn pmix_host_spawned(&mut self, hands: &mut Hands, now: Duration, result: Result<i32, NotSpawned>) {
        let helper = Helper::PmixHost(self.group());
        let news = match hands.helper_spawned(helper, result) {
            // An earlier attempt asked for it, and is over.
            Ok(_) if self.pmix.as_ref().is_some_and(Pmix::is_idle) => return hands.children.end_helpers(helper),
            Ok(pid) => match hands.early_changes.remove(&pid) {
                Some(Change::Stopped { signal }) => self.pmix.as_mut().map(|pmix| pmix.host_stopped(signal)),
                _ => None,
            },
            // The job is being stopped.
            Err(NotSpawned::Cancelled) => None,
            Err(error) => self.pmix.as_mut().map(|pmix| pmix.not_started(&error.to_string())),
        };
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    pub(super) fn pmix_host_ended(&mut self, hands: &mut Hands, now: Duration, status: WorkerStatus) {
        let news = self.pmix.as_mut().map(|pmix| pmix.host_ended(now, status));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    pub(super) fn pmix_host_stopped(&mut self, hands: &mut Hands, now: Duration, signal: i32) {
        let news = self.pmix.as_mut().map(|pmix| pmix.host_stopped(signal));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// Reports the end of the host before that of a rank: ranks that lose it in `MPI_Init` exit with an error of their own.
    pub(super) fn look_at_pmix_host(&mut self, hands: &mut Hands, now: Duration) {
        let helper = Helper::PmixHost(self.group());
        if self.pmix.is_some()
            && let Some(status) = hands.children.ended_helper(helper, hands.spawner.starting(Job::Helper(helper)))
        {
            self.pmix_host_ended(hands, now, status);
        }
    }

    pub(crate) fn pmix_host_ready(&mut self, hands: &mut Hands, now: Duration, event: Ready) {
        let before = self.pmix.as_ref().map(Pmix::requests);
        let news = self.pmix.as_mut().map(|pmix| pmix.ready(now, event));
        if self.pmix.as_ref().map(Pmix::requests) != before {
            hands.traffic = Some(now);
        }
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    pub(crate) fn pmix_errors_ready(&mut self, hands: &mut Hands, now: Duration) {
        let news = self.pmix.as_mut().map(|pmix| pmix.errors_ready(&hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    pub(super) fn pmix_tick(&mut self, hands: &mut Hands, now: Duration) {
        let group = self.group();
        let look = || hands.children.vitals_of(Helper::PmixHost(group));
        let news = self.pmix.as_mut().map(|pmix| pmix.tick(now, look));
        self.mpi_news(hands, now, news.unwrap_or_default());
        self.start_pmix_host(hands, now);
    }

    /// Whether a rank is in MPI, and its process, if that is known.
    pub(super) fn in_mpi(&self, slot: SlotIndex) -> Option<Option<ProcessId>> {
        let pmi = self.pmi.as_ref().filter(|pmi| pmi.is_in_mpi(slot)).map(|pmi| pmi.process(slot));
        pmi.or_else(|| self.pmix.as_ref().filter(|pmix| pmix.is_in_mpi(slot)).map(|pmix| pmix.process(slot)))
    }

    /// The process of a rank that inited MPI last.
    pub(super) fn mpi_process(&self, slot: SlotIndex) -> Option<ProcessId> {
        let by_pmix = self.pmix.as_ref().and_then(|pmix| pmix.process(slot));
        by_pmix.or_else(|| self.pmi.as_ref().and_then(|pmi| pmi.process(slot)))
    }

    pub(super) fn mpi_news(&mut self, hands: &mut Hands, now: Duration, news: Vec<News>) {
        for news in news {
            if let News::Mpi(slot, MpiEvent::Inited | MpiEvent::Finalized) = &news {
                self.mpi_changed(*slot);
                self.send_reports(hands, *slot);
            }
            let message = match news {
                News::Mpi(slot, event) => ToFront::Event(AgentEvent::Worker {
                    worker: self.machine.id(slot),
                    at: now,
                    event: WorkerEvent::Mpi(event),
                }),
                News::Note(text) => ToFront::Note(text),
                News::Tell(message) => message,
                News::Wrote(slot, stream, text) => {
                    self.take_text(hands, slot, stream, &text);
                    continue;
                }
                News::Answer { id, answer } => {
                    let news = self.pmix.as_mut().map(|pmix| pmix.answer(id, answer));
                    self.mpi_news(hands, now, news.unwrap_or_default());
                    continue;
                }
                News::WireUpLost(reason) => ToFront::Event(AgentEvent::WireUpLost { reason, at: now }),
            };
            hands.outbox.push(message);
        }
    }
}
