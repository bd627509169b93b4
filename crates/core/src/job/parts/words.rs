//! The tails of the ranks' output: their last words for the verdict, and the suspicion that a rank is as good as gone
//! although it has not said so.
//!
//! Keeping a piece of output costs time in proportion to the piece. What a tail says is read at the end, and where a rank
//! has been silent for [`SUSPECT_AFTER`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::stderr::Tail;
use crate::testimony::{Exception, SUSPECT_AFTER};
use crate::timers::Timers;
use crate::{Rank, Stream};

/// How long before it is found out whether its Python has a hook: most ranks that print a traceback have ended by then.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// When it is looked into again for the first time, and how seldom at last.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_SELDOM: Duration = Duration::from_secs(300);
/// Tails that are read in one turn of the loop, since thousands of ranks may fall silent together. The rest is read in
/// the next turns.
const READ_AT_ONCE: usize = 16;

/// What is known of each rank that has written anything.
#[derive(Debug, Default)]
pub struct LastWords {
    ranks: BTreeMap<Rank, Words>,
    /// When to see whether a rank is silent. It is not moved by each piece of output.
    silence: Timers<Rank>,
    /// The same for a shorter silence, after which it is found out about its hook.
    looks: Timers<Rank>,
}

#[derive(Debug, Default)]
struct Words {
    stderr: Tail,
    stdout: Tail,
    /// When it last wrote to stderr, or when its process was last known to report its failures.
    last: Duration,
    /// Its process reports its own failures: a traceback that it prints is one that it has survived, or will report.
    reports: bool,
    /// It has reported a failure: the traceback that follows is of that.
    is_settled: bool,
    has_ended: bool,
    /// Its process was looked into, and runs something.
    is_healthy: bool,
    /// It was looked into in vain: the time until it is looked into again.
    pause: Option<Duration>,
}

impl Words {
    /// Whether it is to be suspected if it ends with a traceback and is silent.
    fn is_open(&self) -> bool {
        !self.reports && !self.has_ended
    }
}

impl LastWords {
    /// A rank wrote.
    pub fn write(&mut self, now: Duration, rank: Rank, stream: Stream, bytes: &[u8]) {
        let words = self.ranks.entry(rank).or_default();
        if stream == Stream::Stdout {
            words.stdout.write(bytes);
            return;
        }
        words.stderr.write_at(now, bytes);
        words.last = now;
        words.is_healthy = false;
        let was_seen = words.pause.take().is_some();
        if words.is_open() {
            for (timers, after) in [(&mut self.silence, SUSPECT_AFTER), (&mut self.looks, LOOK_AFTER)] {
                if timers.at(rank).is_none() || was_seen {
                    timers.set(rank, Some(now + after));
                }
            }
        }
    }

    /// Whether the rank's process reports its own failures has changed.
    pub fn reports(&mut self, now: Duration, rank: Rank, reports: bool) {
        let words = self.ranks.entry(rank).or_default();
        words.reports = reports;
        words.last = now;
        // The end of a process is known late: what was written since may be of another one, that does not report.
        let is_open = words.is_open() && !words.is_settled;
        self.silence.set(rank, is_open.then_some(now + SUSPECT_AFTER));
        self.looks.set(rank, is_open.then_some(now + LOOK_AFTER));
    }

    /// The rank has told of its failure itself: there is nothing to suspect in what it has written.
    pub fn settle(&mut self, rank: Rank) {
        self.ranks.entry(rank).or_default().is_settled = true;
        self.silence.set(rank, None);
        self.looks.set(rank, None);
    }

    /// The rank has ended. The rest of its output may follow.
    pub fn ended(&mut self, rank: Rank) {
        self.ranks.entry(rank).or_default().has_ended = true;
        self.silence.set(rank, None);
        self.looks.set(rank, None);
    }

    /// The rank is started again.
    pub fn forget(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
        self.silence.set(rank, None);
        self.looks.set(rank, None);
    }

    /// The last words of a rank on stderr, if it has written any.
    pub fn of(&self, rank: Rank) -> Option<&Tail> {
        self.ranks.get(&rank).map(|words| &words.stderr)
    }

