//! The first bytes of each side, before TLS: their form never changes, so that every version can refuse every other one.

use ring::hmac;

use crate::identity::secret::{Label, Secret};

/// The first bytes of a knock.
const MAGIC: [u8; 8] = *b"rankrun\x01";
/// Bytes of a release's name, padded with zeros.
const RELEASE: usize = 32;
const NONCE: usize = 32;
const TAG: usize = 32;

/// Bytes of a knock.
pub const KNOCK_LENGTH: usize = MAGIC.len() + 4 + RELEASE + NONCE + TAG;
/// Bytes of an answer.
pub(crate) const ANSWER_LENGTH: usize = 4 + RELEASE + TAG;

/// The version of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// [`crate::VERSION`] of the peer.
    pub version: u32,
    /// Its rankrun, for messages.
    pub release: String,
}

impl Peer {
    /// Ours.
    pub fn ours() -> Peer {
        Peer { version: crate::VERSION, release: env!("CARGO_PKG_VERSION").to_owned() }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.version.to_le_bytes());
        let mut release = [0; RELEASE];
        release.iter_mut().zip(self.release.bytes()).for_each(|(to, from)| *to = from);
        out.extend(release);
    }

    /// From the first 36 bytes.
    fn decode(bytes: &[u8]) -> Option<Peer> {
        let (version, release) = bytes.split_first_chunk::<4>()?;
        let release = release.get(..RELEASE)?.split(|byte| *byte == 0).next()?;
        // It is printed: nothing but what a version's name is made of.
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+_".contains(byte);
        let release = release.iter().filter(|byte| is_plain(byte)).map(|byte| char::from(*byte)).collect();
        Some(Peer { version: u32::from_le_bytes(*version), release })
    }
}

/// The keys under which both are sent.
#[derive(Clone, Debug)]
pub(crate) struct KnockKeys {
    knock: hmac::Key,
    answer: hmac::Key,
}

/// The random number of a knock.
pub(crate) type Nonce = [u8; NONCE];

impl KnockKeys {
    pub(crate) fn new(secret: &Secret) -> KnockKeys {
        KnockKeys { knock: secret.key(Label::Knock), answer: secret.key(Label::Answer) }
    }

    pub(crate) fn knock(&self, from: &Peer, nonce: Nonce) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        from.encode(&mut bytes);
        bytes.extend(nonce);
        let tag = hmac::sign(&self.knock, &bytes);
        bytes.extend(tag.as_ref());
        bytes
    }

    /// Who knocks. `None`: somebody who does not know the secret.
    pub(crate) fn open_knock(&self, knock: &[u8]) -> Option<(Peer, Nonce)> {
        let (content, tag) = knock.split_at_checked(KNOCK_LENGTH - TAG)?;
        let rest = content.strip_prefix(&MAGIC)?;
        hmac::verify(&self.knock, content, tag).ok()?;
        Some((Peer::decode(rest)?, *rest.last_chunk()?))
    }

    pub(crate) fn answer(&self, from: &Peer, knock: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_LENGTH);
        from.encode(&mut bytes);
        let tag = hmac::sign(&self.answer, &[knock, &bytes].concat());
        bytes.extend(tag.as_ref());
        bytes
    }

    /// Who answers this knock. `None`: somebody who does not know the secret.
    pub(crate) fn open_answer(&self, answer: &[u8], knock: &[u8]) -> Option<Peer> {
        let (content, tag) = answer.split_at_checked(ANSWER_LENGTH - TAG)?;
        hmac::verify(&self.answer, &[knock, content].concat(), tag).ok()?;
        Peer::decode(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> KnockKeys {
        KnockKeys::new(&Secret::generate().expect("random numbers"))
    }

    #[test]
    fn knock_and_answer_are_read_under_the_same_secret_only() {
        let (ours, others) = (keys(), keys());
        let knock = ours.knock(&Peer::ours(), [7; 32]);
        assert_eq!(knock.len(), KNOCK_LENGTH);
        assert_eq!(ours.open_knock(&knock), Some((Peer::ours(), [7; 32])));
        assert_eq!(others.open_knock(&knock), None);
        let answer = ours.answer(&Peer::ours(), &knock);
        assert_eq!(answer.len(), ANSWER_LENGTH);
        assert_eq!(ours.open_answer(&answer, &knock), Some(Peer::ours()));
        assert_eq!(others.open_answer(&answer, &knock), None);
        // An answer to another knock.
        assert_eq!(ours.open_answer(&answer, &ours.knock(&Peer::ours(), [8; 32])), None);
        for at in 0..KNOCK_LENGTH {
            let mut changed = knock.clone();
            changed[at] ^= 1;
            assert_eq!(ours.open_knock(&changed), None, "byte {at}");
        }
        assert_eq!(ours.open_knock(&knock[..KNOCK_LENGTH - 1]), None);
    }

    #[test]
    fn the_name_of_a_release_cannot_write_to_a_terminal() {
        let keys = keys();
        let from =
            Peer { version: 9, release: "1.0\x1b[2J\n\u{e9}-a-name-that-is-far-too-long-for-its-place".to_owned() };
        let (peer, _) = keys.open_knock(&keys.knock(&from, [0; 32])).expect("our own knock");
        assert_eq!(peer, Peer { version: 9, release: "1.02J-a-name-that-is-far-to".to_owned() });
    }
}
