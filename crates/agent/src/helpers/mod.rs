//! Processes of rankrun's own that an agent starts beside its workers, so that a crash in them, or a call that does not return, is not
//! the agent's: this program, called with a word of its own.
//!
//! * `looker/`: reads where the ranks are.
//! * `meter/`: measures what the ranks use.
//! * `sampler/`: does that again and again, for a profile.
//! * `pmix_host/`: runs libpmix's server.
//! * `control.rs`: how the agent calls them, and what both have of the connection between them.
//!
//! Their roles are in `children/role.rs`; a *reader* (`children/reader.rs`) is started by the thread that asks it.

pub(crate) mod control;
pub(crate) mod looker;
pub(crate) mod meter;
mod pmix_host;
pub(crate) mod sampler;

pub use looker::serve as serve_looker;
pub use meter::serve as serve_meter;
pub use pmix_host::{Serving, serve as serve_pmix, serving_this_process};
pub use sampler::serve as serve_sampler;
