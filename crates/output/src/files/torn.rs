//! Lines of which a transcript has only a part: where it begins within them, or where something is missing.

use std::collections::{HashMap, HashSet};

use crate::console::Source;
use crate::entry::Entry;
use crate::lines::MAX_LINE;

/// Which streams are within a line.
#[derive(Clone, Debug, Default)]
pub struct OpenLines(HashSet<Source>);

impl OpenLines {
    pub(super) fn add(&mut self, source: Source) {
        self.0.insert(source);
    }

    /// They, in order.
    pub fn list(&self) -> Vec<Source> {
        let mut list: Vec<Source> = self.0.iter().copied().collect();
        list.sort_unstable_by_key(|(rank, stream)| (*rank, stream.index()));
        list
    }

    pub(super) fn contains(&self, source: Source) -> bool {
        self.0.contains(&source)
    }

    /// Follows what is recorded.
    pub(super) fn follow(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Output { rank, stream, bytes, .. } => self.wrote((*rank, *stream), bytes),
            Entry::Segment { within, .. } => self.0 = within.iter().copied().collect(),
            other => self.0.retain(|source| !ends(other, *source)),
        }
    }

    /// A stream went on with these bytes.
    pub fn wrote(&mut self, source: Source, bytes: &[u8]) {
        match bytes.last() {
            None => {}
            Some(b'\n') => drop(self.0.remove(&source)),
            Some(_) => drop(self.0.insert(source)),
        }
    }

    /// A stream has ended.
    pub fn closed(&mut self, source: Source) {
        self.0.remove(&source);
    }
}

/// Whether with this entry a stream is within no line any more.
fn ends(entry: &Entry<'_>, source: Source) -> bool {
    match entry {
        Entry::Closed { rank, stream } => source == (*rank, *stream),
        Entry::Rank(rank) => source.0 == *rank,
        Entry::Gap | Entry::Attempt | Entry::World(_) => true,
        _ => false,
    }
}

/// Lines whose beginning is missing, and how many bytes of each were passed over.
#[derive(Debug, Default)]
pub(super) struct Torn(HashMap<Source, usize>);

impl Torn {
    pub(super) fn of(sources: &[Source]) -> Torn {
        Torn(sources.iter().map(|source| (*source, 0)).collect())
    }

    /// A stream has lost bytes: whether it is within a line now.
    pub(super) fn set(&mut self, source: Source, is_within: bool) {
        match is_within {
            true => drop(self.0.insert(source, 0)),
            false => drop(self.0.remove(&source)),
        }
    }

    /// Follows what is read: of output, the part that belongs to none of these lines is left. A line that overwrites itself ends where it
    /// does, and one that is too long where it would be cut.
    pub(super) fn trim(&mut self, entry: &mut Entry<'_>) {
        if self.0.is_empty() {
            return;
        }
        let Entry::Output { rank, stream, bytes, .. } = entry else {
            return self.0.retain(|source, _| !ends(entry, *source));
        };
        let source = (*rank, *stream);
        let Some(passed) = self.0.get_mut(&source) else { return };
        let most = bytes.len().min(MAX_LINE - *passed);
        let end = memchr::memchr2(b'\n', b'\r', &bytes[..most]);
        *passed += most;
        let taken = match end {
            Some(end) if bytes[end..].starts_with(b"\r\n") => end + 2,
            Some(end) => end + 1,
            None => most,
        };
        if end.is_some() || *passed == MAX_LINE {
            self.0.remove(&source);
        }
        *bytes = &bytes[taken..];
    }
}
