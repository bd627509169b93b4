//! Nodes that are silent, suspect and lost: other machines are asked for signs of life, over their connection and over fresh ones.

use std::time::Duration;

use crate::contact::{self, Step};
use crate::fence::Loss;
use crate::gang::{self, PlannedWhy};
use crate::ids::{NodeId, NodeRank, WorkerId};
use crate::job::event::{Effect, Enrolment};
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::node::Node;
use crate::spec::job::OnFrontLost;
use crate::status::signal_name;

/// After this silence a node is suspected.
const SUSPECT: Duration = Duration::from_secs(10);

impl Job {
    /// Lets other machines know that we are alive, and finds those that are silent.
    pub(in crate::job) fn beat(&mut self) {
        let now = self.now;
        let Some(muster) = &mut self.muster else { return };
        if !muster.beats(now) {
            return;
        }
        let mut room = muster.at_a_time();
        let timeout = self.settings.node_timeout;
        let (mut suspects, mut lost) = (Vec::new(), Vec::new());
        for node in self.nodes.iter_mut().filter(|node| node.is_connected()) {
            let Some(asks) = node.route().asks(now) else { continue };
            match node.contact_mut().look(now, timeout, asks) {
                Step::Wait => {}
                // One that joins by itself asks us.
                Step::Ask if node.joins() => {}
                Step::Ask if room == 0 => node.contact_mut().not_asked_yet(),
                Step::Ask => {
                    room -= 1;
                    self.out.push(Effect::Ask(node.id()));
                }
                Step::Lost => {
                    lost.push(node.id());
                    continue;
                }
            }
            let silence = node.contact().silence();
            if silence >= SUSPECT.min(timeout) && node.suspect() {
                suspects.push((node.name().to_owned(), silence));
            }
            self.out.push(Effect::Beat(node.id()));
        }
        for (name, silence) in suspects {
            // It is asked over a fresh connection meanwhile, and has longer if it answers there.
            let when = match timeout.saturating_sub(silence).as_millis().div_ceil(1_000) {
                0 => "now".to_owned(),
                rest => format!("in {rest} s"),
            };
            self.note(format!(
                "node {name} has been silent for {} s; it counts as lost {when} unless it answers (--node-timeout)",
                silence.as_secs()
            ));
        }
        lost.into_iter().for_each(|node| self.lose_silent(node));
    }

    /// A node was silent for too long.
    fn lose_silent(&mut self, node: NodeId) {
        let timeout = self.settings.node_timeout;
        let Some(handle) = self.nodes.get_mut(node) else { return };
        handle.route_mut().give_up_on_proof();
        let why = match handle.contact().has_answered() {
            true => format!(
                "it can be reached, and nothing has come over its connection for {} s (--node-timeout)",
                handle.contact().silence().as_secs()
            ),
            false => format!("no sign of life for {} s (--node-timeout)", timeout.as_secs_f64()),
        };
        self.out.push(Effect::GiveUp(node));
        self.lose_node(node, why, false);
    }

    /// A node that was asked over a fresh connection has answered.
    pub(in crate::job) fn confirmed(&mut self, node: NodeId) {
        let (now, timeout) = (self.now, self.settings.node_timeout);
        if let Some(node) = self.nodes.get_mut(node).filter(|node| node.is_connected()) {
            node.contact_mut().answered(now, timeout);
        }
    }

    /// A node is being asked over a fresh connection.
    pub(in crate::job) fn asking(&mut self, node: NodeId, until: Duration) {
        self.on(node, |node| node.route_mut().asking_until(until));
    }

    /// It could not be asked from this machine.
    pub(in crate::job) fn cannot_ask(&mut self, node: NodeId) {
        let timeout = self.settings.node_timeout;
        self.on(node, |node| node.contact_mut().could_not_ask(timeout));
    }

