//! What front and agent say to each other: typed messages, one stream, a version handshake first.
//!
//! A frame is a length (u32, little-endian, of what follows), a kind (a byte), a header with session, sequence and
//! acknowledgement, and a message in `postcard`. Output travels in frames of its own kind, whose bytes are neither encoded
//! nor copied. [`Session`] numbers the frames, and lets them go on over another byte stream when one has broken; it does
//! no I/O. [`Link`] is a session over a connection of a loop.

pub mod frame;
pub mod link;
pub mod message;
pub mod session;

pub use frame::{Frame, WireError};
pub use link::{Link, LinkError};
pub use message::{ToAgent, ToFront};
pub use session::{Retain, Session};

/// The version of the wire format. Peers of different versions refuse each other, by name, in the handshake: the frame
/// that carries `Hello` must keep its form.
pub const VERSION: u32 = 2;
