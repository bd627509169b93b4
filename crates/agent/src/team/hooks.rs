//! Finds out which ranks run Python without the interpreter hook.

use rankrun_core::worker::State;
use rankrun_wire::ToFront;

use super::{Hands, Team};
use crate::children::Subject;

impl Team {
    /// Begins to look at the ranks on which nobody reports. Those whose Python has its hook cost nothing here.
    pub(crate) fn look_for_hooks(&mut self, hands: &mut Hands) {
        let mut subjects = Vec::new();
        for slot in self.machine.slots() {
            let is_alive = matches!(self.machine.state(slot), State::Running { .. } | State::Stopping { .. });
            if is_alive && !self.slots[slot.index()].reports {
                let in_mpi = self.pmi.as_ref().filter(|pmi| pmi.is_in_mpi(slot)).and_then(|pmi| pmi.process(slot));
                let worker = self.machine.id(slot);
                subjects.push(Subject { worker, in_mpi, processes: hands.children.processes(slot) });
            }
        }
        hands.interpreters.look(self.hook.clone(), subjects);
    }

    /// The answer to such a look may have come. A rank that has said hello meanwhile was only slow.
    pub(crate) fn hooks_seen(&mut self, hands: &mut Hands) {
        let Some(mut found) = hands.interpreters.answer() else { return };
        found.retain(|(worker, _)| {
            self.machine.slot_of(worker.rank).is_some_and(|slot| !self.slots[slot.index()].reports)
        });
        if !found.is_empty() {
            hands.outbox.push(ToFront::Hookless(found));
        }
    }
}
