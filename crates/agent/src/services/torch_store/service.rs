//! What serves the clients of this node: the store itself, or the way to the node that has it.

use std::collections::HashMap;

use bytes::Bytes;
use rankrun_core::relay::Parcel;
use rankrun_core::{Attempt, NodeId};
use rankrun_wire::ToFront;
use rankrun_wireup::tcpstore::{ConnId, Effect, MAGIC, News, Server, Trunk, Violation};

use super::far::Far;

/// What a client sends first.
const GREETING: [u8; 5] = {
    let magic = MAGIC.to_le_bytes();
    [0, magic[0], magic[1], magic[2], magic[3]]
};

/// Exists for one attempt.
pub(super) enum Service {
    /// The store is here.
    Own(Box<Own>),
    /// It is on another node.
    Relay(Relay),
}

/// The store, and its clients on other nodes.
#[derive(Default)]
pub(super) struct Own {
    server: Server,
    far: Far,
}

/// The way to the store.
#[derive(Default)]
pub(super) struct Relay {
    trunk: Trunk,
    /// What clients have sent that have not sent all of the magic number. Nothing of them is relayed.
    greetings: HashMap<ConnId, Vec<u8>>,
    /// The node with the store is lost, and the ranks run on.
    is_gone: bool,
}

impl Default for Service {
    fn default() -> Service {
        Service::Own(Box::default())
    }
}

impl Service {
    pub(super) fn relay() -> Service {
        Service::Relay(Relay::default())
    }

    /// Whether clients may connect.
    pub(super) fn is_there(&self) -> bool {
        match self {
            Service::Own(_) => true,
            Service::Relay(relay) => !relay.is_gone,
        }
    }

    /// A client has connected.
    pub(super) fn opened(&mut self, id: ConnId) {
        match self {
            Service::Own(own) => own.server.opened(id),
            Service::Relay(relay) => drop(relay.greetings.insert(id, Vec::with_capacity(GREETING.len()))),
        }
    }

    /// A client has sent something. Returns whether it has sent the magic number.
    pub(super) fn received(&mut self, id: ConnId, bytes: &[u8], effects: &mut Vec<Effect>) -> bool {
        match self {
            Service::Own(own) => {
                own.server.received(id, bytes, 0, effects);
                own.server.is_valid(id)
            }
            Service::Relay(relay) => match relay.received(id, bytes) {
                Ok(is_valid) => is_valid,
                Err(violation) => {
                    effects.push(Effect::Close { conn: id, violation });
                    false
                }
            },
        }
    }

    /// Whether requests of a client wait for their turn.
    pub(super) fn is_behind(&self, id: ConnId) -> bool {
        match self {
            Service::Own(own) => own.server.is_behind(id),
            Service::Relay(_) => false,
        }
    }

    /// Serves requests of a client that wait for their turn.
    pub(super) fn continue_with(&mut self, id: ConnId, effects: &mut Vec<Effect>) {
        match self {
            Service::Own(own) => own.server.continue_with(id, 0, effects),
            Service::Relay(_) => {}
        }
    }

    /// Whether more of a client can be taken.
    pub(super) fn has_room(&self, id: ConnId) -> bool {
        match self {
            Service::Own(_) => true,
            Service::Relay(relay) => relay.trunk.room(id.0) > 0,
        }
    }

    /// A client was given so many bytes.
    pub(super) fn wrote(&mut self, id: ConnId, count: usize) {
        match self {
            Service::Own(_) => {}
            Service::Relay(relay) => relay.trunk.read(id.0, count),
        }
    }

    /// A client is gone, and so many bytes for it.
    pub(super) fn closed(&mut self, id: ConnId, unwritten: usize, effects: &mut Vec<Effect>) {
        match self {
            Service::Own(own) => own.server.closed(id, effects),
            Service::Relay(relay) => {
                relay.greetings.remove(&id);
                // Nobody will read it.
                relay.trunk.read(id.0, unwritten);
                relay.trunk.close(id.0);
            }
        }
    }

    /// Passes a reply on to a client of another node. Returns the bytes if it is one of this node.
    pub(super) fn send_far(&mut self, id: ConnId, bytes: Bytes) -> Option<Bytes> {
        match self {
            Service::Own(own) => own.far.send(id, bytes),
            Service::Relay(_) => Some(bytes),
        }
    }

