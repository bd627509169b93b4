//! The sampler: a child of the agent that looks into ranks again and again (`rankrun profile`).
//!
//! It is started for one profile, and ends with it. Its descriptor 0 is the connection to the agent, which writes one [`Request`]. The
//! sampler sends what it has seen about once a second, and the rest at the end of the time, when all ranks have ended, or when the agent
//! writes [`End`]. When the connection ends, the sampler ends.

mod message;
mod run;

pub(crate) use message::{End, Request, Seen};
pub use run::serve;
