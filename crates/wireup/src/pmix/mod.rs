//! PMIx, the wire-up of Open MPI.
//!
//! The protocol is libpmix's own and changes between its versions, so that libpmix itself serves it, in a process of its
//! own: the *host*, a child of the agent (docs/adr/0022-a-pmix-host.md). The host decides nothing. It passes what libpmix asks
//! for to the agent as a [`Request`], and gives libpmix the [`Answer`]. The decisions are in [`Server`].
//!
//! A rank finds libpmix by variables that are the same for each job ([`rankrun_core::pmix`]): they name a socket of the agent. The
//! host is started when a rank first connects to it, with the libpmix that this rank has loaded itself, and takes the socket
//! over.

//!
//! **Groups.** A host serves all groups of an attempt that have ranks on its node: the one with which it began, and those that came by
//! `MPI_Comm_spawn`. Each has a namespace of its own, which every node knows: a rank may ask for data of ranks of any group, and take part
//! in operations with them.

mod collectives;
mod message;
mod server;
#[cfg(test)]
mod server_tests;

pub use collectives::is_of_pmix;
pub use message::{Answer, FromHost, Namespace, Participants, Ranks, Request, Setup, ToHost};
pub use server::{Config, Effect, Group, Lifecycle, Server};
