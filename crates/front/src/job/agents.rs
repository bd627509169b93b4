//! The messages of agents: what they tell of nodes and ranks is for the job; what they ask of other nodes is passed on.

use std::io;

use rankrun_agent::GuardState;
use rankrun_core::job::{About, NodeEvent, WorkerEvent};
use rankrun_core::names::Asker;
use rankrun_core::{ExitCode, NodeId, WorkerId};
use rankrun_wire::message::Hello;
use rankrun_wire::{ToAgent, ToFront};
use std::time::Duration;

use crate::delivery::Task;
use crate::job::front::Front;
use crate::job::pause::Stopped;
use crate::link::LinkError;

impl Front {
    /// An agent has sent a message.
    pub(crate) fn message(&mut self, from: NodeId, message: ToFront) {
        let says = |front: &mut Front, event| front.take_from(from, event);
        let worker = |front: &mut Front, worker: WorkerId, at: Duration, event: WorkerEvent| {
            front.take_from(from, NodeEvent::Worker { worker, at, event });
        };
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
                    self.open_control(&runtime);
                }
                says(self, NodeEvent::Ready(About { containment, host, addresses, machine, is_loopback_name }));
            }
            ToFront::Started { worker: id, pid, at } => worker(self, id, at, WorkerEvent::Started { pid }),
            ToFront::SpawnFailed { worker: id, step, errno, command, at } => {
                let error = io::Error::from_raw_os_error(errno);
                let code = match error.kind() {
                    io::ErrorKind::NotFound => ExitCode::NOT_FOUND,
                    _ => ExitCode::NOT_EXECUTABLE,
                };
                let (error, command) = (rankrun_sys::reason(&error), command.to_string_lossy().into_owned());
                worker(self, id, at, WorkerEvent::SpawnFailed { step, error, command, code });
            }
            ToFront::Ended { worker: id, status, stop, at } => {
                worker(self, id, at, WorkerEvent::Ended { status, stop });
            }
            ToFront::Gone { worker: id, outcome, left } => {
                worker(self, id, now, WorkerEvent::Gone { outcome, is_left: !left.is_empty() });
            }
            ToFront::Stopped { worker: id, signal, at } => {
                if self.rank_stopped(id.rank, signal) == Stopped::IsForTheJob {
                    worker(self, id, at, WorkerEvent::Stopped { signal });
                }
            }
            ToFront::Continued { worker: id, at } => worker(self, id, at, WorkerEvent::Continued),
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
            ToFront::Mpi { worker: id, event, at } => worker(self, id, at, WorkerEvent::Mpi(event)),
            ToFront::Testimony { worker: id, pid, testimony, at } => {
                worker(self, id, at, WorkerEvent::Testimony { pid, testimony });
            }
            ToFront::Stuck { worker: id, pid, place, since, is_leader, at } => {
                worker(self, id, at, WorkerEvent::Stuck { pid, place, since, is_leader });
            }
            ToFront::Reports { worker: id, reports } => worker(self, id, now, WorkerEvent::Reports(reports)),
            ToFront::Hookless(found) => says(self, NodeEvent::Hookless(found)),
            ToFront::MpiSeen(found) => says(self, NodeEvent::MpiSeen(found)),
            ToFront::KilledForMemory { worker: id, detail, at } => {
                worker(self, id, at, WorkerEvent::KilledForMemory { detail });
            }
            ToFront::CpuTime { worker: id, used, limit, at } => {
                worker(self, id, at, WorkerEvent::CpuTime { used, limit });
            }
            ToFront::HelperKilledForMemory { worker: id, pid, name, detail, at } => {
                worker(self, id, at, WorkerEvent::HelperKilledForMemory { pid, name, detail });
            }
            ToFront::Result { worker, piece } => {
                self.job.sign_of_life(now);
                let name = if piece.is_error { "error" } else { "result" };
                if let Some(directory) = &self.plan.results {
                    let path = directory.join(format!("{}.{name}", worker.rank));
                    self.delivery.files.submit(now, Task::Result { path, piece });
                }
            }
            ToFront::Closed { worker: id, stream } => {
                self.delivery.closed(now, id, stream);
                worker(self, id, now, WorkerEvent::Closed(stream));
            }
            ToFront::StdinTaken(_) => {
                self.job.sign_of_life(now);
                self.stdin_taken(from);
            }
            ToFront::OutputLost(text) => {
                self.delivery.lose();
                self.agent_note(text);
                self.event(rankrun_core::gang::Event::OutputFailed);
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

    /// Gives up the agent or the guard of this machine, if they hang.
    pub(crate) fn watch_guards(&mut self) {
        use rankrun_agent::Act;
        let (now, foreign) = (self.now(), self.foreign());
        for node in self.job.nodes().ids() {
            let handle = &mut self.nodes[node.index()];
            if handle.link.is_none() {
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
