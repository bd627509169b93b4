//! Identical lines of several ranks as one.
//!
//! Lines are matched by what they say and not by where they come: a rank's line joins the first waiting line of the same
//! text that may come after the last one that this rank wrote or joined. It may not where some ranks together say that it
//! comes before. To find that out quickly, the waiting lines are numbered so that each comes behind those that must come before
//! it, and only lines between the two are looked at when one would have to be moved (Pearce and Kelly, "A dynamic
//! topological sort algorithm for directed acyclic graphs", 2006).
//!
//! Lines leave in the order in which they first came, as far as each rank's own lines stay in order.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rankrun_core::Rank;

/// A line leaves when no further rank has joined it for this long,
const QUIET: Duration = Duration::from_millis(100);
/// or when it has waited for this long,
const WAIT: Duration = Duration::from_secs(1);
/// or when so many bytes wait: folding is a view, and must not hold the job's output back.
const FOLD_MEMORY: usize = 2 << 20;
/// What a waiting line costs beside its text, about.
const OVERHEAD: usize = 400;
/// Waiting lines of the same text that are tried, and lines that are looked at for each: many ranks that write much have
/// no time for more.
const TRIED: usize = 4;
const LOOKED_AT: usize = 2048;

/// The waiting lines of one stream.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    waiting: HashMap<Number, Waiting>,
    /// The number of the next line.
    next: Number,
    /// The waiting lines with this text, as they came.
    by_text: HashMap<Arc<[u8]>, VecDeque<Number>>,
    by_rank: HashMap<Rank, Own>,
    /// The lines before which no other has to leave.
    ready: BTreeSet<Number>,
    bytes: usize,
    /// A line that so many ranks wrote need not wait for more.
    all: usize,
}

/// Lines in the order of their arrival.
type Number = u64;

/// The waiting lines of a rank.
#[derive(Debug, Default)]
struct Own {
    /// In order.
    lines: VecDeque<Number>,
    /// The last one of each text: equal lines of a rank go to different lines, one after the other.
    last: HashMap<Arc<[u8]>, Number>,
}

#[derive(Debug)]
struct Waiting {
    folded: Folded,
    /// Higher than the place of each line that must come before.
    place: u64,
    /// The lines that some of its ranks wrote right before, and right after.
    before: BTreeSet<Number>,
    after: BTreeSet<Number>,
}

/// A line and the ranks that wrote it.
#[derive(Debug)]
pub(crate) struct Folded {
    pub(crate) text: Arc<[u8]>,
    pub(crate) ranks: Vec<Rank>,
    /// When the first of them wrote it, since the Unix epoch.
    pub(crate) wall: Duration,
    begun: Duration,
    joined: Duration,
}

impl Folded {
    fn due(&self) -> Duration {
        (self.joined + QUIET).min(self.begun + WAIT)
    }
}

impl Fold {
    /// `all` is the number of ranks that are shown.
    pub(crate) fn new(all: usize) -> Fold {
        Fold { all, ..Fold::default() }
    }

    /// A rank wrote a line.
    pub(crate) fn push(&mut self, now: Duration, wall: Duration, rank: Rank, text: &[u8]) {
        let last = self.by_rank.get(&rank).and_then(|own| own.lines.back().copied());
        let number = self.find_equal(rank, last, text).unwrap_or_else(|| self.enter(now, wall, text));
        let Some(line) = self.waiting.get_mut(&number) else { return };
        line.folded.ranks.push(rank);
        line.folded.joined = now;
        line.before.extend(last);
        let text = Arc::clone(&line.folded.text);
        if line.before.is_empty() {
            self.ready.insert(number)
        } else {
            self.ready.remove(&number)
        };
        if let Some(last) = last.and_then(|last| self.waiting.get_mut(&last)) {
            last.after.insert(number);
        }
        let own = self.by_rank.entry(rank).or_default();
        own.lines.push_back(number);
        own.last.insert(text, number);
    }

    /// The first waiting line of this text that may come after the last one of the rank. It gets a place there.
    fn find_equal(&mut self, rank: Rank, last: Option<Number>, text: &[u8]) -> Option<Number> {
        let equals = self.by_text.get(text)?;
        let used = self.by_rank.get(&rank).and_then(|own| own.last.get(text));
        let begin = used.map_or(0, |used| equals.partition_point(|number| number <= used));
        let Some(last) = last else { return equals.get(begin).copied() };
        let tried: Vec<Number> = equals.range(begin..).take(TRIED).copied().collect();
        tried.into_iter().find(|number| self.put_after(last, *number))
    }

