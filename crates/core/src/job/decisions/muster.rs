//! The nodes of a job come together: other machines are reached, and when every agent is ready the ranks are started.
//!
//! The first node comes first: its agent binds the ports at which the ranks meet, and the others are told.

use std::net::IpAddr;
use std::time::Duration;

use crate::event::{JobEvent, JobFacts};
use crate::exit::ExitCode;
use crate::gang::{self, Gang};
use crate::ids::{GroupId, NodeId, NodeRank, Rank, WorkerId};
use crate::job::event::{Effect, Meeting};
use crate::job::machine::{Job, Refused};
use crate::job::parts::about::{About, Containment};
use crate::job::parts::muster::Muster;
use crate::job::parts::node::Node;
use crate::job::parts::nodes::Readiness;
use crate::job::parts::route::Call;
use crate::reach::{self, Step};
use crate::rendezvous::Rendezvous;
use crate::spec::job::StdinTarget;
use crate::topology::CpuSet;
use crate::worker::Outcome;

/// Tries for a node whose sshd has no room for a connection now, and the wait before the second.
const TRIES: u32 = 6;
const RETRY: Duration = Duration::from_millis(300);
/// A node has at least so long to greet, however short `--node-timeout` is: ssh does much before that.
const GREETING: Duration = Duration::from_secs(20);
/// How long a login shell may take to start rankrun. Its startup files may be on a slow file system.
const LOGIN_SHELL: Duration = Duration::from_secs(30);
/// How long the words of an ssh that has failed are waited for.
const WORDS: Duration = Duration::from_secs(2);
/// How many ranks a line with their CPUs names.
const RANKS_SHOWN: usize = 16;

impl Job {
    /// Does what is due for nodes other than this one.
    pub(in crate::job) fn muster_due(&mut self) {
        if self.muster.is_none() {
            return;
        }
        self.skip_unstarted();
        self.await_joins();
        self.ask_late_nodes_again();
        self.reach_nodes();
        self.tell_progress();
        self.beat();
    }

    /// Whether the nodes come together, and none has been told to start.
    pub(in crate::job) fn is_gathering(&self) -> bool {
        self.muster.as_ref().is_some_and(Muster::is_gathering)
    }

    /// Whether every node has been told to start the present attempt.
    pub fn has_started(&self) -> bool {
        self.muster.as_ref().is_none_or(Muster::has_started)
    }

    /// Whether no node begins any more.
    pub fn is_ending(&self) -> bool {
        self.refused.is_some() || self.gang.stop_ordered().is_some()
    }

    /// The job is being stopped while nodes come together: those that have no ranks yet get none in this attempt, and those that have not
    /// come are not waited for.
    fn skip_unstarted(&mut self) {
        let Some(muster) = self.muster.as_mut().filter(|muster| !muster.has_started()) else { return };
        if self.gang.stop_ordered().is_none() {
            return;
        }
        muster.start_none();
        let mut unstarted: Vec<Rank> = Vec::new();
        for node in self.nodes.iter_mut().filter(|node| node.place().is_some() && !node.is_running()) {
            if node.is_alive() && !node.is_connected() {
                self.out.push(Effect::GiveUp(node.id()));
                node.dismiss();
            }
            node.skip();
            unstarted.extend(node.ranks(&self.facts));
        }
        for rank in unstarted {
            self.event(gang::Event::Gone { worker: self.gang.worker(rank), outcome: Outcome::NeverStarted });
        }
        if self.is_over() {
            self.drain();
        }
        self.attempt_drained();
    }

    /// Calls nodes whose turn it is, and looks at calls that have not led to an agent in time.
    fn reach_nodes(&mut self) {
        let Some(at_a_time) = self.muster.as_ref().map(Muster::at_a_time) else { return };
        let (now, patience, calls) = (self.now, self.greeting_patience(), self.calls_nodes());
        let mut under_way = self.nodes.iter().filter(|node| node.is_called()).count();
        for node in self.nodes.iter_mut().filter(|node| node.is_alive() && !node.is_connected()) {
            let id = node.id();
            let Some(call) = call_mut(node) else { continue };
            if call.greet_by.take_if(|by| *by <= now).is_some() {
                self.out.push(Effect::LookAtCall(id));
            } else if calls && under_way < at_a_time && call.due.take_if(|due| *due <= now).is_some() {
                (call.tries, call.unsent, call.is_under_way) = (call.tries + 1, None, true);
                call.greet_by = Some(now + patience);
                self.out.push(Effect::Call(id));
                under_way += 1;
            }
        }
    }

    /// When the next node is to be called. Those for which there is no room wait for the end of a call.
    pub(in crate::job) fn next_call(&self) -> Option<Duration> {
        let room = self.muster.as_ref().map_or(0, Muster::at_a_time);
        if self.nodes.iter().filter(|node| node.is_called()).count() >= room {
            return None;
        }
        self.nodes.iter().filter_map(Node::call_due).min()
    }

