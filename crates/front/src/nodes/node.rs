//! The front's devices for one node: the stream to its agent, and the processes by which it is held, called and asked. What they find out
//! is for the job ([`rankrun_core::job`]), which decides.

use std::io;
use std::time::Duration;

use rankrun_agent::tidy::Known;
use rankrun_agent::{GuardState, Keeper, LastKnown, Launched, Proof, Watch};
use rankrun_core::job::{CleanShm, Node};
use rankrun_core::lease::Lapse;
use rankrun_core::reach::why;
use rankrun_core::{Attempt, NodeId};
use rankrun_sys::poll::Poller;
use rankrun_sys::process::ProcessRef;
use rankrun_wire::{Memory, Place, ToAgent};

use crate::link::{Link, LinkError};
use crate::nodes::asker::Asker;
use crate::nodes::prover::Prover;
use crate::nodes::ssh::Ssh;

/// What holds a node: a process of ours that ends when nothing of the job is left there.
#[derive(Debug)]
pub(crate) enum Hold {
    /// This machine: the guard.
    Here(Box<Keeper>),
    /// Another one: ssh, which ends with the code of the relay; or nothing, where the node has come by itself.
    There(Box<Remote>),
}

/// The processes for another machine.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    /// The present try to reach it, if one is under way or has succeeded.
    pub(crate) ssh: Option<Ssh>,
    /// The connection is silent: another one asks whether the agent runs.
    pub(crate) asker: Asker,
    /// The connection was lost: another one asks what is left there.
    pub(crate) prover: Option<Prover>,
    /// The guard of a node that had joined has ended: why it has ended the agent, if it has.
    pub(crate) ended: Option<Option<Lapse>>,
}

/// The devices for a node.
#[derive(Debug)]
pub(crate) struct NodeHandle {
    pub(crate) id: NodeId,
    pub(crate) hold: Hold,
    pub(crate) link: Option<Link>,
    /// The link was left, and the other side may not have what was sent last: see [`crate::ledger`].
    left: Option<Link>,
    /// Where the ledger says that it stands.
    pub(crate) entered: Option<Place>,
}

impl NodeHandle {
    /// This machine, whose guard has just been started. Its stream is watched under `token`.
    pub(crate) fn here(id: NodeId, launched: Launched, poller: &Poller, token: u64) -> io::Result<NodeHandle> {
        let stream = launched.stream.try_clone()?;
        let link = Link::new(&poller.registry(), token, stream, launched.session)?;
        let hold = Hold::Here(Box::new(Keeper::new(launched)));
        Ok(NodeHandle { id, hold, link: Some(link), left: None, entered: None })
    }

    /// Another machine, which is still to be reached.
    pub(crate) fn there(id: NodeId) -> NodeHandle {
        NodeHandle { id, hold: Hold::There(Box::default()), link: None, left: None, entered: None }
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

    /// Whether there is a connection to its agent.
    pub(crate) fn is_connected(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_connected)
    }

