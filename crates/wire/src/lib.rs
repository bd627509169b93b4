//! The protocol between front and agent: typed messages over one stream, after a version handshake.
//!
//! A frame is a length (u32, little-endian, of what follows), a kind (a byte), a header with session, sequence and
//! acknowledgement, and a message in `postcard`. Output has a kind of its own: its bytes are neither encoded nor copied.
//! [`Session`] numbers the frames, and can resume on another byte stream when one has broken; it does no I/O. [`Link`] is
//! a session over a connection of a loop, in TLS where the connection is one of TCP ([`identity`]).

pub mod collectives;
pub mod frame;
pub mod greeting;
pub mod identity;
pub mod link;
pub mod message;
pub mod pipe;
pub mod session;
mod tap;
mod transport;

pub use frame::{Frame, WireError};
pub use link::{Link, LinkError, Place};
pub use message::{ToAgent, ToFront};
pub use rankrun_core::memory::Memory;
pub use session::{Retain, Session};
pub use tap::Tap;
pub use transport::{Carrier, Transport};

/// The version of the wire format. Peers of different versions refuse each other in the handshake: the frame that
/// carries `Hello` must keep its form.
pub const VERSION: u32 = 26;
