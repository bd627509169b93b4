//! Handles what the processes of the ranks report over the worker socket.

use std::time::Duration;

use rankrun_core::env::error_file;
use rankrun_core::evidence::MpiEvent;
use rankrun_core::job::{AgentEvent, WorkerEvent};
use rankrun_core::team::Event;
use rankrun_core::testimony::{Standing, Testimony, Usage, dated};
use rankrun_core::{Pid, Slot as SlotIndex, SpeakerId};
use rankrun_sys::proc;
use rankrun_sys::process::{Child, ProcessRef};
use rankrun_wire::ToFront;
use rankrun_wireup::worker::{self, When};

use super::{Hands, Team};
use crate::children::content;
use crate::services::worker_socket::{Peer, Received};

impl Team {
    /// Handles what processes of this group have sent over the worker socket.
    pub(crate) fn handle_received(&mut self, hands: &mut Hands, now: Duration, received: Vec<Received>) {
        self.speakers.under_way = hands.spawner.under_way().into_iter().map(Child::pid).collect();
        self.spawn_results(hands, now);
        for received in received {
            let peer = received.peer();
            if peer.worker.group() != self.group() {
                hands.misled.push(received);
                continue;
            }
            match (received, self.slot_of(peer.worker)) {
                (Received::Result(_, piece), _) => hands.outbox.push(ToFront::Result { worker: peer.worker, piece }),
                (Received::Hello(_), Some(slot)) => {
                    self.speaker(hands, slot, peer);
                }
                (Received::Testimony(_, testimony, when), Some(slot)) => {
                    self.testimony(hands, now, slot, peer, testimony, when);
                }
                (Received::Nonsense(_, reason), Some(_)) => {
                    let text = format!("rank {}, pid {}: worker socket: {reason}", peer.worker.rank, peer.pid);
                    hands.outbox.push(ToFront::Note(text));
                }
                (Received::Closed(_), Some(_)) => {
                    if let Some(id) = peer.process.and_then(|process| self.speakers.ids.get(&process).copied()) {
                        self.event(hands, now, Event::SpeakerClosed(id));
                    }
                }
                // It has a successor.
                (_, None) => {}
            }
        }
    }

    /// The speaker of a client; `None` for a process that is gone.
    fn speaker(&mut self, hands: &mut Hands, slot: SlotIndex, peer: Peer) -> Option<SpeakerId> {
        let process = peer.process?;
        if let Some(id) = self.speakers.ids.get(&process) {
            return Some(*id);
        }
        let held = ProcessRef::of(process)?;
        let is_leader = hands.children.leader(peer.worker).is_some_and(|leader| leader.pid() == process.pid)
            || self.speakers.under_way.contains(&process.pid);
        let id = self.machine.add_speaker(slot, is_leader, process.started);
        self.speakers.held.insert(id, held);
        self.speakers.ids.insert(process, id);
        self.mpi_changed(slot);
        self.send_reports(hands, slot);
        Some(id)
    }

    /// Sends the front whether the process on which a rank depends reports its own failures, if that has changed. That is the
    /// process in MPI, or else any live speaker of the rank.
    pub(super) fn send_reports(&mut self, hands: &mut Hands, slot: SlotIndex) {
        let in_mpi = self.in_mpi(slot).flatten();
        let reports = match in_mpi {
            Some(process) => self.speakers.ids.contains_key(&process),
            None => self.machine.has_speakers(slot),
        };
        if std::mem::replace(&mut self.slot(slot).reports, reports) != reports {
            let now = hands.clock.now();
            self.tell(hands, now, slot, WorkerEvent::Reports(reports));
        }
    }

    /// A rank has inited MPI or finalized it, or another of its processes has become known.
    pub(super) fn mpi_changed(&mut self, slot: SlotIndex) {
        let is_in_mpi = self.in_mpi(slot).is_some();
        if let Some(id) = self.mpi_process(slot).and_then(|process| self.speakers.ids.get(&process)) {
            self.machine.set_in_mpi(*id, is_in_mpi);
        }
    }

    /// The standing in its rank of a process that reports its failure.
    fn standing(&self, hands: &Hands, slot: SlotIndex, peer: Peer) -> Standing {
        let leader = hands.children.leader(peer.worker).map(|leader| leader.pid());
        if let Some(process) = self.in_mpi(slot) {
            match (process, peer.process) {
                (Some(known), Some(process)) if known == process => return Standing::InWorld,
                // The kernel gave no pid: a rank usually has one process in MPI.
                (None, _) => return Standing::InWorld,
                (Some(known), _)
                    if leader != Some(peer.pid.0) && proc::process(known.pid).is_some_and(|it| it.id() == known) =>
                {
                    return Standing::Helps;
                }
                (Some(_), _) => {}
            }
        }
        if leader == Some(peer.pid.0)
            || self.speakers.under_way.contains(&peer.pid.0)
            || self.is_below_silent(leader, peer)
        {
            Standing::Leads
        } else {
            Standing::Helps
        }
    }

