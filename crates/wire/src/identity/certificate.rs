//! What the front signs for a node that it has admitted.

use rankrun_core::{JobId, NodeId};
use serde::{Deserialize, Serialize};

use crate::identity::keys::{KeyPair, PublicKey};

/// A peer's part in the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    Front,
    Node,
}

/// The front's word that the owner of a key is a node of the job. The owner proves in TLS that it has the key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Certificate {
    content: Content,
    /// Of the content, with the key that the front has in TLS.
    signature: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Content {
    job: JobId,
    role: Role,
    node: NodeId,
    key: PublicKey,
}

/// No message that the key signs in TLS begins so: those begin with 64 spaces (RFC 8446, 4.4.3).
const CONTEXT: &[u8] = b"rankrun certificate 1\0";

impl Content {
    fn message(&self) -> Option<Vec<u8>> {
        postcard::to_extend(self, CONTEXT.to_vec()).ok()
    }
}

impl Certificate {
    /// Signs that the owner of `key` is this node.
    pub(crate) fn sign(front: &KeyPair, job: JobId, role: Role, node: NodeId, key: PublicKey) -> Certificate {
        let content = Content { job, role, node, key };
        // Names and numbers can always be encoded. A signature of nothing would only be refused.
        let signature = content.message().map(|message| front.sign(&message)).unwrap_or_default();
        Certificate { content, signature }
    }

    /// The node for which it stands: if the front has signed it for this job, in the role of a node, and for the key
    /// that the peer has in TLS.
    pub fn node(&self, front: PublicKey, job: &JobId, peer: PublicKey) -> Option<NodeId> {
        let Content { job: named, role, node, key } = &self.content;
        let is_signed = front.has_signed(&self.content.message()?, &self.signature);
        (is_signed && named == job && *role == Role::Node && *key == peer).then_some(*node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_good_for_its_job_its_node_and_its_key_only() {
        let [front, node, other] = [(); 3].map(|()| KeyPair::generate().expect("random numbers"));
        let job = JobId("0badcafe".to_owned());
        let certificate = Certificate::sign(&front, job.clone(), Role::Node, NodeId(3), node.public());
        assert_eq!(certificate.node(front.public(), &job, node.public()), Some(NodeId(3)));
        assert_eq!(certificate.node(front.public(), &job, other.public()), None);
        assert_eq!(certificate.node(other.public(), &job, node.public()), None);
        assert_eq!(certificate.node(front.public(), &JobId("00000000".to_owned()), node.public()), None);

        let mut forged = certificate.clone();
        forged.content.node = NodeId(2);
        assert_eq!(forged.node(front.public(), &job, node.public()), None);
        let mut forged = certificate;
        forged.signature.pop();
        assert_eq!(forged.node(front.public(), &job, node.public()), None);
        let fronts = Certificate::sign(&front, job.clone(), Role::Front, NodeId(0), node.public());
        assert_eq!(fronts.node(front.public(), &job, node.public()), None);
    }
}
