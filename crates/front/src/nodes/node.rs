//! One node: the stream to its agent, the process whose end is the proof that nothing is left there, and what is known of both.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rankrun_agent::{Act, GuardState, Keeper, LastKnown, Launched, Proof};
use rankrun_core::contact::{Asks, Contact};
use rankrun_core::fence::{Fate, Loss};
use rankrun_core::job::CleanShm;
use rankrun_core::lease::Lapse;
use rankrun_core::node_clock::NodeClock;
use rankrun_core::reach::{Step, why};
use rankrun_core::{Attempt, ExitCode, NodeId, NodeRank, Rank, RankMap};
use rankrun_sys::poll::Poller;
use rankrun_sys::process::ProcessRef;
use rankrun_wire::message::{Containment, Summary};
use rankrun_wire::{Memory, ToAgent};

use crate::link::{Link, LinkError};
use crate::nodes::asker::Asker;
use crate::nodes::hosts::NodeTarget;
use crate::nodes::prover::Prover;
use crate::nodes::ssh::Ssh;

/// What holds a node: a process of ours that ends when nothing of the job is left there.
#[derive(Debug)]
pub(crate) enum Hold {
    /// This machine: the guard.
    Here(Box<Keeper>),
    /// Another one: ssh, which ends with the code of the relay.
    There(Box<Remote>),
}

/// Another machine.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The present try, if one is under way or has succeeded.
    pub(crate) ssh: Option<Ssh>,
    /// It comes by itself, and there is no ssh.
    pub(crate) joined: Option<Joined>,
    /// The connection is silent: another one asks whether the agent runs.
    pub(crate) asker: Asker,
    /// The connection was lost: another one asks what is left there.
    pub(crate) prover: Option<Prover>,
    pub(crate) tries: u32,
    /// When the next try begins, and by when the present one must have greeted.
    pub(crate) due: Option<Duration>,
    pub(crate) greet_by: Option<Duration>,
    /// The bytes of rankrun that have not been sent to it, when that was last looked at.
    pub(crate) unsent: Option<usize>,
    /// The step that has failed, while the words of ssh about it are awaited.
    pub(crate) failed_at: Option<Step>,
    /// By when the agent must report the end.
    end_by: Option<Duration>,
    /// The addresses of the front and of the node, as sshd there names them.
    pub(crate) client: Option<IpAddr>,
    pub(crate) server: Option<IpAddr>,
}

/// A node that comes by itself.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    /// By when it must be here; `None` once it is.
    pub(crate) by: Option<Duration>,
    /// The same, whether it is here or not.
    pub(crate) due: Duration,
    /// It has been admitted: something runs there.
    pub(crate) is_admitted: bool,
    /// It has sent something since. Until then its admission may have been lost on the way, and no rank is there.
    pub(crate) was_heard: bool,
    /// With what its guard has ended.
    pub(crate) ended: Option<u8>,
    /// Why its guard has ended the agent, if it has.
    pub(crate) lapse: Option<Lapse>,
    /// What its guard has found in /dev/shm in place of the agent.
    pub(crate) memory: Option<Memory>,
    /// It was silent for too long: nothing is expected of it any more.
    pub(crate) is_given_up: bool,
}

/// The front's side of a node.
#[derive(Debug)]
pub(crate) struct NodeHandle {
    pub(crate) id: NodeId,
    /// Its place in the present attempt; `None` if that runs without it.
    pub(crate) place: Option<NodeRank>,
    pub(crate) name: String,
    pub(crate) hold: Hold,
    pub(crate) link: Option<Link>,
    pub(crate) clock: NodeClock,
    pub(crate) containment: Option<Containment>,
    /// What the agent said of its node when it was ready.
    pub(crate) about: Option<About>,
    /// The agent's summary, sent at the end.
    pub(crate) summary: Option<Summary>,
    /// What somebody else has found in /dev/shm in its place.
    pub(crate) found: Option<Memory>,
    /// All output of the node was received.
    pub(crate) is_drained: bool,
    /// Why it was lost, if it was.
    pub(crate) lost: Option<String>,
    /// It was lost since its stream ended, and not since it was silent.
    pub(crate) is_stream_lost: bool,
    /// When its connection was lost, and when its agent ends the ranks by itself.
    pub(crate) loss: Option<Loss>,
    /// What is known of its life. It is another machine if this counts.
    pub(crate) contact: Contact,
    /// The user was told that it is silent.
    pub(crate) is_suspect: bool,
    /// It was sent bytes of stdin, and has not said that they were read.
    pub(crate) owes_stdin: bool,
}

