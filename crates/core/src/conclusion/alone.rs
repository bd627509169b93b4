//! Ranks that run MPI, and have not connected to rankrun: each may be a world of one, and compute what all were to share.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::Rank;
use crate::ranks::RankSet;

/// How long a rank may be in `MPI_Init` before it connects. MPI libraries connect early in it, but may load many files
/// before, from a slow file system.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Touched pages of the library's uninitialised data from which on `MPI_Init` has begun. Measured: 0 to 2 where the library is
/// only loaded (also by mpi4py); after `MPI_Init` 39 with MPICH 5.0, 64 with Intel MPI 2021.18, 18 with Open MPI 4.1 and
/// 21 with 5.0.
const TOUCHED: usize = 8;
/// Shared memory that MPICH and Open MPI (5.0, 4.1) map at the end of `MPI_Init`, when they have connected or given up.
const SEGMENTS: [&str; 3] = ["/mpich_shm_", "/sm_segment.", "/vader_segment."];
/// The functions that initialise MPI, in C and Fortran.
pub const INITS: [&str; 8] = [
    "MPI_Init",
    "MPI_Init_thread",
    "PMPI_Init",
    "PMPI_Init_thread",
    "MPI_Session_init",
    "mpi_init_",
    "mpi_init_thread_",
    "mpi_init_f08_",
];
/// What takes the place of a library's name in a program that is linked with MPI statically.
pub const LINKED: &str = "linked statically";
/// Programs that become the command that follows their own options, or wait for it: the rank is that command.
const PREFIXES: [&str; 16] = [
    "env", "nice", "ionice", "chrt", "taskset", "numactl", "prlimit", "setarch", "setpriv", "setsid", "nohup",
    "stdbuf", "sudo", "time", "timeout", "unshare",
];
/// Programs that connect the MPI processes below them: what runs there is no world of rankrun's.
const LAUNCHERS: [&str; 13] = [
    "mpirun",
    "mpirun_rsh",
    "mpiexec",
    "orterun",
    "prterun",
    "prte",
    "hydra_",
    "srun",
    "flux",
    "aprun",
    "jsrun",
    "palsrun",
    "rankrun",
];

/// Whether a file is the library of an MPI, by its name without directory. Those for C++ and Fortran only call it.
pub fn is_library(name: &str) -> bool {
    stem(name).is_some_and(|stem| {
        matches!(stem, "libmpi" | "libmpich" | "libmpi_abi")
            || ["libmpi_cray", "libmpi_gnu", "libmpi_intel", "libmpi_nvidia"].iter().any(|name| stem.starts_with(name))
    })
}

/// Whether a process starts MPI processes itself, by its name.
pub fn is_launcher(name: &str) -> bool {
    LAUNCHERS.iter().any(|launcher| {
        name.strip_prefix(launcher)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.') || launcher.ends_with('_'))
    })
}

/// The name of a shared library without its version: a program is linked with `libmpi.so.40`, and maps `libmpi.so.40.30.4`.
fn stem(name: &str) -> Option<&str> {
    name.split_once(".so").map(|(stem, _)| stem)
}

/// Whether a library that a program is linked with is of MPI, by its name: that of C, or one for Fortran, which calls that of C.
pub fn is_linked_library(name: &str) -> bool {
    is_library(name)
        || ["libmpifort", "libmpi_mpifh", "libmpi_usempi", "libmpichf"].iter().any(|it| name.starts_with(it))
}

/// Whether a program only prepares the run of the command that follows its options, by its name.
pub fn is_prefix(name: &str) -> bool {
    PREFIXES.contains(&name)
}

/// Whether a mapped file is one that `MPI_Init` makes.
pub fn is_segment(path: &str) -> bool {
    SEGMENTS.iter().any(|name| path.contains(name))
}

/// Whether a mapped file belongs to a transport that MPI may use: in a program that MPI is linked with statically, `MPI_Init` has
/// made it. MPICH 4.0 has no segment of its own for a world of one.
pub fn is_transport(path: &str) -> bool {
    path.contains("/ucx_shm_posix_")
}

/// Whether a variable of an environment connects a rank with rankrun, by its name.
pub fn connects(name: &[u8]) -> bool {
    name == b"PMI_FD" || name == b"PMIX_NAMESPACE"
}

/// How far a process is in `MPI_Init`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Progress {
    /// The library is loaded.
    Loaded,
    /// `MPI_Init` has begun, and may be over.
    Begun,
    /// The process has the shared memory that it makes when it has connected, or found nobody to connect to.
    Inited,
}