    /// The processes of this node that are the front's own, and not the job's.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        let remote = self.remote();
        let ssh = remote.and_then(|it| it.ssh.as_ref()).and_then(Ssh::pid);
        let prover = remote.and_then(|it| it.prover.as_ref()).and_then(Prover::pid);
        ssh.into_iter().chain(prover).chain(remote.into_iter().flat_map(|it| it.asker.pids()))
    }

    /// The agent has told who it is.
    pub(crate) fn know_agent(&mut self, pid: i32) {
        if let Hold::Here(keeper) = &mut self.hold {
            keeper.agent = ProcessRef::open(pid);
        }
    }

    /// Ends the connection. Here the agent is killed; elsewhere it ends by that.
    pub(crate) fn give_up(&mut self) {
        self.kill_agent();
        self.link = None;
    }

    /// Nothing more is for the agent.
    pub(crate) fn end(&mut self) {
        // It ends as well when the stream is closed.
        let _ = self.send(&ToAgent::End);
        if let Some(link) = self.link.take().filter(Link::is_lasting) {
            self.leave(link);
        }
    }

    /// Nothing more is wanted from the agent. It is to have what was sent to it.
    pub(crate) fn leave(&mut self, mut link: Link) {
        link.finish();
        self.left = Some(link);
    }

    /// Whether only what was sent last is of interest.
    pub(crate) fn has_left(&self) -> bool {
        self.left.as_ref().is_some_and(Link::is_connected)
    }

    /// Whether there is a stream, connected or not.
    pub(crate) fn is_linked(&self) -> bool {
        self.link.is_some() || self.left.is_some()
    }

    pub(crate) fn stream(&self) -> Option<&Link> {
        self.link.as_ref().or(self.left.as_ref())
    }

    pub(crate) fn stream_mut(&mut self) -> Option<&mut Link> {
        self.link.as_mut().or(self.left.as_mut())
    }

    /// The other side has what was sent last, or is gone.
    pub(crate) fn forget_left(&mut self) {
        self.left = None;
    }

    /// The connection is gone.
    pub(crate) fn disconnect(&mut self) {
        self.link = None;
        self.stop_asking();
    }

    /// No answer over a fresh connection is wanted any more.
    pub(crate) fn stop_asking(&mut self) {
        if let Some(remote) = self.remote_mut() {
            remote.asker.stop();
        }
    }

    /// What watches the guard of this machine.
    pub(crate) fn watch(&mut self) -> Option<&mut Watch> {
        self.keeper_mut().map(|keeper| &mut keeper.watch)
    }

    /// Kills the agent: elsewhere it is the ssh that is ended.
    pub(crate) fn kill_agent(&self) {
        match &self.hold {
            Hold::Here(keeper) => keeper.kill_agent(),
            Hold::There(remote) => remote.kill(),
        }
    }

    pub(crate) fn kill_guard(&self) {
        match &self.hold {
            Hold::Here(keeper) => keeper.kill_guard(),
            Hold::There(remote) => remote.kill(),
        }
    }

    /// Whether the process whose exit code is the proof has not ended.
    pub(crate) fn is_held(&self) -> bool {
        match &self.hold {
            Hold::Here(keeper) => keeper.state == GuardState::Alive,
            Hold::There(remote) => remote.ssh.as_ref().is_some_and(|ssh| ssh.code.is_none()),
        }
    }

    /// Why the agent is lost, if known.
    pub(crate) fn why_lost(&self) -> Option<String> {
        match &self.hold {
            Hold::Here(keeper) => keeper.why_lost().map(str::to_owned),
            Hold::There(remote) => match (remote.ended, &remote.ssh) {
                (Some(lapse), _) => Some(why::agent_lost(lapse).to_owned()),
                (None, Some(ssh)) => why::stream_ended(ssh.farewell(), ssh.code, &ssh.last_words(), ssh.is_relay),
                (None, None) => None,
            },
        }
    }

    /// At the end: whether nothing is left on the node, and what others than its agent have found in /dev/shm there. Elsewhere nobody can
    /// do the guard's work.
    pub(crate) fn prove(&self, node: &Node, attempt: Attempt, clean_shm: CleanShm, known: &Known<'_>) -> Proof {
        match &self.hold {
            Hold::Here(keeper) => {
                let has_released = node.summary().is_some_and(|summary| summary.released > 0);
                keeper.prove(
                    LastKnown { is_done: node.is_drained(), has_released, begun: Some((attempt, clean_shm)) },
                    known,
                )
            }
            Hold::There(remote) => {
                let by_relay = remote.ssh.as_ref().filter(|ssh| ssh.has_greeted).map(Ssh::memory);
                let memory: Option<Memory> = by_relay.unwrap_or_else(|| node.route().memory_of_member());
                Proof { is_empty: node.route().is_proved() || node.is_fenced(), memory }
            }
        }
    }

    /// Sends a message, if the agent is connected.
    pub(crate) fn send(&mut self, message: &ToAgent) -> Result<(), LinkError> {
        self.link.as_mut().map_or(Ok(()), |link| link.send(message))
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
    fn kill(&self) {
        if let Some(ssh) = &self.ssh {
            ssh.kill();
        }
    }
}
