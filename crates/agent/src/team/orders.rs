//! Orders that end processes. They wait for a look at what the processes hold in /dev/shm: a dead process holds nothing, and a file
//! whose creator was never seen stays (K-8).

use std::time::Duration;

use rankrun_core::team::Event;

use super::{Hands, Team};

/// How long an order waits for the look. It takes less than a millisecond where the thread gets a CPU; a thread that hangs on a process
/// must not hold up the end.
const LOOK_BOUND: Duration = Duration::from_millis(250);

/// The orders that wait.
#[derive(Debug, Default)]
pub(super) struct Orders {
    waiting: Vec<Event>,
    /// Looks that were requested and are not answered.
    looks: u32,
    until: Duration,
}

impl Orders {
    /// When the orders that wait are carried out without an answer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(self.until)
    }
}

impl Team {
    /// An order to stop or to kill the workers.
    pub(crate) fn order(&mut self, hands: &mut Hands, now: Duration, order: Event) {
        // Before that no rank runs.
        let is_to_look = self.memory_ready && !self.is_over() && !hands.clock.is_paused();
        if is_to_look && self.memory.as_ref().is_some_and(|memory| memory.look()) {
            if self.orders.waiting.is_empty() {
                self.orders.until = now + LOOK_BOUND;
            }
            self.orders.looks += 1;
            self.orders.waiting.push(order);
        } else {
            self.carry_out(hands, now);
            self.event(hands, now, order);
        }
    }

    /// A look is over.
    pub(super) fn looked(&mut self, hands: &mut Hands, now: Duration) {
        self.orders.looks = self.orders.looks.saturating_sub(1);
        if self.orders.looks == 0 {
            self.carry_out(hands, now);
        }
    }

    /// Carries out what waits, in order.
    pub(super) fn carry_out(&mut self, hands: &mut Hands, now: Duration) {
        for order in std::mem::take(&mut self.orders.waiting) {
            self.event(hands, now, order);
        }
    }
}
