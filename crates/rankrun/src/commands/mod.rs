//! The subcommands of rankrun.

pub(crate) mod attach;
pub(crate) mod check;
pub(crate) mod clean;
pub(crate) mod completions;
pub(crate) mod inventory;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod man;
pub(crate) mod mpi;
pub(crate) mod output;
pub(crate) mod profile;
pub(crate) mod prove;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod restart;
pub(crate) mod stacks;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod typing;
pub(crate) mod viewer;
pub(crate) mod wait;
pub(crate) mod watch;
