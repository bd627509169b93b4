//! Orders that end processes. They wait for a look at what the processes hold in /dev/shm: a dead process holds nothing, and a file
//! whose creator was never seen stays (K-8). Ranks in MPI that the signal ends stand still from the look to the signal: Intel MPI's
//! segments have no name that tells the job, and one that is made in between would stay.
//!
//! A rank that handles the signal goes on: it lives on to be looked at again. Besides, the kernel gives a signal that waits for a frozen
//! process to whichever of its threads runs first; then a `sleep` of Python's main thread would not see it.

use std::time::Duration;

use rankrun_core::job::CleanShm;
use rankrun_core::team::Event;
use rankrun_core::{Slot as SlotIndex, WorkerId};
use rankrun_sys::proc::{self, Reaction};
use rankrun_sys::process::ProcessId;
use rankrun_sys::signal;

use super::{Hands, Team};

/// How long an order waits for the look. It takes less than a millisecond where the thread gets a CPU; a thread that hangs on a process
/// must not hold up the end.
const LOOK_BOUND: Duration = Duration::from_millis(250);

impl Team {
    /// An order to stop or to kill the workers.
    pub(crate) fn order(&mut self, hands: &mut Hands, now: Duration, order: Event) {
        // Before that no rank runs.
        let is_to_look = hands.site.is_ready() && !self.is_over() && !hands.clock.is_paused();
        if is_to_look && self.orders.waiting.is_empty() {
            self.hold_mpi(hands, order);
        }
        if is_to_look && hands.site.look(self.group()) {
            if self.orders.waiting.is_empty() {
                self.orders.until = now + LOOK_BOUND;
            }
            self.orders.looks += 1;
            self.orders.waiting.push(order);
        } else {
            self.orders.waiting.push(order);
            self.carry_out(hands, now);
        }
    }

    /// Stops the ranks that are in MPI by PMI-1. By PMIx only Open MPI is, whose segments have the job's name.
    fn hold_mpi(&mut self, hands: &mut Hands, order: Event) {
        let Some(pmi) = &self.pmi else { return };
        for slot in self.machine.slots().filter(|slot| pmi.is_in_mpi(*slot)).collect::<Vec<_>>() {
            self.hold(hands, slot, order);
        }
    }

    /// A rank is about to be answered by PMI-1. While orders wait, the answer must not take it to where it makes segments.
    pub(super) fn hold_while_orders_wait(&mut self, hands: &mut Hands, slot: SlotIndex) {
        if let Some(&order) = self.orders.waiting.first()
            && !self.orders.holds(slot)
        {
            self.hold(hands, slot, order);
        }
    }

    /// Stops the processes of a slot, if the order's signal ends them.
    fn hold(&mut self, hands: &mut Hands, slot: SlotIndex, order: Event) {
        let signal = match order {
            Event::Stop(stop) => stop.first_signal(&self.spec.stop),
            _ => signal::SIGKILL,
        };
        let is_noticed = |id: &ProcessId| proc::reaction(id.pid, signal) == Some(Reaction::Noticed);
        if self.spec.clean_shm == CleanShm::No || hands.children.processes(self.id(slot)).iter().any(is_noticed) {
            return;
        }
        self.freeze_slots(hands, &[slot], true);
        self.orders.held.push(slot);
    }

    /// A look is over.
    pub(super) fn looked(&mut self, hands: &mut Hands, now: Duration) {
        self.orders.looks = self.orders.looks.saturating_sub(1);
        if self.orders.looks == 0 {
            self.carry_out(hands, now);
        }
    }

    /// Carries out what waits, in order. A process that stands still takes its signal when it goes on, before anything else.
    pub(super) fn carry_out(&mut self, hands: &mut Hands, now: Duration) {
        for order in std::mem::take(&mut self.orders.waiting) {
            self.event(hands, now, order);
        }
        let held = std::mem::take(&mut self.orders.held);
        // The user may have stopped the job meanwhile.
        if !self.frozen {
            // Also those whose leaders have ended meanwhile.
            let held: Vec<WorkerId> = held.into_iter().map(|slot| self.id(slot)).collect();
            hands.children.freeze(&held, false);
        }
    }
}
