//! PMIx, the wire-up of Open MPI.
//!
//! The protocol is libpmix's own and changes between its versions, so that libpmix itself serves it, in a process of its
//! own: the *host*, a child of the agent (docs/adr/0022-a-pmix-host.md). The host decides nothing. It passes what libpmix asks
//! for to the agent as a [`Request`], and gives libpmix the [`Answer`]. The decisions are in [`Server`].
//!
//! A rank finds libpmix by variables that are the same for each job ([`rankrun_core::pmix`]): they name a socket of the agent. The
//! host is started when a rank first connects to it, with the libpmix that this rank has loaded itself, and takes the socket
//! over.

mod message;
mod server;

pub use message::{Answer, FromHost, Participants, Request, Setup, ToHost};
pub use server::{Collective, CollectiveResult, Config, Effect, Lifecycle, Server};
