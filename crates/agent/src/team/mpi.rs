//! What the ranks of a group ask for by PMI-1 and PMIx, and what becomes of it.

use std::time::Duration;

use rankrun_core::collective::Collective;
use rankrun_core::evidence::MpiEvent;
use rankrun_core::job::{AgentEvent, WorkerEvent};
use rankrun_core::names::Reply;
use rankrun_core::spawning::{SpawnAnswer, SpawnAsker};
use rankrun_core::{Rank, Slot as SlotIndex, WorkerId};
use rankrun_sys::poll::Ready;
use rankrun_sys::process::ProcessId;
use rankrun_wire::ToFront;

use super::{Hands, Team};
use crate::services::pmi::News;

impl Team {
    /// A rank's PMI socket is ready.
    pub(crate) fn pmi_ready(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, event: Ready) {
        hands.traffic = Some(now);
        self.hold_while_orders_wait(hands, slot);
        let news = self.pmi.as_mut().map(|pmi| pmi.ready(slot, event, &hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// All nodes have contributed to a barrier.
    pub(super) fn barrier_done(&mut self, hands: &mut Hands, now: Duration, done: Collective) {
        let news = self.pmi.as_mut().map(|pmi| pmi.collective_done(done, &hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// The names of the job have answered a rank of PMI-1.
    pub(super) fn pmi_name_answered(&mut self, hands: &mut Hands, now: Duration, id: u64, reply: Reply) {
        let news = self.pmi.as_mut().map(|pmi| pmi.answered(id, reply, &hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// The ranks that one of PMI-1 has asked for have been started, or will not be.
    pub(super) fn pmi_spawned(&mut self, hands: &mut Hands, now: Duration, asker: SpawnAsker, answer: &SpawnAnswer) {
        // A worker that has ended has a successor, which has not asked.
        let is_ours = self.slot_of(asker.worker).is_some();
        let news = self.pmi.as_mut().filter(|_| is_ours).map(|pmi| pmi.spawned(asker.id, answer, &hands.poller));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// Ranks are gone, on whichever node, and the others run on.
    pub(super) fn pmi_lost(&mut self, hands: &mut Hands, now: Duration, ranks: &[Rank]) {
        let Some(pmi) = &mut self.pmi else { return };
        let news = pmi.lost(ranks, &hands.poller);
        // A program may have a handler of its own for that signal.
        if ranks.iter().any(|rank| rank.group() == self.spec.group) {
            pmi.tell_lost();
        }
        self.mpi_news(hands, now, news);
    }

    /// Whether this team has PMIx, and the worker.
    pub(super) fn has_in_pmix(&self, worker: WorkerId) -> bool {
        self.pmix.is_some() && self.slot_of(worker).is_some()
    }

    /// A rank has ended. `goes_on`: the others do not end for it.
    pub(super) fn rank_left_pmix(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, goes_on: bool) {
        let Some(ranks) = &mut self.pmix else { return };
        ranks.ended(slot);
        let of = self.machine.id(slot).rank;
        let news = hands.pmix.as_mut().map(|pmix| pmix.rank_ended(of, goes_on));
        self.mpi_news(hands, now, news.unwrap_or_default());
    }

    /// No process of the ranks is left on this node.
    pub(super) fn leave_pmix(&mut self, hands: &mut Hands, now: Duration) {
        if self.pmix.is_some() {
            hands.leave_pmix(now, self.group());
        }
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
            if news.group().is_some_and(|group| group != self.group()) {
                hands.misled_news.push(news);
                continue;
            }
            match news {
                News::Mpi(place, event) => {
                    if matches!(event, MpiEvent::Inited | MpiEvent::Finalized) {
                        self.mpi_changed(place.slot);
                        self.send_reports(hands, place.slot);
                    }
                    let (worker, event) = (self.machine.id(place.slot), WorkerEvent::Mpi(event));
                    hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker, at: now, event }));
                }
                News::InPmix(place, process) => {
                    if let Some(ranks) = &mut self.pmix {
                        ranks.inited(place.slot, process);
                    }
                }
                News::OutOfPmix(place) => {
                    if let Some(ranks) = &mut self.pmix {
                        ranks.finalized(place.slot);
                    }
                }
                News::Wrote(place, stream, text) => self.take_text(hands, place.slot, stream, &text),
                News::Answer { id, answer } => {
                    let news = hands.pmix.as_mut().map(|pmix| pmix.answer(id, answer));
                    self.mpi_news(hands, now, news.unwrap_or_default());
                }
                News::Note(_) | News::Tell(_) | News::WireUpLost(_) => hands.job_news(now, news),
            }
        }
    }
}
