//! What node and front send each other in the TLS connection, before their session begins.

use std::num::NonZeroU64;
use std::time::Duration;

use rankrun_core::lease::Lapse;
use rankrun_core::{JobId, NodeId, NodeRank};
use ring::hmac;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::frame::WireError;
use crate::identity::certificate::{Certificate, Role};
use crate::identity::keys::PublicKey;
use crate::identity::secret::{Label, Secret};
use rankrun_core::memory::Memory;

/// The most that one of these messages may hold.
pub const MAX_ENROLMENT: usize = 4096;

/// Why a node connects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Purpose {
    /// It wants to take its place.
    Join,
    /// It has been admitted, and its connection has ended. If that is since the front was killed, its session goes on over this one, with
    /// the next front. A front that lives has lost the node by then.
    Return,
    /// It has been admitted, and hears nothing over that connection: it lives, and asks whether the front does.
    Alive,
    /// Agent and guard have ended there, the guard with this code: 0 if nothing of the job is left; why the guard has ended the agent, if it has; and what it has found in
    /// /dev/shm, if it has looked in place of the agent. The node waits for the end of the job. Its certificate says which node
    /// it is.
    Ended { code: u8, lapse: Option<Lapse>, memory: Option<Memory> },
}

/// What a node asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ask {
    pub role: Role,
    pub purpose: Purpose,
    /// `None`: any that is free.
    pub node: Option<NodeRank>,
    /// How many nodes it was started for, if it was told.
    pub nodes: Option<u32>,
    /// The node's name for messages.
    pub host: String,
    /// From the front, if this node was admitted before.
    pub certificate: Option<Certificate>,
}

/// The node's message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claim {
    pub(crate) proof: Proof,
    pub ask: Ask,
}

/// The front's message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    pub(crate) proof: Proof,
    pub decision: Decision,
}

/// What the front has decided.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Decision {
    Admitted(Admission),
    /// The reason.
    Refused(String),
    /// The node may join later: the reason why not now.
    Later(String),
    /// The front lives, and waits for the node's first connection: the answer to [`Purpose::Alive`].
    Alive,
    /// The job is over, with this exit code: the answer to [`Purpose::Ended`].
    Over {
        code: u8,
        /// How it ended, in one line; empty if there is nothing to tell.
        why: String,
    },
}

/// A node's number in the job, for the life of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Admission {
    pub job: JobId,
    pub node: NodeId,
    /// The session that begins on this connection, or goes on.
    pub session: NonZeroU64,
    /// With which it may come back.
    pub certificate: Certificate,
    /// How long front and node may be silent until they count as lost to each other.
    pub node_timeout: Duration,
    /// How long the ranks of the node go on without a front, and the session outlives its connections: another front may take the place of
    /// this one. `None`: they end with it.
    pub keep: Option<Duration>,
}

/// That the sender knows the secret, and is the other end of this very TLS connection (S-3).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Proof([u8; 32]);

/// What makes and checks proofs.
#[derive(Clone, Debug)]
pub(crate) struct ProofKeys {
    node: hmac::Key,
    front: hmac::Key,
}

impl ProofKeys {
    pub(crate) fn new(secret: &Secret) -> ProofKeys {
        ProofKeys { node: secret.key(Label::NodeProof), front: secret.key(Label::FrontProof) }
    }

    /// `binding` is the exporter value of the connection. `sender` is the key that the sender has in TLS.
    pub(crate) fn prove(&self, role: Role, binding: &[u8; 32], sender: PublicKey) -> Proof {
        let tag = hmac::sign(self.of(role), &message(binding, sender));
        Proof(tag.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    pub(crate) fn is_good(&self, proof: &Proof, role: Role, binding: &[u8; 32], sender: PublicKey) -> bool {
        hmac::verify(self.of(role), &message(binding, sender), &proof.0).is_ok()
    }

    fn of(&self, role: Role) -> &hmac::Key {
        match role {
            Role::Node => &self.node,
            Role::Front => &self.front,
        }
    }
}

fn message(binding: &[u8; 32], sender: PublicKey) -> Vec<u8> {
    [&binding[..], &sender.to_tls()].concat()
}

/// A message, with its length before it.
pub(crate) fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, WireError> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(WireError::Encode)?;
    let length = bytes.len() - 4;
    if length > MAX_ENROLMENT {
        return Err(WireError::TooLong { length });
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// Cuts one message out of a byte stream, and takes no byte that follows it.
#[derive(Debug, Default)]
pub(crate) struct OneMessage {
    bytes: Vec<u8>,
}

impl OneMessage {
    /// How many bytes are to be read next. 0: it is complete.
    pub(crate) fn wants(&self) -> Result<usize, WireError> {
        let Some(length) = self.bytes.first_chunk::<4>() else {
            return Ok(4 - self.bytes.len());
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_ENROLMENT {
            return Err(WireError::TooLong { length });
        }
        Ok(4 + length - self.bytes.len())
    }

    /// Adds bytes: at most as many as are wanted.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn decode<M: DeserializeOwned>(&self) -> Result<M, WireError> {
        let bytes = self.bytes.get(4..).unwrap_or_default();
        let (message, rest) = postcard::take_from_bytes(bytes).map_err(WireError::Decode)?;
        if rest.is_empty() { Ok(message) } else { Err(WireError::Decode(postcard::Error::DeserializeBadEncoding)) }
    }
}