/// What a node says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct About {
    pub(crate) host: String,
    pub(crate) addresses: Vec<(String, IpAddr)>,
    /// Equal to that of another node if both are one machine.
    pub(crate) machine: String,
    /// Its own name leads to a loopback address there.
    pub(crate) is_loopback_name: bool,
}

impl NodeHandle {
    /// This machine, whose guard has just been started. Its stream is watched under `token`.
    pub(crate) fn here(
        id: NodeId,
        name: String,
        launched: Launched,
        poller: &Poller,
        token: u64,
    ) -> io::Result<NodeHandle> {
        let stream = launched.stream.try_clone()?;
        let link = Link::new(&poller.registry(), token, stream, launched.session)?;
        let hold = Hold::Here(Box::new(Keeper::new(launched)));
        Ok(NodeHandle { link: Some(link), ..NodeHandle::new(id, name, hold) })
    }

    /// Another machine, which is still to be reached.
    pub(crate) fn there(id: NodeId, target: &NodeTarget) -> NodeHandle {
        let remote = Remote {
            ssh: None,
            joined: None,
            asker: Asker::default(),
            prover: None,
            tries: 0,
            due: Some(Duration::ZERO),
            greet_by: None,
            unsent: None,
            failed_at: None,
            end_by: None,
            client: None,
            server: None,
        };
        NodeHandle::new(id, target.name.clone(), Hold::There(Box::new(remote)))
    }

    /// Another machine, which joins by itself until then.
    pub(crate) fn joins(id: NodeId, target: &NodeTarget, by: Duration) -> NodeHandle {
        let mut node = NodeHandle::there(id, target);
        if let Some(remote) = node.remote_mut() {
            (remote.due, remote.joined) = (None, Some(Joined { by: Some(by), due: by, ..Joined::default() }));
        }
        node
    }

    pub(crate) fn joined_mut(&mut self) -> Option<&mut Joined> {
        self.remote_mut().and_then(|remote| remote.joined.as_mut())
    }

    fn new(id: NodeId, name: String, hold: Hold) -> NodeHandle {
        NodeHandle {
            id,
            place: Some(NodeRank(id.0)),
            name,
            hold,
            link: None,
            clock: NodeClock::new(id),
            containment: None,
            about: None,
            summary: None,
            found: None,
            is_drained: false,
            lost: None,
            is_stream_lost: false,
            loss: None,
            contact: Contact::default(),
            is_suspect: false,
            owes_stdin: false,
        }
    }

    pub(crate) fn keeper(&self) -> Option<&Keeper> {
        match &self.hold {
            Hold::Here(keeper) => Some(keeper),
            Hold::There(_) => None,
        }
    }

    pub(crate) fn keeper_mut(&mut self) -> Option<&mut Keeper> {
        match &mut self.hold {
            Hold::Here(keeper) => Some(keeper),
            Hold::There(_) => None,
        }
    }

    pub(crate) fn remote(&self) -> Option<&Remote> {
        match &self.hold {
            Hold::There(remote) => Some(remote),
            Hold::Here(_) => None,
        }
    }

    pub(crate) fn remote_mut(&mut self) -> Option<&mut Remote> {
        match &mut self.hold {
            Hold::There(remote) => Some(remote),
            Hold::Here(_) => None,
        }
    }