    /// A line that is equal to none that waits.
    fn enter(&mut self, now: Duration, wall: Duration, text: &[u8]) -> Number {
        let number = self.next;
        self.next += 1;
        let text: Arc<[u8]> = Arc::from(text);
        self.bytes += text.len() + OVERHEAD;
        self.by_text.entry(Arc::clone(&text)).or_default().push_back(number);
        let folded = Folded { text, ranks: Vec::new(), wall, begun: now, joined: now };
        // No place that was ever given is higher.
        let line = Waiting { folded, place: number, before: BTreeSet::new(), after: BTreeSet::new() };
        self.waiting.insert(number, line);
        number
    }

    /// Changes places so that a line comes after another one. Returns whether that may be.
    fn put_after(&mut self, first: Number, second: Number) -> bool {
        let place = |number: &Number| self.waiting[number].place;
        let (low, high) = (place(&second), place(&first));
        if high < low {
            return true;
        }
        let later = self.reach(second, |line| &line.after, |place| place <= high);
        let Some(later) = later.filter(|later| !later.contains(&first)) else { return false };
        let Some(earlier) = self.reach(first, |line| &line.before, |place| place >= low) else { return false };
        let sorted = |numbers: HashSet<Number>| {
            let mut numbers: Vec<Number> = numbers.into_iter().collect();
            numbers.sort_unstable_by_key(place);
            numbers
        };
        let moved = [sorted(earlier), sorted(later)].concat();
        let mut places: Vec<u64> = moved.iter().map(place).collect();
        places.sort_unstable();
        for (number, place) in moved.iter().zip(places) {
            if let Some(line) = self.waiting.get_mut(number) {
                line.place = place;
            }
        }
        true
    }

    /// A line and those that it leads to, as far as their places are of interest; `None` if they are too many.
    fn reach(
        &self,
        from: Number,
        next: impl Fn(&Waiting) -> &BTreeSet<Number>,
        is_near: impl Fn(u64) -> bool,
    ) -> Option<HashSet<Number>> {
        let mut seen = HashSet::from([from]);
        let mut open = vec![from];
        while let Some(number) = open.pop() {
            for number in next(&self.waiting[&number]) {
                if is_near(self.waiting[number].place) && seen.insert(*number) {
                    open.push(*number);
                }
            }
            if seen.len() > LOOKED_AT {
                return None;
            }
        }
        Some(seen)
    }

    /// Takes the next line that need not wait any longer.
    pub(crate) fn pop_due(&mut self, now: Duration) -> Option<Folded> {
        let first = &self.waiting[self.ready.first()?].folded;
        let is_due = first.due() <= now || first.ranks.len() >= self.all || self.bytes > FOLD_MEMORY;
        if is_due { self.pop() } else { None }
    }

    /// Takes the next line that has to leave before all lines of this rank have left.
    pub(crate) fn pop_until(&mut self, rank: Rank) -> Option<Folded> {
        let mut number = *self.by_rank.get(&rank)?.lines.front()?;
        while let Some(before) = self.waiting[&number].before.first() {
            number = *before;
        }
        self.take(number)
    }

    /// Takes the next line.
    pub(crate) fn pop(&mut self) -> Option<Folded> {
        self.take(*self.ready.first()?)
    }

    /// Takes a line that is ready.
    fn take(&mut self, number: Number) -> Option<Folded> {
        self.ready.remove(&number);
        let Waiting { mut folded, after, .. } = self.waiting.remove(&number)?;
        self.bytes -= folded.text.len() + OVERHEAD;
        if let Some(equals) = self.by_text.get_mut(&folded.text) {
            if let Ok(at) = equals.binary_search(&number) {
                equals.remove(at);
            }
            if equals.is_empty() {
                self.by_text.remove(&folded.text);
            }
        }
        for rank in &folded.ranks {
            let Some(own) = self.by_rank.get_mut(rank) else { continue };
            own.lines.pop_front();
            if own.last.get(&folded.text) == Some(&number) {
                own.last.remove(&folded.text);
            }
            if own.lines.is_empty() {
                self.by_rank.remove(rank);
            }
        }
        for next in after {
            if let Some(line) = self.waiting.get_mut(&next) {
                line.before.remove(&number);
                if line.before.is_empty() {
                    self.ready.insert(next);
                }
            }
        }
        folded.ranks.sort_unstable();
        Some(folded)
    }

    /// When the next line is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        Some(self.waiting[self.ready.first()?].folded.due())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(5);

