//! The processes that speak for the ranks, as they were found on the worker socket.

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::Duration;

use rankrun_core::env::error_file;
use rankrun_core::team::Event;
use rankrun_core::testimony::{Standing, Testimony};
use rankrun_core::{Pid, Slot as SlotIndex, SpeakerId};
use rankrun_sys::proc;
use rankrun_sys::process::{Child, ProcessId, ProcessRef};
use rankrun_wire::ToFront;
use rankrun_wireup::worker;
use rustix::fs::{FileType, Mode, OFlags};

use super::{Hands, Team};
use crate::services::worker_socket::{Heard, Peer};

/// Bytes of an error file that are read.
const MAX_ERROR_FILE: u64 = 1 << 20;

/// Who they are.
#[derive(Debug, Default)]
pub(super) struct Voices {
    held: HashMap<SpeakerId, ProcessRef>,
    ids: HashMap<ProcessId, SpeakerId>,
    /// The child that the spawner was at when its results were last taken: a leader may speak before it is known as one.
    under_way: Option<i32>,
}

impl Voices {
    pub(super) fn pid(&self, id: SpeakerId) -> Option<Pid> {
        self.held.get(&id).map(|process| Pid(process.pid()))
    }

    /// Looks how a speaker is.
    pub(super) fn look(&self, id: SpeakerId) -> Event {
        match self.held.get(&id) {
            Some(process) if process.is_alive() => Event::SpeakerSeen(id, proc::written_bytes(process.pid())),
            Some(_) | None => Event::SpeakerEnded(id),
        }
    }

    pub(super) fn signal(&self, id: SpeakerId, signals: &[i32]) {
        if let Some(process) = self.held.get(&id) {
            for signal in signals {
                // It has ended meanwhile.
                let _ = process.signal(*signal);
            }
        }
    }

    pub(super) fn forget(&mut self, id: SpeakerId) {
        if let Some(process) = self.held.remove(&id) {
            self.ids.remove(&process.id());
        }
    }
}

impl Team {
    /// The worker socket's listener is readable.
    pub(crate) fn accept_clients(&mut self, hands: &mut Hands, now: Duration) {
        hands.worker_socket.accept(now, &hands.children, self.slots.len(), &hands.poller);
    }

    /// A client of the worker socket is readable.
    pub(crate) fn client_ready(&mut self, hands: &mut Hands, now: Duration, client: usize) {
        let heard = hands.worker_socket.read(client, now, &hands.children, &hands.poller);
        self.heard(hands, now, heard);
    }

    pub(super) fn heard(&mut self, hands: &mut Hands, now: Duration, heard: Vec<Heard>) {
        self.voices.under_way = hands.spawner.under_way().map(Child::pid);
        self.spawn_results(hands, now);
        for heard in heard {
            match heard {
                Heard::Hello(peer) => {
                    self.speaker(hands, peer);
                }
                Heard::Testimony(peer, testimony) => self.testimony(hands, now, peer, testimony),
                Heard::Nonsense(peer, reason) => {
                    let rank = self.machine.id(peer.slot).rank;
                    let text = format!("rank {rank}, pid {}: worker socket: {reason}", peer.pid);
                    hands.outbox.push(ToFront::Note(text));
                }
                Heard::Closed(peer) => {
                    if let Some(id) = peer.process.and_then(|process| self.voices.ids.get(&process).copied()) {
                        self.event(hands, now, Event::SpeakerClosed(id));
                    }
                }
            }
        }
    }

    /// The speaker that a client is; `None` for one that is gone.
    fn speaker(&mut self, hands: &mut Hands, peer: Peer) -> Option<SpeakerId> {
        let process = peer.process?;
        if let Some(id) = self.voices.ids.get(&process) {
            return Some(*id);
        }
        let held = ProcessRef::of(process)?;
        let is_leader = hands.children.leader(peer.slot).is_some_and(|leader| leader.pid() == process.pid)
            || self.voices.under_way == Some(process.pid);
        let id = self.machine.add_speaker(peer.slot, is_leader, process.started);
        self.voices.held.insert(id, held);
        self.voices.ids.insert(process, id);
        self.mpi_changed(peer.slot);
        self.tell_reports(hands, peer.slot);
        Some(id)
    }

    /// Tells the front whether the process on which a rank depends reports its own failures, if that has changed: the one that is
    /// in MPI, or else any of the rank that has spoken and lives.
    pub(super) fn tell_reports(&mut self, hands: &mut Hands, slot: SlotIndex) {
        let in_mpi = self.pmi.as_ref().filter(|pmi| pmi.is_in_mpi(slot)).and_then(|pmi| pmi.process(slot));
        let reports = match in_mpi {
            Some(process) => self.voices.ids.contains_key(&process),
            None => self.machine.has_speakers(slot),
        };
        if std::mem::replace(&mut self.slot(slot).reports, reports) != reports {
            hands.outbox.push(ToFront::Reports { worker: self.machine.id(slot), reports });
        }
    }

