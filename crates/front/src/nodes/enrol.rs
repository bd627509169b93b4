//! Where the nodes of a job connect that join by themselves: who may, and as which.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::job::{Job, Node, PortRange};
use rankrun_core::lease::Lapse;
use rankrun_core::roster::{Changes, Entry, Request, Roster};
use rankrun_sys::poll::{Poller, Ready, once_free};
use rankrun_wire::identity::{
    AcceptError, Arrival, Claimed, Door, Listener, ListenerEvent, PeerId, PublicKey, Purpose, Seed, Tokens, Waiting,
    random_session,
};
use rankrun_wire::{Carrier, Memory};
use serde::{Deserialize, Serialize};

use crate::Plan;
use crate::join::settings::Join;
use crate::link::Link;
use crate::token::Token;

/// Notes about connections that were turned away. A port that is open is scanned by others; nothing is said of the rest.
const MAX_NOTES: usize = 10;
/// How long a front that was killed may hold its port.
const PORT_BOUND: Duration = Duration::from_secs(1);
/// Characters of how the job has ended: the message has a limit.
const MOST_WHY: usize = 300;
/// What a node is told that has ended, while the job goes on without it.
const WAS_LOST: &str = "the job has lost this node, and goes on without it";

/// What has happened at the door.
#[derive(Debug)]
pub(crate) enum News {
    /// A node is here.
    Joined {
        node: NodeId,
        host: String,
        from: IpAddr,
        link: Box<Link>,
    },
    /// A node hears nothing from us, and asks whether we live: [`Enrolment::answer`] it.
    Asks {
        node: NodeId,
        peer: PeerId,
    },
    /// Agent and guard of a node have ended, the guard with this code, with why it has ended the agent, if it has, and with what it has found
    /// in /dev/shm.
    Ended {
        node: NodeId,
        code: u8,
        lapse: Option<Lapse>,
        memory: Option<Memory>,
    },
    /// A node that was admitted is here again, for its session. `joins`: it may not know that it was admitted.
    Returns {
        node: NodeId,
        newcomer: Newcomer,
        joins: bool,
    },
    /// A node asks to come after one that was lost: [`Enrolment::admit`] it, or [`Enrolment::turn_down`].
    Comes {
        after: NodeId,
    },
    Note(String),
}

/// A node that is not connected yet.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(super) peer: PeerId,
    from: SocketAddr,
    key: PublicKey,
    host: String,
}

/// The listening socket, and the places of the nodes.
#[derive(Debug)]
pub(crate) struct Enrolment {
    listener: Listener,
    roster: Roster<PublicKey>,
    /// Nodes that have ended, and wait for the end of the job.
    waiting: Vec<(PeerId, NodeId, Waiting)>,
    /// Nodes that ask to come after these.
    coming: BTreeMap<NodeId, Newcomer>,
    /// Why nobody may join any more.
    closed: Option<&'static str>,
    /// What was said of connections that were turned away: each text once.
    notes: BTreeSet<String>,
    /// How the job has ended, in one line.
    why: String,
    kept: KeptDoor,
    /// Another front can go on with its sessions.
    lasts: bool,
}

/// What another front needs to be the one that the nodes know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptDoor {
    /// Of its key pair.
    pub(crate) seed: Seed,
    pub(crate) port: u16,
}

impl Enrolment {
    /// Listens for the nodes of these places. `kept`: they have known another front there, which holds the port for a moment if it was
    /// killed.
    pub(crate) fn open(
        join: &Join,
        plan: &Plan,
        roster: Roster<PublicKey>,
        poller: &Poller,
        kept: Option<KeptDoor>,
    ) -> io::Result<Enrolment> {
        let bound = kept.as_ref().map_or(Duration::ZERO, |_| PORT_BOUND);
        let (seed, port) = match kept {
            Some(KeptDoor { seed, port }) => (seed, port),
            None => (Seed::generate()?, join.front.port),
        };
        // 0 is a free choice.
        let ports = plan.spec.ports.filter(|_| port == 0).map_or(port..=port, PortRange::ports);
        let tokens = Tokens { listener: Token::Door.encode(), peer: |peer| Token::Newcomer(peer).encode() };
        let (job, lasts) = (&plan.spec.job, plan.hosts.outlasts_front);
        let listener = once_free(io::ErrorKind::AddrInUse, bound, || {
            let door = Door::new(&join.secret, job.clone(), seed.keys()?, plan.hosts.node_timeout, lasts)?;
            Listener::bind(None, ports.clone(), poller.registry(), tokens, door)
        })?;
        let kept = KeptDoor { seed, port: listener.address().port() };
        Ok(Enrolment {
            listener,
            roster,
            waiting: Vec::new(),
            coming: BTreeMap::new(),
            closed: None,
            notes: BTreeSet::new(),
            why: String::new(),
            kept,
            lasts: lasts.is_some(),
        })
    }

