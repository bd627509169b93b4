//! What a rank of `rankrun.launch` returns, on its way to the process that called it.

use serde::{Deserialize, Serialize};

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