    /// What leaves, as `ranks:text`.
    fn drain(fold: &mut Fold) -> Vec<(Vec<u32>, String)> {
        std::iter::from_fn(|| fold.pop())
            .map(|it| {
                (it.ranks.iter().map(|rank| rank.number()).collect(), String::from_utf8_lossy(&it.text).into_owned())
            })
            .collect()
    }

    fn write(fold: &mut Fold, rank: u32, text: &str) {
        fold.push(NOW, NOW, Rank(rank), text.as_bytes());
    }

    #[test]
    fn equal_lines_fold_behind_a_line_of_each_ranks_own() {
        let mut fold = Fold::new(200);
        for rank in 0..200 {
            write(&mut fold, rank, &format!("rank {rank}"));
            write(&mut fold, rank, "loaded");
            write(&mut fold, rank, "it 1");
        }
        let lines = drain(&mut fold);
        assert_eq!(lines.len(), 202);
        assert_eq!(lines[7], (vec![7], "rank 7".to_owned()), "in the order in which they came");
        let all: Vec<u32> = (0..200).collect();
        assert_eq!(lines[200..], [(all.clone(), "loaded".to_owned()), (all, "it 1".to_owned())]);
    }

    #[test]
    fn lines_that_come_in_different_orders_are_not_all_folded() {
        let mut fold = Fold::new(2);
        for (rank, text) in [(0, "x"), (0, "y"), (1, "y"), (1, "x")] {
            write(&mut fold, rank, text);
        }
        let seen = drain(&mut fold);
        assert_eq!(seen, [(vec![0], "x".into()), (vec![0, 1], "y".into()), (vec![1], "x".into())]);
    }

    #[test]
    fn equal_lines_of_a_rank_fold_one_by_one() {
        let mut fold = Fold::new(3);
        for rank in 0..3 {
            (0..5000).for_each(|_| write(&mut fold, rank, ""));
        }
        let lines = drain(&mut fold);
        assert_eq!((lines.len(), &lines[4999]), (5000, &(vec![0, 1, 2], String::new())));
    }

    proptest! {
        #[test]
        fn no_line_is_lost_and_each_ranks_lines_stay_in_order(
            steps in proptest::collection::vec((0u32..4, 0u8..5, 0u8..12), 0..80)
        ) {
            let mut fold = Fold::new(4);
            let (mut seen, mut written) = (Vec::new(), vec![Vec::new(); 4]);
            for (rank, text, then) in steps {
                let text = format!("line {text}");
                write(&mut fold, rank, &text);
                written[rank as usize].push(text);
                match then {
                    0 => seen.extend(fold.pop()),
                    1 => {
                        while let Some(folded) = fold.pop_until(Rank(rank)) {
                            seen.push(folded);
                        }
                        prop_assert!(!fold.by_rank.contains_key(&Rank(rank)));
                    }
                    _ => {}
                }
            }
            seen.extend(std::iter::from_fn(|| fold.pop()));
            for (rank, written) in written.into_iter().enumerate() {
                let own = seen.iter().filter(|it| it.ranks.contains(&Rank(rank as u32)));
                let own: Vec<_> = own.map(|it| String::from_utf8_lossy(&it.text).into_owned()).collect();
                prop_assert_eq!(own, written);
            }
            prop_assert!(fold.waiting.is_empty() && fold.ready.is_empty() && fold.by_text.is_empty());
            prop_assert_eq!((fold.bytes, fold.by_rank.len(), fold.due()), (0, 0, None));
        }

        /// Each rank writes the same lines, with lines of its own anywhere between them, in any interleaving.
        #[test]
        fn a_sequence_that_all_ranks_write_folds_fully(
            length in 1usize..8,
            own in proptest::collection::vec(0usize..3, 4 * 9),
            turns in proptest::collection::vec(0usize..4, 0..200),
        ) {
            let mut queues: Vec<VecDeque<String>> = (0..4).map(|rank| {
                let between = |at: usize| (0..own[rank * 9 + at]).map(move |i| format!("own {rank} {at} {i}"));
                (0..length).flat_map(|at| between(at).chain([format!("line {at}")])).collect()
            }).collect();
            let mut fold = Fold::new(4);
            for rank in turns.into_iter().chain((0..4).flat_map(|rank| std::iter::repeat_n(rank, 30))) {
                if let Some(text) = queues[rank].pop_front() {
                    write(&mut fold, rank as u32, &text);
                }
            }
            let shared: Vec<_> = drain(&mut fold).into_iter().filter(|(_, text)| text.starts_with("line")).collect();
            let expected: Vec<_> = (0..length).map(|at| (vec![0, 1, 2, 3], format!("line {at}"))).collect();
            prop_assert_eq!(shared, expected);
        }
    }
}
