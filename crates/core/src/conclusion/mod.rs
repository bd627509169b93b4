//! From what was observed to who failed and why.

pub mod absence;
pub mod alone;
pub(crate) mod causes;
pub(crate) mod echoes;
pub(crate) mod endings;
pub(crate) mod error_stack;
pub mod evidence;
pub mod exit;
pub(crate) mod finding;
pub mod headline;
pub(crate) mod interrupt;
pub(crate) mod last_words;
pub mod open_mpi;
pub mod order;
pub mod peers;
#[cfg(test)]
mod property_tests;
pub(crate) mod recognisers;
#[cfg(test)]
mod sample_tests;
pub(crate) mod sights;
pub mod status;
pub mod stderr;
pub mod testimony;
pub(crate) mod traceback;
pub mod verdict;
pub mod window;
