//! The meter: a child of the agent that measures what the ranks use, for `rankrun top`.
//!
//! It is started when a viewer first asks, answers once a second, and ends when nobody asks any more: a job that nobody looks at has
//! none. It is a process, since reads of `/proc/PID` can block (see `children/lockable.rs`), and the vendor's program for GPUs can hang.
//! Its descriptor 0 is the connection to the agent; it ends with that.

mod account;
mod gpus;
mod message;
mod run;

pub(crate) use message::{Place, Reading, Request, Subject};
pub use run::serve;
