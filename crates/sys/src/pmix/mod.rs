//! The server side of a `libpmix.so.2` that is loaded at run time (OpenPMIx 3.2 to 6.x).
//!
//! [`Library`] loads it, [`Server`] calls it, and what its clients ask for comes out as [`Upcall`]s. libpmix has a thread of
//! its own, from which it makes its upcalls; here they only put a message into a bounded channel and wake the loop. A process
//! has one server at most: upcalls carry no pointer of ours.
//!
//! * `abi.rs`: the structures, constants and names that are the same in all these versions.
//! * `infos.rs`: arrays of `pmix_info_t` that own what they point to.
//! * `upcalls.rs`: the functions that libpmix calls.
//! * `spawning.rs`: what one of them is told of ranks that are to be started.

mod abi;
mod infos;
mod library;
mod server;
mod spawning;
mod upcalls;

pub use abi::status;
pub use infos::LogText;
pub(crate) use library::linker_error;
pub use library::{Library, LoadError};
pub use server::{App, Member, Namespace, Server, ServerError};
pub use spawning::Wanted;
pub use upcalls::{Completion, Published, Upcall, Who};
