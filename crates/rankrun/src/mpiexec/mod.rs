//! The mpiexec dialect: a command line of mpiexec or mpirun becomes one of ours.
//!
//! `rankrun mpiexec …`, the same with another of the launchers' names, and a binary that is called so, take the options of Hydra (MPICH, MVAPICH), Intel
//! MPI and Open MPI 4 and 5. What each of them is here is in one [`table`], which docs/mpiexec.md shows. [`translate`] walks
//! along the words; the result is read by the parser of our own options, so that a setting has one meaning.

mod binding;
mod describe;
mod files;
mod hosts;
mod lists;
mod mca;
mod row;
mod table;
mod texts;
mod translate;
mod values;

#[cfg(test)]
mod page;
#[cfg(test)]
mod placement_tests;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::habits::{self, Habit};

pub(crate) use describe::{names, options};
pub(crate) use mca::advice as parameter_advice;
pub(crate) use translate::{Around, read};

/// The word after `rankrun` that asks for the dialect.
pub(crate) const SUBCOMMAND: &str = "mpiexec";

/// The names of the launchers. Those that only one family has say whose options follow.
const NAMES: &[(&str, &[row::Launcher])] = &[
    ("mpiexec", &[]),
    ("mpirun", &[]),
    ("mpiexec.hydra", row::HYDRA),
    ("orterun", &[row::Launcher::OpenMpi4]),
    ("prterun", &[row::Launcher::OpenMpi5]),
    ("mpirun.openmpi", row::OPEN_MPI),
    ("mpiexec.openmpi", row::OPEN_MPI),
    ("mpirun.mpich", row::HYDRA),
    ("mpiexec.mpich", row::HYDRA),
];

/// Whether the dialect takes an option, as typed.
pub(crate) fn takes(name: &str) -> bool {
    table::named(name).is_some_and(|row| !matches!(row.here, crate::dialect::Here::Refused(_)))
}

/// The options of the dialect, as the parser of our own options knows them.
pub(crate) fn habits() -> impl Iterator<Item = Habit> {
    use habits::Launcher::{Mpiexec, Mpirun};
    // An option without a launcher is the dialect's own.
    table::TABLE.iter().filter(|row| !row.launchers.is_empty()).map(|row| {
        let is_of = |family: &[row::Launcher]| row.launchers.iter().any(|launcher| family.contains(launcher));
        let launchers: &[habits::Launcher] = match (is_of(row::HYDRA), is_of(row::OPEN_MPI)) {
            (true, true) => &[Mpiexec, Mpirun],
            (true, false) => &[Mpiexec],
            (false, _) => &[Mpirun],
        };
        Habit { launchers, names: row.names, value: row.value, here: habits::Here::of_dialect(&row.here, SUBCOMMAND) }
    })
}

/// Whether a program that was called as `path` speaks the dialect.
pub(crate) fn is_name(path: &OsStr) -> bool {
    family(path).is_some()
}

/// The launchers that are called as `path`; none where the name does not tell them apart.
fn family(path: &OsStr) -> Option<&'static [row::Launcher]> {
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    NAMES.iter().find(|(known, _)| name == known.as_bytes()).map(|(_, family)| *family)
}

/// The names of the launchers but that of the subcommand.
pub(crate) fn other_names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name).filter(|name| *name != SUBCOMMAND)
}

/// The word that the help and the completions know for another name of a launcher.
pub(crate) fn subcommand(name: &str) -> Option<&'static str> {
    is_name(OsStr::new(name)).then_some(SUBCOMMAND)
}
