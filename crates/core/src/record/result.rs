//! What a rank of `rankrun.launch` returns, on its way to the process that called it.

use serde::{Deserialize, Serialize};

/// How much of it a node may have on its way from its ranks to the files, as [`ResultPiece::cost`] counts it. With more, its ranks wait.
/// As much as of a stream's output: enough for a round trip, little enough that the front of many nodes stays small.
pub const RESULTS_ROOM: u64 = 1 << 20;

/// What a piece costs beside its text: pieces without a text are not endless either.
const PIECE_COST: u64 = 128;

/// A piece of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResultPiece {
    /// The rank has raised: this is the exception.
    pub is_error: bool,
    /// In base64.
    pub data: String,
    /// What came before belongs to an earlier attempt.
    pub is_first: bool,
    pub is_last: bool,
}

impl ResultPiece {
    /// What it takes of [`RESULTS_ROOM`].
    pub fn cost(&self) -> u64 {
        self.data.len() as u64 + PIECE_COST
    }
}
