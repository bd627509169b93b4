//! A node's side of an enrolment, without I/O.

use std::io;

use bytes::Bytes;
use rankrun_core::NodeRank;
use ring::rand::{SecureRandom, SystemRandom};

use crate::frame::WireError;
use crate::identity::acceptor::{ReadError, read_message};
use crate::identity::certificate::{Certificate, Role};
use crate::identity::claim::{Admission, Ask, Claim, Decision, OneMessage, ProofKeys, Purpose, Verdict, encode};
use crate::identity::keys::{KeyPair, PublicKey};
use crate::identity::knock::{ANSWER_LENGTH, KnockKeys, Peer};
use crate::identity::secret::Secret;
use crate::identity::tls::{Tls, as_tls, node_config};

/// Why a node was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("it does not know this job's secret")]
    NotTheFront,
    #[error("it runs rankrun {} (protocol {}), and this is {} (protocol {})", .0.release, .0.version, Peer::ours().release, Peer::ours().version)]
    OtherVersion(Peer),
    #[error("TLS with it failed")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("it cannot prove that it is the front of this job")]
    NoProof,
    #[error("the front refused this node: {0}")]
    Refused(String),
    #[error("not admitted yet: {0}")]
    Later(String),
    #[error("cannot make a key")]
    Key(#[source] io::Error),
}

impl JoinError {
    /// Trying again cannot help.
    pub fn is_final(&self) -> bool {
        matches!(self, JoinError::OtherVersion(_) | JoinError::Refused(_) | JoinError::Key(_))
    }
}

impl From<ReadError> for JoinError {
    fn from(error: ReadError) -> JoinError {
        match error {
            ReadError::Wire(error) => error.into(),
            ReadError::Tls(error) => error.into(),
        }
    }
}

/// What a node is, for every connection that it makes.
#[derive(Clone, Debug)]
pub struct Node {
    keys: KeyPair,
    knocks: KnockKeys,
    proofs: ProofKeys,
    /// The rank to ask for.
    rank: Option<NodeRank>,
    nodes: Option<u32>,
    host: String,
    /// The front's key: known beforehand, or since the first admission (S-4).
    front: Option<PublicKey>,
    certificate: Option<Certificate>,
}

impl Node {
    /// Makes a key pair for this node. `rank: None` asks for any that is free.
    pub fn new(secret: &Secret, rank: Option<NodeRank>, host: String) -> io::Result<Node> {
        let (knocks, proofs) = (KnockKeys::new(secret), ProofKeys::new(secret));
        Ok(Node { keys: KeyPair::generate()?, knocks, proofs, rank, nodes: None, host, front: None, certificate: None })
    }

    /// The job has so many nodes: a front of another number refuses this one.
    pub fn expect_nodes(&mut self, nodes: u32) {
        self.nodes = Some(nodes);
    }

    /// The front must have this key: another owner of the secret cannot pose as the front.
    pub fn expect_front(&mut self, key: PublicKey) {
        self.front = Some(key);
    }

    /// The node was admitted: from now on it is this node of this front, and no other.
    pub fn admitted(&mut self, connector: &Connector, admission: &Admission) {
        self.front = connector.front;
        self.certificate = Some(admission.certificate.clone());
    }
}

/// A text of the front, for one line.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(1000).collect()
}

/// The front's decision about a node that it accepts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Accepted {
    Admitted(Admission),
    /// The front lives.
    Alive,
    /// The job is over, with this exit code.
    Over {
        code: u8,
        /// How it ended, in one line; empty if there is nothing to tell.
        why: String,
    },
}

#[derive(Debug)]
enum State {
    Answer { knock: Vec<u8>, answer: Vec<u8> },
    Tls { tls: Box<Tls>, context: Vec<u8> },
    Verdict { tls: Box<Tls>, binding: [u8; 32], message: OneMessage },
    Admitted { tls: Box<Tls> },
    Over,
}

/// One connection to the front, until the verdict.
#[derive(Debug)]
pub struct Connector {
    node: Node,
    purpose: Purpose,
    state: State,
    out: Vec<u8>,
    front: Option<PublicKey>,
}

impl Connector {
    /// The beginning of a connection: [`Connector::take_output`] has the knock.
    pub fn new(node: &Node, purpose: Purpose) -> Result<Connector, JoinError> {
        let mut nonce = [0; 32];
        let random = SystemRandom::new().fill(&mut nonce);
        random.map_err(|_| JoinError::Key(io::Error::other("the kernel has no random numbers")))?;
        let knock = node.knocks.knock(&Peer::ours(), nonce);
        let state = State::Answer { knock: knock.clone(), answer: Vec::new() };
        Ok(Connector { node: node.clone(), purpose, state, out: knock, front: None })
    }

