//! The streams to the agents where another front may follow this one, or this one has followed another ([`crate::ledger`]).

use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::job::Job;
use rankrun_sys::poll::Ready;

use super::reach::Reach;
use super::ssh::Ssh;
use crate::ledger::{Entry, Ledger};
use crate::link::{Link, LinkError};
use crate::token::Token;

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

    /// Goes on with a node whose relay has lost the front before this one.
    pub(crate) fn call_again(&mut self, job: &Job, now: Duration, node: NodeId) {
        let Some(calls) = &self.calls else { return };
        let tokens = (Token::Node(node).encode(), Token::Words(node).encode());
        let target = &self.hosts.targets[node.index()];
        match Ssh::again(&mut self.starter, &self.registry, tokens, &self.hosts.ssh, target, &calls.call(node)) {
            Ok(ssh) => {
                if let Some(remote) = self.nodes[node.index()].remote_mut() {
                    remote.ssh = Some(ssh);
                }
            }
            Err(_) if self.nodes[node.index()].link.is_none() => self.nodes[node.index()].forget_left(),
            Err(error) => self.broke(job, now, node, &LinkError::Io(error)),
        }
    }

    /// Whether all streams that there are have a connection.
    pub(crate) fn is_together(&self) -> bool {
        self.nodes.iter().all(|node| node.stream().is_none_or(Link::is_connected))
    }
}
