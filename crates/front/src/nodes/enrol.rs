//! Where the nodes of a job connect that join by themselves: who may, and as which.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use rankrun_core::NodeRank;
use rankrun_core::lease::Lapse;
use rankrun_core::roster::{Request, Roster};
use rankrun_sys::poll::{Poller, Ready};
use rankrun_wire::Memory;
use rankrun_wire::identity::{
    AcceptError, Arrival, Claimed, Door, Listener, ListenerEvent, PeerId, PublicKey, Purpose, Tokens, Waiting,
};

use crate::link::Link;

/// Notes about connections that were turned away. A port that is open is scanned by others; nothing is said of the rest.
const MAX_NOTES: usize = 10;
/// Characters of how the job has ended: the message has a limit.
const MOST_WHY: usize = 300;

/// What has happened at the door.
#[derive(Debug)]
pub(crate) enum News {
    /// A node is here.
    Joined {
        node: NodeRank,
        host: String,
        from: IpAddr,
        link: Box<Link>,
    },
    /// A node hears nothing from us, and asks whether we live: [`Enrolment::answer`] it.
    Asks {
        node: NodeRank,
        peer: PeerId,
    },
    /// Agent and guard of a node have ended, the guard with this code, with why it has ended the agent, if it has, and with what it has found
    /// in /dev/shm.
    Ended {
        node: NodeRank,
        code: u8,
        lapse: Option<Lapse>,
        memory: Option<Memory>,
    },
    Note(String),
}

/// The listening socket, and the places of the nodes.
#[derive(Debug)]
pub(crate) struct Enrolment {
    listener: Listener,
    roster: Roster<PublicKey>,
    /// Nodes that have ended, and wait for the end of the job.
    waiting: Vec<(PeerId, Waiting)>,
    /// Why nobody may join any more.
    closed: Option<&'static str>,
    /// What was said of connections that were turned away: each text once.
    notes: BTreeSet<String>,
    /// How the job has ended, in one line.
    why: String,
    node_token: fn(NodeRank) -> u64,
}

impl Enrolment {
    /// Listens for so many nodes, this one included if it is one of them.
    pub(crate) fn open(
        door: Door,
        (nodes, front): (u32, Option<NodeRank>),
        ports: RangeInclusive<u16>,
        poller: &Poller,
        tokens: Tokens,
        node_token: fn(NodeRank) -> u64,
    ) -> io::Result<Enrolment> {
        let listener = Listener::bind(None, ports, poller.registry(), tokens, door)?;
        let roster = Roster::new(nodes, front);
        Ok(Enrolment {
            listener,
            roster,
            waiting: Vec::new(),
            closed: None,
            notes: BTreeSet::new(),
            why: String::new(),
            node_token,
        })
    }

    /// The port at which it listens.
    pub(crate) fn port(&self) -> u16 {
        self.listener.address().port()
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
        self.waiting.retain(|(waiting, _)| *waiting != id);
        match self.listener.ready(id, event)? {
            ListenerEvent::Arrived(arrival) => self.arrived(arrival),
            ListenerEvent::TurnedAway { from, error } => self.turned_away(from, &error),
        }
    }

    fn arrived(&mut self, arrival: Arrival) -> Option<News> {
        let Arrival { id, from, claimed } = arrival;
        if let (Purpose::Ended { code, lapse, memory }, Some(node)) = (&claimed.purpose, claimed.was) {
            let (code, lapse, memory) = (*code, *lapse, memory.clone());
            self.waiting.push((id, self.listener.hold(id)?));
            return self.roster.is_of(node, &claimed.key).then_some(News::Ended { node, code, lapse, memory });
        }
        if let (Purpose::Alive, Some(node)) = (&claimed.purpose, claimed.was) {
            let is_ours = self.roster.is_of(node, &claimed.key);
            if !is_ours {
                self.answer(id, false);
            }
            return is_ours.then_some(News::Asks { node, peer: id });
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
        let admitted = match self.roster.join(request) {
            Ok(admitted) => admitted,
            Err(denied) => {
                self.listener.refuse(id, &denied.to_string());
                return Some(News::Note(format!("node at {} may not join: {denied}", from.ip())));
            }
        };
        if admitted.is_back {
            // Its agent has seen the end of the stream, and has ended its workers.
            self.listener.refuse(id, "this node counts as lost since its connection was closed");
            return None;
        }
        let node = admitted.node;
        match self.listener.admit(id, node, (self.node_token)(node)) {
            Ok((transport, session)) => Some(News::Joined {
                node,
                host,
                from: from.ip(),
                link: Box::new(Link::of_transport(transport, session)),
            }),
            Err(error) => {
                // It asks again.
                self.roster.release(node);
                Some(News::Note(format!("cannot admit node {node}: {}", rankrun_sys::reason(&error))))
            }
        }
    }

    /// Answers a node that asks whether we live: it is still one of the job, or was given up.
    pub(crate) fn answer(&mut self, peer: PeerId, is_ours: bool) {
        match is_ours {
            true => self.listener.confirm(peer),
            false => self.listener.refuse(peer, "this node counts as lost since it was silent for too long"),
        }
    }

    /// A node has sent something.
    pub(crate) fn heard(&mut self, node: NodeRank) {
        self.roster.heard(node);
    }

    /// A node was lost.
    pub(crate) fn lost(&mut self, node: NodeRank) {
        self.roster.lost(node);
    }

    /// The connection of a node that was never heard has ended: its place is free.
    pub(crate) fn release(&mut self, node: NodeRank) {
        self.roster.release(node);
    }

    fn turned_away(&mut self, from: SocketAddr, error: &AcceptError) -> Option<News> {
        let text = format!("refused a connection from {}: {error}", from.ip());
        if self.notes.len() >= MAX_NOTES || !self.notes.insert(text.clone()) {
            return None;
        }
        Some(News::Note(text))
    }

    /// How the job has ended, which the nodes that wait are told.
    pub(crate) fn explain(&mut self, why: String) {
        self.why = why;
    }

    /// The job is over: tells the nodes that wait.
    pub(crate) fn dismiss(self, code: u8) {
        let why: String = self.why.chars().take(MOST_WHY).collect();
        for (_, waiting) in self.waiting {
            waiting.dismiss(self.listener.door(), code, &why);
        }
    }
}
