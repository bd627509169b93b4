//! Attempts on the nodes that are left (`--nnodes MIN:MAX`): those that cannot be reached at the start, or are lost later, are
//! left out, and ranks are numbered anew.

use std::time::Duration;

use rankrun_core::event::JobEvent;
use rankrun_core::gang::{self, Gang};
use rankrun_core::hosts::fold;
use rankrun_core::job::StdinTarget;
use rankrun_core::status::signal_name;
use rankrun_core::{NodeId, NodeRank, RankMap};

use crate::job::front::Front;
use crate::job::start::{facts, names};
use crate::nodes::NodeHandle;

/// Where enough nodes have joined, how long the job waits for the others.
const LAST_CALL: Duration = Duration::from_secs(30);

impl Front {
    /// The nodes of the present attempt that are lost.
    pub(crate) fn lost_nodes(&self) -> impl Iterator<Item = &NodeHandle> {
        self.seated().filter(|node| node.lost.is_some())
    }

    /// The map of the ranks without the nodes that are lost, if the job may run on so few.
    pub(crate) fn map_left(&self) -> Option<RankMap> {
        let least = self.plan.hosts.least?;
        // What only this machine can do, nobody does any more.
        if self.lost_nodes().any(|node| node.keeper().is_some()) {
            return None;
        }
        let is_lost = |place: NodeRank| self.node_at(place).is_none_or(|node| self.nodes[node.index()].lost.is_some());
        self.plan.spec.map.without(is_lost).filter(|map| map.node_count() >= least)
    }

    /// Why the job cannot go on, if nodes are lost and it may not run without them.
    pub(crate) fn needs_lost_nodes(&self) -> Option<String> {
        let names: Vec<String> = self.lost_nodes().map(|node| node.name.clone()).collect();
        if names.is_empty() || self.map_left().is_some() {
            return None;
        }
        let left = self.seated().count() - names.len();
        Some(match self.plan.hosts.least {
            Some(least) if left < least as usize => {
                format!("{} left without {}, and --nnodes asks for {least}", are(left, "node"), fold(&names))
            }
            Some(_) => format!("the job cannot run without {}", fold(&names)),
            None => format!("the job runs on all of its nodes, and {} is lost (--nnodes MIN:MAX)", fold(&names)),
        })
    }

    /// From now on the job runs without the nodes that are lost. Call it between attempts, or before the first.
    pub(crate) fn leave_out_lost(&mut self) {
        let Some(map) = self.map_left().filter(|_| self.lost_nodes().next().is_some()) else { return };
        let without: Vec<String> = self.lost_nodes().map(|node| node.name.clone()).collect();
        let mut next = 0;
        for node in &mut self.nodes {
            node.place = node.place.filter(|_| node.lost.is_none()).map(|_| NodeRank(next));
            next += u32::from(node.place.is_some());
        }
        self.note(format!(
            "without {}: {} on {}, numbered anew",
            fold(&without),
            counted(map.world_size() as usize, "rank"),
            counted(map.node_count() as usize, "node")
        ));
        let spec = &mut self.plan.spec;
        for (app, size) in spec.apps.iter_mut().zip(map.app_sizes()) {
            app.size = size;
        }
        if let StdinTarget::Rank(rank) = spec.io.stdin
            && map.place(rank).is_none()
        {
            spec.io.stdin = StdinTarget::None;
        }
        // The rank of that number may be on another machine now.
        spec.io.tty = None;
        spec.map = map;
        let mut rules = self.facts.rules.clone();
        rules.terminal = None;
        self.facts = facts(&self.plan, rules);
        self.delivery.presenter.begin_world(self.plan.spec.map.world_size(), names(self.plan.spec.map.clone()));
    }

    /// The job begins without these nodes, if it may. `why` they are not here.
    pub(crate) fn gives_up_nodes(&mut self, missing: &[NodeId], why: &str) -> bool {
        for node in missing {
            let node = &mut self.nodes[node.index()];
            node.lost = Some(why.to_owned());
        }
        if self.map_left().is_none() {
            return false;
        }
        for node in missing {
            if let Some(joined) = self.nodes[node.index()].joined_mut() {
                joined.by = None;
            }
        }
        if let Some(enrolment) = &mut self.enrolment {
            enrolment.close("the job has begun without it");
        }
        true
    }

    /// The job begins without the nodes that are lost.
    pub(crate) fn begin_without(&mut self) {
        self.leave_out_lost();
        self.gang = Gang::new(self.plan.spec.map.world_size(), self.facts.rules.clone());
        let (now, facts) = (self.now(), self.facts.clone());
        self.delivery.journal.record(now, || JobEvent::Job(Box::new(facts)));
        self.node_is_ready();
    }

    /// Somebody wants a node to end. The job goes on without it, if it may; else that ends the job as a signal to us does.
    pub(crate) fn node_told_to_end(&mut self, node: NodeId, signal: i32) {
        let name = self.nodes[node.index()].name.clone();
        let signal_name = signal_name(signal);
        if self.gang.stop_ordered().is_some() {
            return;
        }
        let least = self.plan.hosts.least.filter(|_| self.plan.spec.restart.is_on() && !self.successors.are_on());
        if least.is_some_and(|least| self.seated().count() > least as usize) {
            self.nodes[node.index()].kill_agent();
            return self.lose_node(node, format!("{signal_name} came to its agent"));
        }
        self.note(format!("node {name}: {signal_name} came to its agent, and ends the job"));
        self.event(gang::Event::Signal(signal));
    }

    /// Since when there are enough nodes that have joined, the job waits for the others until then.
    pub(crate) fn last_call(&mut self, now: Duration) -> Option<Duration> {
        let least = self.plan.hosts.least? as usize;
        let here = self.seated().filter(|node| !node.is_awaited()).count();
        if here < least {
            return None;
        }
        Some(*self.last_call.get_or_insert(now + LAST_CALL))
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn are(count: usize, what: &str) -> String {
    format!("{} {}", counted(count, what), if count == 1 { "is" } else { "are" })
}
