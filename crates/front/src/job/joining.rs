//! Nodes that join by themselves.

use std::io;
use std::time::{Duration, Instant};

use rankrun_agent::LOOK_STEP;
use rankrun_core::hosts::fold;
use rankrun_core::reach;
use rankrun_core::{ExitCode, NodeId, NodeRank};
use rankrun_sys::poll::Ready;
use rankrun_wire::ToAgent;
use rankrun_wire::identity::PeerId;
use rankrun_wire::message::Hello;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::job::front::{Front, Outcome, Refused};
use crate::job::token::Token;
use crate::nodes::{News, NodeHandle, Srun, Step};

/// How long the step of Slurm may take to end after the job.
const SRUN_BOUND: Duration = Duration::from_secs(5);
/// After this time, or a third of the time for the start, a second step is started for the nodes of Slurm that have not connected.
const AGAIN_AFTER: Duration = Duration::from_secs(20);
/// Up to so many of them have a step each: one that cannot be started keeps none of the others from it.
const STEPS: usize = 64;

impl Front {
    /// A connection of a node that is not admitted yet is ready.
    pub(crate) fn newcomer(&mut self, peer: PeerId, ready: Ready) {
        let is_ending = self.refused.is_some() || self.gang.stop_ordered().is_some();
        let Some(enrolment) = &mut self.enrolment else { return };
        if is_ending {
            enrolment.close("the job is ending");
        }
        match enrolment.ready(peer, ready) {
            None => {}
            Some(News::Note(text)) => self.note(text),
            Some(News::Asks { node, peer }) => {
                let handle = self.nodes.get_mut(node.index()).filter(|handle| handle.link.is_some());
                enrolment.answer(peer, handle.is_some());
                if let Some(handle) = handle {
                    handle.contact.answered(self.clock.now(), self.plan.hosts.node_timeout);
                }
            }
            Some(News::Ended { node, code, lapse, memory }) => {
                let Some(joined) = self.nodes.get_mut(node.index()).and_then(NodeHandle::joined_mut) else { return };
                (joined.is_admitted, joined.ended, joined.memory) = (true, Some(code), memory);
                joined.lapse = lapse;
                if joined.by.take().is_some() {
                    // It does not ask again.
                    joined.was_heard = true;
                    self.lose_node(NodeId(node.0), "its connection was closed as soon as it had joined".to_owned());
                }
                self.loss_is_known(NodeId(node.0));
            }
            Some(News::Joined { node, host, from, link }) => {
                let node = NodeId(node.0);
                let (now, verbosity) = (self.now(), self.plan.verbosity);
                let Some(handle) = self.nodes.get_mut(node.index()) else { return };
                if let Some(place) = handle.place {
                    self.plan.spec.map.rename_node(place, &host);
                    self.facts.map.rename_node(place, &host);
                }
                handle.contact.heard(now);
                handle.link = Some(*link);
                handle.name.clone_from(&host);
                if let Some(remote) = handle.remote_mut() {
                    remote.server = Some(from);
                }
                if let Some(joined) = handle.joined_mut() {
                    (joined.by, joined.is_admitted, joined.was_heard) = (None, true, false);
                }
                if verbosity > 0 {
                    self.note(format!("node {node} has joined: {host}"));
                }
                let (now, handle) = (self.now(), &mut self.nodes[node.index()]);
                if let Err(error) = handle.send(&ToAgent::Hello(Hello::ours())).and_then(|()| handle.beat(now)) {
                    return self.lose_agent(node, &error);
                }
                self.read_node(node);
            }
        }
    }

    /// A node has sent a message: it has received its admission.
    pub(super) fn has_sent(&mut self, node: NodeId) {
        let joined = self.nodes[node.index()].joined_mut();
        if joined.is_some_and(|joined| !std::mem::replace(&mut joined.was_heard, true))
            && let Some(enrolment) = &mut self.enrolment
        {
            enrolment.heard(NodeRank(node.0));
        }
    }

