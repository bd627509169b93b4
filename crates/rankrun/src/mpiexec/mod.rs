//! The mpiexec dialect: a command line of mpiexec or mpirun becomes one of ours.
//!
//! `rankrun mpiexec …`, and a binary that is called `mpiexec` or `mpirun`, take the options of Hydra (MPICH, MVAPICH), Intel
//! MPI and Open MPI 4 and 5. What each of them is here is in one [`table`], which docs/mpiexec.md shows. [`translate`] walks
//! along the words; the result is read by the parser of our own options, so that a setting has one meaning.

mod describe;
mod files;
mod hosts;
mod lists;
mod table;
mod translate;
mod values;

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(crate) use describe::options;
pub(crate) use translate::{Around, read};

/// The word after `rankrun` that asks for the dialect.
pub(crate) const SUBCOMMAND: &str = "mpiexec";

/// The names by which a binary is called that speaks the dialect.
const NAMES: &[&str] = &["mpiexec", "mpirun", "mpiexec.hydra", "orterun", "prterun"];

/// Whether the dialect takes an option, as typed.
pub(crate) fn takes(name: &str) -> bool {
    table::named(name).is_some_and(|row| !matches!(row.here, crate::dialect::Here::Refused(_)))
}

/// Whether a program that was called as `path` speaks the dialect.
pub(crate) fn is_name(path: &OsStr) -> bool {
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    NAMES.iter().any(|known| name == known.as_bytes())
}