    /// Whether it is connected, or on the way to it.
    pub(crate) fn is_alive(&self) -> bool {
        self.link.is_some()
            || (self.lost.is_none() && self.remote().is_some_and(|it| it.due.is_some() || it.is_coming()))
    }

    /// Whether it is to join by itself and has not.
    pub(crate) fn is_awaited(&self) -> bool {
        self.remote().and_then(|it| it.joined.as_ref()).is_some_and(|joined| joined.by.is_some())
    }

    /// Its ranks in the present attempt.
    pub(crate) fn ranks<'a>(&self, map: &'a RankMap) -> impl Iterator<Item = Rank> + use<'a> {
        self.place.into_iter().flat_map(|node| map.on_node(node)).map(|place| place.rank)
    }

    /// Another attempt begins: nothing is known of its end.
    pub(crate) fn begin_attempt(&mut self) {
        (self.summary, self.is_drained, self.owes_stdin) = (None, false, false);
    }

    /// Whether nothing more of this attempt is to come from it.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_drained || self.lost.is_some()
    }

    /// The agent has told who it is.
    pub(crate) fn know_agent(&mut self, pid: i32) {
        if let Hold::Here(keeper) = &mut self.hold {
            keeper.agent = ProcessRef::open(pid);
        }
    }

    /// The agent must report the end by then.
    pub(crate) fn expect_end(&mut self, by: Duration) {
        match &mut self.hold {
            Hold::Here(keeper) => keeper.watch.expect_end(by),
            Hold::There(remote) => remote.end_by = Some(remote.end_by.map_or(by, |end| end.min(by))),
        }
    }

    /// The agent has reported the end.
    pub(crate) fn has_ended(&mut self) {
        match &mut self.hold {
            Hold::Here(keeper) => keeper.watch.is_over(),
            Hold::There(remote) => remote.end_by = None,
        }
    }

    pub(crate) fn watch_deadline(&self) -> Option<Duration> {
        match &self.hold {
            Hold::Here(keeper) => keeper.watch.deadline(),
            Hold::There(remote) => {
                let joined = remote.joined.as_ref().and_then(|joined| joined.by);
                [remote.end_by, remote.due, remote.greet_by, joined].into_iter().flatten().min()
            }
        }
    }

    /// Decides whether guard or agent are to be given up now. `foreign` are children of the front that are not the job's.
    pub(crate) fn watch(&mut self, now: Duration, foreign: &[i32]) -> Option<Act> {
        match &mut self.hold {
            Hold::Here(keeper) => keeper.watch(now, foreign),
            // Its relay watches both; what is left to us is that it ends in time. No signal reaches an agent that is elsewhere, and one
            // that answers beats is not silent: it is given up (K-5).
            Hold::There(remote) => remote.end_by.take_if(|by| *by <= now).map(|_| Act::GiveUpAgent),
        }
    }

    /// At the end: decides whether the guard is to be given up.
    pub(crate) fn watch_guard(&mut self) -> Option<Act> {
        self.keeper_mut().and_then(Keeper::watch_guard)
    }

    /// Kills the agent: elsewhere it is the connection that is ended, and the agent ends by that.
    pub(crate) fn kill_agent(&self) {
        match &self.hold {
            Hold::Here(keeper) => keeper.kill_agent(),
            Hold::There(remote) => remote.kill(),
        }
    }

    /// Nothing more is expected from another machine: its connection is closed. Its agent ends the ranks by that.
    pub(crate) fn give_up(&mut self) {
        self.kill_agent();
        self.link = None;
    }

    pub(crate) fn kill_guard(&self) {
        match &self.hold {
            Hold::Here(keeper) => keeper.kill_guard(),
            Hold::There(remote) => remote.kill(),
        }
    }

    /// Reaps guard or ssh, if it has ended. Returns whether that was a loss: the guard was killed.
    pub(crate) fn reap(&mut self) -> bool {
        match &mut self.hold {
            Hold::Here(keeper) => keeper.reap(),
            Hold::There(remote) => {
                if let Some(ssh) = &mut remote.ssh {
                    ssh.reap(self.link.is_none());
                }
                remote.asker.reap();
                false
            }
        }
    }

    /// Whether the process whose exit code is the proof has not ended.
    pub(crate) fn is_held(&self) -> bool {
        match &self.hold {
            Hold::Here(keeper) => keeper.state == GuardState::Alive,
            Hold::There(remote) => match &remote.joined {
                Some(joined) => joined.is_admitted && joined.ended.is_none() && !joined.is_given_up,
                None => remote.ssh.as_ref().is_some_and(|ssh| ssh.code.is_none()),
            },
        }
    }

    /// Why the agent is lost, if known.
    pub(crate) fn why_lost(&self) -> Option<String> {
        match &self.hold {
            Hold::Here(keeper) => keeper.why_lost().map(str::to_owned),
            Hold::There(remote) => match (&remote.joined, &remote.ssh) {
                (Some(joined), _) => joined.ended.map(|_| why::agent_lost(joined.lapse).to_owned()),
                (None, Some(ssh)) => why::stream_ended(ssh.farewell(), ssh.code, &ssh.last_words()),
                (None, None) => None,
            },
        }
    }

    /// Whether another machine has proved that nothing is left there.
    pub(crate) fn is_proved(&self) -> bool {
        self.remote().is_none_or(Remote::is_proved)
    }

    /// What is known of the last attempt there, once nothing more of it is to come.
    pub(crate) fn fate(&self) -> Fate {
        match self.loss {
            Some(_) if self.is_drained || self.is_proved() => Fate::Gone,
            Some(_) if self.remote().is_some_and(Remote::is_known_left) => Fate::Left,
            Some(loss) => Fate::Unknown(loss),
            None => Fate::Gone,
        }
    }

    /// Whether nothing has said what is left there: ssh or the relay was killed, or cut off. Asking again may help.
    pub(crate) fn is_unheard(&self) -> bool {
        let known = [ExitCode::SUCCESS, ExitCode::LEFT_BEHIND].map(|code| Some(i32::from(code.0)));
        let ssh = self.remote().filter(|remote| remote.joined.is_none()).and_then(|remote| remote.ssh.as_ref());
        ssh.is_some_and(|ssh| ssh.has_greeted && !known.contains(&ssh.code))
    }

    /// Whether nothing is left on the node. Elsewhere nobody can do the guard's work.
    pub(crate) fn prove(&mut self, attempt: Attempt, clean_shm: CleanShm, foreign: &[i32]) -> bool {
        let Proof { is_empty, memory } = match &self.hold {
            Hold::Here(keeper) => {
                let has_released = self.summary.as_ref().is_some_and(|summary| summary.released > 0);
                let is_done = self.is_drained;
                keeper.prove(LastKnown { is_done, has_released, attempt, clean_shm }, foreign)
            }
            Hold::There(remote) => Proof { is_empty: remote.is_proved(), memory: remote.memory() },
        };
        self.found = memory;
        is_empty
    }

    /// What the job has left in /dev/shm there; `None` if nobody has looked.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let by_agent = self.summary.as_ref().and_then(|summary| summary.memory.clone());
        match (by_agent, self.found.clone()) {
            (Some(mut memory), Some(found)) => {
                memory.add(found);
                Some(memory)
            }
            (by_agent, found) => by_agent.or(found),
        }
    }

    /// Sends a message, if the agent is connected.
    pub(crate) fn send(&mut self, message: &ToAgent) -> Result<(), LinkError> {
        self.link.as_mut().map_or(Ok(()), |link| link.send(message))
    }

    /// Nothing more is to be asked over a fresh connection.
    pub(crate) fn stop_asking(&mut self) {
        if let Some(remote) = self.remote_mut() {
            remote.asker.stop();
        }
    }

    /// Asks for a sign of life, whose answer also tells how the clocks differ.
    pub(crate) fn beat(&mut self, now: Duration) -> Result<(), LinkError> {
        self.send(&ToAgent::Beat { sent: now })
    }

    /// Sends what the stream had no room for.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        self.link.as_mut().map_or(Ok(()), Link::flush)
    }
}

