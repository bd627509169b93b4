//! Nodes that join by themselves, or are started by Slurm.

use std::time::Duration;

use crate::exit::ExitCode;
use crate::gang::Outside;
use crate::hosts::fold;
use crate::ids::NodeId;
use crate::job::event::{Added, Effect, Enrolment};
use crate::job::machine::{Job, Refused};
use crate::job::parts::node::Node;
use crate::job::settings::{Host, Way};
use crate::memory::Memory;
use crate::reach;

/// After this time, or a third of the time for the start, a second step is started for the nodes of Slurm that have not connected.
const AGAIN_AFTER: Duration = Duration::from_secs(20);
/// Up to so many of them have a step each: one that cannot be started keeps none of the others from it.
const STEPS: usize = 64;
const NOT_JOINED: &str = "it did not join";

impl Job {
    /// In a Slurm allocation: one step starts the agents of the other nodes.
    pub(in crate::job) fn start_steps(&mut self) {
        let others = self.nodes.iter().filter(|node| node.joins()).map(Node::id).collect();
        self.start_step(others);
    }

    pub(in crate::job) fn start_step(&mut self, nodes: Vec<NodeId>) {
        let step = self.joining.add_step(nodes.clone());
        self.out.push(Effect::StartStep { step, nodes });
    }

    /// Other steps for nodes that have not connected: there is one such try.
    fn ask_again(&mut self, missing: Vec<NodeId>) {
        let size = if missing.len() <= STEPS { 1 } else { missing.len() };
        missing.chunks(size).for_each(|nodes| self.start_step(nodes.to_vec()));
        self.joining.ask_again(missing);
    }

