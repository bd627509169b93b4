//! The devices of all nodes: the streams to their agents, and the processes that reach, ask and hold them. What they find out are events
//! for the job, which decides.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use rankrun_agent::tidy::Known;
use rankrun_agent::{Act, Clock, GuardState, Keeper, Proof};
use rankrun_core::NodeId;
use rankrun_core::job::{Event, Job, Node, NodeEvent};
use rankrun_core::reach::{self, Step};
use rankrun_sys::poll::{Ready, Registry};
use rankrun_sys::signal::SignalFd;
use rankrun_wire::greeting::{Greeting, Heard};
use rankrun_wire::message::Hello;
use rankrun_wire::{Memory, ToAgent, VERSION};

use super::calls::Calls;
use super::enrol::Enrolment;
use super::found::Found;
use super::hosts::Hosts;
use super::node::NodeHandle;
use super::prover::Prover;
use super::recalls::Recalls;
use super::ssh::Ssh;
use super::steps::Steps;
use crate::link::{Link, LinkError, send_to_all};
use crate::starter::Starter;
use crate::token::Token;

/// A piece of stdin on its way.
#[derive(Clone, Debug)]
pub(super) struct StdinOwed {
    /// The nodes that have not reported it.
    pub(super) nodes: BTreeSet<NodeId>,
    /// Those that have: whether a rank there has read it.
    pub(super) is_read: Option<bool>,
}

/// The devices of all nodes.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Of each node, those that are lost among them.
    pub(crate) nodes: Vec<NodeHandle>,
    /// What other machines are called with; `None` if this machine is the only one.
    pub(crate) calls: Option<Calls>,
    /// Where they connect, if they join by themselves.
    pub(crate) enrolment: Option<Enrolment>,
    /// The steps that start the agents in a Slurm allocation.
    pub(super) steps: Steps,
    /// The thread that starts ssh, srun and commands.
    pub(crate) starter: Starter,
    pub(super) hosts: Hosts,
    pub(super) registry: Registry,
    pub(super) found: Found,
    pub(super) recalls: Recalls,
    /// The nodes that were sent a piece of stdin, and have not reported that their ranks have read it.
    pub(super) stdin_owed: Option<StdinOwed>,
}

impl Reach {
    pub(crate) fn new(
        nodes: Vec<NodeHandle>,
        calls: Option<Calls>,
        enrolment: Option<Enrolment>,
        starter: Starter,
        hosts: Hosts,
        registry: Registry,
    ) -> Reach {
        let (steps, found, recalls) = (Steps::default(), Found::default(), Recalls::default());
        Reach { nodes, calls, enrolment, steps, starter, hosts, registry, found, recalls, stdin_owed: None }
    }

    /// What was found out since this was last asked for.
    pub(crate) fn found(&mut self) -> Option<Found> {
        (self.found != Found::default()).then(|| std::mem::take(&mut self.found))
    }

    pub(super) fn say(&mut self, node: NodeId, event: NodeEvent) {
        self.found.events.push(Event::Node { node, event });
    }

    pub(crate) fn node(&mut self, node: NodeId) -> &mut NodeHandle {
        &mut self.nodes[node.index()]
    }