    /// The port at which it listens.
    pub(crate) fn port(&self) -> u16 {
        self.kept.port
    }

    /// What another front needs.
    pub(crate) fn kept(&self) -> &KeptDoor {
        &self.kept
    }

    /// For the ledger: what has changed of the places.
    pub(crate) fn changes(&mut self) -> Option<Changes<PublicKey>> {
        self.roster.changes()
    }

    /// Takes over what another front has noted of the places.
    pub(crate) fn restore(&mut self, changes: Vec<Changes<PublicKey>>) {
        changes.into_iter().for_each(|changes| self.roster.restore(changes));
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.listener.deadline()
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        self.listener.tick(now);
    }

    pub(crate) fn accept(&mut self, now: Duration) {
        self.listener.accept(now);
    }

    /// No node begins any more.
    pub(crate) fn close(&mut self, why: &'static str) {
        self.closed = Some(why);
    }

    /// A connection is ready.
    pub(crate) fn ready(&mut self, id: PeerId, event: Ready) -> Option<News> {
        // A node that waits for the end has gone.
        self.waiting.retain(|(waiting, ..)| *waiting != id);
        match self.listener.ready(id, event)? {
            ListenerEvent::Arrived(arrival) => self.arrived(arrival),
            ListenerEvent::TurnedAway { from, error } => self.turned_away(from, &error),
        }
    }

    fn arrived(&mut self, arrival: Arrival) -> Option<News> {
        let Arrival { id, from, claimed } = arrival;
        if let (Purpose::Ended { code, lapse, memory }, Some(node)) = (&claimed.purpose, claimed.was) {
            let (code, lapse, memory) = (*code, *lapse, memory.clone());
            match self.roster.may_return(node) && self.closed.is_none() {
                true => self.listener.put_off(id, WAS_LOST),
                false => self.waiting.push((id, node, self.listener.hold(id)?)),
            }
            return self.roster.is_of(node, &claimed.key).then_some(News::Ended { node, code, lapse, memory });
        }
        if let (Purpose::Alive, Some(node)) = (&claimed.purpose, claimed.was) {
            let is_ours = self.roster.is_of(node, &claimed.key);
            if !is_ours {
                self.answer(id, false);
            }
            return is_ours.then_some(News::Asks { node, peer: id });
        }
        if let (Purpose::Return, Some(node)) = (&claimed.purpose, claimed.was) {
            if !self.roster.is_of(node, &claimed.key) {
                self.turn_away(id);
                return None;
            }
            let newcomer = Newcomer { peer: id, from, key: claimed.key, host: claimed.host };
            return Some(News::Returns { node, newcomer, joins: false });
        }
        if let Some(why) = self.closed {
            self.listener.refuse(id, why);
            return None;
        }
        let host = match claimed.host.is_empty() {
            true => from.ip().to_string(),
            false => claimed.host.clone(),
        };
        let Claimed { node, nodes, key, was, .. } = claimed;
        let request = Request { node, nodes, key, was, host: host.clone() };
        match self.roster.join(request) {
            Ok(Entry::Admitted(node)) => Some(self.connect(node, Newcomer { peer: id, from, key, host })),
            Ok(Entry::Again(node)) => {
                Some(News::Returns { node, newcomer: Newcomer { peer: id, from, key, host }, joins: true })
            }
            Ok(Entry::After(after)) => {
                self.coming.insert(after, Newcomer { peer: id, from, key, host });
                Some(News::Comes { after })
            }
            Ok(Entry::Back(_)) => {
                // Its agent has seen the end of the stream, and has ended its workers.
                self.turn_away(id);
                None
            }
            Err(denied) if denied.may_pass() && self.roster.is_elastic() => {
                self.listener.put_off(id, &denied.to_string());
                self.note_once(format!("node at {} may not join yet: {denied}", from.ip()))
            }
            Err(denied) => {
                self.listener.refuse(id, &denied.to_string());
                Some(News::Note(format!("node at {} may not join: {denied}", from.ip())))
            }
        }
    }

