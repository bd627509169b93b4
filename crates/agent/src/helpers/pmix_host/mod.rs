//! The PMIx host: a child of the agent that runs libpmix's server, so that a crash of libpmix is a failure of the job and
//! not of the agent (docs/adr/0022-a-pmix-host.md).
//!
//! It is started when a rank first connects to the socket of the agent, and takes that socket over. Its descriptors: 0 is
//! the connection to the agent, 1 the listening socket, 2 a pipe to the agent. It decides nothing: what libpmix asks for goes
//! to the agent, and the answer back.
//!
//! * `run.rs`: the start, and the loop.
//! * `namespaces.rs`: tells libpmix of the groups of ranks.
//! * `spawning.rs`: what a rank asks for that wants further ranks.
//! * `relay.rs`: moves bytes between the ranks and libpmix's own socket.
//! * `search.rs`: which libpmix is loaded.
//! * `origin.rs`: which process has made a connection.

mod namespaces;
mod origin;
mod relay;
mod run;
mod search;
mod spawning;

pub use run::serve;
pub use search::{Serving, serving_this_process};