    /// The traceback that a rank's stderr ends with, unless its process reports its own failures.
    pub fn suspicious(&self, rank: Rank) -> Option<Exception> {
        self.ranks.get(&rank).filter(|words| !words.reports).and_then(|words| words.stderr.last_traceback())
    }

    /// The last words of a rank on stderr and stdout.
    pub fn both(&self, rank: Rank) -> Option<(&Tail, &Tail)> {
        self.ranks.get(&rank).map(|words| (&words.stderr, &words.stdout))
    }

    /// Whether the rank has printed that it ends the job by `MPI_Abort`.
    pub fn has_aborted(&self, rank: Rank) -> bool {
        self.of(rank).is_some_and(|stderr| stderr.aborted(rank.number()).is_some())
    }

    /// When [`LastWords::due`] or [`LastWords::due_to_look`] may have something to say.
    pub fn deadline(&self) -> Option<Duration> {
        [self.silence.next(), self.looks.next()].into_iter().flatten().min()
    }

    /// The ranks that have been silent for a while after a traceback, so that it is time to find out about them.
    pub fn due_to_look(&mut self, now: Duration) -> Vec<(Rank, Exception)> {
        self.silent(now, |words| &mut words.looks, LOOK_AFTER)
    }

    /// A rank was looked into, and has not failed, as far as that tells. It is to be looked into again, less and less often.
    /// `is_healthy`: it runs something; the traceback that it has printed is one that it has survived, or it is on its way out.
    pub fn has_not_failed(&mut self, now: Duration, rank: Rank, is_healthy: bool) {
        if let Some(words) = self.ranks.get_mut(&rank).filter(|words| words.is_open()) {
            let pause = words.pause.map_or(LOOK_AGAIN, |pause| (pause * 2).min(LOOK_SELDOM));
            (words.pause, words.is_healthy) = (Some(pause), is_healthy);
            self.looks.set(rank, Some(now + pause));
        }
    }

    /// How long a rank has written nothing to stderr.
    pub fn silence(&self, now: Duration, rank: Rank) -> Option<Duration> {
        self.ranks.get(&rank).map(|words| now.saturating_sub(words.last))
    }

    /// The rank is to be looked into at that time.
    pub fn look_at(&mut self, rank: Rank, at: Duration) {
        self.looks.set(rank, Some(at));
    }

    /// The ranks that are to be suspected now; each is named once for what it has written. `all`: also those that run something.
    pub fn due(&mut self, now: Duration, all: bool) -> Vec<(Rank, Exception)> {
        let mut due = self.silent(now, |words| &mut words.silence, SUSPECT_AFTER);
        due.retain(|(rank, _)| all || self.ranks.get(rank).is_some_and(|words| !words.is_healthy));
        due.sort_by_key(|(rank, _)| *rank);
        due
    }