    /// The nodes that have not connected.
    fn unjoined(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|node| node.is_awaited()).map(Node::id).collect()
    }

    /// Nodes that the step has not started in time are asked again, within the same time for the start.
    pub(in crate::job) fn ask_late_nodes_again(&mut self) {
        let after = AGAIN_AFTER.min(self.settings.start_timeout / 3);
        let is_due = self.joining.may_ask_again() && self.now >= after;
        if !is_due || self.is_ending() {
            return;
        }
        let missing = self.unjoined();
        if !missing.is_empty() {
            // The first step may still come to them.
            self.ask_again(missing);
        }
    }

    /// A step has ended. Nodes that have not joined are asked again, once; after that the job begins without them, if it may.
    pub(in crate::job) fn step_ended(&mut self, step: usize, code: i32, words: &str, not_started: Option<String>) {
        let words = reach::essence(words);
        let words = if words.is_empty() { format!("srun ended with code {code}") } else { words };
        self.joining.step_ended(step, words);
        if !self.is_gathering() {
            return self.step_of_returns_ended(step);
        }
        let missing = self.nodes.iter().filter(|node| node.about().is_none() && !node.is_lost());
        let missing: Vec<NodeId> = missing.map(Node::id).collect();
        if missing.is_empty() || self.is_ending() {
            return;
        }
        if let Some(why) = not_started {
            return self.refuse(Refused {
                what: "cannot start srun".to_owned(),
                why,
                hint: None,
                code: ExitCode::INTERNAL,
            });
        }
        let unjoined = self.unjoined();
        let Some(words) = self.joining.last_words(&unjoined) else { return };
        // For these there is no step any more, and for these not the one that was the second try.
        let lost: Vec<NodeId> = unjoined.iter().copied().filter(|node| self.joining.are_over_for(*node)).collect();
        let are_hopeless = unjoined.iter().all(|node| self.joining.is_last_over_for(*node));
        if !self.joining.has_asked_again() {
            if !lost.is_empty() {
                self.note(format!("{}: {words}: asking again", self.nodes.names(lost.iter().copied())));
                self.ask_again(lost);
            }
            return;
        }
        let may_be_fewer = self.nodes.may_run_on_fewer();
        if are_hopeless && may_be_fewer && self.gives_up_nodes(&missing, &words) {
            return self.begin_without();
        }
        if lost.is_empty() || (may_be_fewer && !are_hopeless) {
            return;
        }
        self.refuse(Refused {
            what: format!("cannot start agents on {}", self.nodes.names(missing)),
            why: words,
            hint: Some("--srun-args adds options for srun; \"srun -N1 hostname\" must work here".to_owned()),
            code: ExitCode::NODE_LOST,
        });
    }

    /// A step could not be asked for.
    pub(in crate::job) fn step_failed(&mut self, why: String) {
        match self.joining.has_asked_again() {
            false => {
                let what = "cannot start srun".to_owned();
                self.refuse(Refused { what, why, hint: None, code: ExitCode::INTERNAL });
            }
            true => self.note(format!("cannot start srun again: {why}")),
        }
    }

    /// A node has sent a message: it has received its admission.
    pub(in crate::job) fn has_sent(&mut self, node: NodeId) {
        if self.nodes.get_mut(node).is_some_and(|node| node.route_mut().has_sent()) {
            self.out.push(Effect::Enrolled(node, Enrolment::Heard));
        }
    }

    /// The connection of a node has ended. If nothing was ever received over it, the node may not have received its admission, and
    /// asks again: it is awaited, as before.
    pub(in crate::job) fn awaits_again(&mut self, node: NodeId) -> bool {
        let is_over = self.is_ending() || !self.is_gathering();
        let Some(handle) = self.nodes.get_mut(node) else { return false };
        if is_over || !handle.is_connected() || handle.place().is_none() || !handle.route().is_unheard_since_admission()
        {
            return false;
        }
        handle.await_again();
        self.out.push(Effect::Disconnect(node));
        self.out.push(Effect::Enrolled(node, Enrolment::Free));
        self.note(format!("node {node}: its connection was closed before it had sent anything; it may join again"));
        true
    }

    /// The guard of a node that had joined has ended.
    pub(in crate::job) fn guard_ended(&mut self, node: NodeId, code: u8, memory: Option<Memory>) {
        if self.nodes.get_mut(node).is_some_and(|node| node.route_mut().guard_ended(code, memory)) {
            // It does not ask again.
            self.lose_node(node, "its connection was closed as soon as it had joined".to_owned(), false);
        }
    }

    /// Gives up the start if nodes have not joined in time.
    pub(in crate::job) fn await_joins(&mut self) {
        let missing = self.unjoined();
        if missing.is_empty() {
            return;
        }
        let now = self.now;
        if !self.is_gathering() {
            // They are spares, and may come later.
            let is_late =
                |node: &NodeId| self.nodes.get(*node).and_then(Node::awaited_until).is_some_and(|by| by <= now);
            let late: Vec<NodeId> = missing.into_iter().filter(is_late).collect();
            return late.into_iter().for_each(|node| self.does_not_come(node, NOT_JOINED));
        }
        if self.is_ending() {
            return;
        }
        let is_late = self.nodes.iter().filter_map(Node::awaited_until).any(|by| by <= now);
        if !is_late && self.last_call().is_none_or(|until| until > now) {
            return;
        }
        if self.gives_up_nodes(&missing, NOT_JOINED) {
            return self.begin_without();
        }
        let (names, hint) = match self.joining.has_steps() {
            false => {
                let names: Vec<String> = missing.iter().map(|node| format!("node{node}")).collect();
                let hint = "start the same command on each of them; --start-timeout is how long node 0 waits";
                (fold(&names), hint)
            }
            true => (
                self.nodes.names(missing.iter().copied()),
                "rankrun must be able to start there (\"srun -N1 hostname\"), and to reach this machine: see --port-range, --local-addr",
            ),
        };
        let (bound, all) = (self.settings.start_timeout.as_secs(), self.nodes.len());
        self.refuse(Refused {
            what: format!("{} of {all} nodes did not join within {bound} s", missing.len()),
            why: format!("missing: {names}"),
            hint: Some(hint.to_owned()),
            code: ExitCode::NODE_LOST,
        });
    }

    /// Since when there are enough nodes that have joined, the job waits for the others until then.
    fn last_call(&mut self) -> Option<Duration> {
        if !self.nodes.are_enough_here() {
            return None;
        }
        Some(self.joining.last_call(self.now, self.settings.last_call))
    }

    /// The job begins without these nodes, if it may. `why` they are not here.
    fn gives_up_nodes(&mut self, missing: &[NodeId], why: &str) -> bool {
        for node in missing {
            self.does_not_come(*node, why);
        }
        if !self.may_begin_without() {
            return false;
        }
        if !self.has_members() {
            self.out.push(Effect::CloseDoor { why: "the job has begun without it" });
        }
        true
    }

    /// A node is not awaited any more. It may come later, if the job takes nodes in.
    fn does_not_come(&mut self, node: NodeId, why: &str) {
        self.on(node, |node| node.lose(why.to_owned(), None, false));
        if self.has_members() {
            self.out.push(Effect::Enrolled(node, Enrolment::Lost));
            self.await_return(node);
        }
    }

    /// Whether nodes that join are admitted: not where no attempt can follow that is being ended.
    pub fn admits_nodes(&self) -> bool {
        let goes_on = match self.gang.ended_by() {
            None | Some(Outside::Restart | Outside::NodeLost | Outside::Hang) => true,
            Some(_) => false,
        };
        let is_for_good = self.gang.stop_ordered().is_some() && !(goes_on && self.has_members());
        self.refused.is_none() && !self.closing.has_begun() && !is_for_good
    }

    /// Another node asks to come after one that was lost.
    pub(in crate::job) fn followed(&mut self, before: NodeId) {
        let host = self.nodes.get(before).filter(|node| node.is_lost() && node.joins());
        let host = host.map(|node| Host { name: node.identity().to_owned(), way: Way::Joins, slots: node.slots() });
        let Some(host) = host.filter(|_| self.admits_nodes() && self.has_members()) else {
            return self.out.push(Effect::Enrolled(before, Enrolment::Refused));
        };
        let id = self.nodes.add(&host, self.now);
        self.out.push(Effect::AddNode(id, Added::Again(before)));
        self.out.push(Effect::Enrolled(id, Enrolment::After(before)));
    }

    /// Nodes for which this step was started may be lost: they are asked again later.
    fn step_of_returns_ended(&mut self, step: usize) {
        for node in self.joining.nodes_of(step) {
            let identity = self.nodes.get(node).map_or("", Node::identity).to_owned();
            if self.members.returns.is_being_called(&identity) {
                self.await_return(node);
            }
        }
    }
}
