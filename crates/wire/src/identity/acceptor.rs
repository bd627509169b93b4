//! The front's side of an enrolment, without I/O.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::{JobId, NodeId, NodeRank};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::ServerConfig;

use crate::frame::WireError;
use crate::identity::certificate::{Certificate, Role};
use crate::identity::claim::{Admission, Ask, Claim, Decision, OneMessage, ProofKeys, Purpose, Verdict, encode};
use crate::identity::keys::{KeyPair, PublicKey};
use crate::identity::knock::{KNOCK_LENGTH, KnockKeys, Nonce, Peer};
use crate::identity::secret::Secret;
use crate::identity::tls::{Tls, as_tls, front_config};

/// The most that a node sends before it is admitted: the TLS handshake and one message. A stranger sends nothing of it.
const MAX_BYTES: usize = 16 * 1024;
/// Knocks that are remembered, so that none is answered twice: only those under the secret, so that no stranger can make
/// us forget one. Beyond this number the oldest is forgotten; who then repeats it still has no proof.
const KNOCKS: usize = 1 << 16;

/// Why a connection is not one of a node.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// It does not know the secret of the job. It gets no answer.
    #[error("it does not know the job's secret")]
    Stranger,
    /// A knock that was heard before: somebody repeats what a node has sent. It gets no answer.
    #[error("it repeats what a node has sent before")]
    Replay,
    #[error("it runs rankrun {} (protocol {}), and this is {} (protocol {})", .0.release, .0.version, Peer::ours().release, Peer::ours().version)]
    OtherVersion(Peer),
    #[error("TLS with it failed")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("it sends more than a node may before it is admitted")]
    TooMuch,
    #[error("it cannot prove that it knows the job's secret")]
    NoProof,
    #[error("it claims to be a front")]
    NotANode,
    #[error("its certificate is not the one of its key in this job")]
    OtherCertificate,
}

/// What the front is, for every node that connects.
#[derive(Debug)]
pub struct Door {
    job: JobId,
    node_timeout: Duration,
    keep: Option<Duration>,
    keys: KeyPair,
    knocks: KnockKeys,
    proofs: ProofKeys,
    config: Arc<ServerConfig>,
    heard: BTreeSet<Nonce>,
    order: VecDeque<Nonce>,
}

impl Door {
    /// The front of this job has these keys. Its nodes are lost when they have been silent for `node_timeout`; `keep`: their ranks go on so
    /// long without a front, since another one may take its place.
    pub fn new(
        secret: &Secret,
        job: JobId,
        keys: KeyPair,
        node_timeout: Duration,
        keep: Option<Duration>,
    ) -> io::Result<Door> {
        let config = front_config(&keys).map_err(io::Error::other)?;
        let (knocks, proofs) = (KnockKeys::new(secret), ProofKeys::new(secret));
        let (heard, order) = (BTreeSet::new(), VecDeque::new());
        Ok(Door { job, node_timeout, keep, keys, knocks, proofs, config, heard, order })
    }

    /// The key by which a node can know this front beforehand.
    pub fn key(&self) -> PublicKey {
        self.keys.public()
    }

    pub(crate) fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// Whether a knock is heard for the first time.
    fn is_new(&mut self, nonce: Nonce) -> bool {
        if !self.heard.insert(nonce) {
            return false;
        }
        self.order.push_back(nonce);
        if self.order.len() > KNOCKS
            && let Some(oldest) = self.order.pop_front()
        {
            self.heard.remove(&oldest);
        }
        true
    }
}

/// A node that has proved that it knows the secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// The rank that it asks for.
    pub node: Option<NodeRank>,
    /// How many nodes it was started for, if it says.
    pub nodes: Option<u32>,
    pub host: String,
    /// Its key in TLS.
    pub key: PublicKey,
    /// It was admitted before, as this node.
    pub was: Option<NodeId>,
    pub purpose: Purpose,
}

#[derive(Debug)]
enum State {
    Knock(Vec<u8>),
    Tls { tls: Box<Tls>, context: Vec<u8> },
    Claim { tls: Box<Tls>, binding: [u8; 32], message: OneMessage },
    Claimed { tls: Box<Tls>, binding: [u8; 32], key: PublicKey },
    Over,
}

/// One connection to the front, until the verdict.
#[derive(Debug)]
pub struct Acceptor {
    state: State,
    received: usize,
    out: Vec<u8>,
}

