//! Nodes come and go: those that are lost are called again, and a job that runs on fewer than it could grows.

use std::time::Duration;

use crate::fence::Fate;
use crate::gang;
use crate::hosts::{self, parse_list};
use crate::ids::NodeId;
use crate::job::event::{Added, Effect, NodeCommand};
use crate::job::machine::Job;
use crate::job::parts::node::Node;
use crate::job::parts::nodes::{Candidates, Readiness};
use crate::job::settings::{Grow, Host, Way};
use crate::restart::{Decision, Event};

/// A job that grows waits so long after a node has come: others may come with it.
const LAST_CALL: Duration = Duration::from_secs(5);

impl Job {
    /// Whether nodes may be replaced, or come back.
    pub(in crate::job) fn has_members(&self) -> bool {
        self.settings.is_elastic && self.spec.restart.is_on()
    }

    /// A node is lost, or could not be reached: it is called again, or comes by itself.
    pub(in crate::job) fn await_return(&mut self, node: NodeId) {
        let now = self.now;
        if !self.has_members() {
            return;
        }
        let Some(node) = self.nodes.get(node).filter(|node| !node.is_here()) else { return };
        let identity = node.identity().to_owned();
        match node.joins() && !self.settings.has_steps {
            true => self.members.returns.away(&identity),
            false => self.members.returns.lost(&identity, now),
        }
        // That it is away is known from now on.
        self.members.told.insert(identity);
    }

    /// Why the job cannot go on, if nodes are lost, it may not run without them, and nobody can come in their place.
    pub(in crate::job) fn needs_lost(&self) -> Option<String> {
        let why = self.nodes.needs_lost(&self.candidates(Readiness::Ready))?;
        let is_in_time = self.members.awaited_until.is_none_or(|until| self.now < until);
        let may_come =
            self.has_members() && !self.nodes.lost().any(Node::is_here) && self.is_any_coming() && is_in_time;
        (!may_come).then_some(why)
    }

    /// Whether any node may come in place of one that is lost.
    fn is_any_coming(&self) -> bool {
        self.members.returns.is_any()
            || !self.members.replacing.is_empty()
            || self.nodes.iter().any(|node| node.place().is_none() && node.is_alive())
    }

    /// Whether the next attempt waits for nodes without which it cannot begin.
    pub(in crate::job) fn waits_for_nodes(&mut self) -> bool {
        if self.nodes.needs_lost(&self.candidates(Readiness::Ready)).is_none() {
            self.members.awaited_until = None;
            return false;
        }
        if self.members.awaited_until.is_none() {
            let wait = self.settings.wait_for_nodes;
            self.members.awaited_until = Some(self.now + wait);
            let missing = self.nodes.names(self.nodes.lost().map(Node::id).collect::<Vec<_>>());
            self.note(format!(
                "the job needs more nodes than are left without {missing}: waiting for some to come back, for {} s at most (--start-timeout)",
                wait.as_secs()
            ));
        }
        true
    }

    /// Who may get a place.
    pub(in crate::job) fn candidates(&self, readiness: Readiness) -> Candidates {
        let now = self.now;
        let is_left_out = |node: &Node| self.members.exclusions.has(node.identity(), now);
        let left_out = self.nodes.iter().filter(|node| is_left_out(node)).map(Node::id).collect();
        Candidates { readiness, left_out }
    }

    /// A node with ranks is lost: one for which that is too often is left out for a time.
    pub(in crate::job) fn count_loss(&mut self, node: NodeId) {
        let (now, limit) = (self.now, self.settings.exclude_after);
        let Some(identity) = self.nodes.get(node).map(|node| node.identity().to_owned()) else { return };
        if self.settings.replaces && self.has_members() && self.members.replacing.insert(node) {
            self.out.push(Effect::RunFor(node, NodeCommand::Replace));
        }
        if let Some(time) = self.members.exclusions.lost(&identity, now, limit)
            && let Some(limit) = limit
        {
            let name = self.nodes.name(node).to_owned();
            let (count, minutes) = (limit.restarts, time.as_secs() / 60);
            self.note(format!("{name} was lost {count} times (--exclude-after): it is left out for {minutes} min"));
        }
    }

    /// A spare is not here.
    pub(in crate::job) fn lacks_spare(&mut self, node: NodeId, why: &str) {
        let Some(node) = self.nodes.get(node) else { return };
        let (name, identity) = (node.name().to_owned(), node.identity().to_owned());
        let is_told = self.members.told.insert(identity);
        if is_told || self.settings.verbosity > 0 {
            self.note(format!("{name} is no spare now: {why}"));
        }
    }

    /// Whether nodes are called: not while the ranks are being ended.
    pub(in crate::job) fn calls_nodes(&self) -> bool {
        self.refused.is_none() && (self.gang.stop_ordered().is_none() || self.attempts.is_between())
    }

