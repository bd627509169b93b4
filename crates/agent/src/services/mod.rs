//! What the ranks connect to: the PMI server, and the worker socket.

mod hook;
pub(crate) mod pmi;
pub(crate) mod pmix;
pub(crate) mod worker_socket;
