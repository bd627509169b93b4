//! The same command on every node: node 0 is the front, and the others join it over TCP (docs/adr/0026).
//!
//! A node that joins starts guard and agent when the front has admitted it, and not before. From then on it moves bytes between
//! the two, and writes the output of its own ranks. When guard and agent have ended it tells the front so, waits for the end of
//! the job, and ends with the job's exit code.

mod call;
mod dial;
mod member;
mod own_output;
pub(crate) mod settings;
mod slurm;

pub(crate) use member::run;
pub use settings::{FrontAddress, Join, LAST_CALL, Part};
pub use slurm::run_slurm_node;