    /// The store has closed a client, maybe of another node.
    pub(super) fn close_far(&mut self, id: ConnId) {
        match self {
            Service::Own(own) => own.far.close(id),
            Service::Relay(_) => {}
        }
    }

    /// A parcel from a node whose clients have their store here. `next` is the name of the next client.
    pub(super) fn parcel_of_node(&mut self, node: NodeId, parcel: Parcel, next: &mut u32) -> Vec<Effect> {
        match self {
            Service::Own(own) => own.far.take(node, parcel, &mut own.server, next),
            Service::Relay(_) => Vec::new(),
        }
    }

    /// A parcel from the node that has the store.
    pub(super) fn parcel_of_store(&mut self, parcel: Parcel) -> Vec<News> {
        let mut news = Vec::new();
        match self {
            Service::Own(_) => {}
            Service::Relay(relay) => relay.trunk.take(parcel, &mut news),
        }
        news
    }

    /// A node is lost, and the ranks of the others run on.
    pub(super) fn without(&mut self, node: NodeId, had_store: bool) -> Vec<Effect> {
        match self {
            Service::Own(own) => own.far.lose(node, &mut own.server),
            Service::Relay(relay) => {
                relay.is_gone |= had_store;
                Vec::new()
            }
        }
    }

    /// What is to be told to other nodes.
    pub(super) fn parcels(&mut self, attempt: Attempt, outbox: &mut Vec<ToFront>) {
        match self {
            Service::Own(own) => own.far.parcels(attempt, outbox),
            Service::Relay(relay) => {
                outbox.extend(std::iter::from_fn(|| relay.trunk.parcel(attempt)).map(ToFront::ToStore));
            }
        }
    }

    /// Whether [`Service::turn`] is due.
    pub(super) fn is_due(&self) -> bool {
        match self {
            Service::Own(own) => !own.server.is_tidy() || own.far.is_due(),
            Service::Relay(_) => false,
        }
    }

    /// Serves clients of other nodes whose requests wait, and frees what is no longer needed.
    pub(super) fn turn(&mut self) -> Vec<Effect> {
        match self {
            Service::Own(own) => {
                own.server.tidy();
                own.far.turn(&mut own.server)
            }
            Service::Relay(_) => Vec::new(),
        }
    }

    /// How often the content of the store has changed, if it is here.
    pub(super) fn changes(&self) -> u64 {
        match self {
            Service::Own(own) => own.server.changes(),
            Service::Relay(_) => 0,
        }
    }

    /// The memory that the store takes, about.
    pub(super) fn held(&self) -> usize {
        match self {
            Service::Own(own) => own.server.held_in_all(),
            Service::Relay(_) => 0,
        }
    }
}

impl Relay {
    /// Relays what a client has sent, with the magic number as soon as that is whole. Returns whether it is.
    fn received(&mut self, id: ConnId, bytes: &[u8]) -> Result<bool, Violation> {
        let Some(greeting) = self.greetings.get_mut(&id) else {
            self.trunk.send(id.0, Bytes::copy_from_slice(bytes));
            return Ok(true);
        };
        greeting.extend_from_slice(bytes);
        let known = greeting.len().min(GREETING.len());
        if greeting[..known] != GREETING[..known] {
            return Err(Violation::NoMagic);
        }
        if known < GREETING.len() {
            return Ok(false);
        }
        let greeting = self.greetings.remove(&id).unwrap_or_default();
        self.trunk.open(id.0);
        self.trunk.send(id.0, greeting.into());
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_relayed_before_the_magic_number_is_whole_and_whoever_sends_something_else_is_closed() {
        let parcels = |service: &mut Service| {
            let mut outbox = Vec::new();
            service.parcels(Attempt(0), &mut outbox);
            outbox.len()
        };
        let (client, stranger) = (ConnId(1), ConnId(2));
        let mut service = Service::relay();
        let mut effects = Vec::new();
        service.opened(client);
        service.opened(stranger);
        for byte in &GREETING[..4] {
            assert!(!service.received(client, &[*byte], &mut effects));
        }
        assert!(!service.received(stranger, b"GET / HTTP/1.1", &mut effects));
        assert_eq!(effects, [Effect::Close { conn: stranger, violation: Violation::NoMagic }]);
        assert_eq!(parcels(&mut service), 0);
        assert!(service.received(client, &GREETING[4..], &mut effects));
        assert_eq!(parcels(&mut service), 1);
    }
}
