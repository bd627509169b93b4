//! The ranks' PMI connections, between their sockets and the sans-IO server.

use std::time::Duration;

use rankrun_core::evidence::MpiEvent;
use rankrun_core::{Rank, WorkerId};
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_wire::ToFront;
use rankrun_wire::message::Collective;
use rankrun_wireup::pmi1;

use crate::node::Node;
use crate::token::Token;

/// Bytes read from a client at a time: more than a request has, so that a flood is seen as one.
const READ: usize = 4096;

impl Node {
    /// A PMI socket is ready.
    pub(crate) fn pmi_ready(&mut self, now: Duration, index: usize, event: Ready, poller: &Poller) {
        if event.writable {
            self.write_pmi(index, poller);
        }
        if event.readable {
            self.read_pmi(now, index, poller);
        }
    }

    /// Reads what a rank has said to the wire-up until there is nothing more. Its next request is often there as soon as
    /// the last one is answered.
    pub(crate) fn read_pmi(&mut self, now: Duration, index: usize, poller: &Poller) {
        let mut bytes = [0u8; READ];
        loop {
            let slot = &self.slots[index];
            let (Some(client), Some(server)) = (&slot.pmi, &mut self.pmi) else { return };
            // A client that does not read its replies is not read either.
            if !client.out.is_empty() {
                return;
            }
            let rank = slot.rank();
            let mut effects = Vec::new();
            match rustix::io::read(&client.socket, &mut bytes) {
                Ok(0) => {
                    server.closed(rank, &mut effects);
                    self.close_pmi(index, poller);
                }
                Ok(count) => server.received(rank, &bytes[..count], &mut effects),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => {
                    server.closed(rank, &mut effects);
                    self.close_pmi(index, poller);
                }
            }
            self.perform_pmi(now, effects, poller);
        }
    }

    fn perform_pmi(&mut self, now: Duration, effects: Vec<pmi1::Effect>, poller: &Poller) {
        for effect in effects {
            match effect {
                pmi1::Effect::Reply { rank, bytes } => {
                    let Some(index) = self.index_of_rank(rank) else { continue };
                    if let Some(client) = &mut self.slots[index].pmi {
                        client.out.push_back(bytes);
                        self.write_pmi(index, poller);
                    }
                    self.tell_if_passed_barrier(now, index);
                }
                pmi1::Effect::Inited { rank, .. } => {
                    if let Some(index) = self.index_of_rank(rank) {
                        self.slots[index].passed_barrier = false;
                    }
                    self.tell_mpi(now, rank, MpiEvent::Inited);
                }
                pmi1::Effect::Finalized { rank, .. } => self.tell_mpi(now, rank, MpiEvent::Finalized),
                pmi1::Effect::Abort { rank, code, message } => {
                    self.tell_mpi(now, rank, MpiEvent::Aborted { code, message });
                }
                pmi1::Effect::BarrierBroken { epoch, left } => {
                    let who = left.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
                    let text = format!("{who} has left MPI while others wait in a barrier (program {epoch})");
                    self.outbox.push(ToFront::Note(text));
                }
                pmi1::Effect::Collective(collective) => {
                    self.outbox.push(ToFront::Collective(Collective {
                        group: collective.group,
                        seq: collective.seq,
                        members: collective.members,
                        payloads: vec![collective.payload.to_vec()],
                    }));
                }
                pmi1::Effect::Malformed { rank, reason } => {
                    self.tell_mpi(now, rank, MpiEvent::Malformed { reason });
                    if let Some(index) = self.index_of_rank(rank) {
                        self.close_pmi(index, poller);
                    }
                }
                pmi1::Effect::Closed { .. } => {}
            }
        }
    }

    /// All nodes have contributed to a collective.
    pub(crate) fn collective_done(&mut self, now: Duration, done: Collective, poller: &Poller) {
        let Some(server) = &mut self.pmi else { return };
        let mut effects = Vec::new();
        let payloads = done.payloads.into_iter().map(Into::into).collect();
        let result = pmi1::CollectiveResult { group: done.group, seq: done.seq, payloads };
        server.collective_done(&result, &mut effects);
        self.perform_pmi(now, effects, poller);
    }

    fn tell_if_passed_barrier(&mut self, now: Duration, index: usize) {
        let rank = self.slots[index].rank();
        let passed = self.pmi.as_ref().is_some_and(|server| {
            matches!(server.lifecycle(rank), pmi1::Lifecycle::Inited { passed_barrier: true, .. })
        });
        if passed && !self.slots[index].passed_barrier {
            self.slots[index].passed_barrier = true;
            self.tell_mpi(now, rank, MpiEvent::PassedBarrier);
        }
    }

    fn tell_mpi(&mut self, now: Duration, rank: Rank, event: MpiEvent) {
        if let Some(index) = self.index_of_rank(rank) {
            self.outbox.push(ToFront::Mpi { worker: self.slots[index].id, event, at: now });
        }
    }

    fn write_pmi(&mut self, index: usize, poller: &Poller) {
        let Some(client) = &mut self.slots[index].pmi else { return };
        while let Some(bytes) = client.out.front_mut() {
            match rustix::net::send(&client.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) if count == bytes.len() => {
                    client.out.pop_front();
                }
                Ok(count) => {
                    let _ = bytes.split_to(count);
                }
                Err(rustix::io::Errno::AGAIN) => {
                    if !client.awaits_room {
                        client.awaits_room = true;
                        let _ = poller.change(&client.socket, Token::Pmi(index).encode(), Interest::Write);
                    }
                    return;
                }
                Err(_) => {
                    self.close_pmi(index, poller);
                    return;
                }
            }
        }
        if client.awaits_room {
            client.awaits_room = false;
            let _ = poller.change(&client.socket, Token::Pmi(index).encode(), Interest::Read);
        }
    }

    fn close_pmi(&mut self, index: usize, poller: &Poller) {
        if let Some(client) = self.slots[index].pmi.take() {
            let _ = poller.remove(&client.socket);
        }
    }

    /// The slot of a rank of the group that the wire-up serves.
    fn index_of_rank(&self, rank: Rank) -> Option<usize> {
        let spec = self.spec.as_ref()?;
        self.index_of(WorkerId { group: spec.group, rank, attempt: spec.attempt })
    }
}
