//! Clients of the store whose sockets are at the agents of other nodes. They are served as others are: in turns, and no further than they
//! read.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use rankrun_core::relay::Parcel;
use rankrun_core::{Attempt, NodeId};
use rankrun_wire::ToFront;
use rankrun_wireup::tcpstore::{ConnId, Effect, MAX_UNREAD, News, Server, Trunk};

/// The clients, and what connects them.
#[derive(Default)]
pub(super) struct Far {
    trunks: HashMap<NodeId, Trunk>,
    places: HashMap<ConnId, Place>,
    /// The same by place.
    conns: HashMap<(NodeId, u32), ConnId>,
    /// Whose requests wait for their turn alone.
    due: BTreeSet<ConnId>,
}

#[derive(Clone, Copy)]
struct Place {
    node: NodeId,
    conn: u32,
    /// Bytes that it has sent and that are not served.
    unserved: usize,
    /// It is gone. What it has sent is still served.
    is_ended: bool,
}

impl Far {
    /// A parcel of a node. `next` is the name of the next client.
    pub(super) fn take(&mut self, node: NodeId, parcel: Parcel, server: &mut Server, next: &mut u32) -> Vec<Effect> {
        let (mut news, mut effects) = (Vec::new(), Vec::new());
        self.trunks.entry(node).or_default().take(parcel, &mut news);
        for news in news {
            match news {
                News::Opened(conn) => {
                    let id = ConnId(*next);
                    *next = next.wrapping_add(1);
                    self.places.insert(id, Place { node, conn, unserved: 0, is_ended: false });
                    self.conns.insert((node, conn), id);
                    server.opened(id);
                }
                News::Bytes(conn, bytes) => {
                    if let Some(id) = self.conns.get(&(node, conn)).copied() {
                        if let Some(place) = self.places.get_mut(&id) {
                            place.unserved += bytes.len();
                        }
                        server.received(id, &bytes, self.unread(id), &mut effects);
                        self.perform(&mut effects);
                        self.was_served(id, server, &mut effects);
                    }
                }
                News::Read(conn) => {
                    if let Some(id) = self.conns.get(&(node, conn)).copied() {
                        self.was_served(id, server, &mut effects);
                    }
                }
                News::Closed(conn) => {
                    if let Some(id) = self.conns.get(&(node, conn)).copied() {
                        if let Some(place) = self.places.get_mut(&id) {
                            place.is_ended = true;
                        }
                        self.was_served(id, server, &mut effects);
                    }
                }
            }
        }
        effects
    }

    /// A node is lost with its clients.
    pub(super) fn lose(&mut self, node: NodeId, server: &mut Server) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.trunks.remove(&node);
        let lost = self.places.iter().filter(|(_, place)| place.node == node).map(|(id, _)| *id);
        for id in lost.collect::<Vec<_>>() {
            self.forget(id);
            server.closed(id, &mut effects);
        }
        self.perform(&mut effects);
        effects
    }

    /// Each client whose requests wait for a turn has one.
    pub(super) fn turn(&mut self, server: &mut Server) -> Vec<Effect> {
        let mut effects = Vec::new();
        for id in std::mem::take(&mut self.due) {
            server.continue_with(id, self.unread(id), &mut effects);
            self.perform(&mut effects);
            self.was_served(id, server, &mut effects);
        }
        effects
    }

    /// Whether [`Far::turn`] is due.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Sends a reply. Returns the bytes if the client is none of ours.
    pub(super) fn send(&mut self, id: ConnId, bytes: Bytes) -> Option<Bytes> {
        let Some(place) = self.places.get(&id) else { return Some(bytes) };
        if let Some(trunk) = self.trunks.get_mut(&place.node) {
            trunk.send(place.conn, bytes);
        }
        None
    }

    /// The server has closed it.
    pub(super) fn close(&mut self, id: ConnId) {
        if let Some(Place { node, conn, .. }) = self.forget(id)
            && let Some(trunk) = self.trunks.get_mut(&node)
        {
            trunk.close(conn);
        }
    }

    /// What is to be told to the nodes.
    pub(super) fn parcels(&mut self, attempt: Attempt, outbox: &mut Vec<ToFront>) {
        for (node, trunk) in &mut self.trunks {
            let parcels = std::iter::from_fn(|| trunk.parcel(attempt));
            outbox.extend(parcels.map(|parcel| ToFront::FromStore { to: *node, parcel }));
        }
    }

    /// Sends our clients' replies. Those of others stay, with what the server has closed.
    fn perform(&mut self, effects: &mut Vec<Effect>) {
        effects.retain(|effect| match effect {
            Effect::Send { conn, bytes } => self.send(*conn, bytes.clone()).is_some(),
            Effect::Close { .. } => true,
        });
    }

    fn unread(&self, id: ConnId) -> usize {
        let Some(place) = self.places.get(&id) else { return 0 };
        self.trunks.get(&place.node).map_or(0, |trunk| trunk.unread(place.conn))
    }

    /// A client has sent something, or was served, or has read something, or is gone.
    fn was_served(&mut self, id: ConnId, server: &mut Server, effects: &mut Vec<Effect>) {
        if server.is_behind(id) {
            if self.unread(id) <= MAX_UNREAD {
                self.due.insert(id);
            }
            return;
        }
        let Some(place) = self.places.get_mut(&id) else { return };
        if place.is_ended {
            self.forget(id);
            server.closed(id, effects);
        } else if let Some(trunk) = self.trunks.get_mut(&place.node) {
            trunk.read(place.conn, std::mem::take(&mut place.unserved));
        }
    }

    fn forget(&mut self, id: ConnId) -> Option<Place> {
        self.due.remove(&id);
        let place = self.places.remove(&id)?;
        self.conns.remove(&(place.node, place.conn));
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use rankrun_wireup::tcpstore::MAGIC;

    use super::*;

    fn set(number: usize) -> Vec<u8> {
        let field = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        [vec![1], field(&format!("{number:05}")), field("v")].concat()
    }

    #[test]
    fn what_a_client_has_sent_before_its_end_is_served_however_much_it_is() {
        let (mut server, mut far, mut next) = (Server::new(), Far::default(), 0);
        let mut trunk = Trunk::default();
        trunk.open(7);
        trunk.send(7, [&[0], &MAGIC.to_le_bytes()[..]].concat().into());
        trunk.send(7, (0..3000).flat_map(set).collect());
        trunk.close(7);
        while let Some(parcel) = trunk.parcel(Attempt(0)) {
            far.take(NodeId(1), parcel, &mut server, &mut next);
        }
        while far.is_due() {
            far.turn(&mut server);
        }
        assert_eq!(server.stored(), 3000 * 6);
        assert!(far.places.is_empty() && far.conns.is_empty(), "it is gone then");
    }
}