    /// A node has been heard.
    pub(in crate::job) fn heard(&mut self, node: NodeId) {
        let now = self.now;
        let Some(handle) = self.nodes.get_mut(node) else { return };
        let was_asked = !handle.contact().silence().is_zero();
        if handle.heard(now) {
            let text = format!("node {} answers again", handle.name());
            self.note(text);
        }
        if was_asked {
            self.out.push(Effect::StopAsking(node));
        }
    }

    /// Agents elsewhere that are connected, and have not reported the end of their ranks in time, are given up (K-5).
    pub(in crate::job) fn give_up_late_agents(&mut self) {
        let now = self.now;
        let late: Vec<NodeId> =
            self.nodes.iter_mut().filter_map(|node| node.is_late(now).then_some(node.id())).collect();
        for node in late {
            self.out.push(Effect::GiveUp(node));
            self.lose_node(node, "its agent did not end the ranks in time".to_owned(), false);
        }
    }

    /// Nothing more is expected of the agents that are connected: they end when their connections are closed.
    pub(in crate::job) fn give_up_agents(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.is_connected()) {
            self.out.push(Effect::Disconnect(node.id()));
            node.dismiss();
        }
    }

    /// The connection to an agent has ended (`is_end`), or cannot be decoded.
    pub(in crate::job) fn broke(&mut self, node: NodeId, is_end: bool, why: String) {
        if self.muster.is_some() {
            return self.lose_node(node, why, is_end);
        }
        let may_follow = self.attempts.may_follow();
        let Some(handle) = self.nodes.get_mut(node) else { return };
        let (was_connected, is_over) = (handle.is_connected(), handle.summary().is_some() && !may_follow);
        let has_said_all = handle.is_drained() && !may_follow;
        handle.dismiss();
        self.out.push(Effect::Disconnect(node));
        if !was_connected || has_said_all {
            return;
        }
        if !is_end {
            self.note(why);
        }
        if !is_over {
            self.event(gang::Event::AgentLost);
        }
    }

    /// One of several nodes is lost, with its ranks. `by_stream`: its stream has ended, and a better reason may become known.
    pub(in crate::job) fn lose_node(&mut self, node: NodeId, why: String, by_stream: bool) {
        if self.awaits_again(node) {
            return;
        }
        self.out.push(Effect::Disconnect(node));
        if self.nodes.get(node).is_none_or(|node| !node.is_alive()) {
            return;
        }
        self.blame_own_standstill(node);
        let loss = self.loss();
        let Some(handle) = self.nodes.get_mut(node) else { return };
        if handle.joins() {
            self.out.push(Effect::Enrolled(node, Enrolment::Lost));
        }
        if handle.is_here() {
            self.out.push(Effect::HasEnded(node));
        }
        let is_spare = handle.place().is_none() && !handle.is_running();
        let has_sent_all = handle.is_drained();
        handle.lose(why.clone(), Some(loss), by_stream);
        if is_spare {
            self.lacks_spare(node, &why);
            return self.await_return(node);
        }
        self.await_return(node);
        self.count_loss(node);
        if self.is_gathering() && !self.is_ending() && self.may_begin_without() {
            self.note(format!("node {} was lost before the ranks were started: {why}", self.nodes.name(node)));
            return self.begin_without();
        }
        // The ranks of an attempt that it has sent all of have lost nothing. Whether another one can begin without it is seen then.
        if !has_sent_all {
            self.lose_ranks(node, why);
        }
        if self.is_over() {
            self.drain();
        }
        if self.has_started() {
            // The others may have sent everything before.
            self.attempt_drained();
        }
    }

    /// Nodes that heard nothing for too long end their ranks, and their connections end with that: it is rankrun that stood still.
    fn blame_own_standstill(&mut self, node: NodeId) {
        let is_silent = self.nodes.get(node).is_some_and(Node::is_suspect);
        let end = self.spec.stop.grace_failure + SUSPECT;
        if let Some(time) = self.standstill.explains(self.now, self.patience(), end).filter(|_| !is_silent) {
            self.event(gang::Event::StoodStill { time });
        }
    }

    /// The loss of a node now, with the bounds of its agent.
    fn loss(&self) -> Loss {
        let stop = &self.spec.stop;
        // Where a stop has been sent before, the agent goes on with that.
        let grace = match self.gang.stop_ordered() {
            Some(_) => stop.grace_failure.max(stop.grace_outside).max(stop.grace_saving),
            None => stop.grace_failure,
        };
        Loss { at: self.now, patience: self.patience(), grace }
    }

    /// How long the agent of another node may miss us until it ends its ranks.
    pub fn patience(&self) -> Duration {
        let patience = contact::patience(self.settings.node_timeout);
        match self.settings.on_front_lost {
            OnFrontLost::Kill => patience,
            OnFrontLost::Wait(longer) => patience + longer,
        }
    }

    /// The ranks of a node are lost with it; those of an attempt that runs without it are not.
    pub(in crate::job) fn lose_ranks(&mut self, node: NodeId, why: String) {
        let Some(handle) = self.nodes.get(node) else { return };
        let Some(place) = handle.place() else { return };
        let workers: Vec<WorkerId> = handle.ranks(&self.facts).map(|rank| self.gang.worker(rank)).collect();
        let name = handle.name().to_owned();
        let goes_on = self.goes_on_without(&workers);
        if goes_on {
            self.note(format!("node {name} was lost: {why}; the ranks of other nodes run on (--keep-going)"));
        }
        self.event(gang::Event::NodeLost { node: place, name: name.clone(), why, workers: workers.clone(), goes_on });
        if goes_on {
            self.send(Order::Without { node, is_first: place == NodeRank(0) });
            self.go_on_without(&name, workers);
        }
    }

    /// ssh to a node has ended, or the node has told how its guard has: if its stream ended before, this is why.
    pub(in crate::job) fn loss_is_known(&mut self, node: NodeId, why: &str) {
        let Some(handle) = self.nodes.get_mut(node) else { return };
        if let Some(place) = handle.place()
            && handle.know_loss(why)
        {
            self.event(gang::Event::LossKnown { node: place, why: why.to_owned() });
        }
    }

    /// The guard of a node is lost.
    pub(in crate::job) fn lose_guard(&mut self, node: NodeId) {
        // The loss counts until the job ends: an attempt may follow.
        let may_follow = self.attempts.may_follow();
        let has_members = self.has_members();
        let Some(handle) = self.nodes.get_mut(node) else { return };
        let has_ended = handle.summary().is_some() && !may_follow;
        if has_members && !handle.is_here() && !has_ended {
            // Another node takes its place, or it comes back itself: with a guard.
            if handle.is_alive() {
                self.out.push(Effect::GiveUp(node));
                self.lose_node(node, "its guard was killed".to_owned(), false);
            }
            return;
        }
        // The agent's message and the reaped guard are the same loss: count it once.
        if !handle.route_mut().lose_guard() || has_ended {
            return;
        }
        if handle.is_here() {
            self.out.push(Effect::WatchAgent(node));
        }
        self.unguarded = Some(handle.name().to_owned());
        self.event(gang::Event::GuardLost);
    }

    /// Somebody wants a node to end. The job goes on without it, if it may; else that ends the job as a signal to us does.
    pub(in crate::job) fn node_told_to_end(&mut self, node: NodeId, signal: i32) {
        // What was stopped for a failure may be followed by another attempt, which this ends.
        let ends_anyway = self.gang.ended_by().is_some() || !self.spec.restart.is_on();
        if self.gang.stop_ordered().is_some() && ends_anyway {
            return;
        }
        let signal_name = signal_name(signal);
        if self.spec.restart.is_on() && !self.successors.are_on() && self.nodes.may_spare_one() {
            self.out.push(Effect::GiveUp(node));
            return self.lose_node(node, format!("{signal_name} came to its agent"), false);
        }
        self.note(format!("node {}: {signal_name} came to its agent, and ends the job", self.nodes.name(node)));
        match self.is_planned(signal) {
            true => self.stop_as_planned(PlannedWhy::Signal(signal)),
            false => self.event(gang::Event::Signal(signal)),
        }
    }
}
