//! Finds out which ranks run Python without the interpreter hook.

use rankrun_core::job::AgentEvent;
use rankrun_core::worker::State;
use rankrun_sys::process::ProcessId;
use rankrun_wire::ToFront;

use super::{Hands, Team, Teams};
use crate::children::Subject;
use crate::services::pmix::Pmix;

/// Ranks of this node that a brief look shows: two are enough to tell that ranks are alone.
const BRIEFLY: usize = 4;

impl Team {
    /// Begins to look at the ranks on which nobody reports. Those whose Python has its hook cost nothing here.
    pub(crate) fn look_for_hooks(&mut self, hands: &mut Hands) {
        let mut subjects = Vec::new();
        for slot in self.machine.slots() {
            let is_alive = matches!(self.machine.state(slot), State::Running { .. } | State::Stopping { .. });
            if is_alive && !self.slots[slot.index()].reports {
                let in_mpi = self.pmi.as_ref().filter(|pmi| pmi.is_in_mpi(slot)).and_then(|pmi| pmi.process(slot));
                let worker = self.machine.id(slot);
                subjects.push(Subject { worker, in_mpi, processes: hands.children.processes(self.id(slot)) });
            }
        }
        hands.interpreters.look(self.hook.clone(), subjects);
    }

    /// Begins to look for MPI libraries in the ranks; `is_brief`: in the leaders of a few.
    pub(crate) fn look_for_mpi(&mut self, hands: &mut Hands, is_brief: bool) {
        // A rank that waits for the PMIx host has not been able to connect yet.
        if hands.libraries.is_busy() || hands.pmix.as_ref().is_some_and(Pmix::is_coming_up) {
            return;
        }
        let mut ranks = Vec::new();
        for slot in self.machine.slots() {
            if is_brief && ranks.len() == BRIEFLY {
                break;
            }
            let is_alive = matches!(self.machine.state(slot), State::Running { .. } | State::Stopping { .. });
            if is_alive && self.in_mpi(slot).is_none() {
                let leader = || hands.children.leader(self.id(slot)).and_then(|leader| ProcessId::of(leader.pid()));
                let processes = match is_brief {
                    true => leader().into_iter().collect(),
                    false => hands.children.processes(self.id(slot)),
                };
                ranks.push((self.machine.id(slot), processes));
            }
        }
        hands.libraries.look(ranks);
    }
}

impl Teams {
    /// The answers to such looks may have come. A rank that has said hello meanwhile was only slow.
    pub(crate) fn looks_answered(&mut self, hands: &mut Hands) {
        if let Some(mut found) = hands.interpreters.answer() {
            found.retain(|(worker, _)| self.of_worker(*worker).is_some_and(|(team, slot)| !team.slot(slot).reports));
            hands.outbox.extend((!found.is_empty()).then_some(ToFront::Event(AgentEvent::Hookless(found))));
        }
        if let Some(found) = hands.libraries.answer().filter(|found| !found.is_empty()) {
            hands.outbox.push(ToFront::Event(AgentEvent::MpiSeen(found)));
        }
    }
}
