//! Identical lines of several ranks as one.
//!
//! Lines wait in the order of their first arrival. A line of a rank joins the first waiting line of the same text that
//! comes after the last one that this rank wrote or joined, so that each rank's own lines stay in order; lines leave in
//! the order in which they wait.

use std::collections::{HashMap, VecDeque};
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
const OVERHEAD: usize = 200;

/// The waiting lines of one stream.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    waiting: VecDeque<Folded>,
    /// The number of the first waiting line; the others follow.
    first: u64,
    /// The numbers of the waiting lines with this text, in order.
    by_text: HashMap<Arc<[u8]>, VecDeque<u64>>,
    /// The number of the last line that a rank wrote or joined.
    last: HashMap<Rank, u64>,
    bytes: usize,
    /// A line that so many ranks wrote need not wait for more.
    all: usize,
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
        let after = self.last.get(&rank).map_or(0, |last| last + 1).max(self.first);
        let same = self.by_text.get(text).and_then(|numbers| {
            let at = numbers.partition_point(|number| *number < after);
            numbers.get(at).copied()
        });
        let waiting = same.and_then(|number| self.waiting.get_mut((number - self.first) as usize));
        let number = match (same, waiting) {
            (Some(number), Some(folded)) => {
                folded.ranks.push(rank);
                folded.joined = now;
                number
            }
            _ => {
                let number = self.first + self.waiting.len() as u64;
                let text: Arc<[u8]> = Arc::from(text);
                self.bytes += text.len() + OVERHEAD;
                self.by_text.entry(Arc::clone(&text)).or_default().push_back(number);
                self.waiting.push_back(Folded { text, ranks: vec![rank], wall, begun: now, joined: now });
                number
            }
        };
        self.last.insert(rank, number);
    }

    /// Takes the next line that need not wait any longer.
    pub(crate) fn pop_due(&mut self, now: Duration) -> Option<Folded> {
        let first = self.waiting.front()?;
        let is_due = first.due() <= now || first.ranks.len() >= self.all || self.bytes > FOLD_MEMORY;
        if is_due { self.pop() } else { None }
    }

    /// Takes the next line if this rank has lines that still wait.
    pub(crate) fn pop_until(&mut self, rank: Rank) -> Option<Folded> {
        let last = *self.last.get(&rank)?;
        if self.first <= last { self.pop() } else { None }
    }

    /// Takes the next line.
    pub(crate) fn pop(&mut self) -> Option<Folded> {
        let mut folded = self.waiting.pop_front()?;
        if let Some(numbers) = self.by_text.get_mut(&folded.text) {
            numbers.pop_front();
            if numbers.is_empty() {
                self.by_text.remove(&folded.text);
            }
        }
        self.first += 1;
        self.bytes -= folded.text.len() + OVERHEAD;
        folded.ranks.sort_unstable();
        Some(folded)
    }

    /// When the next line is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.waiting.front().map(Folded::due)
    }
}
