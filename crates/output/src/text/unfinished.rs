//! What a console has taken of a line, and not shown.

use std::time::Duration;

use rankrun_core::{Rank, Stream, portable};
use serde::{Deserialize, Serialize};

/// The unfinished line of a rank, as bytes that it may have written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unfinished {
    pub rank: Rank,
    pub stream: Stream,
    /// When it wrote last, since the Unix epoch.
    pub wall: Duration,
    #[serde(with = "portable::bytes")]
    pub bytes: Vec<u8>,
}
