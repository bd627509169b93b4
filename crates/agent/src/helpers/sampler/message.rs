//! What the agent and its sampler say to each other.

use rankrun_core::stacks::profile::{ProfileSpec, Samples};
use serde::{Deserialize, Serialize};

use crate::helpers::looker::Subject;

/// The first message to the sampler.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) spec: ProfileSpec,
}

/// The second one: send what there is, and end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct End;

/// From the sampler.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Seen {
    /// Of the subject of this index, since it was last sent.
    Samples(u32, Box<Samples>),
    /// There is nothing more to come.
    Done,
}
