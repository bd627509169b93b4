//! The streams to the agents where another front may follow this one, or this one has followed another ([`crate::ledger`]).

use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::job::Job;

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
            let link = node.link.as_ref().or(node.left.as_ref());
            match link.and_then(Link::held) {
                // What the other side has is of interest with the rest.
                Some((sent, place))
                    if !sent.is_empty() || node.entered.is_none_or(|it| it.received != place.received) =>
                {
                    node.entered = Some(place);
                    ledger.add(&Entry::Stands { node: id, place, sent: &sent });
                }
                Some(_) => {}
                None if node.entered.take().is_some() => ledger.add(&Entry::Unlinked(id)),
                None => {}
            }
            if node.left.is_some() {
                ledger.add(&Entry::Left(id));
            }
        }
    }

    /// What was sent may leave: the ledger has it.
    pub(crate) fn release(&mut self, job: &Job, now: Duration) {
        for node in 0..self.nodes.len() {
            let handle = &mut self.nodes[node];
            if let Some(mut left) = handle.left.take() {
                // The agent ends as well where the stream does.
                let _ = left.finish().and_then(|()| left.release());
            }
            if let Some(Err(error)) = handle.link.as_mut().map(Link::release) {
                let id = handle.id;
                self.broke(job, now, id, &error);
            }
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
            Err(error) => self.broke(job, now, node, &LinkError::Io(error)),
        }
    }

    /// Whether all streams that there are have a connection.
    pub(crate) fn is_together(&self) -> bool {
        self.nodes.iter().all(|node| node.link.as_ref().is_none_or(Link::is_connected))
    }
}