    /// The processes of this one that are the front's own, and not the job's.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.steps.pids().chain(self.nodes.iter().flat_map(NodeHandle::pids)).chain(self.starter.under_way())
    }

    fn ssh_mut(&mut self, node: NodeId) -> Option<&mut Ssh> {
        self.nodes[node.index()].remote_mut()?.ssh.as_mut()
    }

    fn ssh(&self, node: NodeId) -> Option<&Ssh> {
        self.nodes[node.index()].remote()?.ssh.as_ref()
    }

    // The streams.

    /// Sends a message to all nodes.
    pub(crate) fn send(&mut self, job: &Job, now: Duration, message: &ToAgent) {
        let links = self.nodes.iter_mut().filter_map(|node| Some((node.id, node.link.as_mut()?)));
        for (node, error) in send_to_all(links, message) {
            self.broke(job, now, node, &error);
        }
    }

    /// Sends a message to one node.
    pub(crate) fn send_to(&mut self, job: &Job, now: Duration, node: NodeId, message: &ToAgent) {
        if let Err(error) = self.nodes[node.index()].send(message) {
            self.broke(job, now, node, &error);
        }
    }

    /// Sends what a stream had no room for.
    pub(crate) fn flush(&mut self, job: &Job, now: Duration, node: NodeId) {
        if let Err(error) = self.nodes[node.index()].flush() {
            self.broke(job, now, node, &error);
        }
    }

    /// The stream to an agent has ended, or cannot be decoded.
    pub(crate) fn broke(&mut self, job: &Job, now: Duration, node: NodeId, error: &LinkError) {
        self.nodes[node.index()].link = None;
        let is_end = matches!(error, LinkError::Ended);
        let why = match (&self.calls, self.nodes[node.index()].why_lost()) {
            // The agent of this machine, which is the only one.
            (None, _) => error.to_string(),
            (Some(_), Some(why)) => self.with_srun(job, now, node, why),
            (Some(_), None) if is_end => {
                self.with_srun(job, now, node, "its connection was closed, or its agent was killed".to_owned())
            }
            (Some(_), None) => self.with_srun(job, now, node, error.to_string()),
        };
        self.say(node, NodeEvent::Broke { is_end, why });
    }

    /// What holds a node has ended: why the node was lost, if it was, may be known now.
    pub(super) fn tell_loss(&mut self, job: &Job, now: Duration, node: NodeId) {
        if let Some(why) = self.nodes[node.index()].why_lost() {
            let why = self.with_srun(job, now, node, why);
            self.say(node, NodeEvent::LossKnown { why });
        }
    }

    fn with_srun(&self, job: &Job, now: Duration, node: NodeId, why: String) -> String {
        let lost_at = job.nodes().get(node).and_then(Node::loss).map_or(now, |loss| loss.at);
        match self.hosts.targets.get(node.index()) {
            Some(target) => self.steps.with_srun(&target.name, lost_at, why),
            None => why,
        }
    }

    /// An agent elsewhere is connected: greets it.
    pub(super) fn greet(&mut self, job: &Job, now: Duration, node: NodeId) {
        let handle = &mut self.nodes[node.index()];
        match handle.send(&ToAgent::Hello(Hello::ours())).and_then(|()| handle.beat(now)) {
            Ok(()) => self.found.greeted.push(node),
            Err(error) => self.broke(job, now, node, &error),
        }
    }

    // Calls over ssh.

    /// Starts an ssh to a node.
    pub(crate) fn call(&mut self, node: NodeId) {
        let Some(calls) = &self.calls else { return };
        let tokens = (Token::Node(node).encode(), Token::Words(node).encode());
        let target = &self.hosts.targets[node.index()];
        match Ssh::start(&mut self.starter, &self.registry, tokens, &self.hosts.ssh, target, &calls.call(node)) {
            Ok(ssh) => {
                if let Some(remote) = self.nodes[node.index()].remote_mut() {
                    remote.ssh = Some(ssh);
                }
            }
            Err(error) => self.cannot_reach(node, Step::Connect, rankrun_sys::reason(&error)),
        }
    }

    /// Says how far an ssh has come.
    pub(crate) fn look_at_call(&mut self, node: NodeId) {
        let ssh = self.ssh(node);
        let seen = NodeEvent::CallSeen {
            unsent: ssh.map_or(0, Ssh::unsent),
            has_logged_in: ssh.is_some_and(Ssh::has_logged_in),
            noise: ssh.and_then(Ssh::noise),
        };
        self.say(node, seen);
    }

    fn cannot_reach(&mut self, node: NodeId, step: Step, why: String) {
        // Another front may have reached it.
        let is_lost = self.nodes[node.index()].link.take().is_some();
        let why = if is_lost { NodeEvent::Broke { is_end: false, why } } else { NodeEvent::CallFailed { step, why } };
        self.say(node, why);
    }

    /// ssh has written to its stdout before the stream began.
    pub(crate) fn hear_ssh(&mut self, job: &Job, now: Duration, node: NodeId, is_writable: bool, is_readable: bool) {
        let mut is_readable = is_readable;
        loop {
            let Some(ssh) = self.ssh_mut(node) else { return };
            let (heard, conn) = ssh.hear(is_writable, is_readable);
            is_readable = false;
            match heard {
                Heard::More => return,
                Heard::NeedsBinary { system } => self.send_binary(node, &system),
                Heard::CopyFailed { .. } => return self.await_words(node, Step::Copy),
                Heard::Nonsense => return self.await_words(node, Step::Handshake),
                Heard::Ready { greeting, rest } => {
                    if let Some(conn) = conn {
                        self.greeted(job, now, node, greeting, conn, &rest);
                    }
                    return;
                }
            }
        }
    }

    /// Ends ssh, and says what it wrote. Its words may come after the sign that something went wrong: they are waited for.
    fn await_words(&mut self, node: NodeId, step: Step) {
        let registry = self.registry.clone();
        let Some(ssh) = self.ssh_mut(node) else { return };
        ssh.read_words(&registry);
        match reach::essence(&ssh.words()) {
            words if words.is_empty() && ssh.code.is_none() => {
                ssh.hang_up();
                self.say(node, NodeEvent::CallFailing { step });
            }
            words if words.is_empty() => {
                let why = ssh.noise().unwrap_or_default();
                self.cannot_reach(node, step, why);
            }
            words => self.cannot_reach(node, step, words),
        }
    }

    fn send_binary(&mut self, node: NodeId, system: &str) {
        let own = rustix::system::uname();
        let ours = format!("{} {}", own.sysname().to_string_lossy(), own.machine().to_string_lossy());
        if !self.hosts.ssh.copies {
            let why = "this version of rankrun is not there, and --no-copy forbids to copy it";
            return self.cannot_reach(node, Step::Start, why.to_owned());
        }
        if system != ours {
            let why = format!("the node is {system}, and this rankrun is for {ours}");
            return self.cannot_reach(node, Step::Copy, why);
        }
        self.say(node, NodeEvent::LacksProgram);
        let Some(calls) = &mut self.calls else { return };
        if let Some(binary) = calls.binary.clone() {
            return self.copy_binary(node, binary);
        }
        // It may lie on a file system that does not answer.
        calls.lack_binary.push(node);
        self.found.lacks_program |= calls.lack_binary.len() == 1;
    }

    /// This program was read: the nodes that wait for it get it.
    pub(crate) fn has_read_binary<E: std::fmt::Display>(&mut self, read: Result<Vec<u8>, E>) {
        let Some(calls) = &mut self.calls else { return };
        let nodes = std::mem::take(&mut calls.lack_binary);
        let read = read.map(Bytes::from);
        calls.binary = read.as_ref().ok().cloned();
        for node in nodes {
            match &read {
                Ok(binary) => self.copy_binary(node, binary.clone()),
                Err(failure) => self.cannot_reach(node, Step::Copy, failure.to_string()),
            }
        }
    }

    fn copy_binary(&mut self, node: NodeId, binary: Bytes) {
        // The node may have been given up meanwhile.
        let Some(ssh) = self.ssh_mut(node) else { return };
        let bytes = binary.len();
        ssh.send(binary);
        self.say(node, NodeEvent::Copying { bytes });
    }

    fn greeted(
        &mut self,
        job: &Job,
        now: Duration,
        node: NodeId,
        greeting: Greeting,
        conn: rankrun_sys::reactor::Conn,
        rest: &[u8],
    ) {
        if greeting.version != VERSION {
            let why = format!("it is {} there and {} here", greeting.release, Hello::ours().release);
            return self.cannot_reach(node, Step::Version, why);
        }
        if let Some(link) = self.nodes[node.index()].stream_mut() {
            // Another front had reached it.
            if let Err(error) = link.connect(conn, rest) {
                return self.broke(job, now, node, &error);
            }
            return self.found.greeted.push(node);
        }
        if !job.nodes().get(node).is_some_and(|node| node.is_alive()) {
            // It was given up, and ssh is on its way out.
            return;
        }
        let noise = self.ssh(node).and_then(Ssh::noise);
        let lasts = self.hosts.outlasts_front.is_some();
        match Link::over(conn, greeting.session, rest, lasts) {
            Ok(link) => self.nodes[node.index()].link = Some(link),
            Err(error) => return self.cannot_reach(node, Step::Handshake, rankrun_sys::reason(&error)),
        }
        let (client, server) = (greeting.client, greeting.server);
        self.say(node, NodeEvent::Reached { host: None, client, server, noise });
        self.greet(job, now, node);
    }

    /// ssh has written to stderr.
    pub(crate) fn read_words(&mut self, job: &Job, node: NodeId) {
        let registry = self.registry.clone();
        let Some(ssh) = self.ssh_mut(node) else { return };
        let had_logged_in = ssh.has_logged_in();
        ssh.read_words(&registry);
        let has_logged_in = ssh.has_logged_in() && !had_logged_in;
        // What it says before is told if it fails.
        let lines = if ssh.has_greeted { ssh.new_words() } else { Vec::new() };
        if has_logged_in {
            self.say(node, NodeEvent::LoggedIn);
        }
        let name = job.nodes().name(node);
        self.found.words.extend(lines.into_iter().map(|line| format!("node {name}: {line}")));
    }

    /// SIGCHLD: ssh of a node may have ended.
    fn look_at_ssh(&mut self, job: &Job, now: Duration, node: NodeId) {
        let registry = self.registry.clone();
        let handle = &mut self.nodes[node.index()];
        let is_read = !handle.link.as_ref().is_some_and(Link::is_connected);
        let Some(remote) = handle.remote_mut() else { return };
        if remote.asker.reap() {
            self.say(node, NodeEvent::Asking { until: Duration::ZERO });
        }
        if !self.ssh_mut(node).is_some_and(|ssh| ssh.reap(is_read)) {
            return;
        }
        // What it wrote last may not have been read.
        self.hear_ssh(job, now, node, false, true);
        let Some(ssh) = self.ssh_mut(node) else { return };
        let Some(code) = ssh.code else { return };
        ssh.read_words(&registry);
        if ssh.has_greeted {
            self.say(node, NodeEvent::SshEnded { code });
            return self.tell_loss(job, now, node);
        }
        let words = ssh.words();
        if code == reach::SSH_FAILED && self.is_called_later(now, node) {
            return self.say_called_later(job, node, &words);
        }
        if self.nodes[node.index()].link.is_some() {
            // The relay that another front had reached is gone.
            return self.broke(job, now, node, &LinkError::Ended);
        }
        self.nodes[node.index()].forget_left();
        let Some(ssh) = self.ssh_mut(node) else { return };
        let event = match ssh.not_started() {
            Some(why) => NodeEvent::CallFailed { step: Step::Connect, why },
            None => NodeEvent::CallEnded { code, words: ssh.words(), noise: ssh.noise() },
        };
        self.say(node, event);
    }

    // Questions.

    /// Asks a silent node over a fresh connection.
    pub(crate) fn ask(&mut self, now: Duration, node: NodeId) {
        let Some(calls) = &self.calls else { return };
        let call = calls.call(node);
        let Some(remote) = self.nodes[node.index()].remote_mut() else { return };
        let place = (&mut self.starter, &self.registry, Token::Asker(node).encode());
        let target = (&self.hosts.ssh, &self.hosts.targets[node.index()]);
        let event = match remote.asker.ask(now, place, target, &call, self.hosts.node_timeout) {
            Ok(()) => NodeEvent::Asking { until: remote.asker.until() },
            Err(_) => NodeEvent::CannotAsk,
        };
        self.say(node, event);
    }

    /// A node that was asked has answered, or ssh has written something.
    pub(crate) fn hear_asker(&mut self, node: NodeId, ready: Ready) {
        let remote = self.nodes[node.index()].remote_mut();
        if remote.is_some_and(|remote| remote.asker.hear(&self.registry, ready)) {
            self.say(node, NodeEvent::Confirmed);
        }
    }

    /// A node that was lost is to be asked what is left there.
    pub(crate) fn ask_second(&mut self, job: &Job, now: Duration, node: NodeId) {
        if let Some(remote) = self.nodes[node.index()].remote_mut() {
            remote.prover = Some(Prover::new(job.second_patience()));
        }
        self.try_seconds(job, now);
    }

    /// Does what is due for the nodes that are asked what is left there.
    pub(crate) fn try_seconds(&mut self, job: &Job, now: Duration) {
        let Some(calls) = &self.calls else { return };
        for node in job.open_seconds() {
            let target = &self.hosts.targets[node.index()];
            let remote = self.nodes[node.index()].remote_mut();
            let Some(prover) = remote.and_then(|remote| remote.prover.as_mut()) else { continue };
            prover.reap(now);
            prover.try_again(now, &mut self.starter, &self.hosts.ssh, target, &calls.call(node));
            if prover.has_answer() {
                let is_empty = prover.has_proved();
                self.found.events.push(Event::Node { node, event: NodeEvent::SecondAnswered { is_empty } });
            }
        }
    }

    // The steps of Slurm, and the end.

    /// srun has written something, or has ended.
    pub(crate) fn hear_srun(&mut self, job: &Job, now: Duration) {
        let ended = self.steps.reap(now, &self.registry);
        self.read_srun(job);
        self.found.events.extend(ended);
    }

    /// What it says before all nodes are here is told if it fails.
    fn read_srun(&mut self, job: &Job) {
        self.steps.read(&self.registry);
        if job.nodes().iter().all(|node| node.about().is_some()) {
            let words = self.steps.new_words();
            self.found.words.extend(words);
        }
    }

    /// The job is over, with this exit code: the nodes that have joined end with it, and so do the steps and the starter.
    pub(crate) fn end(&mut self, code: u8, clock: &Clock, signals: &SignalFd) {
        if let Some(enrolment) = self.enrolment.take() {
            enrolment.dismiss(code);
        }
        self.steps.wait(clock, signals, &self.registry);
        self.starter.end();
    }

    // Guards, and whoever else is our child.

    /// SIGCHLD: a guard, an ssh or a step has ended, or a guard was stopped, or was continued.
    pub(crate) fn look_at_children(&mut self, job: &Job, now: Duration) {
        self.hear_srun(job, now);
        for node in job.nodes().ids() {
            match self.nodes[node.index()].keeper() {
                Some(_) => self.look_at_guard(now, node),
                None => self.look_at_ssh(job, now, node),
            }
        }
    }

    /// The guard of this machine may have ended, or was stopped or continued.
    fn look_at_guard(&mut self, now: Duration, node: NodeId) {
        let Some(keeper) = self.nodes[node.index()].keeper_mut() else { return };
        if keeper.reap() {
            self.lose_guard(node);
        } else if keeper.is_guard_stopped() {
            keeper.watch.begin(now);
        }
    }

    /// The guard of a node is lost, as its agent says, or as we have seen.
    pub(crate) fn lose_guard(&mut self, node: NodeId) {
        let keeper = self.nodes[node.index()].keeper();
        // One that has ended by itself is not lost.
        if !keeper.is_some_and(|keeper| matches!(keeper.state, GuardState::Ended(_))) {
            self.say(node, NodeEvent::GuardLost);
        }
    }

    /// Gives up the agent or the guard of this machine, if they hang. `others` are children of this process that are neither the job's nor
    /// of here.
    pub(crate) fn watch_guards(&mut self, job: &Job, now: Duration, others: &Known<'_>) {
        let own: Vec<i32> = self.pids().collect();
        let known = || others().into_iter().chain(own.iter().copied()).collect();
        for node in job.nodes().ids() {
            let handle = &mut self.nodes[node.index()];
            let act = match handle.link {
                Some(_) => handle.keeper_mut().and_then(|keeper| keeper.watch(now, &known)),
                // The job waits for the guard alone.
                None => handle.keeper_mut().filter(|_| job.is_closing()).and_then(Keeper::watch_guard),
            };
            match act {
                Some(Act::KillAgent) => handle.kill_agent(),
                Some(Act::KillGuard) => handle.kill_guard(),
                Some(Act::GiveUpAgent) => self.broke(job, now, node, &LinkError::Ended),
                None => {}
            }
        }
    }

    /// When something is to be done here, or to be heard.
    pub(crate) fn deadline(&self, now: Duration) -> Option<Duration> {
        let guards = self.nodes.iter().filter(|node| node.link.is_some()).filter_map(NodeHandle::keeper);
        let guards = guards.filter_map(|keeper| keeper.watch.deadline());
        let heard = (self.found != Found::default()).then_some(now);
        let door = self.enrolment.as_ref().and_then(Enrolment::deadline);
        guards.chain(door).chain(self.starter.deadline(now)).chain(heard).chain(self.recalls.deadline(now)).min()
    }

    /// What holds the nodes has ended, or is not waited for any more: the nodes on which something may be left, and by node what others than
    /// its agent have found in /dev/shm there. `others`: as above.
    pub(crate) fn prove(&mut self, job: &Job, others: &Known<'_>) -> (Vec<NodeId>, Vec<Option<Memory>>) {
        let (attempt, clean_shm) = (job.spec().attempt, job.spec().clean_shm);
        let known = || others().into_iter().chain(self.pids()).collect();
        // All of them: what is left of one must not keep the others from being cleaned up.
        let nodes = self.nodes.iter().zip(job.nodes().iter());
        let proofs: Vec<Proof> = nodes.map(|(handle, node)| handle.prove(node, attempt, clean_shm, &known)).collect();
        let unproven = job.nodes().ids().zip(&proofs).filter(|(_, proof)| !proof.is_empty).map(|(id, _)| id).collect();
        for handle in &mut self.nodes {
            if handle.is_held() {
                handle.kill_guard();
            }
            if let Some(prover) = handle.remote_mut().and_then(|remote| remote.prover.as_mut()) {
                prover.give_up();
            }
        }
        (unproven, proofs.into_iter().map(|proof| proof.memory).collect())
    }

    /// At the end: tells which of the processes that hold the nodes have not ended.
    pub(crate) fn look_at_holders(&mut self) {
        let held = self.nodes.iter().filter(|node| node.is_held()).map(|node| node.id).collect();
        self.found.events.push(Event::Held(held));
    }
}
