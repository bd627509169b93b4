//! An enrolment whose bytes are changed on the way, by somebody without the secret: `cargo +nightly fuzz run enrolment`.
//!
//! Each step is a byte: it picks the direction and what happens to the next piece, for which more bytes follow. Beside the absence
//! of panics it is asserted that a changed knock or answer admits nobody, that what is claimed and admitted is what was sent, that a
//! stranger gets no byte (S-1), and that every message of the enrolment which can be read is read as the same when it is sent on.

#![no_main]

use std::num::NonZeroU64;

use libfuzzer_sys::fuzz_target;
use rankrun_core::{JobId, NodeId, NodeRank};
use rankrun_wire::identity::{
    Accepted, Acceptor, Certificate, Claim, Connector, Door, KNOCK_LENGTH, KeyPair, Node, Purpose, Secret, Verdict,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn decodes_the_same<M: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(message) = postcard::from_bytes::<M>(bytes) {
        let sent = postcard::to_stdvec(&message).expect("it was read");
        let again: M = postcard::from_bytes(&sent).expect("our own encoding");
        assert_eq!(postcard::to_stdvec(&again).expect("it was read"), sent);
    }
}

/// One direction of the wire.
#[derive(Default)]
struct Way {
    /// Its first piece has passed: knock or answer. The rest is TLS, which ignores some changes, such as those of a
    /// ChangeCipherSpec (RFC 8446, appendix D.4).
    has_begun: bool,
    /// It came otherwise than it was sent.
    is_changed: bool,
}

impl Way {
    /// What arrives of `sent`.
    fn pass(&mut self, sent: &[u8], steps: &mut impl Iterator<Item = u8>) -> Vec<u8> {
        let mut bytes = sent.to_vec();
        let step = steps.next().unwrap_or(0);
        let mut argument = || usize::from(steps.next().unwrap_or(0)) << 8 | usize::from(steps.next().unwrap_or(0));
        match step & 7 {
            1 if !bytes.is_empty() => {
                let at = argument() % bytes.len();
                bytes[at] ^= 1 << (step >> 5);
            }
            2 => {
                let length = argument().min(2000);
                bytes.extend((0..length).map(|at| step.wrapping_mul(at as u8)));
            }
            3 if !bytes.is_empty() => bytes.truncate(argument() % bytes.len()),
            4 if !bytes.is_empty() => drop(bytes.drain(..argument() % bytes.len())),
            _ => {}
        }
        self.is_changed |= !self.has_begun && bytes != sent;
        self.has_begun |= !sent.is_empty();
        bytes
    }
}

fuzz_target!(|data: &[u8]| {
    decodes_the_same::<Claim>(data);
    decodes_the_same::<Verdict>(data);
    decodes_the_same::<Certificate>(data);
    if let Some(secret) = Secret::parse(data) {
        assert!(Secret::parse(secret.to_text().as_bytes()).is_some());
    }

    // A stranger: it has no secret, so that no 108 bytes of it are a knock.
    let secret = Secret::generate().expect("random numbers");
    let keys = KeyPair::generate().expect("a key");
    let timeout = std::time::Duration::from_secs(60);
    let mut door = Door::new(&secret, JobId("0badcafe".to_owned()), keys, timeout, None).expect("a door");
    let mut stranger = Acceptor::default();
    for piece in data.chunks(37) {
        let step = stranger.receive(&mut door, piece);
        assert!(stranger.take_output().is_empty(), "a byte for a stranger");
        if step.is_err() {
            break;
        }
    }
    assert!(!stranger.has_knocked() && KNOCK_LENGTH == 108);

    // A node and the front, and somebody who changes what they send.
    let node = Node::new(&secret, Some(NodeRank(1)), "node".to_owned()).expect("a key");
    let (mut connector, mut acceptor) =
        (Connector::new(&node, Purpose::Join).expect("random numbers"), Acceptor::default());
    let mut steps = data.iter().copied();
    let (mut up, mut down) = (Way::default(), Way::default());
    for _ in 0..8 {
        let arrived = up.pass(&connector.take_output(), &mut steps);
        let claimed = if arrived.is_empty() { Ok(None) } else { acceptor.receive(&mut door, &arrived) };
        match claimed {
            Err(_) => return,
            Ok(Some(claimed)) => {
                assert!(!up.is_changed && !down.is_changed);
                assert!(claimed.node == Some(NodeRank(1)) && claimed.host == "node" && claimed.was.is_none());
                acceptor.admit(&door, NodeId(1), NonZeroU64::MIN).expect("it has just claimed");
            }
            Ok(None) => {}
        }
        let arrived = down.pass(&acceptor.take_output(), &mut steps);
        match connector.receive(&arrived) {
            Err(_) => return,
            Ok(Some(accepted)) => {
                let Accepted::Admitted(admission) = accepted else { panic!("the job is not over") };
                assert!(!up.is_changed && !down.is_changed && admission.node == NodeId(1));
                return;
            }
            Ok(None) => {}
        }
    }
});