    /// How long a node may take to greet once it is called, or is sent rankrun.
    fn greeting_patience(&self) -> Duration {
        self.settings.node_timeout.max(GREETING)
    }

    /// An ssh has not led to an agent in time: goes on if the line is slow, or gives it up.
    pub(in crate::job) fn call_seen(
        &mut self,
        node: NodeId,
        unsent: usize,
        has_logged_in: bool,
        noise: Option<String>,
    ) {
        let (now, patience) = (self.now, self.greeting_patience());
        let Some(call) = self.nodes.get_mut(node).and_then(call_mut) else { return };
        let (step, why) = match (call.failed_at, call.unsent.replace(unsent)) {
            (Some(step), _) => (step, noise.unwrap_or_default()),
            // A slow line: it goes on.
            (None, Some(before)) if unsent < before => {
                call.greet_by = Some(now + patience);
                return;
            }
            (None, Some(_)) => {
                let why = format!("rankrun was sent there, and nothing came of it within {} s", patience.as_secs());
                (Step::Copy, why)
            }
            (None, None) => {
                let patience = if has_logged_in { patience.min(LOGIN_SHELL) } else { patience };
                reach::silence(has_logged_in, patience.as_secs())
            }
        };
        self.cannot_reach(node, step, &why);
    }

    /// ssh has failed at a step, and may still say why.
    pub(in crate::job) fn call_failing(&mut self, node: NodeId, step: Step) {
        let by = self.now + WORDS;
        if let Some(call) = self.nodes.get_mut(node).and_then(call_mut) {
            (call.failed_at, call.greet_by) = (Some(step), Some(by));
        }
    }

    /// ssh has logged in: what follows is a matter of the login shell.
    pub(in crate::job) fn logged_in(&mut self, node: NodeId) {
        let by = self.now + LOGIN_SHELL;
        if let Some(call) = self.nodes.get_mut(node).and_then(call_mut) {
            call.greet_by = call.greet_by.map(|greet_by| greet_by.min(by));
        }
    }

    /// The node lacks rankrun, which is being read.
    pub(in crate::job) fn lacks_program(&mut self, node: NodeId) {
        let by = self.now + self.greeting_patience();
        if let Some(call) = self.nodes.get_mut(node).and_then(call_mut) {
            call.greet_by = Some(by);
        }
    }

    /// It is being sent rankrun.
    pub(in crate::job) fn copying(&mut self, node: NodeId, bytes: usize) {
        self.lacks_program(node);
        if let Some(call) = self.nodes.get_mut(node).and_then(call_mut) {
            call.unsent = Some(bytes);
        }
        if self.settings.verbosity > 0 {
            let megabytes = bytes as f64 / 1e6;
            self.note(format!("copying rankrun to {} ({megabytes:.1} MB)", self.nodes.name(node)));
        }
    }

    /// ssh has ended before it led to an agent.
    pub(in crate::job) fn call_ended(&mut self, node: NodeId, code: i32, words: &str, noise: Option<String>) {
        let now = self.now;
        let Some(handle) = self.nodes.get_mut(node).filter(|node| node.is_alive() && !node.is_connected()) else {
            return;
        };
        let Some(call) = call_mut(handle) else { return };
        if reach::is_worth_retrying(code, words) && call.tries < TRIES {
            let wait = RETRY * 2u32.pow(call.tries.max(1) - 1);
            // The nodes of one jump host must not come back together.
            let jitter = f64::from(node.0 * 7919 % 1000) / 1000.0;
            call.is_under_way = false;
            (call.due, call.greet_by) = (Some(now + wait + wait.mul_f64(jitter)), None);
            return;
        }
        let failed_at = call.failed_at;
        let why = match reach::essence(words) {
            // It was we who ended it.
            words if words.is_empty() && failed_at.is_some() => noise.unwrap_or_default(),
            words if words.is_empty() => {
                let noise = noise.map(|noise| format!("; {noise}")).unwrap_or_default();
                format!("{}{noise}", reach::silent_end(code))
            }
            words => words,
        };
        self.cannot_reach(node, failed_at.unwrap_or_else(|| reach::step_of(code, words)), &why);
    }

