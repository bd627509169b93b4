//! What a descriptor of the front's poll set belongs to.

use rankrun_core::NodeId;
use rankrun_core::job::ClientId;
use rankrun_sys::kinds;
use rankrun_wire::identity::PeerId;

use crate::control::Ours;

/// The owner of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Signals,
    Waker,
    /// The stream to an agent.
    Node(NodeId),
    /// What a srun writes, by the number of its step.
    Srun(u32),
    /// What ssh writes to stderr for a node.
    Words(NodeId),
    /// What an ssh writes that asks a silent node for a sign of life.
    Asker(NodeId),
    /// Where nodes connect that join, and those that have connected and are not admitted.
    Door,
    Newcomer(PeerId),
    Control(Ours),
}

kinds! {
    enum Kind { Signals, Waker, Node, Srun, Words, Asker, Door, Newcomer, ControlListener, ControlClient }
}

impl Token {
    pub(crate) fn encode(self) -> u64 {
        match self {
            Token::Signals => Kind::Signals.token(0),
            Token::Waker => Kind::Waker.token(0),
            Token::Node(node) => Kind::Node.token(u64::from(node.0)),
            Token::Srun(step) => Kind::Srun.token(u64::from(step)),
            Token::Words(node) => Kind::Words.token(u64::from(node.0)),
            Token::Asker(node) => Kind::Asker.token(u64::from(node.0)),
            Token::Door => Kind::Door.token(0),
            Token::Newcomer(peer) => Kind::Newcomer.token(peer.0),
            Token::Control(Ours::Listener) => Kind::ControlListener.token(0),
            Token::Control(Ours::Client(client)) => Kind::ControlClient.token(u64::from(client.0)),
        }
    }

    /// `None`: the front has given no such token.
    pub(crate) fn decode(token: u64) -> Option<Token> {
        let (kind, number) = Kind::owner(token)?;
        Some(match kind {
            Kind::Signals => Token::Signals,
            Kind::Waker => Token::Waker,
            Kind::Node => Token::Node(NodeId(number as u32)),
            Kind::Srun => Token::Srun(number as u32),
            Kind::Words => Token::Words(NodeId(number as u32)),
            Kind::Asker => Token::Asker(NodeId(number as u32)),
            Kind::Door => Token::Door,
            Kind::Newcomer => Token::Newcomer(PeerId(number)),
            Kind::ControlListener => Token::Control(Ours::Listener),
            Kind::ControlClient => Token::Control(Ours::Client(ClientId(number as u32))),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_two_descriptors_of_a_large_job_share_a_token() {
        let mut owners = BTreeMap::new();
        let single = [Token::Signals, Token::Waker, Token::Door, Token::Control(Ours::Listener)];
        let numbers = (0..1000).chain([u32::MAX]);
        let numbered = numbers.flat_map(|number| {
            [
                Token::Node(NodeId(number)),
                Token::Srun(number),
                Token::Words(NodeId(number)),
                Token::Asker(NodeId(number)),
                Token::Newcomer(PeerId(u64::from(number))),
                Token::Control(Ours::Client(ClientId(number))),
            ]
        });
        for owner in single.into_iter().chain(numbered) {
            let token = owner.encode();
            assert_eq!(owners.insert(token, owner), None, "{owner:?} has a token of its own");
            assert_eq!(Token::decode(token), Some(owner));
        }
        assert_eq!(Token::decode(u64::MAX), None);
    }
}