impl Default for Acceptor {
    fn default() -> Acceptor {
        Acceptor { state: State::Knock(Vec::new()), received: 0, out: Vec::new() }
    }
}

impl Acceptor {
    /// The peer has shown that it knows the secret, or repeats one who did, and its enrolment goes on: it is no stranger any more (S-2).
    pub fn has_knocked(&self) -> bool {
        match self.state {
            State::Knock(_) | State::Over => false,
            State::Tls { .. } | State::Claim { .. } | State::Claimed { .. } => true,
        }
    }

    /// Handles bytes of the peer. After an error, send [`Acceptor::take_output`] and close the connection.
    pub fn receive(&mut self, door: &mut Door, bytes: &[u8]) -> Result<Option<Claimed>, AcceptError> {
        let before = std::mem::replace(&mut self.state, State::Over);
        let (state, claimed) = self.step(door, before, bytes)?;
        self.state = state;
        Ok(claimed)
    }

    fn step(&mut self, door: &mut Door, state: State, bytes: &[u8]) -> Result<(State, Option<Claimed>), AcceptError> {
        self.received += bytes.len();
        if self.received > MAX_BYTES {
            return Err(AcceptError::TooMuch);
        }
        match state {
            State::Knock(mut knock) => {
                knock.extend_from_slice(bytes);
                if knock.len() < KNOCK_LENGTH {
                    return Ok((State::Knock(knock), None));
                }
                // After the knock a node sends nothing until it has the answer.
                if knock.len() > KNOCK_LENGTH {
                    return Err(AcceptError::Stranger);
                }
                self.answer(door, knock).map(|state| (state, None))
            }
            State::Tls { mut tls, context } => {
                tls.received(bytes);
                let shaken = tls.shake();
                self.out.extend_from_slice(&tls.take_output());
                if !shaken? {
                    return Ok((State::Tls { tls, context }, None));
                }
                let binding = tls.binding(&context)?;
                self.claim(door, tls, binding, OneMessage::default())
            }
            State::Claim { mut tls, binding, message } => {
                tls.received(bytes);
                self.claim(door, tls, binding, message)
            }
            // Nothing is sent before the verdict.
            State::Claimed { .. } | State::Over => Err(AcceptError::TooMuch),
        }
    }

    fn answer(&mut self, door: &mut Door, knock: Vec<u8>) -> Result<State, AcceptError> {
        let (peer, nonce) = door.knocks.open_knock(&knock).ok_or(AcceptError::Stranger)?;
        if !door.is_new(nonce) {
            return Err(AcceptError::Replay);
        }
        let answer = door.knocks.answer(&Peer::ours(), &knock);
        self.out.extend_from_slice(&answer);
        if peer.version != crate::VERSION {
            return Err(AcceptError::OtherVersion(peer));
        }
        Ok(State::Tls { tls: Box::new(Tls::of_front(&door.config)?), context: [knock, answer].concat() })
    }

    fn claim(
        &mut self,
        door: &Door,
        mut tls: Box<Tls>,
        binding: [u8; 32],
        mut message: OneMessage,
    ) -> Result<(State, Option<Claimed>), AcceptError> {
        if !read_message(&mut tls, &mut message)? {
            return Ok((State::Claim { tls, binding, message }, None));
        }
        let claim: Claim = message.decode()?;
        let key = tls.peer().ok_or(AcceptError::NoProof)?;
        if !door.proofs.is_good(&claim.proof, Role::Node, &binding, key) {
            return Err(AcceptError::NoProof);
        }
        self.state = State::Claimed { tls, binding, key };
        let ask = claim.ask;
        if ask.role != Role::Node {
            self.refuse(door, "it claims to be a front");
            return Err(AcceptError::NotANode);
        }
        if ask.certificate.is_none() && ask.purpose != Purpose::Join {
            self.refuse(door, "it has no certificate");
            return Err(AcceptError::OtherCertificate);
        }
        let was = ask.certificate.as_ref().map(|certificate| certificate.node(door.key(), &door.job, key));
        if was == Some(None) {
            self.refuse(door, "its certificate is not the one of its key in this job");
            return Err(AcceptError::OtherCertificate);
        }
        let host = ask.host.chars().filter(|letter| !letter.is_control()).take(255).collect();
        let Ask { node, nodes, purpose, .. } = ask;
        let claimed = Claimed { node, nodes, host, key, was: was.flatten(), purpose };
        Ok((std::mem::replace(&mut self.state, State::Over), Some(claimed)))
    }