    /// A node could not be reached: the job does not begin, or begins without it.
    pub(in crate::job) fn cannot_reach(&mut self, node: NodeId, step: Step, why: &str) {
        let Some(handle) = self.nodes.get_mut(node).filter(|node| node.is_alive() && !node.is_connected()) else {
            return;
        };
        let name = handle.name().to_owned();
        let is_spare = handle.place().is_none();
        handle.lose(step.to_string(), None, false);
        self.out.push(Effect::GiveUp(node));
        let why = if why.is_empty() { "ssh printed no reason" } else { why };
        if is_spare {
            self.lacks_spare(node, &format!("{step}: {why}"));
        }
        self.await_return(node);
        if self.is_ending() || is_spare {
            return;
        }
        if self.may_begin_without() {
            self.note(format!("node {name}: {step}: {why}"));
            return self.begin_without();
        }
        let of_oar = reach::way_out_of_oar(step).filter(|_| self.settings.is_oar);
        self.refuse(Refused {
            what: format!("node {name}: {step}"),
            why: why.to_owned(),
            hint: of_oar.or_else(|| reach::way_out(step, &name, why)),
            code: ExitCode::NODE_LOST,
        });
    }

    /// The job does not begin: every agent ends.
    pub(in crate::job) fn refuse(&mut self, refused: Refused) {
        self.refused.get_or_insert(refused);
        for node in self.nodes.iter_mut().filter(|node| node.is_alive()) {
            self.out.push(if node.is_connected() { Effect::End(node.id()) } else { Effect::GiveUp(node.id()) });
            node.dismiss();
        }
    }

    /// An agent cannot start: the job does not begin.
    pub(in crate::job) fn agent_refused(&mut self, node: NodeId, what: String, why: String) {
        let what = match self.muster {
            Some(_) => format!("node {}: {what}", self.nodes.name(node)),
            None => what,
        };
        self.out.push(Effect::Disconnect(node));
        self.on(node, Node::dismiss);
        self.refuse(Refused { what, why, hint: None, code: ExitCode::INTERNAL });
    }

    /// The agent of a node is connected.
    pub(in crate::job) fn reached(
        &mut self,
        node: NodeId,
        host: Option<String>,
        (client, server): (Option<IpAddr>, Option<IpAddr>),
        noise: Option<String>,
    ) {
        let now = self.now;
        let Some(handle) = self.nodes.get_mut(node).filter(|node| node.is_alive() && !node.is_connected()) else {
            return;
        };
        handle.reached(now, client, server);
        let text = match host {
            None => match noise {
                Some(noise) => format!("node {} is reached; {noise}", handle.name()),
                None => format!("node {} is reached", handle.name()),
            },
            Some(host) => {
                if let Some(place) = handle.place() {
                    self.spec.map.rename_node(place, &host);
                    self.facts.map.rename_node(place, &host);
                }
                self.nodes.rename(node, &host);
                format!("node {node} has joined: {host}")
            }
        };
        if self.settings.verbosity > 0 {
            self.note(text);
        }
    }

    /// An agent is ready. When all are, the ranks are started.
    pub(in crate::job) fn agent_is_ready(&mut self, node: NodeId, about: About) {
        self.note_containment(node, &about.containment);
        self.on(node, |node| node.ready(about));
        self.spare_is_ready(node);
        self.start_if_complete();
    }

    /// Workers of a node are contained in another way than its agent has said.
    pub(in crate::job) fn node_contains(&mut self, node: NodeId, containment: Containment) {
        self.note_containment(node, &containment);
        self.on(node, |node| node.contains(containment));
    }

    fn note_containment(&mut self, node: NodeId, containment: &Containment) {
        if self.settings.verbosity > 0 {
            let text = match containment {
                Containment::Cgroup => "workers are held in cgroups".to_owned(),
                Containment::Subreaper { why } => format!("workers are held by a subreaper, not in cgroups: {why}"),
            };
            self.note(self.of_node(node, &text));
        }
    }

    /// The ranks of a node are bound.
    pub(in crate::job) fn bound(&mut self, node: NodeId, ranks: Vec<(WorkerId, CpuSet)>, pictures: &[String]) {
        let lines = ranks.iter().zip(pictures).map(|((worker, _), picture)| format!("rank {}: {picture}", worker.rank));
        for line in lines.collect::<Vec<_>>() {
            self.note(self.of_node(node, &line));
        }
        if pictures.is_empty() && self.settings.verbosity > 0 {
            let each = ranks.iter().take(RANKS_SHOWN).map(|(worker, cpus)| format!("{} to {cpus}", worker.rank));
            let more = match ranks.len().checked_sub(RANKS_SHOWN).filter(|more| *more > 0) {
                Some(more) => format!("; and {more} more (--report-bindings shows all)"),
                None => String::new(),
            };
            let text = format!("ranks are bound to CPUs: {}{more}", each.collect::<Vec<_>>().join("; "));
            self.note(self.of_node(node, &text));
        }
        self.record(|| JobEvent::Bound(ranks.clone()));
        self.gang.bound(ranks.into_iter());
    }