    /// The ranks that have been silent for so long after a traceback.
    fn silent(
        &mut self,
        now: Duration,
        timers: fn(&mut LastWords) -> &mut Timers<Rank>,
        after: Duration,
    ) -> Vec<(Rank, Exception)> {
        let (mut silent, mut read) = (Vec::new(), 0);
        while read < READ_AT_ONCE
            && let Some(rank) = timers(self).pop_due(now)
        {
            let Some(words) = self.ranks.get(&rank).filter(|words| words.is_open()) else { continue };
            let last = words.last;
            if last + after > now {
                timers(self).set(rank, Some(last + after));
                continue;
            }
            read += 1;
            silent.extend(words.stderr.last_traceback().map(|exception| (rank, exception)));
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACEBACK: &[u8] =
        b"Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nValueError: no data\n";

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn suspects(words: &mut LastWords, now: Duration) -> Vec<u32> {
        words.due(now, false).into_iter().map(|(rank, _)| rank.number()).collect()
    }

    #[test]
    fn a_rank_that_is_silent_after_a_traceback_is_suspected_once() {
        let mut words = LastWords::default();
        for piece in TRACEBACK.chunks(7) {
            words.write(s(1), Rank(1), Stream::Stderr, piece);
        }
        words.write(s(1), Rank(2), Stream::Stderr, b"all is well\n");
        assert_eq!((words.silence.next(), suspects(&mut words, s(10))), (Some(s(11)), vec![]));
        // Output on stdout is no sign that stderr has more to say.
        words.write(s(10), Rank(1), Stream::Stdout, b"step 1\n");
        assert_eq!(suspects(&mut words, s(11)), [1]);
        assert_eq!((words.silence.next(), suspects(&mut words, s(100))), (None, vec![]));
        words.write(s(100), Rank(1), Stream::Stderr, b"again\n");
        words.write(s(105), Rank(1), Stream::Stderr, TRACEBACK);
        assert!(suspects(&mut words, s(112)).is_empty());
        assert_eq!((words.silence.next(), suspects(&mut words, s(115))), (Some(s(115)), vec![1]));
    }

    #[test]
    fn a_rank_whose_interpreter_runs_is_not_suspected_and_is_looked_into_again() {
        let mut words = LastWords::default();
        words.write(s(1), Rank(1), Stream::Stderr, TRACEBACK);
        let looks = |words: &mut LastWords, now| {
            let is_seen = !words.due_to_look(s(now)).is_empty();
            is_seen.then(|| words.has_not_failed(s(now), Rank(1), true)).is_some()
        };
        let seen: Vec<u64> = (1..40).filter(|now| looks(&mut words, *now)).collect();
        assert_eq!(seen, [2, 3, 5, 9, 17, 33]);
        assert_eq!(words.due(s(40), false), []);
        words.write(s(50), Rank(1), Stream::Stderr, TRACEBACK);
        assert_eq!((words.due_to_look(s(51)).len(), suspects(&mut words, s(60))), (1, vec![1]));
    }

    #[test]
    fn a_rank_that_is_silent_for_a_second_after_a_traceback_is_looked_at_once() {
        let mut words = LastWords::default();
        words.write(s(1), Rank(1), Stream::Stderr, TRACEBACK);
        words.write(s(1), Rank(2), Stream::Stderr, b"all is well\n");
        assert_eq!(words.deadline(), Some(s(2)));
        assert_eq!([s(1), s(2), s(3)].map(|now| words.due_to_look(now).len()), [0, 1, 0]);
        words.write(s(4), Rank(1), Stream::Stderr, b"going on\n");
        assert_eq!(words.due_to_look(s(5)), []);
    }

    #[test]
    fn ranks_that_report_their_failures_or_have_ended_are_not_suspected() {
        let mut words = LastWords::default();
        for rank in 0..4 {
            words.reports(s(0), Rank(rank), rank == 0);
            words.write(s(1), Rank(rank), Stream::Stderr, TRACEBACK);
        }
        words.settle(Rank(1));
        words.ended(Rank(2));
        // The last of a rank's output may come after its end, also if it wrote nothing before.
        words.write(s(2), Rank(2), Stream::Stderr, TRACEBACK);
        words.ended(Rank(4));
        words.write(s(2), Rank(4), Stream::Stderr, TRACEBACK);
        assert_eq!(suspects(&mut words, s(20)), [3]);
        words.reports(s(30), Rank(0), false);
        assert_eq!((suspects(&mut words, s(39)), suspects(&mut words, s(40))), (vec![], vec![0]));
    }

    #[test]
    fn thousands_of_silent_ranks_are_read_a_few_in_each_turn() {
        let mut words = LastWords::default();
        for rank in 0..100 {
            words.write(s(0), Rank(rank), Stream::Stderr, TRACEBACK);
        }
        let mut turns = Vec::new();
        while words.deadline().is_some_and(|due| due <= s(10)) {
            words.due_to_look(s(10));
            turns.push(suspects(&mut words, s(10)).len());
        }
        assert_eq!((turns.len(), turns.iter().sum::<usize>()), (7, 100), "{turns:?}");
    }

    /// Reading the tail for each piece took hours for this.
    #[test]
    fn a_flood_in_small_pieces_costs_no_more_for_each_piece_than_the_piece() {
        let mut words = LastWords::default();
        for number in 0..200_000 {
            let line = format!("warning {number}: odd\n");
            for piece in line.as_bytes().chunks(10) {
                words.write(Duration::from_micros(number), Rank(0), Stream::Stderr, piece);
                assert_eq!(words.due(Duration::from_micros(number), false), []);
            }
        }
        assert_eq!(words.of(Rank(0)).map(|tail| tail.lines().len()), Some(crate::stderr::LINES));
    }
}
