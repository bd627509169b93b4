//! Nodes that were not there when the job began.

use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::job::{self, Job, NodeEvent};
use rankrun_core::reach::Step;

use super::enrol::News;
use super::hosts::NodeTarget;
use super::node::NodeHandle;
use super::reach::Reach;

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

    /// A node is here.
    pub(super) fn joined(&mut self, job: &Job, now: Duration, news: News) {
        let News::Joined { node, host, from, link } = news else { return };
        self.nodes[node.index()].link = Some(*link);
        let (host, server) = (Some(host), Some(from));
        self.say(node, NodeEvent::Reached { host, client: None, server, noise: None });
        self.greet(job, now, node);
    }
}
