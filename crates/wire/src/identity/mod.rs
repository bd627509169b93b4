//! Who is at the other end of a TCP connection, and that nobody else reads or changes it (docs/adr/0026).
//!
//! Where front and node speak over TCP, both know a [`Secret`] of the job. A connection goes through four steps, all of
//! them without I/O in [`Acceptor`] (the front's side) and [`Connector`] (the node's side):
//!
//! 1. **Knock.** The node sends a fixed 108 bytes: version, a random number, and their HMAC under the secret. Without
//!    the right HMAC the front closes the connection: it has sent nothing, and has computed one hash (S-1, S-2). Then
//!    the front answers with its version, likewise under the secret. Two versions that differ part here.
//! 2. **TLS 1.3**, each side with a raw Ed25519 key of its own.
//! 3. **Claim.** The node sends what it is, and an HMAC under the secret of this TLS connection's own exporter value.
//! 4. **Verdict.** The front sends the same, and admits the node, with a certificate, or refuses it with a reason.
//!    A node that comes back at its end, to say whether anything of the job is left there, gets the job's exit code when
//!    the job is over. A node that hears nothing over its connection comes back to ask whether the front lives, and gets an answer at once.
//!    A node whose connection is lost comes back for its session, where another front may have taken the place of the one that was there: that
//!    one has the same key pair.
//!
//! Invariants, cited in code and tests:
//! * **S-1** A peer without the secret gets no byte from us.
//! * **S-2** It costs us one hash, bounded memory, and a bounded time; it never takes the place of a node.
//! * **S-3** A proof is bound to one TLS connection and to one role: it is worth nothing on another connection, nor in
//!   the other direction.
//! * **S-4** A node that was admitted comes back only with the certificate of its own key. The secret is not enough.
//! * **S-5** Neither the secret nor a private key can be printed. They are written to a file only for a front that another one may follow.

mod acceptor;
mod certificate;
mod claim;
mod connector;
mod keys;
mod knock;
mod listener;
mod secret;
#[cfg(test)]
mod tests;
mod tls;

pub use acceptor::{AcceptError, Acceptor, Claimed, Door, random_session};
pub use certificate::{Certificate, Role};
pub use claim::{Admission, Ask, Claim, Decision, MAX_ENROLMENT, Purpose, Verdict};
pub use connector::{Accepted, Connector, JoinError, Node};
pub use keys::{KeyPair, PublicKey, Seed};
pub use knock::{KNOCK_LENGTH, Peer};
pub use listener::{Arrival, Limits, Listener, ListenerEvent, PeerId, Tokens, Waiting};
pub use secret::{Secret, SecretError, kept};
pub use tls::Tls;
