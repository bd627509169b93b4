//! Nodes that join by themselves, and the steps of Slurm that start some of them.

use std::io;
use std::time::{Duration, Instant};

use rankrun_agent::LOOK_STEP;
use rankrun_core::job::{Event, Node, NodeEvent};
use rankrun_core::reach;
use rankrun_core::{ExitCode, NodeId};
use rankrun_sys::poll::Ready;
use rankrun_wire::identity::PeerId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::job::front::{Front, Outcome};
use crate::job::token::Token;
use crate::nodes::{News, Srun, Step};

/// How long the step of Slurm may take to end after the job.
const SRUN_BOUND: Duration = Duration::from_secs(5);

impl Front {
    /// A connection of a node that is not admitted yet is ready.
    pub(crate) fn newcomer(&mut self, peer: PeerId, ready: Ready) {
        let is_ending = self.job.is_ending();
        let Some(enrolment) = &mut self.enrolment else { return };
        if is_ending {
            enrolment.close("the job is ending");
        }
        match enrolment.ready(peer, ready) {
            None => {}
            Some(News::Note(text)) => self.note(text),
            Some(News::Asks { node, peer }) => {
                let node = NodeId(node.0);
                let is_connected = self.job.nodes().get(node).is_some_and(Node::is_connected);
                enrolment.answer(peer, is_connected);
                self.take_from(node, NodeEvent::Confirmed);
            }
            Some(News::Ended { node, code, lapse, memory }) => {
                let node = NodeId(node.0);
                let Some(remote) = self.nodes.get_mut(node.index()).and_then(|node| node.remote_mut()) else { return };
                remote.ended = Some(lapse);
                self.take_from(node, NodeEvent::GuardEnded { code, memory });
                self.tell_loss(node);
            }
            Some(News::Joined { node, host, from, link }) => {
                let node = NodeId(node.0);
                if !self.job.nodes().get(node).is_some_and(Node::is_awaited) {
                    // The job has begun without it. It sees the end of its connection.
                    return;
                }
                self.nodes[node.index()].link = Some(*link);
                let (host, server) = (Some(host), Some(from));
                self.take_from(node, NodeEvent::Reached { host, client: None, server, noise: None });
                self.greet(node);
            }
        }
    }

    /// The job is over: the nodes that have joined end with its exit code.
    pub(crate) fn dismiss_joined(&mut self, outcome: &Outcome) {
        if let Some(enrolment) = self.enrolment.take() {
            enrolment.dismiss(outcome.raise.map_or(outcome.code, ExitCode::signal).0);
        }
    }

    /// Starts a step of Slurm for these nodes.
    pub(crate) fn start_step(&mut self, nodes: &[NodeId]) {
        if let Err(error) = self.try_step(nodes) {
            self.take(Event::StepFailed { why: rankrun_sys::reason(&error) });
        }
    }

    fn try_step(&mut self, nodes: &[NodeId]) -> io::Result<()> {
        let (Some(join), Some(enrolment)) = (&self.plan.join, &self.enrolment) else {
            return Ok(());
        };
        let hosts = &self.plan.hosts;
        let all: Vec<String> = hosts.targets.iter().map(|target| target.name.clone()).collect();
        let others: Vec<String> = nodes.iter().map(|node| all[node.index()].clone()).collect();
        let address = hosts.local_addr.map(|address| address.to_string());
        let step = Step {
            all: &all,
            others: &others,
            host: address.as_deref(),
            port: enrolment.port(),
            secret: &join.secret,
            agent: &self.plan.node,
            extra: &hosts.srun_args,
        };
        let srun = Srun::start(&mut self.starter, &self.poller, Token::Srun(self.srun.len() as u32).encode(), &step)?;
        self.srun.push(srun);
        Ok(())
    }

    /// Why a node was lost, and that the srun that has started it was killed before, if it was.
    pub(crate) fn with_srun(&self, node: NodeId, why: String) -> String {
        let loss = self.job.nodes().get(node).and_then(Node::loss);
        let lost_at = loss.map_or(self.now(), |loss| loss.at);
        let Some(target) = self.plan.hosts.targets.get(node.index()) else { return why };
        let killed = self.srun.iter().filter(|srun| srun.is_for(&target.name)).filter_map(|srun| srun.killed);
        let killed = killed.filter(|(_, at)| *at <= lost_at).max_by_key(|(_, at)| *at);
        let told = killed.and_then(|(signal, at)| reach::why::after_srun(&why, signal, lost_at - at));
        told.unwrap_or(why)
    }

    /// srun has written something. What it says before all nodes are here is told if it fails.
    pub(crate) fn read_srun(&mut self) {
        let registry = self.poller.registry();
        self.srun.iter_mut().for_each(|srun| srun.read_words(&registry));
        if self.job.nodes().iter().all(|node| node.about().is_some()) {
            let lines: Vec<String> = self.srun.iter_mut().flat_map(Srun::new_words).collect();
            lines.into_iter().for_each(|line| self.agent_note(line));
        }
    }

    /// SIGCHLD: steps may have ended.
    pub(crate) fn look_at_srun(&mut self) {
        let now = self.now();
        let ended: Vec<usize> = (0..self.srun.len()).filter(|step| self.srun[*step].reap(now)).collect();
        if ended.is_empty() {
            return;
        }
        self.read_srun();
        for step in ended {
            let srun = &self.srun[step];
            let (code, words, not_started) = (srun.code.unwrap_or(0), srun.words(), srun.not_started.clone());
            self.take(Event::StepEnded { step, code, words, not_started });
        }
    }

    /// The nodes know that the job is over: the steps end by themselves, or else they are ended.
    pub(crate) fn await_srun(&mut self) {
        let until = Instant::now() + SRUN_BOUND;
        let mut is_told = self.srun.len() < 2;
        while self.srun.iter().any(|srun| srun.code.is_none()) {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                self.srun.iter().for_each(Srun::kill);
                return;
            }
            if rest < SRUN_BOUND / 2 && !std::mem::replace(&mut is_told, true) {
                // What the first has started on a node that was asked again may be stuck. srun passes this on, and ends.
                self.srun.iter().for_each(Srun::end);
            }
            // Only the ends of children are waited for: nobody handles the other events any more, and they would not go away. A wait that
            // fails is a wait that is over.
            let step = rest.min(LOOK_STEP);
            let step = Timespec { tv_sec: step.as_secs() as i64, tv_nsec: i64::from(step.subsec_nanos()) };
            let _ = poll(&mut [PollFd::new(&self.signals, PollFlags::IN)], Some(&step));
            while self.signals.next().is_some() {}
            let (now, registry) = (self.now(), self.poller.registry());
            for srun in &mut self.srun {
                srun.read_words(&registry);
                srun.reap(now);
            }
        }
    }
}
