//! Other machines are called over ssh: what is written to and read from the processes that reach, ask and hold them. The job decides when.

use std::time::Duration;

use bytes::Bytes;
use rankrun_core::NodeId;
use rankrun_core::job::{Event, NodeEvent};
use rankrun_core::reach::{self, Step};
use rankrun_sys::poll::Ready;
use rankrun_wire::greeting::{Greeting, Heard};
use rankrun_wire::message::Hello;
use rankrun_wire::{ToAgent, VERSION};

use crate::delivery::Task;
use crate::job::front::Front;
use crate::job::token::Token;
use crate::link::{Link, LinkError};
use crate::nodes::{Prover, Ssh};

impl Front {
    /// Starts an ssh to a node.
    pub(crate) fn call(&mut self, node: NodeId) {
        let Some(calls) = &self.calls else { return };
        let (hosts, call) = (&self.plan.hosts, calls.call(node));
        let tokens = (Token::Node(node).encode(), Token::Words(node).encode());
        let target = &hosts.targets[node.index()];
        match Ssh::start(&mut self.starter, &self.poller, tokens, &hosts.ssh, target, &call) {
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
        let ssh = self.nodes[node.index()].remote().and_then(|remote| remote.ssh.as_ref());
        let seen = NodeEvent::CallSeen {
            unsent: ssh.map_or(0, Ssh::unsent),
            has_logged_in: ssh.is_some_and(Ssh::has_logged_in),
            noise: ssh.and_then(Ssh::noise),
        };
        self.take_from(node, seen);
    }

    fn cannot_reach(&mut self, node: NodeId, step: Step, why: String) {
        self.take_from(node, NodeEvent::CallFailed { step, why });
    }

    /// ssh has written to its stdout before the stream began.
    pub(crate) fn hear_ssh(&mut self, node: NodeId, is_writable: bool, is_readable: bool) {
        let mut is_readable = is_readable;
        loop {
            let Some(ssh) = self.nodes[node.index()].remote_mut().and_then(|it| it.ssh.as_mut()) else { return };
            let (heard, conn) = ssh.hear(is_writable, is_readable);
            is_readable = false;
            match heard {
                Heard::More => return,
                Heard::NeedsBinary { system } => self.send_binary(node, &system),
                Heard::CopyFailed { .. } => return self.await_words(node, Step::Copy),
                Heard::Nonsense => return self.await_words(node, Step::Handshake),
                Heard::Ready { greeting, rest } => {
                    if let Some(conn) = conn {
                        self.greeted(node, greeting, conn, &rest);
                    }
                    return;
                }
            }
        }
    }

    /// Ends ssh, and says what it wrote. Its words may come after the sign that something went wrong: they are waited for.
    fn await_words(&mut self, node: NodeId, step: Step) {
        let registry = self.poller.registry();
        let Some(ssh) = self.nodes[node.index()].remote_mut().and_then(|remote| remote.ssh.as_mut()) else { return };
        ssh.read_words(&registry);
        match reach::essence(&ssh.words()) {
            words if words.is_empty() && ssh.code.is_none() => {
                ssh.hang_up();
                self.take_from(node, NodeEvent::CallFailing { step });
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
        if !self.plan.hosts.ssh.copies {
            let why = "this version of rankrun is not there, and --no-copy forbids to copy it";
            return self.cannot_reach(node, Step::Start, why.to_owned());
        }
        if system != ours {
            let why = format!("the node is {system}, and this rankrun is for {ours}");
            return self.cannot_reach(node, Step::Copy, why);
        }
        self.take_from(node, NodeEvent::LacksProgram);
        let Some(calls) = &mut self.calls else { return };
        if let Some(binary) = calls.binary.clone() {
            return self.copy_binary(node, binary);
        }
        // It may lie on a file system that does not answer.
        calls.lack_binary.push(node);
        if calls.lack_binary.len() == 1 {
            let now = self.now();
            self.delivery.files.submit(now, Task::ReadBinary);
        }
    }

    /// This program was read: the nodes that wait for it get it.
    pub(crate) fn hear_binary(&mut self) {
        let Some(read) = self.delivery.binary.take() else { return };
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
        let Some(ssh) = self.nodes[node.index()].remote_mut().and_then(|remote| remote.ssh.as_mut()) else { return };
        let bytes = binary.len();
        ssh.send(binary);
        self.take_from(node, NodeEvent::Copying { bytes });
    }

    fn greeted(&mut self, node: NodeId, greeting: Greeting, conn: rankrun_sys::reactor::Conn, rest: &[u8]) {
        if greeting.version != VERSION {
            let why = format!("it is {} there and {} here", greeting.release, Hello::ours().release);
            return self.cannot_reach(node, Step::Version, why);
        }
        if !self.job.nodes().get(node).is_some_and(|node| node.is_alive()) {
            // It was given up, and ssh is on its way out.
            return;
        }
        let link = Link::over(conn, greeting.session, rest);
        let noise = self.nodes[node.index()].remote().and_then(|it| it.ssh.as_ref()).and_then(Ssh::noise);
        self.nodes[node.index()].link = Some(link);
        let (client, server) = (greeting.client, greeting.server);
        self.take_from(node, NodeEvent::Reached { host: None, client, server, noise });
        self.greet(node);
    }

    /// An agent elsewhere is connected: greets it, and reads what it has sent.
    pub(crate) fn greet(&mut self, node: NodeId) {
        let (now, handle) = (self.now(), &mut self.nodes[node.index()]);
        if let Err(error) = handle.send(&ToAgent::Hello(Hello::ours())).and_then(|()| handle.beat(now)) {
            return self.broke(node, &error);
        }
        self.read_node(node);
    }

    /// ssh has written to stderr.
    pub(crate) fn read_words(&mut self, node: NodeId) {
        let registry = self.poller.registry();
        let Some(ssh) = self.nodes[node.index()].remote_mut().and_then(|remote| remote.ssh.as_mut()) else { return };
        let had_logged_in = ssh.has_logged_in();
        ssh.read_words(&registry);
        let has_logged_in = ssh.has_logged_in() && !had_logged_in;
        // What it says before is told if it fails.
        let lines = if ssh.has_greeted { ssh.new_words() } else { Vec::new() };
        if has_logged_in {
            self.take_from(node, NodeEvent::LoggedIn);
        }
        for line in lines {
            self.agent_note(format!("node {}: {line}", self.job.nodes().name(node)));
        }
    }

    /// SIGCHLD: ssh of a node may have ended.
    pub(crate) fn look_at_ssh(&mut self, node: NodeId) {
        let registry = self.poller.registry();
        let handle = &mut self.nodes[node.index()];
        let is_read = handle.link.is_none();
        let Some(remote) = handle.remote_mut() else { return };
        if remote.asker.reap() {
            self.take_from(node, NodeEvent::Asking { until: Duration::ZERO });
        }
        let Some(ssh) = self.nodes[node.index()].remote_mut().and_then(|remote| remote.ssh.as_mut()) else { return };
        if !ssh.reap(is_read) {
            return;
        }
        // What it wrote last may not have been read.
        self.hear_ssh(node, false, true);
        let Some(ssh) = self.nodes[node.index()].remote_mut().and_then(|remote| remote.ssh.as_mut()) else { return };
        let Some(code) = ssh.code else { return };
        ssh.read_words(&registry);
        if ssh.has_greeted {
            self.take_from(node, NodeEvent::SshEnded { code });
            return self.tell_loss(node);
        }
        let event = match ssh.not_started() {
            Some(why) => NodeEvent::CallFailed { step: Step::Connect, why },
            None => NodeEvent::CallEnded { code, words: ssh.words(), noise: ssh.noise() },
        };
        self.take_from(node, event);
    }

    /// What holds a node has ended: why the node was lost, if it was, may be known now.
    pub(crate) fn tell_loss(&mut self, node: NodeId) {
        if let Some(why) = self.nodes[node.index()].why_lost() {
            let why = self.with_srun(node, why);
            self.take_from(node, NodeEvent::LossKnown { why });
        }
    }

    /// The stream to an agent has ended, or cannot be decoded.
    pub(crate) fn broke(&mut self, node: NodeId, error: &LinkError) {
        self.nodes[node.index()].link = None;
        let is_end = matches!(error, LinkError::Ended);
        let why = match (&self.calls, self.nodes[node.index()].why_lost()) {
            // The agent of this machine, which is the only one.
            (None, _) => error.to_string(),
            (Some(_), Some(why)) => self.with_srun(node, why),
            (Some(_), None) if is_end => {
                self.with_srun(node, "its connection was closed, or its agent was killed".to_owned())
            }
            (Some(_), None) => self.with_srun(node, error.to_string()),
        };
        self.take_from(node, NodeEvent::Broke { is_end, why });
    }

    /// Asks a silent node over a fresh connection.
    pub(crate) fn ask(&mut self, node: NodeId) {
        let Some(calls) = &self.calls else { return };
        let (now, hosts, call) = (self.now(), &self.plan.hosts, calls.call(node));
        let Some(remote) = self.nodes[node.index()].remote_mut() else { return };
        let place = (&mut self.starter, &self.poller, Token::Asker(node).encode());
        let target = (&hosts.ssh, &hosts.targets[node.index()]);
        let event = match remote.asker.ask(now, place, target, &call, hosts.node_timeout) {
            Ok(()) => NodeEvent::Asking { until: remote.asker.until() },
            Err(_) => NodeEvent::CannotAsk,
        };
        self.take_from(node, event);
    }

    /// A node that was asked has answered, or ssh has written something.
    pub(crate) fn hear_asker(&mut self, node: NodeId, ready: Ready) {
        let registry = self.poller.registry();
        let remote = self.nodes[node.index()].remote_mut();
        if remote.is_some_and(|remote| remote.asker.hear(&registry, ready)) {
            self.take_from(node, NodeEvent::Confirmed);
        }
    }

    /// A node that was lost is to be asked what is left there.
    pub(crate) fn ask_second(&mut self, node: NodeId) {
        let patience = self.job.second_patience();
        if let Some(remote) = self.nodes[node.index()].remote_mut() {
            remote.prover = Some(Prover::new(patience));
        }
        self.try_seconds();
    }

    /// Does what is due for the nodes that are asked what is left there.
    pub(crate) fn try_seconds(&mut self) {
        let Some(calls) = &self.calls else { return };
        let now = self.now();
        let mut answers = Vec::new();
        for node in self.job.open_seconds() {
            let target = &self.plan.hosts.targets[node.index()];
            let remote = self.nodes[node.index()].remote_mut();
            let Some(prover) = remote.and_then(|remote| remote.prover.as_mut()) else { continue };
            prover.reap(now);
            prover.try_again(now, &mut self.starter, &self.plan.hosts.ssh, target, &calls.call(node));
            if prover.has_answer() {
                answers.push((node, prover.has_proved()));
            }
        }
        for (node, is_empty) in answers {
            self.take(Event::Node { node, event: NodeEvent::SecondAnswered { is_empty } });
        }
    }
}
