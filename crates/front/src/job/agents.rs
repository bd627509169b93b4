//! The messages of agents: what they tell of nodes and ranks is for the job; what they ask of other nodes is passed on.

use std::borrow::Cow;

use rankrun_core::gang;
use rankrun_core::job::{AgentEvent, Input, Job, NodeEvent, WorkerEvent};
use rankrun_core::names::Asker;
use rankrun_core::{NodeId, NodeRank, Rank};
use rankrun_wire::message::Hello;
use rankrun_wire::{ToAgent, ToFront};

use super::Front;
use crate::ledger::Entry;
use crate::link::LinkError;

impl Front {
    /// An agent has sent a message.
    pub(super) fn message(&mut self, from: NodeId, message: ToFront) {
        let now = self.now();
        if let (Some(ledger), ToFront::Collective(_) | ToFront::Gone { .. } | ToFront::Ask { .. }) =
            (&mut self.ledger, &message)
        {
            ledger.add(&Entry::Passed(from, Cow::Borrowed(&message)));
        }
        match message {
            ToFront::Hello(hello) if hello.version != rankrun_wire::VERSION => {
                self.note(format!("the agent is rankrun {}, this is {}", hello.release, Hello::ours().release));
                self.reach.broke(&self.job, now, from, &LinkError::Ended);
            }
            ToFront::Hello(_) => {}
            ToFront::Event(event) => self.agent_event(from, event),
            ToFront::Ready { pid, runtime, about } => {
                self.reach.nodes[from.index()].know_agent(pid.0);
                if self.reach.nodes[from.index()].keeper().is_some() {
                    self.listen_for_control(&runtime);
                }
                self.take_from(from, NodeEvent::Ready(about));
            }
            ToFront::Collective(part) => {
                let node_of = |rank: Rank| node_of(&self.job, rank);
                if let Some(whole) = self.collectives.take(from, part, node_of) {
                    self.send(&ToAgent::Collective(whole));
                }
            }
            ToFront::Gone { group, seq, ranks } => {
                let node_of = |rank: Rank| node_of(&self.job, rank);
                if let Some(whole) = self.collectives.gone(group, seq, &ranks, node_of) {
                    self.send(&ToAgent::Collective(whole));
                }
            }
            ToFront::Ask { group, protocol, id, question } => {
                let mut replies = Vec::new();
                self.names.ask(Asker { node: from, group, protocol, id }, question, &mut replies);
                for (Asker { node, group, protocol, id }, reply) in replies {
                    self.send_to(node, &ToAgent::Reply { group, protocol, id, reply });
                }
            }
            ToFront::Fetch { id, of } => {
                let place = self.job.facts().place(of.rank).filter(|_| self.job.gang().has(of));
                let node = place.and_then(|place| self.job.nodes().at(place.node));
                match node.filter(|node| self.reach.nodes[node.index()].link.is_some()) {
                    Some(node) => self.send_to(node, &ToAgent::Fetch { by: from, id, of }),
                    None => self.send_to(from, &ToAgent::Fetched { group: of.group(), id, data: None }),
                }
            }
            ToFront::Fetched { by, group, id, data } if by.index() < self.reach.nodes.len() => {
                self.send_to(by, &ToAgent::Fetched { group, id, data });
            }
            ToFront::ToStore(parcel) => {
                // Where the node of the first rank is lost, the attempt ends, or the agents close such connections.
                if let Some(node) = self.job.nodes().at(NodeRank(0)) {
                    self.send_to(node, &ToAgent::ToStore { from, parcel });
                }
            }
            ToFront::FromStore { to, parcel } if to.index() < self.reach.nodes.len() => {
                self.send_to(to, &ToAgent::FromStore(parcel));
            }
            // There is no such node.
            ToFront::Fetched { .. } | ToFront::FromStore { .. } => {}
            ToFront::Result { worker, piece } => {
                self.give(Input::SignOfLife);
                let name = if piece.is_error { "error" } else { "result" };
                let directory = self.plan.results.as_ref();
                let path = directory.map(|directory| directory.join(format!("{}.{name}", worker.rank)));
                self.delivery.results.add(now, &mut self.delivery.files, from, path, piece);
            }
            ToFront::StdinTaken { is_read, .. } => {
                self.give(Input::SignOfLife);
                self.stdin_taken(from, is_read);
            }
            ToFront::OutputLost(text) => {
                self.delivery.lose();
                self.agent_note(text);
                self.event(gang::Event::OutputFailed);
            }
            ToFront::Paused => self.paused(),
            ToFront::GuardLost => self.reach.lose_guard(from),
            ToFront::Note(text) => {
                let is_here = self.reach.nodes[from.index()].keeper().is_some();
                let node = self.job.nodes().name(from);
                let text = if is_here { text } else { format!("node {node}: {text}") };
                self.agent_note(text);
            }
        }
    }

    /// What an agent tells is for the job. What the devices do about it comes before.
    fn agent_event(&mut self, from: NodeId, event: AgentEvent) {
        match &event {
            AgentEvent::Worker { worker, event: WorkerEvent::Stopped { signal }, .. } => {
                let is_single = self.job.spec().map.world_size() == 1;
                if let Some(pause) = self.job_control.stop_with(worker.rank, *signal, is_single) {
                    return self.pause(pause);
                }
            }
            AgentEvent::Worker { worker, event: WorkerEvent::Closed(stream), .. } => {
                self.delivery.closed(self.clock.now(), *worker, *stream);
            }
            _ => {}
        }
        self.take_from(from, NodeEvent::Agent(event));
    }
}

/// The node on which a rank is, or was.
fn node_of(job: &Job, rank: Rank) -> Option<NodeId> {
    job.facts().place(rank).and_then(|place| job.nodes().at(place.node))
}
