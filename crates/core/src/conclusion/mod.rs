//! From what was observed to who failed and why.

pub mod evidence;
pub mod exit;
pub mod open_mpi;
pub mod status;
pub mod stderr;
pub mod testimony;
pub mod verdict;
