//! Ed25519 keys, and their form in TLS: raw public keys (RFC 7250) in place of X.509.

use std::fmt;
use std::io;
use std::sync::Arc;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};
use serde::{Deserialize, Serialize};

use super::secret::{Secret, kept};

/// The SubjectPublicKeyInfo of an Ed25519 key is these bytes and the key (RFC 8410).
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A public key. Two are the same peer if and only if they are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PublicKey([u8; 32]);

impl fmt::Debug for PublicKey {
    /// Its first bytes: enough to tell keys apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl PublicKey {
    /// The key in what a TLS peer presents. `None`: it is another kind of key, or a certificate.
    pub(crate) fn from_tls(presented: &[u8]) -> Option<PublicKey> {
        Some(PublicKey(presented.strip_prefix(&SPKI)?.try_into().ok()?))
    }

    pub(crate) fn to_tls(self) -> Vec<u8> {
        [&SPKI[..], &self.0].concat()
    }

    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }
}

/// What the key pair of a front is made from, where another front may take its place. It is erased when it is dropped, and cannot be printed
/// (S-5).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seed(#[serde(with = "kept")] Secret);

impl Seed {
    /// A new one.
    pub fn generate() -> io::Result<Seed> {
        Secret::generate().map(Seed)
    }

    /// The same key pair each time.
    pub fn keys(&self) -> io::Result<KeyPair> {
        let pair = Ed25519KeyPair::from_seed_unchecked(self.0.bytes());
        Ok(KeyPair(Arc::new(pair.map_err(|_| io::Error::other("a key that was just made is refused"))?)))
    }
}

/// A key pair, made for one job. It cannot be printed (S-5).
#[derive(Clone)]
pub struct KeyPair(Arc<Ed25519KeyPair>);

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({:?})", self.public())
    }
}

impl KeyPair {
    /// A new one.
    pub fn generate() -> io::Result<KeyPair> {
        Seed::generate()?.keys()
    }

    pub fn public(&self) -> PublicKey {
        let bytes = self.0.public_key().as_ref();
        PublicKey(bytes.try_into().expect("an Ed25519 key has 32 bytes"))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }

    /// As rustls takes it.
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        let key = CertificateDer::from(self.public().to_tls());
        Arc::new(CertifiedKey { cert: vec![key], key: Arc::new(self.clone()), ocsp: None })
    }
}

impl SigningKey for KeyPair {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for KeyPair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        Ok(KeyPair::sign(self, message))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_form_in_tls_and_nothing_else_is_taken_for_one() {
        let pair = KeyPair::generate().expect("random numbers");
        let form = pair.public().to_tls();
        assert_eq!(PublicKey::from_tls(&form), Some(pair.public()));
        assert_eq!(PublicKey::from_tls(&form[..43]), None);
        assert_eq!(PublicKey::from_tls(&[&form[..], &[0]].concat()), None);
        // X25519 (RFC 8410) has another algorithm.
        let mut other = form;
        other[8] = 0x6e;
        assert_eq!(PublicKey::from_tls(&other), None);
        assert_eq!(format!("{pair:?}").len(), "KeyPair(01234567)".len());
    }
}