    /// The connection of a node has ended. If nothing was ever received over it, the node may not have received its admission, and
    /// asks again: it is awaited, as before.
    pub(super) fn awaits_again(&mut self, node: NodeId) -> bool {
        let is_over = self.refused.is_some() || self.gang.stop_ordered().is_some() || !self.is_gathering();
        let handle = &mut self.nodes[node.index()];
        let is_lost = handle.lost.is_some();
        let Some(joined) = handle.joined_mut().filter(|it| it.is_admitted && !it.was_heard) else { return false };
        if is_over || is_lost {
            return false;
        }
        (joined.by, joined.is_admitted, joined.is_given_up) = (Some(joined.due), false, false);
        handle.link = None;
        if let Some(enrolment) = &mut self.enrolment {
            enrolment.release(NodeRank(node.0));
        }
        self.note(format!("node {node}: its connection was closed before it had sent anything; it may join again"));
        true
    }

    /// Gives up the start if nodes have not joined in time.
    pub(crate) fn await_joins(&mut self, now: Duration) {
        if let Some(enrolment) = &mut self.enrolment {
            enrolment.tick(now);
        }
        let by = |node: &NodeHandle| node.remote().and_then(|it| it.joined.as_ref()).and_then(|joined| joined.by);
        let is_over = self.refused.is_some() || self.gang.stop_ordered().is_some();
        let missing: Vec<NodeId> = self.nodes.iter().filter(|node| by(node).is_some()).map(|node| node.id).collect();
        if is_over || missing.is_empty() {
            return;
        }
        let is_late = self.nodes.iter().any(|node| by(node).is_some_and(|by| by <= now));
        if !is_late && self.last_call(now).is_none_or(|until| until > now) {
            return;
        }
        if self.gives_up_nodes(&missing, "it did not join") {
            return self.begin_without();
        }
        let bound = self.plan.join.as_ref().map_or(Duration::ZERO, |join| join.start_timeout);
        let (names, hint): (Vec<String>, _) = match self.srun.is_empty() {
            true => (
                missing.iter().map(|node| format!("node{node}")).collect(),
                "start the same command on each of them; --start-timeout is how long node 0 waits",
            ),
            false => (
                self.unjoined(),
                "rankrun must be able to start there (\"srun -N1 hostname\"), and to reach this machine: see --port-range, --local-addr",
            ),
        };
        self.refused = Some(Refused {
            what: format!("{} of {} nodes did not join within {} s", missing.len(), self.nodes.len(), bound.as_secs()),
            source: io::Error::other(format!("missing: {}", fold(&names))),
            hint: Some(hint.to_owned()),
            code: ExitCode::NODE_LOST,
        });
        self.dismiss_nodes();
    }

    /// The job is over: the nodes that have joined end with its exit code.
    pub(crate) fn dismiss_joined(&mut self, outcome: &Outcome) {
        if let Some(enrolment) = self.enrolment.take() {
            enrolment.dismiss(outcome.raise.map_or(outcome.code, ExitCode::signal).0);
        }
    }

    /// In a Slurm allocation: one step starts the agents of the other nodes.
    pub(crate) fn start_srun(&mut self) -> io::Result<()> {
        self.start_step(None)
    }

    /// Other steps for nodes that have not connected: there is one such try.
    fn ask_again(&mut self, missing: Vec<String>) -> io::Result<()> {
        let size = if missing.len() <= STEPS { 1 } else { missing.len() };
        for nodes in missing.chunks(size) {
            self.start_step(Some(nodes))?;
        }
        self.asked_again = missing;
        Ok(())
    }

    /// Nodes that the step has not started in time are asked again, within the same time for the start.
    pub(crate) fn ask_late_nodes_again(&mut self, now: Duration) {
        let bound = self.plan.join.as_ref().map_or(Duration::ZERO, |join| join.start_timeout);
        let is_due = self.srun.len() == 1 && self.asked_again.is_empty() && now >= AGAIN_AFTER.min(bound / 3);
        if !is_due || self.refused.is_some() || self.gang.stop_ordered().is_some() {
            return;
        }
        let missing = self.unjoined();
        if !missing.is_empty() {
            // The first step may still come to them.
            if let Err(error) = self.ask_again(missing) {
                self.note(format!("cannot start srun again: {}", rankrun_sys::reason(&error)));
            }
        }
    }

    /// The steps that are for a node, the first one first.
    fn steps<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Srun> {
        self.srun.iter().filter(move |srun| srun.is_for(node))
    }

