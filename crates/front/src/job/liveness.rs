//! Signs of life of other machines: those that are silent are asked over a fresh connection, suspect and then lost, as those whose
//! connection has ended.

use std::time::Duration;

use rankrun_core::contact::Step;
use rankrun_core::fence::Loss;
use rankrun_core::{NodeId, NodeRank, gang};
use rankrun_sys::poll::Ready;

use crate::job::front::Front;
use crate::job::muster::BEAT;
use crate::job::token::Token;
use crate::link::LinkError;

/// After this silence a node is suspected.
const SUSPECT: Duration = Duration::from_secs(10);

impl Front {
    /// Lets other machines know that we are alive, and finds those that are silent.
    pub(super) fn beat(&mut self, now: Duration) {
        let Some(muster) = self.muster.as_mut().filter(|it| it.beat_due <= now) else { return };
        muster.beat_due = now + BEAT;
        let timeout = self.plan.hosts.node_timeout;
        let (mut suspects, mut asked, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for node in self.nodes.iter_mut().filter(|node| node.link.is_some()) {
            let Some(asks) = node.remote().map(|remote| remote.asks(now)) else { continue };
            match node.contact.look(now, timeout, asks) {
                Step::Wait => {}
                Step::Ask => asked.push(node.id),
                Step::Lost => {
                    lost.push(node.id);
                    continue;
                }
            }
            let silence = node.contact.silence();
            if silence >= SUSPECT.min(timeout) && !std::mem::replace(&mut node.is_suspect, true) {
                suspects.push((node.name.clone(), silence));
            }
            if let Err(error) = node.beat(now) {
                // It is found at the next reading.
                drop(error);
            }
        }
        for (name, silence) in suspects {
            let rest = timeout.saturating_sub(silence).as_millis().div_ceil(1_000);
            self.note(format!(
                "node {name} has been silent for {} s; it counts as lost in {rest} s (--node-timeout)",
                silence.as_secs()
            ));
        }
        self.ask_silent(now, &asked);
        for node in lost {
            if let Some(joined) = self.nodes[node.index()].joined_mut() {
                joined.is_given_up = true;
            }
            let contact = self.nodes[node.index()].contact;
            let why = match contact.has_answered() {
                true => format!(
                    "it can be reached, and nothing has come over its connection for {} s (--node-timeout)",
                    contact.silence().as_secs()
                ),
                false => format!("no sign of life for {} s (--node-timeout)", timeout.as_secs_f64()),
            };
            self.nodes[node.index()].give_up();
            self.lose_node(node, why);
        }
    }

    /// Asks silent nodes over fresh connections. Those that join by themselves ask us.
    fn ask_silent(&mut self, now: Duration, silent: &[NodeId]) {
        let Some(muster) = &self.muster else { return };
        let mut room = muster.at_a_time();
        for node in silent {
            let handle = &mut self.nodes[node.index()];
            let (ssh, target) = (&self.plan.hosts.ssh, &self.plan.hosts.targets[node.index()]);
            let (call, timeout) = (muster.call(*node), self.plan.hosts.node_timeout);
            let Some(remote) = handle.remote_mut().filter(|remote| remote.joined.is_none()) else { continue };
            let place = (&mut self.starter, &self.poller, Token::Asker(*node).encode());
            if room == 0 {
                handle.contact.not_asked_yet();
            } else if remote.asker.ask(now, place, (ssh, target), &call, timeout).is_err() {
                handle.contact.could_not_ask(timeout);
            }
            room = room.saturating_sub(1);
        }
    }

    /// A node that was asked has answered, or ssh has written something.
    pub(crate) fn hear_asker(&mut self, node: NodeId, ready: Ready) {
        let (now, registry) = (self.now(), self.poller.registry());
        let handle = &mut self.nodes[node.index()];
        let is_answer = handle.remote_mut().is_some_and(|remote| remote.asker.hear(&registry, ready));
        if is_answer && handle.link.is_some() {
            handle.contact.answered(now, self.plan.hosts.node_timeout);
        }
    }

    /// The agent of another machine is connected, and has not reported the end of its ranks in time.
    pub(crate) fn give_up_node(&mut self, node: NodeId) {
        self.nodes[node.index()].give_up();
        self.lose_node(node, "its agent did not end the ranks in time".to_owned());
    }

    /// A node has been heard.
    pub(crate) fn heard(&mut self, node: NodeId) {
        let now = self.now();
        let handle = &mut self.nodes[node.index()];
        handle.contact.heard(now);
        handle.stop_asking();
        if std::mem::take(&mut handle.is_suspect) {
            let name = handle.name.clone();
            self.note(format!("node {name} answers again"));
        }
    }

    /// One of several nodes is lost, with its ranks.
    pub(crate) fn lose_node(&mut self, node: NodeId, why: String) {
        if self.awaits_again(node) {
            return;
        }
        self.blame_own_standstill(node);
        let now = self.now();
        let loss = self.loss(now);
        let handle = &mut self.nodes[node.index()];
        handle.link = None;
        handle.stop_asking();
        if handle.lost.is_some() {
            return;
        }
        if let Some(enrolment) = self.enrolment.as_mut().filter(|_| handle.joined_mut().is_some()) {
            enrolment.lost(NodeRank(node.0));
        }
        (handle.lost, handle.loss) = (Some(why.clone()), Some(loss));
        handle.has_ended();
        let (name, has_sent_all) = (handle.name.clone(), handle.is_drained);
        if self.is_gathering() && self.gang.stop_ordered().is_none() && self.map_left().is_some() {
            self.note(format!("node {name} was lost before the ranks were started: {why}"));
            return self.begin_without();
        }
        // The ranks of an attempt that it has sent all of have lost nothing. Whether another one can begin without it is seen then.
        if !has_sent_all {
            self.lose_ranks(node, why);
        }
        if self.is_over() {
            self.begin_drain();
        }
        if self.has_started() {
            // The others may have sent everything before.
            self.attempt_drained();
        }
    }

    /// Nodes that heard nothing for too long end their ranks, and their connections end with that: it is rankrun that stood still.
    fn blame_own_standstill(&mut self, node: NodeId) {
        let (now, patience) = (self.now(), self.patience());
        let is_silent = self.nodes[node.index()].is_suspect;
        let end = self.plan.spec.stop.grace_failure + SUSPECT;
        if let Some(time) = self.standstill.explains(now, patience, end).filter(|_| !is_silent) {
            self.event(gang::Event::StoodStill { time });
        }
    }

    /// The loss of a node now, with the bounds of its agent.
    fn loss(&self, now: Duration) -> Loss {
        let stop = &self.plan.spec.stop;
        // Where a stop has been sent before, the agent goes on with that.
        let grace = match self.gang.stop_ordered() {
            Some(_) => stop.grace_failure.max(stop.grace_outside).max(stop.grace_saving),
            None => stop.grace_failure,
        };
        Loss { at: now, patience: self.patience(), grace }
    }

    /// The ranks of a node are lost with it; those of an attempt that runs without it are not.
    pub(crate) fn lose_ranks(&mut self, node: NodeId, why: String) {
        let handle = &self.nodes[node.index()];
        let Some(place) = handle.place else { return };
        let (name, ranks) = (handle.name.clone(), handle.ranks(&self.plan.spec.map).collect());
        self.event(gang::Event::NodeLost { node: place, name, why, ranks });
    }

    /// The stream to one of several nodes has ended. Why is known once ssh has ended, or the node has told ([`Front::loss_is_known`]).
    pub(crate) fn why_lost(&self, node: NodeId, error: &LinkError) -> String {
        let known = self.nodes[node.index()].why_lost();
        let why = known.unwrap_or_else(|| match error {
            LinkError::Ended => "its connection was closed, or its agent was killed".to_owned(),
            error => error.to_string(),
        });
        self.with_srun(node, why)
    }

    /// ssh to a node has ended, or the node has told how its guard has: if its stream ended before, this is why.
    pub(crate) fn loss_is_known(&mut self, node: NodeId) {
        let handle = &self.nodes[node.index()];
        let (Some(place), Some(why)) = (handle.place, handle.why_lost()) else { return };
        let why = self.with_srun(node, why);
        let handle = &mut self.nodes[node.index()];
        // A node that was silent was given up by us, and so was its ssh.
        if handle.is_stream_lost && handle.lost.as_ref().is_some_and(|before| *before != why) {
            handle.lost = Some(why.clone());
            self.event(gang::Event::LossKnown { node: place, why });
        }
    }
}