    /// What is to be sent now.
    pub fn take_output(&mut self) -> Bytes {
        std::mem::take(&mut self.out).into()
    }

    /// Admits the node. Send [`Acceptor::take_output`] before anything of the connection.
    pub fn admit(&mut self, door: &Door, node: NodeId, session: NonZeroU64) -> Result<Tls, AcceptError> {
        let State::Claimed { mut tls, binding, key } = std::mem::replace(&mut self.state, State::Over) else {
            return Err(AcceptError::NoProof);
        };
        let certificate = Certificate::sign(&door.keys, door.job.clone(), Role::Node, node, key);
        let Door { job, node_timeout, keep, .. } = door;
        let (job, node_timeout, keep) = (job.clone(), *node_timeout, *keep);
        let admission = Admission { job, node, session, certificate, node_timeout, keep };
        self.send_verdict(door, &mut tls, &binding, Decision::Admitted(admission))?;
        Ok(*tls)
    }

    /// Refuses the node. Send [`Acceptor::take_output`], and close the connection.
    pub fn refuse(&mut self, door: &Door, reason: &str) {
        if let State::Claimed { mut tls, binding, .. } = std::mem::replace(&mut self.state, State::Over) {
            // If it cannot be encrypted the node gets no reason, and sees the end of the connection.
            let _ = self.send_verdict(door, &mut tls, &binding, Decision::Refused(reason.to_owned()));
        }
    }

    /// The node may ask again later. Send [`Acceptor::take_output`], and close the connection.
    pub fn put_off(&mut self, door: &Door, reason: &str) {
        if let State::Claimed { mut tls, binding, .. } = std::mem::replace(&mut self.state, State::Over) {
            // As above.
            let _ = self.send_verdict(door, &mut tls, &binding, Decision::Later(reason.to_owned()));
        }
    }

    /// The node has asked whether the front lives. Send [`Acceptor::take_output`], and close the connection.
    pub fn confirm(&mut self, door: &Door) {
        if let State::Claimed { mut tls, binding, .. } = std::mem::replace(&mut self.state, State::Over) {
            // As above.
            let _ = self.send_verdict(door, &mut tls, &binding, Decision::Alive);
        }
    }

    /// The job is over, with this exit code, and for this reason, which may be empty. Send [`Acceptor::take_output`], and close the connection.
    pub fn dismiss(&mut self, door: &Door, code: u8, why: &str) {
        if let State::Claimed { mut tls, binding, .. } = std::mem::replace(&mut self.state, State::Over) {
            // As above.
            let _ = self.send_verdict(door, &mut tls, &binding, Decision::Over { code, why: why.to_owned() });
        }
    }

    fn send_verdict(
        &mut self,
        door: &Door,
        tls: &mut Tls,
        binding: &[u8; 32],
        decision: Decision,
    ) -> Result<(), AcceptError> {
        let proof = door.proofs.prove(Role::Front, binding, door.key());
        tls.write(&encode(&Verdict { proof, decision })?).map_err(as_tls)?;
        self.out.extend_from_slice(&tls.take_output());
        Ok(())
    }
}

/// Reads what has arrived of a message. Returns whether it is complete.
pub(crate) fn read_message(tls: &mut Tls, message: &mut OneMessage) -> Result<bool, ReadError> {
    let mut room = [0; 512];
    loop {
        let wanted = message.wants()?;
        if wanted == 0 {
            return Ok(true);
        }
        let count = tls.read(&mut room[..wanted.min(512)]).map_err(as_tls)?;
        if count == 0 {
            return Ok(false);
        }
        message.add(&room[..count]);
    }
}

/// Why a message of the enrolment cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

impl From<ReadError> for AcceptError {
    fn from(error: ReadError) -> AcceptError {
        match error {
            ReadError::Wire(error) => error.into(),
            ReadError::Tls(error) => error.into(),
        }
    }
}

/// A random number for a session.
pub fn random_session() -> io::Result<NonZeroU64> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("the kernel has no random numbers"))?;
    Ok(NonZeroU64::new(u64::from_ne_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
}