    /// Whether no process from this one's parent up to the leader reports its own failures: a shell only waits for its
    /// program, so the program reports for the rank.
    fn is_below_silent(&self, leader: Option<i32>, peer: Peer) -> bool {
        let mut next = proc::process(peer.pid.0).map(|process| process.parent);
        // Long enough for any tree. The process table changes while we read it, and may show a cycle.
        for _ in 0..256 {
            let Some(parent) = next.and_then(proc::process) else { return false };
            if self.speakers.ids.contains_key(&parent.id()) {
                return false;
            }
            if Some(parent.pid) == leader {
                return true;
            }
            next = (parent.pid > 1).then_some(parent.parent);
        }
        false
    }

    fn testimony(
        &mut self,
        hands: &mut Hands,
        now: Duration,
        slot: SlotIndex,
        peer: Peer,
        testimony: Testimony,
        when: When,
    ) {
        match &testimony {
            Testimony::Uncaught(_) => {
                let standing = self.standing(hands, slot, peer);
                if let Some(id) = self.speaker(hands, slot, peer) {
                    self.machine.speaker(id, |speaker, graces| speaker.uncaught(now, graces, standing));
                }
            }
            Testimony::Exiting { code: 0 } => {
                self.program_is_over(hands, now, slot, peer);
                if let Some(id) = self.speaker(hands, slot, peer) {
                    self.machine.speaker(id, |speaker, _| speaker.retract());
                }
            }
            Testimony::Exiting { .. } | Testimony::Leaving { .. } => {
                let standing = match (self.program_is_over(hands, now, slot, peer), &testimony) {
                    (Standing::Leads, Testimony::Leaving { .. }) => Standing::InWorld,
                    (standing, _) => standing,
                };
                let usage = peer.process.map_or_else(Usage::default, |process| hands.children.usage(process));
                if let Some(id) = self.speaker(hands, slot, peer) {
                    self.machine.speaker(id, |speaker, graces| speaker.exiting(now, graces, standing, usage));
                }
            }
            Testimony::Note { .. } | Testimony::Aside { .. } | Testimony::Progress => {
                let known = peer.process.and_then(|process| self.speakers.ids.get(&process).copied());
                if let Some(id) = known {
                    self.machine.speaker(id, |speaker, graces| speaker.note(now, graces));
                }
            }
            Testimony::Abort { .. } | Testimony::ErrorFile(_) | Testimony::Ready => {}
        }
        let worker = peer.worker;
        // The loop has read its clock at the begin of its turn: what is read since may have been sent later.
        let arrived = hands.clock.now();
        let claimed = match when {
            When::At(time) => hands.clock.at(time),
            When::Ago(time) => arrived.checked_sub(time),
            When::Unsaid => None,
        };
        // A process that is gone may have been started at any time.
        let lived = peer.process.map(|process| proc::age(process.started));
        let earliest = lived.map_or(Duration::ZERO, |lived| arrived.saturating_sub(lived));
        let at = dated(arrived, claimed, earliest);
        let event = WorkerEvent::Testimony { pid: peer.pid, testimony };
        hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker, at, event }));
    }

    /// Only finalizers are left of a process, `MPI_Finalize` among them if it is in MPI.
    fn program_is_over(&self, hands: &mut Hands, now: Duration, slot: SlotIndex, peer: Peer) -> Standing {
        let standing = self.standing(hands, slot, peer);
        if standing == Standing::InWorld {
            self.tell(hands, now, slot, WorkerEvent::Mpi(MpiEvent::Finalizing));
        }
        standing
    }

    /// Handles all that a worker's processes have sent.
    pub(super) fn read_last_messages(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex) {
        let received = hands.worker_socket.read_last(self.id(slot), now, &hands.children, &hands.poller);
        self.handle_received(hands, now, received);
    }

    /// Reads the error file that torch may have written for a failed rank. It may be on the user's storage, and the rank may have
    /// replaced it by something that blocks (a FIFO).
    pub(super) fn read_error_file(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, pid: Pid) {
        let worker = self.machine.id(slot);
        let path = error_file(&self.spec, self.runtime.as_os_str(), worker.rank);
        let json = match self.spec.error_file {
            None => Ok(content(&path)),
            Some(_) => self.error_files.read(&path, &hands.children.readers()),
        };
        match json {
            Ok(json) => {
                if let Some(exception) = json.as_deref().and_then(worker::error_file) {
                    let testimony = Testimony::ErrorFile(exception);
                    self.tell(hands, now, slot, WorkerEvent::Testimony { pid, testimony });
                }
            }
            Err(note) => hands.outbox.extend(note.map(ToFront::Note)),
        }
    }
}
