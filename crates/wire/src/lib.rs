//! What front and agent say to each other: typed messages, one stream, a version handshake first.
//!
//! A frame is a length (u32, little-endian, of what follows), a header with session, sequence and acknowledgement, and
//! a message in `postcard`. Output travels in frames of its own kind, whose bytes are neither encoded nor copied.

pub mod frame;
pub mod message;

pub use frame::{Decoder, Encoder, Frame, WireError};
pub use message::{ToAgent, ToFront};

/// The version of the wire format. Peers of different versions refuse each other, by name, in the handshake.
pub const VERSION: u32 = 1;
