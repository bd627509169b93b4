//! Nodes that come by themselves, the steps of Slurm that start them, and nodes that were not there when the job began.

use std::io;
use std::path::Path;
use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::job::{self, Event, Job, Node, NodeEvent};
use rankrun_core::reach::Step;
use rankrun_sys::poll::Ready;
use rankrun_sys::process::ProcessId;
use rankrun_wire::identity::PeerId;

use super::enrol::{Newcomer, News};
use super::hosts::NodeTarget;
use super::node::NodeHandle;
use super::reach::Reach;
use super::srun;
use super::steps::place_of_words;
use crate::Plan;
use crate::link::{Link, LinkError};

impl Reach {
    /// There is another node, which is to be called.
    pub(crate) fn add(&mut self, node: NodeId, target: NodeTarget) {
        self.hosts.targets.push(target);
        self.nodes.push(NodeHandle::there(node));
    }

    /// The same machine as one that was lost.
    pub(crate) fn add_again(&mut self, node: NodeId, before: NodeId) {
        self.add(node, self.hosts.targets[before.index()].clone());
    }

    /// What becomes of the place of a node that joins.
    pub(crate) fn enrolled(&mut self, job: &Job, now: Duration, node: NodeId, what: job::Enrolment) {
        let Some(enrolment) = &mut self.enrolment else { return };
        match what {
            job::Enrolment::Heard => enrolment.heard(node),
            job::Enrolment::Lost => enrolment.lost(node),
            job::Enrolment::Free => enrolment.release(node),
            job::Enrolment::Refused => enrolment.turn_down(node),
            job::Enrolment::After(before) => match enrolment.admit(before, node) {
                Ok(joined) => self.joined(job, now, joined),
                Err(error) => {
                    let why = rankrun_sys::reason(&error);
                    self.say(node, NodeEvent::CallFailed { step: Step::Handshake, why });
                }
            },
        }
    }

    /// A connection of a node that is not admitted yet is ready.
    pub(crate) fn newcomer(&mut self, job: &Job, now: Duration, peer: PeerId, ready: Ready) {
        let Some(enrolment) = &mut self.enrolment else { return };
        if !job.admits_nodes() {
            enrolment.close("the job is ending");
        }
        match enrolment.ready(peer, ready) {
            None => {}
            Some(News::Note(text)) => self.found.notes.push(text),
            Some(News::Asks { node, peer }) => {
                enrolment.answer(peer, job.nodes().get(node).is_some_and(Node::is_connected));
                self.say(node, NodeEvent::Confirmed);
            }
            Some(News::Ended { node, code, lapse, memory }) => {
                let Some(remote) = self.nodes.get_mut(node.index()).and_then(|node| node.remote_mut()) else { return };
                remote.ended = Some(lapse);
                self.end_of_stream(job, now, node);
                self.say(node, NodeEvent::GuardEnded { code, memory });
                self.tell_loss(job, now, node);
            }
            Some(News::Comes { after }) => self.say(after, NodeEvent::Followed),
            Some(News::Returns { node, newcomer, joins }) => self.returns(job, now, node, newcomer, joins),
            Some(joined @ News::Joined { .. }) => self.take_in(job, now, joined),
        }
    }

    /// A node that was admitted is here again: its session goes on.
    fn returns(&mut self, job: &Job, now: Duration, node: NodeId, newcomer: Newcomer, joins: bool) {
        let (Some(enrolment), Some(handle)) = (&mut self.enrolment, self.nodes.get_mut(node.index())) else { return };
        let Some((link, session)) = handle.stream_mut().and_then(|link| link.session().map(|of| (link, of))) else {
            return match joins {
                true => {
                    let news = enrolment.connect(node, newcomer);
                    self.take_in(job, now, news);
                }
                false => enrolment.turn_away(newcomer.peer),
            };
        };
        // If its connection is gone, it is here once more soon.
        let Ok(carrier) = enrolment.take_back(newcomer.peer, node, session) else { return };
        match link.connect(carrier, &[]) {
            Ok(()) => self.found.greeted.push(node),
            Err(error) => self.broke(job, now, node, &error),
        }
    }

    /// A node has ended, and does not come back for a stream without a connection.
    fn end_of_stream(&mut self, job: &Job, now: Duration, node: NodeId) {
        let handle = &mut self.nodes[node.index()];
        if handle.stream().is_none_or(Link::is_connected) {
            return;
        }
        match handle.link {
            Some(_) => self.broke(job, now, node, &LinkError::Ended),
            None => handle.forget_left(),
        }
    }

    /// A node was admitted, if nothing has gone wrong.
    fn take_in(&mut self, job: &Job, now: Duration, news: News) {
        match news {
            News::Joined { node, .. } if !job.nodes().get(node).is_some_and(Node::is_awaited) => {
                // The job has begun without it. It sees the end of its connection.
                if let Some(enrolment) = &mut self.enrolment {
                    enrolment.lost(node);
                }
            }
            News::Note(text) => self.found.notes.push(text),
            news => self.joined(job, now, news),
        }
    }

    /// A node is here.
    fn joined(&mut self, job: &Job, now: Duration, news: News) {
        let News::Joined { node, host, from, link } = news else { return };
        self.nodes[node.index()].link = Some(*link);
        let (host, server) = (Some(host), Some(from));
        self.say(node, NodeEvent::Reached { host, client: None, server, noise: None });
        self.greet(job, now, node);
    }

    // Steps of Slurm.

    /// Starts a step of Slurm for these nodes.
    pub(crate) fn start_step(&mut self, plan: &Plan, step: usize, nodes: &[NodeId], directory: Option<&Path>) {
        if let Err(error) = self.try_step(plan, step, nodes, directory) {
            self.found.events.push(Event::StepFailed { step, why: rankrun_sys::reason(&error) });
        }
    }

    fn try_step(&mut self, plan: &Plan, step: usize, nodes: &[NodeId], directory: Option<&Path>) -> io::Result<()> {
        let (Some(join), Some(enrolment)) = (&plan.join, &self.enrolment) else { return Ok(()) };
        // By their places: nodes that were added are of one of these.
        let places = self.hosts.targets.iter().take(join.nodes as usize + join.spares as usize);
        let all: Vec<String> = places.map(|target| target.name.clone()).collect();
        let others: Vec<String> = nodes.iter().map(|node| self.hosts.targets[node.index()].name.clone()).collect();
        let address = self.hosts.local_addr.map(|address| address.to_string());
        let words = directory.map(|directory| place_of_words(directory, step));
        let what = srun::Step {
            all: &all,
            others: &others,
            host: address.as_deref(),
            port: enrolment.port(),
            secret: &join.secret,
            agent: &plan.node,
            extra: &self.hosts.srun_args,
            words: words.as_deref(),
        };
        self.steps.start(&mut self.starter, &self.registry, step, &what)
    }

    /// Goes on with a step that another front has started. Returns whether it runs.
    pub(crate) fn follow_step(&mut self, step: usize, nodes: &[NodeId], id: ProcessId, directory: &Path) -> bool {
        let names = nodes.iter().map(|node| self.hosts.targets[node.index()].name.clone()).collect();
        self.steps.follow(&self.registry, step, names, id, &place_of_words(directory, step))
    }
}