/// The progress by what is seen of a process: the touched pages of the library's uninitialised data, and whether a segment is mapped.
pub fn progress(touched: usize, has_segment: bool) -> Progress {
    match touched {
        TOUCHED.. if has_segment => Progress::Inited,
        TOUCHED.. => Progress::Begun,
        _ => Progress::Loaded,
    }
}

/// What was read of the process of a rank that has an MPI library loaded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sight {
    /// The library's file name.
    pub library: String,
    pub progress: Progress,
    /// Its environment has none of the variables that connect it.
    pub is_removed: bool,
}

/// Why the ranks have not connected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// `--mpi none`.
    Off,
    /// The variables were removed from the environment.
    Removed,
    /// The library connects in another way than it is offered, or decides for another launcher.
    Unknown,
    /// The ranks have ended before they were seen in `MPI_Init`: that they called it is likely, and not certain.
    Unseen,
}

impl Cause {
    /// What can be done, unless this is what was asked for.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Cause::Off => None,
            Cause::Removed => Some(
                "keep the variables PMI_* and PMIX_* for the ranks: something on the way removes them (env -i, sudo, a container)",
            ),
            Cause::Unseen => Some(
                "if they have called MPI_Init, keep the variables PMI_* and PMIX_* for the ranks (env -i, sudo and containers remove them): see docs/mpi.md",
            ),
            Cause::Unknown => Some(
                "the library connects in another way than it is offered, or finds another launcher in the environment: see docs/mpi.md and rankrun check",
            ),
        }
    }
}

/// Ranks that are alone, with the same library and cause.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Alone {
    #[serde(with = "crate::ranks::written")]
    pub ranks: RankSet,
    pub library: String,
    pub cause: Cause,
}

impl fmt::Display for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alone { ranks, library, cause } = self;
        let (noun, run, have) = match ranks.count() {
            Some(1) => ("rank", "runs", "has"),
            _ => ("ranks", "run", "have"),
        };
        match cause {
            Cause::Off => write!(f, "{noun} {ranks} {run} MPI ({library}), each alone, as a world of one (--mpi none)"),
            Cause::Unseen => write!(
                f,
                "{noun} {ranks} of a program that calls MPI_Init ({library}) {have} ended and not connected to rankrun: each may have run alone, as a world of one"
            ),
            Cause::Removed | Cause::Unknown => write!(
                f,
                "{noun} {ranks} {run} MPI ({library}) but {have} not connected to rankrun: each may run alone, as a world of one"
            ),
        }
    }
}

/// What is known of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    pub rank: Rank,
    /// Its MPI library, and whether the variables are removed, if it has been seen in `MPI_Init` or after it.
    pub seen: Option<(String, bool)>,
    /// The MPI library of its program, which calls `MPI_Init`, if the rank has ended well before it was seen there.
    pub unseen: Option<String>,
    /// It will not connect any more: `MPI_Init` is over.
    pub is_inited: bool,
    pub is_connected: bool,
}

/// The ranks that are alone, in groups; empty unless two at least will not connect, and no rank has connected.
pub fn alone(facts: &[Fact], is_offered: bool) -> Vec<Alone> {
    if facts.iter().any(|fact| fact.is_connected) {
        return Vec::new();
    }
    let certain = facts.iter().filter(|fact| fact.is_inited && fact.seen.is_some()).count();
    let unseen = facts.iter().filter(|fact| fact.unseen.is_some()).count();
    // With `--mpi none` nobody expects more than a note of what is certain.
    if certain < 2 && (certain + unseen < 2 || !is_offered) {
        return Vec::new();
    }
    let cause = |is_removed: bool| match (is_offered, is_removed) {
        (false, _) => Cause::Off,
        (true, true) => Cause::Removed,
        (true, false) => Cause::Unknown,
    };
    let seen = facts.iter().find_map(|fact| fact.seen.as_ref());
    let mut groups: BTreeMap<(Cause, &str), Vec<Rank>> = BTreeMap::new();
    for fact in facts {
        let group = match (&fact.seen, &fact.unseen, seen) {
            (Some((library, is_removed)), ..) => (cause(*is_removed), &**library),
            // Another rank of the same program shows how it is with this one.
            (None, Some(library), Some((same, is_removed))) if stem(library) == stem(same) => {
                (cause(*is_removed), &**same)
            }
            (None, Some(library), _) => (Cause::Unseen, &**library),
            (None, None, _) => continue,
        };
        groups.entry(group).or_default().push(fact.rank);
    }
    let alone = |((cause, library), ranks): ((Cause, &str), _)| Alone {
        ranks: RankSet::of(ranks),
        library: library.to_owned(),
        cause,
    };
    groups.into_iter().map(alone).collect()
}

#[cfg(test)]
#[path = "alone_tests.rs"]
mod tests;
