//! What the looks at the ranks of an attempt have shown of their MPI, and which of them are alone by it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::alone::{Alone, Fact, PATIENCE, Progress, Sight, alone};
use crate::gang::{Gang, MpiLife};
use crate::ids::Rank;
use crate::status::WorkerStatus;

/// A rank that has loaded the library for so long, and does not use it, will not call `MPI_Init` either: programs call it early.
/// On a busy machine a program of 20 ms takes 100 ms to load its libraries.
const IDLE: Duration = Duration::from_millis(500);

/// What the looks at the ranks of an attempt have shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sights {
    of_rank: BTreeMap<Rank, Seen>,
    /// When ranks were first and last seen to have the library loaded, and not to use it.
    loaded: BTreeMap<Rank, (Duration, Duration)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    sight: Sight,
    /// When it was first and last seen in `MPI_Init`, or after it.
    first: Duration,
    last: Duration,
}

impl Sights {
    /// What a look has shown of a rank; whether the rank is now first seen in `MPI_Init`.
    pub(crate) fn see(&mut self, now: Duration, rank: Rank, sight: Sight) -> bool {
        if sight.progress == Progress::Loaded {
            self.loaded.entry(rank).or_insert((now, now)).1 = now;
            return false;
        }
        let is_new = !self.of_rank.contains_key(&rank);
        let seen = self.of_rank.entry(rank).or_insert_with(|| Seen { sight: sight.clone(), first: now, last: now });
        seen.last = now;
        seen.sight.progress = seen.sight.progress.max(sight.progress);
        is_new
    }

    /// A rank is started again.
    pub(crate) fn forget(&mut self, rank: Rank) {
        self.of_rank.remove(&rank);
        self.loaded.remove(&rank);
    }

    /// The ranks that are alone. `library` is the MPI library of a rank's program, if that calls `MPI_Init`.
    pub(crate) fn alone<'a>(
        &self,
        gang: &Gang,
        is_offered: bool,
        library: impl Fn(Rank) -> Option<&'a str>,
    ) -> Vec<Alone> {
        // While a rank lives, it may connect.
        let is_over = gang.ranks().iter().all(|record| record.status.is_some());
        let facts = gang.ranks().iter().map(|record| {
            let rank = record.rank;
            let has_ended_well = record.status.is_some_and(WorkerStatus::success);
            let seen = self.of_rank.get(&rank);
            let is_inited = seen.is_some_and(|seen| {
                seen.sight.progress == Progress::Inited
                    || seen.last.saturating_sub(seen.first) >= PATIENCE
                    || has_ended_well
            });
            // Until shortly before its end: while much is running, `MPI_Init` may come late.
            let life = record.ended_at.unwrap_or_default().saturating_sub(record.started_at.unwrap_or_default());
            let is_idle = self.loaded.get(&rank).is_some_and(|(first, last)| {
                let after = record.ended_at.unwrap_or_default().saturating_sub(*last);
                last.saturating_sub(*first) >= IDLE && after <= life / 4
            });
            let is_unseen = seen.is_none() && has_ended_well && is_over && !is_idle;
            let unseen = is_unseen.then(|| library(rank)).flatten().map(str::to_owned);
            let seen = seen.map(|seen| (seen.sight.library.clone(), seen.sight.is_removed));
            Fact { rank, seen, unseen, is_inited, is_connected: record.mpi != MpiLife::NotInited }
        });
        alone(&facts.collect::<Vec<Fact>>(), is_offered)
    }
}
