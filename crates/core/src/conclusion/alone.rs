//! Ranks that run MPI, and have not connected to rankrun: each may be a world of one, and compute what all were to share.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::gang::{Gang, MpiLife};
use crate::ids::Rank;
use crate::ranks::RankSet;
use crate::status::WorkerStatus;

/// How long a rank may be in `MPI_Init` before it connects. MPI libraries connect early in it, but may load many files
/// before, from a slow file system.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Touched pages of the library's uninitialised data from which on `MPI_Init` has begun. Measured: 0 to 2 where the library is
/// only loaded (also by mpi4py); after `MPI_Init` 39 with MPICH 5.0, 64 with Intel MPI 2021.18, 18 with Open MPI 4.1 and
/// 21 with 5.0.
const TOUCHED: usize = 8;
/// Shared memory that MPICH and Open MPI (5.0, 4.1) map at the end of `MPI_Init`, when they have connected or given up.
const SEGMENTS: [&str; 3] = ["/mpich_shm_", "/sm_segment.", "/vader_segment."];
/// Programs that connect the MPI processes below them: what runs there is no world of rankrun's.
const LAUNCHERS: [&str; 12] = [
    "mpirun", "mpiexec", "orterun", "prterun", "prte", "hydra_", "srun", "flux", "aprun", "jsrun", "palsrun", "rankrun",
];

/// Whether a file is the library of an MPI, by its name without directory. Those for C++ and Fortran only call it.
pub fn is_library(name: &str) -> bool {
    let stem = name.split_once(".so").map(|(stem, _)| stem);
    stem.is_some_and(|stem| {
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

/// Whether a mapped file is one that `MPI_Init` makes.
pub fn is_segment(path: &str) -> bool {
    SEGMENTS.iter().any(|name| path.contains(name))
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
}

impl Cause {
    /// What can be done, unless this is what was asked for.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Cause::Off => None,
            Cause::Removed => Some(
                "keep the variables PMI_* and PMIX_* for the ranks: something on the way removes them (env -i, sudo, a container)",
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
    #[serde(with = "crate::standing::written")]
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
    /// It will not connect any more: `MPI_Init` is over.
    pub is_inited: bool,
    pub is_connected: bool,
}

/// The ranks that are alone, in groups; empty unless two at least will not connect, and no rank has connected.
pub fn alone(facts: &[Fact], is_offered: bool) -> Vec<Alone> {
    let is_inited = |fact: &&Fact| fact.is_inited && fact.seen.is_some();
    if facts.iter().any(|fact| fact.is_connected) || facts.iter().filter(is_inited).count() < 2 {
        return Vec::new();
    }
    let mut groups: BTreeMap<(Cause, &str), Vec<Rank>> = BTreeMap::new();
    for fact in facts {
        let Some((library, is_removed)) = &fact.seen else { continue };
        let cause = match (is_offered, is_removed) {
            (false, _) => Cause::Off,
            (true, true) => Cause::Removed,
            (true, false) => Cause::Unknown,
        };
        groups.entry((cause, library)).or_default().push(fact.rank);
    }
    let alone = |((cause, library), ranks): ((Cause, &str), _)| Alone {
        ranks: RankSet::of(ranks),
        library: library.to_owned(),
        cause,
    };
    groups.into_iter().map(alone).collect()
}

/// What the looks at the ranks of an attempt have shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sights {
    of_rank: BTreeMap<Rank, Seen>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    sight: Sight,
    /// When it was first and last seen in `MPI_Init`, or after it.
    first: Duration,
    last: Duration,
}

impl Sights {
    /// What a look has shown of a rank.
    pub fn see(&mut self, now: Duration, rank: Rank, sight: Sight) {
        if sight.progress == Progress::Loaded {
            return;
        }
        let seen = self.of_rank.entry(rank).or_insert_with(|| Seen { sight: sight.clone(), first: now, last: now });
        seen.last = now;
        seen.sight.progress = seen.sight.progress.max(sight.progress);
    }

    /// A rank is started again.
    pub fn forget(&mut self, rank: Rank) {
        self.of_rank.remove(&rank);
    }

    /// The ranks that are alone.
    pub fn alone(&self, gang: &Gang, is_offered: bool) -> Vec<Alone> {
        let facts = gang.ranks().iter().zip((0..).map(Rank)).map(|(record, rank)| {
            let seen = self.of_rank.get(&rank);
            let is_inited = seen.is_some_and(|seen| {
                seen.sight.progress == Progress::Inited
                    || seen.last.saturating_sub(seen.first) >= PATIENCE
                    || record.status.is_some_and(WorkerStatus::success)
            });
            let seen = seen.map(|seen| (seen.sight.library.clone(), seen.sight.is_removed));
            Fact { rank, seen, is_inited, is_connected: record.mpi != MpiLife::NotInited }
        });
        alone(&facts.collect::<Vec<Fact>>(), is_offered)
    }
}

#[cfg(test)]
#[path = "alone_tests.rs"]
mod tests;
