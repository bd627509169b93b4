//! The streams to the agents where another front may follow this one, or this one has followed another ([`crate::ledger`]).

use std::time::Duration;

use rankrun_core::contact::patience;
use rankrun_core::job::{Job, Node, NodeEvent};
use rankrun_core::{NodeId, reach};
use rankrun_sys::poll::Ready;
use rankrun_sys::process::ProcessId;

use super::enrol::Enrolment;
use super::node::NodeHandle;
use super::reach::Reach;
use super::recalls::Recalls;
use super::ssh::Ssh;
use crate::ledger::{Entry, Ledger};
use crate::link::{Link, LinkError};
use crate::token::Token;

/// How long to wait before a node is called again that could not be reached.
const RECALL_STEP: Duration = Duration::from_millis(500);

impl Reach {
    /// For the ledger: where the streams stand.
    pub(crate) fn enter(&mut self, ledger: &mut Ledger) {
        for node in &mut self.nodes {
            let id = node.id;
            let is_left = node.link.is_none();
            match node.stream().and_then(Link::held) {
                // What the other side has is of interest with the rest.
                Some((sent, place))
                    if !sent.is_empty() || node.entered.is_none_or(|it| it.received != place.received) =>
                {
                    node.entered = Some(place);
                    ledger.add(&Entry::Stands { node: id, place, sent: &sent });
                    if is_left {
                        ledger.add(&Entry::Left(id));
                    }
                }
                Some(_) => {}
                None if node.entered.take().is_some() => ledger.add(&Entry::Unlinked(id)),
                None => {}
            }
        }
        for (step, ProcessId { pid, started }) in self.steps.news() {
            ledger.add(&Entry::Srun { step, pid, started });
        }
        if let Some(changes) = self.enrolment.as_mut().and_then(Enrolment::changes) {
            ledger.add(&Entry::Enrolled(changes));
        }
    }

    /// What was sent may leave: the ledger has it.
    pub(crate) fn release(&mut self, job: &Job, now: Duration) {
        for node in 0..self.nodes.len() {
            let handle = &mut self.nodes[node];
            let id = handle.id;
            match handle.stream_mut().map(Link::release) {
                Some(Err(_)) if handle.link.is_none() => handle.forget_left(),
                Some(Err(error)) => self.broke(job, now, id, &error),
                Some(Ok(())) | None => {}
            }
        }
    }

    /// A node that was left has sent something, or takes more: only whether it has all is of interest.
    pub(crate) fn hear_left(&mut self, node: NodeId, ready: Ready) {
        let handle = &mut self.nodes[node.index()];
        let Some(link) = handle.stream_mut() else { return };
        let is_over = (ready.writable && link.flush().is_err()) || (ready.readable && link.skip().is_err());
        if is_over || link.has_all() {
            handle.forget_left();
        }
    }

    /// Goes on with all nodes whose relays have lost the front before this one. Those that have joined come by themselves.
    pub(crate) fn recall(&mut self, job: &Job, now: Duration) {
        let is_called = |node: &&NodeHandle| node.is_linked() && !job.nodes().get(node.id).is_some_and(Node::joins);
        let nodes = self.nodes.iter().filter(is_called).map(|node| (now, node.id));
        // A cut that is shorter than the time-out loses no node, and none holds its ranks for longer than a front may be gone.
        let waits = self.hosts.outlasts_front.unwrap_or_default();
        let until = now + waits;
        let back_by = Some(now + patience(self.hosts.node_timeout).min(waits));
        self.recalls = Recalls { due: nodes.collect(), until, back_by, told: Vec::new() };
        self.call_due(job, now);
    }

    /// Gives up the nodes that have joined, and have not come back in time.
    pub(crate) fn give_up_missing(&mut self, job: &Job, now: Duration) {
        if self.recalls.back_by.take_if(|by| *by <= now).is_none() {
            return;
        }
        for node in job.nodes().iter().filter(|node| node.joins()).map(Node::id) {
            let handle = &mut self.nodes[node.index()];
            if handle.stream().is_none_or(Link::is_connected) {
                continue;
            }
            handle.forget_left();
            if handle.link.take().is_some() {
                let why = "it has not come back since another front has taken over".to_owned();
                self.say(node, NodeEvent::Broke { is_end: false, why });
            }
        }
    }

    /// Calls the nodes that are due, as many at a time as at the start of a job.
    pub(crate) fn call_due(&mut self, job: &Job, now: Duration) {
        let Some(calls) = &self.calls else { return };
        let is_called = |node: &&NodeHandle| {
            let has_ssh = node.remote().is_some_and(|remote| remote.ssh.is_some());
            has_ssh && node.stream().is_some_and(|stream| !stream.is_connected())
        };
        let mut room = calls.at_a_time.saturating_sub(self.nodes.iter().filter(is_called).count());
        while room > 0
            && let Some((_, node)) = self.recalls.due.front().copied().filter(|(at, _)| *at <= now)
        {
            self.recalls.due.pop_front();
            if self.nodes[node.index()].is_linked() {
                self.call_again(job, now, node);
                room -= 1;
            }
        }
    }

    fn call_again(&mut self, job: &Job, now: Duration, node: NodeId) {
        let Some(calls) = &self.calls else { return };
        let tokens = (Token::Node(node).encode(), Token::Words(node).encode());
        let target = &self.hosts.targets[node.index()];
        let begun = Ssh::again(&mut self.starter, &self.registry, tokens, &self.hosts.ssh, target, &calls.call(node));
        if let Some(remote) = self.nodes[node.index()].remote_mut() {
            match begun {
                Ok(ssh) => remote.ssh = Some(ssh),
                Err(error) => self.lose_again(job, now, node, &LinkError::Io(error)),
            }
        }
    }

    /// A node could not be called again. Returns whether it is tried later: its ranks may run.
    pub(super) fn is_called_later(&mut self, now: Duration, node: NodeId) -> bool {
        let handle = &mut self.nodes[node.index()];
        let is_later = handle.is_linked() && now + RECALL_STEP < self.recalls.until;
        if is_later {
            if let Some(remote) = handle.remote_mut() {
                remote.ssh = None;
            }
            self.recalls.due.push_back((now + RECALL_STEP, node));
        }
        is_later
    }

    pub(super) fn say_called_later(&mut self, job: &Job, node: NodeId, words: &str) {
        if !self.recalls.told.contains(&node) {
            self.recalls.told.push(node);
            let why = reach::essence(words);
            let why = if why.is_empty() { "ssh has failed".to_owned() } else { why };
            self.found.words.push(format!("node {}: {why}; trying again", job.nodes().name(node)));
        }
    }

    fn lose_again(&mut self, job: &Job, now: Duration, node: NodeId, error: &LinkError) {
        if self.is_called_later(now, node) {
            return;
        }
        match self.nodes[node.index()].link.is_none() {
            true => self.nodes[node.index()].forget_left(),
            false => self.broke(job, now, node, error),
        }
    }

    /// Whether all streams that there are have a connection.
    pub(crate) fn is_together(&self) -> bool {
        self.nodes.iter().all(|node| node.stream().is_none_or(Link::is_connected))
    }
}