    /// Admits a node. One whose connection is gone asks again.
    pub(crate) fn connect(&mut self, node: NodeId, newcomer: Newcomer) -> News {
        self.try_connect(node, newcomer).unwrap_or_else(|error| {
            self.roster.release(node);
            News::Note(format!("cannot admit node {node}: {}", rankrun_sys::reason(&error)))
        })
    }

    fn try_connect(&mut self, node: NodeId, newcomer: Newcomer) -> io::Result<News> {
        let Newcomer { peer, from, host, .. } = newcomer;
        let session = random_session()?;
        let link = Link::over(self.take_back(peer, node, session)?, session, &[], self.lasts)?;
        Ok(News::Joined { node, host, from: from.ip(), link: Box::new(link) })
    }

    /// The session of a node goes on over this connection.
    pub(crate) fn take_back(&mut self, peer: PeerId, node: NodeId, session: NonZeroU64) -> io::Result<Carrier> {
        self.listener.admit(peer, node, session, Token::Node(node).encode())
    }

    /// The node that is here again was lost meanwhile.
    pub(crate) fn turn_away(&mut self, peer: PeerId) {
        self.listener.refuse(peer, "this node counts as lost since its connection was closed");
    }

    /// The job admits the node that asked to come after another one, with this number.
    pub(crate) fn admit(&mut self, after: NodeId, node: NodeId) -> io::Result<News> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let Some(newcomer) = self.coming.remove(&after) else {
            self.roster.forget(after);
            return Err(gone());
        };
        let (key, host) = (newcomer.key, newcomer.host.clone());
        let joined = self.try_connect(node, newcomer);
        match &joined {
            Ok(_) => self.roster.admit(after, node, key, host),
            Err(_) => self.roster.forget(after),
        }
        joined
    }

    /// The job does not admit the node that asked to come after another one.
    pub(crate) fn turn_down(&mut self, after: NodeId) {
        if let Some(coming) = self.coming.remove(&after) {
            self.listener.refuse(coming.peer, self.closed.unwrap_or("the job takes no node in now"));
        }
        self.roster.forget(after);
    }

    /// Answers a node that asks whether we live: it is still one of the job, or was given up.
    pub(crate) fn answer(&mut self, peer: PeerId, is_ours: bool) {
        match is_ours {
            true => self.listener.confirm(peer),
            false => self.listener.refuse(peer, "this node counts as lost since it was silent for too long"),
        }
    }

    /// A node has sent something.
    pub(crate) fn heard(&mut self, node: NodeId) {
        self.roster.heard(node);
    }

    /// A node was lost.
    pub(crate) fn lost(&mut self, node: NodeId) {
        self.roster.lost(node);
        if !self.roster.may_return(node) || self.closed.is_some() {
            return;
        }
        let (lost, others) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, waiting, _)| *waiting == node);
        self.waiting = others;
        let lost: Vec<(PeerId, NodeId, Waiting)> = lost;
        lost.into_iter().for_each(|(.., waiting)| waiting.put_off(self.listener.door(), WAS_LOST));
    }

    /// The connection of a node that was never heard has ended: its place is free.
    pub(crate) fn release(&mut self, node: NodeId) {
        self.roster.release(node);
    }

    fn turned_away(&mut self, from: SocketAddr, error: &AcceptError) -> Option<News> {
        self.note_once(format!("refused a connection from {}: {error}", from.ip()))
    }

    fn note_once(&mut self, text: String) -> Option<News> {
        if self.notes.len() >= MAX_NOTES || !self.notes.insert(text.clone()) {
            return None;
        }
        Some(News::Note(text))
    }

    /// Whether a node that the job has not lost does not wait for its end.
    pub(crate) fn misses_members(&self, job: &Job) -> bool {
        let waits = |node| self.waiting.iter().any(|(_, waiting, _)| *waiting == node);
        let is_lost = |node| job.nodes().get(node).is_none_or(Node::is_lost);
        self.roster.members().any(|node| !waits(node) && !is_lost(node))
    }

    /// How the job has ended, which the nodes that wait are told.
    pub(crate) fn explain(&mut self, why: String) {
        self.why = why;
    }

    /// The job is over: tells the nodes that wait.
    pub(crate) fn dismiss(self, code: u8) {
        let why: String = self.why.chars().take(MOST_WHY).collect();
        for (.., waiting) in self.waiting {
            waiting.dismiss(self.listener.door(), code, &why);
        }
    }
}
