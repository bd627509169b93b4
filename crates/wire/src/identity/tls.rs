//! A TLS 1.3 connection without I/O, between two raw public keys.

use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::identity::keys::{KeyPair, PublicKey};

/// The name of the exporter value to which proofs are bound.
const EXPORTER: &[u8] = b"EXPORTER-rankrun-enrolment";
/// Both sides must present it (ALPN).
const PROTOCOL: &[u8] = b"rankrun";
/// Front and node have keys, not names. The protocol wants one, and does not send it.
const NAME: &str = "front.rankrun.invalid";

/// One connection.
#[derive(Debug)]
pub struct Tls {
    connection: Connection,
    /// Bytes of the peer that rustls has not taken, from `start` on.
    inbox: Vec<u8>,
    start: usize,
    /// The peer has ended the connection properly.
    is_ended: bool,
}

/// A buffer that grew beyond this size for a burst is freed.
const KEPT: usize = 64 * 1024;

impl Tls {
    pub(crate) fn of_front(config: &Arc<ServerConfig>) -> Result<Tls, Error> {
        Ok(Tls::new(ServerConnection::new(config.clone())?.into()))
    }

    pub(crate) fn of_node(config: Arc<ClientConfig>) -> Result<Tls, Error> {
        let name = ServerName::try_from(NAME).map_err(|_| Error::General("bad name".to_owned()))?;
        Ok(Tls::new(ClientConnection::new(config, name)?.into()))
    }

    fn new(mut connection: Connection) -> Tls {
        // What the kernel does not take is bounded elsewhere: by credits and by what a session retains.
        connection.set_buffer_limit(None);
        Tls { connection, inbox: Vec::new(), start: 0, is_ended: false }
    }

    /// Bytes have arrived from the peer. [`Tls::read`] decrypts them.
    pub fn received(&mut self, bytes: &[u8]) {
        if self.start == self.inbox.len() {
            self.inbox.clear();
            self.start = 0;
            if self.inbox.capacity() > KEPT {
                self.inbox = Vec::new();
            }
        }
        self.inbox.extend_from_slice(bytes);
    }

    /// Decrypts into `room`, until it is full or nothing more has arrived. Returns how many bytes: 0 may also be the end,
    /// see [`Tls::is_ended`]. There may be something to send after that.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < room.len() {
            match self.connection.reader().read(&mut room[filled..]) {
                Ok(0) => {
                    self.is_ended = true;
                    break;
                }
                Ok(count) => {
                    filled += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if !self.process()? {
                break;
            }
        }
        Ok(filled)
    }

    /// Gives rustls some of what has arrived. `false`: there is nothing more.
    fn process(&mut self) -> io::Result<bool> {
        let mut rest = &self.inbox[self.start..];
        if rest.is_empty() {
            return Ok(false);
        }
        self.start += self.connection.read_tls(&mut rest)?;
        self.connection.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(true)
    }

    /// The handshake goes on with what has arrived. Returns whether it is complete.
    pub(crate) fn shake(&mut self) -> Result<bool, Error> {
        while self.connection.is_handshaking() {
            match self.process() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => return Err(as_tls(error)),
            }
        }
        Ok(true)
    }

    /// The peer has said that it sends nothing more.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Encrypts. [`Tls::take_output`] has the result.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(bytes)
    }

    /// What is to be sent to the peer.
    pub fn take_output(&mut self) -> Bytes {
        let mut out = Vec::new();
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut out).is_err() {
                // Writing to memory does not fail.
                break;
            }
        }
        out.into()
    }

    /// The key of the peer, once the handshake is complete.
    pub fn peer(&self) -> Option<PublicKey> {
        PublicKey::from_tls(self.connection.peer_certificates()?.first()?)
    }

    /// A value that only both ends of this connection know. Who stands between them has another one with each.
    pub(crate) fn binding(&self, context: &[u8]) -> Result<[u8; 32], Error> {
        self.connection.export_keying_material([0; 32], EXPORTER, Some(context))
    }
}

/// The error of TLS in one of `io`.
pub(crate) fn as_tls(error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::General(error.to_string()),
    }
}

fn provider() -> CryptoProvider {
    let kx_groups = vec![ring::kx_group::X25519];
    CryptoProvider { kx_groups, ..ring::default_provider() }
}

pub(crate) fn front_config(own: &KeyPair) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(provider());
    let verifier = Arc::new(AnyKey { expected: None, provider: provider.clone() });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own.certified())));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Each connection is proved anew: nothing to resume, and no early data.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// `front` is the key that the front must have; `None` on the first connection.
pub(crate) fn node_config(own: &KeyPair, front: Option<PublicKey>) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(provider());
    let verifier = Arc::new(AnyKey { expected: front, provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own.certified())));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// Takes every Ed25519 key, or one that is expected. TLS proves that the peer has the private key; who it is, is proved
/// after the handshake, with the secret.
#[derive(Debug)]
struct AnyKey {
    expected: Option<PublicKey>,
    provider: Arc<CryptoProvider>,
}

impl AnyKey {
    fn check(&self, presented: &[u8]) -> Result<(), Error> {
        let key = PublicKey::from_tls(presented).ok_or(CertificateError::BadEncoding)?;
        match self.expected {
            Some(expected) if expected != key => Err(CertificateError::UnknownIssuer.into()),
            _ => Ok(()),
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(presented).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(presented).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
