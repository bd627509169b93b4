//! What goes wrong in a simulated job, and what people want meanwhile.

use std::time::Duration;

use super::{Action, Violation, World};
use crate::gang::{Requester, StopRequest};
use crate::ids::NodeId;
use crate::job::event::{ClientId, Event};
use crate::job::settings::Way;

impl World {
    /// Something goes wrong, or somebody wants something.
    pub(super) fn fault(&mut self) -> Result<(), Violation> {
        let node = NodeId(self.dice.below(self.machines.len() as u64) as u32);
        let is_here = self.machines[node.index()].way == Way::Here;
        match self.dice.below(9) {
            // The network is cut for a while.
            0..=2 if !is_here => {
                let lasts = self.dice.time(Duration::from_secs(200));
                let until = self.now + lasts;
                let machine = &mut self.machines[node.index()];
                machine.cut_until = machine.cut_until.max(until);
                Ok(())
            }
            // The agent is killed: its ranks die with it, and the guard ends what is left.
            3 | 4 => {
                let machine = &mut self.machines[node.index()];
                if !std::mem::take(&mut machine.has_agent) || machine.is_off {
                    return Ok(());
                }
                machine.ranks.clear();
                machine.owes_over = false;
                machine.is_agent_end_open = false;
                machine.leaves = self.dice.chance(10);
                let (link, healed) = (machine.link, machine.cut_until);
                self.at((self.now + Duration::from_millis(5)).max(healed), Action::EndArrives(node, link));
                self.after(20, Action::Proves(node));
                Ok(())
            }
            // It is switched off.
            5 if !is_here => {
                let machine = &mut self.machines[node.index()];
                (machine.is_off, machine.has_agent) = (true, false);
                machine.ranks.clear();
                Ok(())
            }
            6 => {
                let number = [2, 15][self.dice.below(2) as usize];
                self.take(Event::Signal { number, by_key: false })
            }
            7 => {
                let by = Requester { pid: 1, is_root: false };
                match self.dice.chance(30) {
                    true => {
                        self.take(Event::StopRequest { client: ClientId(0), request: StopRequest { by, grace: None } })
                    }
                    false => self.take(Event::RestartRequest { client: ClientId(0), by }),
                }
            }
            _ => {
                self.take(Event::StatesRequest { measure: true })?;
                self.take(Event::StandingsRequest { by_key: false })
            }
        }
    }
}