    /// Whether the front has answered the knock: if it closes the connection before that, it does not know the secret.
    pub fn was_answered(&self) -> bool {
        !matches!(self.state, State::Answer { .. })
    }

    /// Whether the claim was sent: what follows is the front's decision.
    pub fn has_claimed(&self) -> bool {
        matches!(self.state, State::Verdict { .. } | State::Admitted { .. })
    }

    /// What is to be sent now.
    pub fn take_output(&mut self) -> Bytes {
        std::mem::take(&mut self.out).into()
    }

    /// Handles bytes of the front. After an error, send [`Connector::take_output`] and close the connection.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Accepted>, JoinError> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Answer { knock, mut answer } => {
                let (first, rest) = bytes.split_at(bytes.len().min(ANSWER_LENGTH - answer.len()));
                answer.extend_from_slice(first);
                if answer.len() < ANSWER_LENGTH {
                    self.state = State::Answer { knock, answer };
                    return Ok(None);
                }
                let peer = self.node.knocks.open_answer(&answer, &knock).ok_or(JoinError::NotTheFront)?;
                if peer.version != crate::VERSION {
                    return Err(JoinError::OtherVersion(peer));
                }
                // The front waits for our first message of TLS.
                if !rest.is_empty() {
                    return Err(JoinError::NotTheFront);
                }
                let tls = Box::new(Tls::of_node(node_config(&self.node.keys, self.node.front)?)?);
                self.shake(tls, [knock, answer].concat())
            }
            State::Tls { mut tls, context } => {
                tls.received(bytes);
                self.shake(tls, context)
            }
            State::Verdict { mut tls, binding, message } => {
                tls.received(bytes);
                self.verdict(tls, binding, message)
            }
            State::Admitted { mut tls } => {
                tls.received(bytes);
                self.state = State::Admitted { tls };
                Ok(None)
            }
            State::Over => Ok(None),
        }
    }

    fn shake(&mut self, mut tls: Box<Tls>, context: Vec<u8>) -> Result<Option<Accepted>, JoinError> {
        let shaken = tls.shake();
        self.out.extend_from_slice(&tls.take_output());
        if !shaken? {
            self.state = State::Tls { tls, context };
            return Ok(None);
        }
        let binding = tls.binding(&context)?;
        let proof = self.node.proofs.prove(Role::Node, &binding, self.node.keys.public());
        let ask = Ask {
            role: Role::Node,
            purpose: self.purpose.clone(),
            node: self.node.rank,
            nodes: self.node.nodes,
            host: self.node.host.clone(),
            certificate: self.node.certificate.clone(),
        };
        tls.write(&encode(&Claim { proof, ask })?).map_err(as_tls)?;
        self.out.extend_from_slice(&tls.take_output());
        self.verdict(tls, binding, OneMessage::default())
    }

    fn verdict(
        &mut self,
        mut tls: Box<Tls>,
        binding: [u8; 32],
        mut message: OneMessage,
    ) -> Result<Option<Accepted>, JoinError> {
        if !read_message(&mut tls, &mut message)? {
            self.state = State::Verdict { tls, binding, message };
            return Ok(None);
        }
        let verdict: Verdict = message.decode()?;
        let front = tls.peer().ok_or(JoinError::NoProof)?;
        if !self.node.proofs.is_good(&verdict.proof, Role::Front, &binding, front) {
            return Err(JoinError::NoProof);
        }
        let admission = match verdict.decision {
            Decision::Admitted(admission) => admission,
            Decision::Later(reason) => return Err(JoinError::Later(printable(&reason))),
            Decision::Refused(reason) => {
                return Err(JoinError::Refused(printable(&reason)));
            }
            Decision::Alive => return Ok(Some(Accepted::Alive)),
            Decision::Over { code, why } => return Ok(Some(Accepted::Over { code, why: printable(&why) })),
        };
        if admission.certificate.node(front, &admission.job, self.node.keys.public()) != Some(admission.node) {
            return Err(JoinError::NoProof);
        }
        self.front = Some(front);
        self.state = State::Admitted { tls };
        Ok(Some(Accepted::Admitted(admission)))
    }

    /// The connection of an admitted node. Bytes of the session may have arrived with the verdict: read it once.
    pub fn into_tls(self) -> Option<Tls> {
        match self.state {
            State::Admitted { tls } => Some(*tls),
            State::Answer { .. } | State::Tls { .. } | State::Verdict { .. } | State::Over => None,
        }
    }
}