    /// The ranks of a node are not bound.
    pub(in crate::job) fn unbound(&mut self, node: NodeId, why: &str, is_asked_for: bool) {
        if is_asked_for || self.settings.verbosity > 0 {
            self.note(self.of_node(node, &format!("ranks are not bound to CPUs: {why}")));
        }
    }

    /// Starts the ranks, if every agent is ready.
    fn start_if_complete(&mut self) {
        if !self.is_gathering() || self.is_ending() || !self.nodes.seated().all(Node::is_ready) {
            return;
        }
        if let Some(refused) = self.lacks_interface().or_else(|| self.has_a_machine_twice()) {
            return self.refuse(refused);
        }
        self.start_attempt();
    }

    /// Says for whom we wait, if that takes long.
    fn tell_progress(&mut self) {
        let now = self.now;
        if !self.muster.as_mut().is_some_and(|muster| muster.tells_progress(now)) {
            return;
        }
        let waiting: Vec<NodeId> = self.nodes.seated().filter(|it| it.about().is_none()).map(Node::id).collect();
        if !waiting.is_empty() && self.refused.is_none() {
            let (all, waited) = (self.nodes.seated().count(), waiting.len());
            let again: Vec<NodeId> = waiting.iter().copied().filter(|it| self.joining.is_asked_again(*it)).collect();
            let again = match again.is_empty() {
                true => String::new(),
                false => format!(" (asked again: {})", self.nodes.names(again)),
            };
            let names = self.nodes.names(waiting);
            self.note(format!("{}/{all} nodes ready; waiting for {names}{again}", all - waited));
        }
    }

    /// Starts the ranks of the present attempt: of several nodes first those of the first.
    pub(in crate::job) fn start_attempt(&mut self) {
        match &mut self.muster {
            None => {
                let meeting = Meeting::Here { address: [127, 0, 0, 1].into(), open_to: Vec::new() };
                self.start_node(NodeRank(0), meeting);
            }
            Some(muster) => {
                muster.start_first();
                let meeting = Meeting::Here { address: self.meeting_address(), open_to: self.other_addresses() };
                self.start_node(NodeRank(0), meeting);
                if self.spec.map.node_count() == 1 {
                    self.meeting_is_known(None);
                }
            }
        }
    }

    /// The first node has bound its ports: the others start.
    pub(in crate::job) fn meeting_is_known(&mut self, rendezvous: Option<Rendezvous>) {
        if !self.muster.as_mut().is_some_and(Muster::start_others) {
            return;
        }
        for place in (1..self.spec.map.node_count()).map(NodeRank) {
            self.start_node(place, Meeting::There(rendezvous.clone()));
        }
        // What was read of stdin meanwhile has waited.
        self.out.push(Effect::HaveStarted);
        if self.nodes.seated().all(|node| !node.is_connected()) {
            // Nobody is there who could say that the attempt is over.
            self.drain();
            self.attempt_drained();
        }
    }

    /// Tells the agent of a node to start the present attempt.
    fn start_node(&mut self, place: NodeRank, meeting: Meeting) {
        let Some(id) = self.nodes.at(place) else { return };
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.is_connected() {
            node.begin();
            self.out.push(Effect::Start { node: id, place, group: GroupId(0), meeting });
        } else if self.muster.is_some() {
            let why = node.lost().map_or("its agent has ended", |lost| &lost.why).to_owned();
            if !node.is_lost() {
                node.lose(why.clone(), None, false);
            }
            self.lose_ranks(id, why);
        }
    }

    /// From now on the job runs on the nodes that there are. Call it between attempts, or before the first.
    pub(in crate::job) fn take_seats(&mut self, readiness: Readiness) {
        let Some(seating) = self.nodes.seating(&self.candidates(readiness)).filter(|seating| seating.is_news()) else {
            return;
        };
        let map = seating.map.clone();
        for text in self.nodes.take_seats(seating) {
            self.note(text);
        }
        let spec = &mut self.spec;
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
        self.facts = JobFacts::of(&self.spec, rules);
        self.out.push(Effect::World);
    }

    /// Whether the job may begin although nodes are lost.
    pub(in crate::job) fn may_begin_without(&self) -> bool {
        self.nodes.seating(&self.candidates(Readiness::Coming)).is_some()
    }

    /// The job begins without the nodes that are lost.
    pub(in crate::job) fn begin_without(&mut self) {
        self.take_seats(Readiness::Coming);
        self.gang = Gang::new(self.spec.gang(), self.spec.map.world_size(), self.facts.rules.clone());
        let facts = self.facts.clone();
        self.record(|| JobEvent::Job(Box::new(facts)));
        self.start_if_complete();
    }
}

/// The call of a node, if it is called.
fn call_mut(node: &mut Node) -> Option<&mut Call> {
    node.route_mut().call_mut()
}
