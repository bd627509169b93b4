//! The workers that are gone while the others run on (`--keep-going`).

use crate::ids::WorkerId;

#[derive(Debug, Default)]
pub(in crate::job) struct Missing {
    /// The nodes are told of them once a rank has been in MPI.
    pub(in crate::job) untold: Vec<WorkerId>,
    /// One of all that are gone never was in MPI.
    pub(in crate::job) was_never_in_mpi: bool,
}
