//! What the ranks speak to: the wire-up of MPI, and the worker socket.

mod hook;
pub(crate) mod pmi;
pub(crate) mod worker_socket;
