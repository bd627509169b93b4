//! What is asked for, and what comes of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::samples::Samples;
use crate::ids::Rank;

/// The longest profile.
pub const MAX_PROFILE: Duration = Duration::from_secs(24 * 3600);
/// Looks per second, at most.
pub const MAX_RATE: f64 = 1000.0;

/// How a profile is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProfileSpec {
    pub time: Duration,
    /// The time between two looks at a rank.
    pub interval: Duration,
    /// With the frames of the Python interpreter itself, and those of a program's start.
    pub native: bool,
}

/// The samples of one rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankProfile {
    pub rank: Rank,
    pub node: String,
    pub samples: Samples,
}

/// The samples of a job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// How long it was sampled, in seconds.
    pub took: f64,
    /// Looks per second that were asked for.
    pub rate: f64,
    /// In order.
    pub ranks: Vec<RankProfile>,
    /// Nodes that have sent nothing.
    pub silent: Vec<String>,
    /// Why the sampling ended before its time.
    pub cut: Option<String>,
}
