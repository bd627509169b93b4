//! What the ranks connect to: the PMI servers, torch's store, and the worker socket; and the process that looks into ranks.

pub(crate) mod fork_servers;
mod hook;
pub(crate) mod looker;
pub(crate) mod meter;
pub(crate) mod pmi;
pub(crate) mod pmix;
pub(crate) mod profiler;
mod results;
pub(crate) mod torch_store;
pub(crate) mod worker_socket;