    /// Calls again those whose time it is.
    pub(in crate::job) fn returns_due(&mut self) {
        let now = self.now;
        if !self.calls_nodes() || self.closing.has_begun() {
            return;
        }
        for identity in self.members.returns.due(now) {
            let Some(last) = self.nodes.last_of(&identity).map(Node::id) else { continue };
            let Some(node) = self.nodes.get(last).filter(|node| node.is_lost()) else { continue };
            let may_live = match node.fate() {
                Fate::Gone => false,
                Fate::Unknown(loss) => loss.fenced_at() > now,
                // It has processes that cannot be killed.
                Fate::Left => {
                    self.members.returns.is_here(&identity);
                    continue;
                }
            };
            if may_live {
                // The others are not asked while they run: it says by itself when nothing is left there.
                self.ask_second(|node| node.id() == last && node.loss().is_some());
                self.members.returns.later(&identity, now);
            } else if node.joins() {
                self.start_step(vec![last]);
            } else if node.loss().is_none() && node.place().is_none() {
                self.on(last, |node| node.ask_again(now));
            } else {
                let host = Host { name: identity.clone(), way: Way::Ssh, slots: node.slots() };
                let id = self.nodes.add(&host, now);
                self.out.push(Effect::AddNode(id, Added::Again(last)));
            }
        }
    }

    /// A command about a node that was lost has ended.
    pub(in crate::job) fn command_ended(&mut self, node: NodeId, command: NodeCommand, answer: Result<String, String>) {
        let name = self.nodes.name(node).to_owned();
        match command {
            NodeCommand::Fence => {
                self.on(node, |node| node.fenced(answer.is_ok()));
                match answer {
                    Ok(_) => self.note(format!("{name} is fenced (--fence): nothing of the job runs there")),
                    Err(why) => self.note(format!("{name} could not be fenced (--fence): {why}")),
                }
            }
            NodeCommand::Replace => {
                self.members.replacing.remove(&node);
                let hosts = answer.and_then(|text| {
                    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
                    parse_list(line).map_err(|error| error.to_string())
                });
                match hosts {
                    Ok(hosts) => hosts.into_iter().for_each(|host| self.add_host(&name, host)),
                    Err(why) => self.note(format!("--replace has found nobody for {name}: {why}")),
                }
            }
        }
    }

    /// Another host has been found for one that was lost.
    fn add_host(&mut self, lost: &str, host: hosts::Host) {
        if self.closing.has_begun() {
            return;
        }
        if self.members.returns.names().any(|name| *name == host.name) {
            // Its ranks may live. When they cannot any more, it is called.
            if !self.members.returns.is_being_called(&host.name) {
                self.members.returns.later(&host.name, self.now);
            }
            return self.note(format!("{} is called again (--replace has named it)", host.name));
        }
        if self.nodes.iter().any(|node| node.name() == host.name && !node.is_lost()) {
            return self.note(format!("--replace has named {}, which the job has already", host.name));
        }
        self.note(format!("{} comes in place of {lost} (--replace)", host.name));
        let id = self.nodes.add(&Host { name: host.name.clone(), way: Way::Ssh, slots: host.slots }, self.now);
        self.out.push(Effect::AddNode(id, Added::Host(host)));
    }

    /// A node without a place in the attempt is ready: it is a spare.
    pub(in crate::job) fn spare_is_ready(&mut self, node: NodeId) {
        let Some(spare) = self.nodes.get(node).filter(|node| node.place().is_none()) else { return };
        let (name, identity) = (spare.name().to_owned(), spare.identity().to_owned());
        if self.spec.preload.is_some() && self.spec.restart.is_on() {
            self.out.push(Effect::Prepare(node));
        }
        let was_away = self.members.returns.is_here(&identity);
        self.members.told.remove(&identity);
        if self.is_gathering() || (!was_away && self.settings.verbosity <= 0) {
            return;
        }
        self.note(match self.could_grow() {
            true => format!("{name} is ready: the job is restarted with it soon (--grow restart)"),
            false => format!("{name} is ready, as a spare"),
        });
    }

    /// Whether the job is to be restarted with nodes that are here.
    fn could_grow(&self) -> bool {
        self.settings.grow == Grow::Restart
            && self.has_members()
            && !self.successors.are_on()
            && self.nodes.could_grow(&self.candidates(Readiness::Ready))
    }

    /// When the job may grow: others may come with a node that has come, or one is not left out any more.
    pub(in crate::job) fn grow_deadline(&self) -> Option<Duration> {
        let admitted = self.members.exclusions.deadline(self.now).filter(|_| self.settings.grow == Grow::Restart);
        [self.members.grow_at, admitted].into_iter().flatten().min()
    }

    /// Restarts a job that can grow.
    pub(in crate::job) fn grow_due(&mut self) {
        let now = self.now;
        if !self.could_grow() {
            self.members.grow_at = None;
            return;
        }
        let at = *self.members.grow_at.get_or_insert(now + LAST_CALL.min(self.settings.last_call));
        if at > now {
            return;
        }
        self.members.grow_at = None;
        let is_running = self.gang.stop_ordered().is_none() && !self.gang.have_all_ended() && self.has_started();
        if !is_running || !self.gang.are_all_started() {
            // What follows takes them in; or the ranks are being started just now.
            self.members.grow_at = (!self.is_ending()).then_some(now + LAST_CALL);
            return;
        }
        if let Some(Decision::Restart { .. }) = self.decide(None, Event::Planned) {
            self.attempts.plan(now);
            self.note(format!("ending attempt {}: more nodes are here (--grow restart)", self.spec.attempt));
            self.event(gang::Event::RestartRequest);
        }
    }
}