impl Remote {
    /// Whether it is to join by itself, or ssh runs and has not led to a relay yet.
    pub(crate) fn is_coming(&self) -> bool {
        let joins = self.joined.as_ref().is_some_and(|joined| joined.by.is_some());
        joins || self.ssh.as_ref().is_some_and(|ssh| !ssh.has_greeted && ssh.code.is_none())
    }

    /// How it is asked for a sign of life when its connection is silent.
    pub(crate) fn asks(&self, now: Duration) -> Asks {
        match &self.joined {
            Some(_) => Asks::Peer,
            None => Asks::Us { is_open: self.asker.is_open(now) },
        }
    }

    /// Whether its guard has ended with nothing left, or nothing was started there.
    fn is_proved(&self) -> bool {
        match (&self.joined, &self.ssh) {
            (Some(joined), _) => !joined.is_admitted || joined.ended == Some(ExitCode::SUCCESS.0),
            (None, Some(ssh)) => {
                let by_relay = !ssh.has_greeted || ssh.code == Some(i32::from(ExitCode::SUCCESS.0));
                by_relay || self.prover.as_ref().is_some_and(Prover::has_proved)
            }
            (None, None) => true,
        }
    }

    /// Whether guard, relay or prover have found processes that could not be killed.
    fn is_known_left(&self) -> bool {
        let left = ExitCode::LEFT_BEHIND.0;
        let by_member = self.joined.as_ref().is_some_and(|joined| joined.ended.is_some_and(|code| code != 0));
        let by_relay = self.ssh.as_ref().is_some_and(|ssh| ssh.code == Some(i32::from(left)));
        by_member || by_relay || self.prover.as_ref().is_some_and(Prover::has_found_some)
    }