    /// A rank has inited MPI or finalized it, or another of its processes has become known.
    pub(super) fn mpi_changed(&mut self, slot: SlotIndex) {
        let Some(pmi) = &self.pmi else { return };
        if let Some(id) = pmi.process(slot).and_then(|process| self.voices.ids.get(&process)) {
            self.machine.set_in_mpi(*id, pmi.is_in_mpi(slot));
        }
    }

    /// What a process that reports its failure is to its rank.
    fn standing(&self, hands: &Hands, peer: Peer) -> Standing {
        let leader = hands.children.leader(peer.slot).map(|leader| leader.pid());
        let in_mpi = self.pmi.as_ref().filter(|pmi| pmi.is_in_mpi(peer.slot));
        if let Some(pmi) = in_mpi {
            match (pmi.process(peer.slot), peer.process) {
                (Some(known), Some(process)) if known == process => return Standing::InMpi,
                // The kernel has not named it: a rank has one, as a rule.
                (None, _) => return Standing::InMpi,
                (Some(known), _)
                    if leader != Some(peer.pid.0) && proc::process(known.pid).is_some_and(|it| it.id() == known) =>
                {
                    return Standing::Helps;
                }
                (Some(_), _) => {}
            }
        }
        if leader == Some(peer.pid.0) || self.voices.under_way == Some(peer.pid.0) || self.is_below_silent(leader, peer)
        {
            Standing::Leads
        } else {
            Standing::Helps
        }
    }

    /// Whether no process between this one and its leader, the leader included, reports its own failures: a shell that waits
    /// for a program leaves it to that to say how the rank fares.
    fn is_below_silent(&self, leader: Option<i32>, peer: Peer) -> bool {
        let mut next = proc::process(peer.pid.0).map(|process| process.parent);
        // Long enough for any tree; a table that changes under our eyes may show a circle.
        for _ in 0..256 {
            let Some(parent) = next.and_then(proc::process) else { return false };
            if self.voices.ids.contains_key(&parent.id()) {
                return false;
            }
            if Some(parent.pid) == leader {
                return true;
            }
            next = (parent.pid > 1).then_some(parent.parent);
        }
        false
    }

    fn testimony(&mut self, hands: &mut Hands, now: Duration, peer: Peer, testimony: Testimony) {
        match &testimony {
            Testimony::Uncaught(_) => {
                let standing = self.standing(hands, peer);
                if let Some(id) = self.speaker(hands, peer) {
                    self.machine.speaker(id, |speaker, graces| speaker.uncaught(now, graces, standing));
                }
            }
            Testimony::Exiting { code: 0 } => {
                if let Some(id) = self.speaker(hands, peer) {
                    self.machine.speaker(id, |speaker, _| speaker.retract());
                }
            }
            Testimony::Exiting { .. } => {
                let standing = self.standing(hands, peer);
                let written = proc::written_bytes(peer.pid.0);
                if let Some(id) = self.speaker(hands, peer) {
                    self.machine.speaker(id, |speaker, graces| speaker.exiting(now, graces, standing, written));
                }
            }
            Testimony::Note { .. } | Testimony::Aside { .. } => {
                let known = peer.process.and_then(|process| self.voices.ids.get(&process).copied());
                if let Some(id) = known {
                    self.machine.speaker(id, |speaker, graces| speaker.note(now, graces));
                }
            }
            Testimony::Abort { .. } | Testimony::ErrorFile(_) => {}
        }
        let worker = self.machine.id(peer.slot);
        hands.outbox.push(ToFront::Testimony { worker, pid: peer.pid, testimony, at: now });
    }

    /// All that a worker's processes said before its end.
    pub(super) fn hear_last(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex) {
        let heard = hands.worker_socket.read_last(slot, now, &hands.children, &hands.poller);
        self.heard(hands, now, heard);
    }

    /// A rank has failed: what torch may have written of it. The file lies in the job's own directory; what the rank may have
    /// put in its place is not waited for.
    pub(super) fn read_error_file(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, pid: Pid) {
        let worker = self.machine.id(slot);
        let path = error_file(self.runtime.as_os_str(), worker.rank);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else { return };
        let is_file = rustix::fs::fstat(file.as_fd())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let mut json = Vec::new();
        if is_file
            && std::fs::File::from(file).take(MAX_ERROR_FILE).read_to_end(&mut json).is_ok()
            && let Some(exception) = worker::error_file(&json)
        {
            let testimony = Testimony::ErrorFile(exception);
            hands.outbox.push(ToFront::Testimony { worker, pid, testimony, at: now });
        }
    }
}
