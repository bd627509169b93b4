//! What passes between torch's store and its clients on another node, when agents relay it.

use serde::{Deserialize, Serialize};

use crate::ids::Attempt;
use crate::portable;

/// What one side of a trunk tells the other: of many connections at once, in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parcel {
    /// Whoever is in another attempt drops it.
    pub attempt: Attempt,
    /// So many more bytes of the other side's parcels have arrived.
    pub arrived: u64,
    /// With the connections, as the clients' side numbers them. No number is used again in an attempt.
    pub words: Vec<(u32, Word)>,
}

/// Of one connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Word {
    /// A client has connected.
    Opened,
    Bytes(#[serde(with = "portable::bytes")] Vec<u8>),
    /// So many more bytes of the other side's were read.
    Read(u64),
    /// Nothing more comes, and nothing more is read.
    Closed,
}