    /// What guard or relay have found in /dev/shm. Where nothing was started there is nothing.
    fn memory(&self) -> Option<Memory> {
        match (&self.joined, &self.ssh) {
            (Some(joined), _) if joined.is_admitted => joined.memory.clone(),
            (None, Some(ssh)) if ssh.has_greeted => ssh.memory(),
            (Some(_), _) | (None, _) => Some(Memory::default()),
        }
    }

    fn kill(&self) {
        if let Some(ssh) = &self.ssh {
            ssh.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_agent_elsewhere_that_never_reports_its_end_is_given_up_at_the_bound() {
        let poller = Poller::new().expect("a poller");
        let target = NodeTarget { name: "node1".to_owned(), user: None, is_local: false };
        let joined = NodeHandle::joins(NodeId(1), &target, s(60));
        for mut node in [NodeHandle::there(NodeId(1), &target), joined] {
            let remote = node.remote_mut().expect("another machine");
            remote.due = None;
            if let Some(joined) = &mut remote.joined {
                (joined.by, joined.is_admitted) = (None, true);
            }
            let (stream, _peer) = rankrun_sys::socket::pair().expect("a pair of sockets");
            let link = Link::new(&poller.registry(), 1, stream, NonZeroU64::MIN).expect("a link");
            node.link = Some(link);
            node.expect_end(s(150));
            node.expect_end(s(30));
            // It goes on to answer beats.
            node.contact.heard(s(29));
            assert_eq!((node.watch_deadline(), node.watch(s(29), &[])), (Some(s(30)), None));
            assert_eq!(node.watch(s(30), &[]), Some(Act::GiveUpAgent));
            node.give_up();
            assert!(!node.is_alive(), "nothing waits for it: {node:?}");
            // One that has reported it is not.
            node.expect_end(s(40));
            node.has_ended();
            assert_eq!(node.watch(s(50), &[]), None);
        }
    }
}
