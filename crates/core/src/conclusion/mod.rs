//! From what was observed to who failed and why.

pub(crate) mod causes;
pub(crate) mod endings;
pub mod evidence;
pub mod exit;
pub mod headline;
pub mod open_mpi;
pub mod order;
pub mod peers;
pub(crate) mod recognisers;
pub mod status;
pub mod stderr;
pub mod testimony;
pub mod verdict;
pub mod window;
