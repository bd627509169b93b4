//! The messages of agents: what they tell of nodes and ranks is for the job; what they ask of other nodes is passed on.

use std::time::Duration;

use rankrun_agent::{Act, GuardState, Keeper};
use rankrun_core::gang;
use rankrun_core::job::{About, Event, NodeEvent, WorkerEvent};
use rankrun_core::names::Asker;
use rankrun_core::{NodeId, WorkerId};
use rankrun_wire::message::Hello;
use rankrun_wire::{ToAgent, ToFront};

use crate::job::front::Front;
use crate::link::LinkError;

impl Front {
    /// An agent has sent a message.
    pub(crate) fn message(&mut self, from: NodeId, message: ToFront) {
        let says = |front: &mut Front, event| front.take_from(from, event);
        let now = self.now();
        match message {
            ToFront::Hello(hello) if hello.version != rankrun_wire::VERSION => {
                self.note(format!("the agent is rankrun {}, this is {}", hello.release, Hello::ours().release));
                self.broke(from, &LinkError::Ended);
            }
            ToFront::Hello(_) => {}
            ToFront::Refused { what, source } => says(self, NodeEvent::Refused { what, source }),
            ToFront::Ready { pid, containment, runtime, host, addresses, is_loopback_name, machine } => {
                self.nodes[from.index()].know_agent(pid.0);
                if self.nodes[from.index()].keeper().is_some() {
                    self.listen_for_control(&runtime);
                }
                says(self, NodeEvent::Ready(About { containment, host, addresses, machine, is_loopback_name }));
            }
            ToFront::Worker { worker, at, event } => self.worker_event(from, worker, at, event),
            ToFront::Beat { sent, at } => says(self, NodeEvent::Beat { sent, at }),
            ToFront::Meeting(rendezvous) => says(self, NodeEvent::Meeting(rendezvous)),
            ToFront::Collective(part) => {
                if let Some(whole) = self.collectives.take(from, part) {
                    self.send(&ToAgent::Collective(whole));
                }
            }
            ToFront::Ask { protocol, id, question } => {
                let mut replies = Vec::new();
                self.names.ask(Asker { node: from, protocol, id }, question, &mut replies);
                for (Asker { node, protocol, id }, reply) in replies {
                    self.send_to(node, &ToAgent::Reply { protocol, id, reply });
                }
            }
            ToFront::Fetch { id, of } => {
                let place = self.job.spec().map.place(of);
                let node = place.and_then(|place| self.job.nodes().at(place.node));
                match node.filter(|node| self.nodes[node.index()].link.is_some()) {
                    Some(node) => self.send_to(node, &ToAgent::Fetch { by: from, id, of }),
                    None => self.send_to(from, &ToAgent::Fetched { id, data: None }),
                }
            }
            ToFront::Fetched { by, id, data } if by.index() < self.nodes.len() => {
                self.send_to(by, &ToAgent::Fetched { id, data });
            }
            // There is no such node.
            ToFront::Fetched { .. } => {}
            ToFront::Hookless(found) => says(self, NodeEvent::Hookless(found)),
            ToFront::MpiSeen(found) => says(self, NodeEvent::MpiSeen(found)),
            ToFront::Result { worker, piece } => {
                self.job.sign_of_life(now);
                let name = if piece.is_error { "error" } else { "result" };
                let directory = self.plan.results.as_ref();
                let path = directory.map(|directory| directory.join(format!("{}.{name}", worker.rank)));
                self.delivery.results.add(now, &mut self.delivery.files, from, path, piece);
            }
            ToFront::StdinTaken(_) => {
                self.job.sign_of_life(now);
                self.stdin_taken(from);
            }
            ToFront::OutputLost(text) => {
                self.delivery.lose();
                self.agent_note(text);
                self.event(gang::Event::OutputFailed);
            }
            ToFront::Conditions { number, workers, at } => says(self, NodeEvent::Conditions { number, workers, at }),
            ToFront::Alive { workers, at } => says(self, NodeEvent::Alive { workers, at }),
            ToFront::Looking { number, ranks: _, traffic, at: _ } => {
                says(self, NodeEvent::Looking { number, traffic });
            }
            ToFront::Looked { number, worker, stack } => says(self, NodeEvent::Looked { number, worker, stack }),
            ToFront::LookOver { number } => says(self, NodeEvent::LookOver { number }),
            ToFront::Paused => self.paused(),
            ToFront::ToldToEnd { signal } => says(self, NodeEvent::ToldToEnd { signal }),
            ToFront::GuardLost => self.lose_guard(from),
            ToFront::WireUpLost { reason, at } => says(self, NodeEvent::WireUpLost { reason, at }),
            ToFront::Note(text) => {
                let is_here = self.nodes[from.index()].keeper().is_some();
                let node = self.job.nodes().name(from);
                let text = if is_here { text } else { format!("node {node}: {text}") };
                self.agent_note(text);
            }
            ToFront::Over(summary) => says(self, NodeEvent::Over(summary)),
            ToFront::Drained => says(self, NodeEvent::Drained),
        }
    }

    /// Something has happened to a worker.
    fn worker_event(&mut self, from: NodeId, worker: WorkerId, at: Duration, event: WorkerEvent) {
        match &event {
            WorkerEvent::Stopped { signal } if self.stops_the_job(worker.rank, *signal) => return,
            WorkerEvent::Closed(stream) => self.delivery.closed(self.clock.now(), worker, *stream),
            _ => {}
        }
        self.take_from(from, NodeEvent::Worker { worker, at, event });
    }

    /// The guard of a node is lost, as its agent says, or as we have seen.
    fn lose_guard(&mut self, node: NodeId) {
        let keeper = self.nodes[node.index()].keeper();
        // One that has ended by itself is not lost.
        if !keeper.is_some_and(|keeper| matches!(keeper.state, GuardState::Ended(_))) {
            self.take_from(node, NodeEvent::GuardLost);
        }
    }

    /// The guard of this machine may have ended, or was stopped or continued.
    pub(crate) fn look_at_guard(&mut self, node: NodeId) {
        let now = self.now();
        let Some(keeper) = self.nodes[node.index()].keeper_mut() else { return };
        if keeper.reap() {
            self.lose_guard(node);
        } else if keeper.is_guard_stopped() {
            keeper.watch.begin(now);
        }
    }

    /// At the end: tells which of the processes that hold the nodes have not ended.
    pub(crate) fn look_at_holders(&mut self) {
        if self.job.is_closing() {
            let held = self.nodes.iter().filter(|node| node.is_held()).map(|node| node.id).collect();
            self.take(Event::Held(held));
        }
    }

    /// Gives up the agent or the guard of this machine, if they hang.
    pub(crate) fn watch_guards(&mut self) {
        let (now, foreign) = (self.now(), self.foreign());
        for node in self.job.nodes().ids() {
            let handle = &mut self.nodes[node.index()];
            if handle.link.is_none() {
                let is_closing = self.job.is_closing();
                if let Some(Act::KillGuard) = handle.keeper_mut().filter(|_| is_closing).and_then(Keeper::watch_guard) {
                    handle.kill_guard();
                }
                continue;
            }
            match handle.keeper_mut().and_then(|keeper| keeper.watch(now, &foreign)) {
                Some(Act::KillAgent) => handle.kill_agent(),
                Some(Act::KillGuard) => handle.kill_guard(),
                Some(Act::GiveUpAgent) => self.broke(node, &LinkError::Ended),
                None => {}
            }
        }
    }
}
