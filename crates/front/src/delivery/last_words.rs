//! The tails of the ranks' output: their last words for the verdict, and the suspicion that a rank is as good as gone
//! although it has not said so.

use std::collections::HashMap;
use std::time::Duration;

use rankrun_core::stderr::Tail;
use rankrun_core::testimony::Exception;
use rankrun_core::{Rank, Stream};

/// How long a rank may live on in silence after a traceback before it is suspected.
const SUSPECT_AFTER: Duration = Duration::from_secs(10);

/// What is known of each rank that has written anything.
#[derive(Debug, Default)]
pub(crate) struct LastWords {
    ranks: HashMap<Rank, Words>,
}

#[derive(Debug, Default)]
struct Words {
    tail: Tail,
    stdout: Tail,
    /// When the rank is to be suspected, if it says nothing more.
    suspect_at: Option<Duration>,
    /// Its process reports its own failures: a traceback that it prints is one that it has survived, or will report.
    reports: bool,
    /// It has reported a failure, or has ended.
    is_settled: bool,
}

impl LastWords {
    /// A rank wrote.
    pub(crate) fn write(&mut self, now: Duration, rank: Rank, stream: Stream, bytes: &[u8]) {
        let words = self.ranks.entry(rank).or_default();
        if stream == Stream::Stdout {
            words.stdout.write(bytes);
            return;
        }
        words.tail.write(bytes);
        let is_suspect = !words.reports && words.tail.last_traceback().is_some();
        words.suspect_at = is_suspect.then_some(now + SUSPECT_AFTER);
    }

    /// Whether the rank's process reports its own failures has changed.
    pub(crate) fn reports(&mut self, now: Duration, rank: Rank, reports: bool) {
        let words = self.ranks.entry(rank).or_default();
        words.reports = reports;
        // The end of a process is known late: what was written since may be of another one, that does not report.
        let is_open = !reports && !words.is_settled && words.tail.last_traceback().is_some();
        words.suspect_at = is_open.then_some(now + SUSPECT_AFTER);
    }

    /// The rank has ended, or has told of its failure itself: there is nothing to suspect.
    pub(crate) fn settle(&mut self, rank: Rank) {
        if let Some(words) = self.ranks.get_mut(&rank) {
            words.suspect_at = None;
            words.is_settled = true;
        }
    }

    /// The last words of a rank on stderr, if it has written any.
    pub(crate) fn of(&self, rank: Rank) -> Option<&Tail> {
        self.ranks.get(&rank).map(|words| &words.tail)
    }

    /// The last words of a rank on stderr and stdout.
    pub(crate) fn both(&self, rank: Rank) -> Option<(&Tail, &Tail)> {
        self.ranks.get(&rank).map(|words| (&words.tail, &words.stdout))
    }

    /// Whether the rank has printed that it ends the job by `MPI_Abort`.
    pub(crate) fn has_aborted(&self, rank: Rank) -> bool {
        self.of(rank).and_then(Tail::aborted).is_some_and(|(aborting, _)| aborting == rank.0)
    }

    /// When [`LastWords::due`] has something to say.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.ranks.values().filter_map(|words| words.suspect_at).min()
    }

    /// The ranks that are to be suspected now; each is named once.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(Rank, Exception)> {
        let mut due = Vec::new();
        for (rank, words) in &mut self.ranks {
            if words.suspect_at.is_some_and(|at| at <= now) {
                words.suspect_at = None;
                due.extend(words.tail.last_traceback().map(|exception| (*rank, exception)));
            }
        }
        due.sort_by_key(|(rank, _)| *rank);
        due
    }
}