    /// Why a node was lost, and that the srun that has started it was killed before, if it was.
    pub(super) fn with_srun(&self, node: NodeId, why: String) -> String {
        let lost_at = self.nodes[node.index()].loss.map_or(self.now(), |loss| loss.at);
        let Some(target) = self.plan.hosts.targets.get(node.index()) else { return why };
        let killed = self.steps(&target.name).filter_map(|srun| srun.killed);
        let killed = killed.filter(|(_, at)| *at <= lost_at).max_by_key(|(_, at)| *at);
        let told = killed.and_then(|(signal, at)| reach::why::after_srun(&why, signal, lost_at - at));
        told.unwrap_or(why)
    }

    /// The nodes that have not connected.
    fn unjoined(&self) -> Vec<String> {
        self.nodes.iter().filter(|node| node.is_awaited()).map(|node| node.name.clone()).collect()
    }

    fn start_step(&mut self, only: Option<&[String]>) -> io::Result<()> {
        let (Some(join), Some(enrolment)) = (&self.plan.join, &self.enrolment) else {
            return Ok(());
        };
        let hosts = &self.plan.hosts;
        let all: Vec<String> = hosts.targets.iter().map(|target| target.name.clone()).collect();
        let others = hosts.targets.iter().filter(|target| !target.is_local);
        let others: Vec<String> = others.map(|target| target.name.clone()).collect();
        let others = only.unwrap_or(&others);
        let address = hosts.local_addr.map(|address| address.to_string());
        let step = Step {
            all: &all,
            others,
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

    /// srun has written something. What it says before all nodes are here is told if it fails.
    pub(crate) fn read_srun(&mut self) {
        let registry = self.poller.registry();
        self.srun.iter_mut().for_each(|srun| srun.read_words(&registry));
        if self.nodes.iter().all(|node| node.about.is_some()) {
            let lines: Vec<String> = self.srun.iter_mut().flat_map(Srun::new_words).collect();
            lines.into_iter().for_each(|line| self.agent_note(line));
        }
    }

    /// srun has ended. Nodes that have not joined are asked again, once; after that the job begins without them, if it may.
    pub(crate) fn srun_ended(&mut self) {
        self.read_srun();
        let missing = self.nodes.iter().filter(|node| node.about.is_none() && node.lost.is_none());
        let (missing, names): (Vec<NodeId>, Vec<String>) = missing.map(|node| (node.id, node.name.clone())).unzip();
        if missing.is_empty() || self.refused.is_some() || self.gang.stop_ordered().is_some() {
            return;
        }
        if let Some(why) = self.srun.last().and_then(|srun| srun.not_started.clone()) {
            self.refused = Some(Refused {
                what: "cannot start srun".to_owned(),
                source: io::Error::other(why),
                hint: None,
                code: ExitCode::INTERNAL,
            });
            return self.dismiss_nodes();
        }
        let (unjoined, is_over) = (self.unjoined(), |srun: &Srun| srun.code.is_some());
        let Some(ended) = self.srun.iter().rfind(|srun| is_over(srun) && unjoined.iter().any(|node| srun.is_for(node)))
        else {
            return;
        };
        let words = reach::essence(&ended.words());
        let words = if words.is_empty() { format!("srun ended with code {}", ended.code.unwrap_or(0)) } else { words };
        // For these there is no step any more, and for these not the one that was the second try.
        let lost: Vec<String> = unjoined.iter().filter(|node| self.steps(node).all(is_over)).cloned().collect();
        let are_hopeless = unjoined.iter().all(|node| self.steps(node).last().is_some_and(is_over));
        if self.asked_again.is_empty() {
            if !lost.is_empty() {
                self.note(format!("{}: {words}: asking again", fold(&lost)));
                if let Err(error) = self.ask_again(lost) {
                    self.note(format!("cannot start srun again: {}", rankrun_sys::reason(&error)));
                }
            }
            return;
        }
        if are_hopeless && self.plan.hosts.least.is_some() && self.gives_up_nodes(&missing, &words) {
            return self.begin_without();
        }
        if lost.is_empty() || (self.plan.hosts.least.is_some() && !are_hopeless) {
            return;
        }
        self.refused = Some(Refused {
            what: format!("cannot start agents on {}", fold(&names)),
            source: io::Error::other(words),
            hint: Some("--srun-args adds options for srun; \"srun -N1 hostname\" must work here".to_owned()),
            code: ExitCode::NODE_LOST,
        });
        self.dismiss_nodes();
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
