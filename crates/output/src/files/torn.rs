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

    /// The streams, sorted by rank, stdout first.
    pub fn list(&self) -> Vec<Source> {
        let mut list: Vec<Source> = self.0.iter().copied().collect();
        list.sort_unstable_by_key(|(rank, stream)| (*rank, stream.index()));
        list
    }

    pub(super) fn contains(&self, source: Source) -> bool {
        self.0.contains(&source)
    }

    /// Follows what the console is given, or the transcript has.
    pub fn follow(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Output { rank, stream, bytes, .. } => self.wrote((*rank, *stream), bytes),
            Entry::Segment { within, .. } | Entry::Gap { within } => self.0 = within.iter().copied().collect(),
            Entry::Missing { of, .. } => {
                for (source, is_within) in of {
                    match is_within {
                        true => self.add(*source),
                        false => drop(self.0.remove(source)),
                    }
                }
            }
            other => self.0.retain(|source| !ends(other, *source)),
        }
    }

    /// A stream went on with these bytes.
    pub(super) fn wrote(&mut self, source: Source, bytes: &[u8]) {
        match bytes.last() {
            None => {}
            Some(b'\n') => drop(self.0.remove(&source)),
            Some(_) => drop(self.0.insert(source)),
        }
    }
}

/// Whether with this entry a stream is within no line any more.
fn ends(entry: &Entry<'_>, source: Source) -> bool {
    match entry {
        Entry::Closed { rank, stream } => source == (*rank, *stream),
        Entry::Rank(rank) => source.0 == *rank,
        Entry::Attempt | Entry::World(_) => true,
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
    fn set(&mut self, source: Source, is_within: bool) {
        match is_within {
            true => drop(self.0.insert(source, 0)),
            false => drop(self.0.remove(&source)),
        }
    }

    /// Follows what is read: of output, the part that belongs to none of these lines is left. A line that overwrites itself ends where it
    /// does, and one that is too long where it would be cut.
    pub(super) fn trim(&mut self, entry: &mut Entry<'_>) {
        match entry {
            Entry::Gap { within } => *self = Torn::of(within),
            Entry::Missing { of, .. } => of.iter().for_each(|(source, is_within)| self.set(*source, *is_within)),
            _ => {}
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rankrun_core::{Rank, RankMap, Stream};

    use super::*;

    #[test]
    fn a_stream_is_within_a_line_until_something_ends_it() {
        let (first, second) = ((Rank(0), Stream::Stdout), (Rank(1), Stream::Stderr));
        let wrote = |(rank, stream): Source, bytes| Entry::Output { rank, stream, wall: Duration::ZERO, bytes };
        let both = || {
            let mut open = OpenLines::default();
            open.follow(&wrote(second, b"x"));
            open.follow(&wrote(first, b"x\ny"));
            open.follow(&wrote(first, b""));
            assert_eq!(open.list(), [first, second]);
            open
        };
        let world = RankMap::single_node("here", &[1]);
        let cases: [(Entry<'_>, &[Source]); 9] = [
            (wrote(first, b"z\n"), &[second]),
            (Entry::Closed { rank: Rank(1), stream: Stream::Stderr }, &[first]),
            (Entry::Rank(Rank(0)), &[second]),
            (Entry::Ended(Rank(0)), &[first, second]),
            (Entry::Attempt, &[]),
            (Entry::World(std::borrow::Cow::Owned(world)), &[]),
            (Entry::Gap { within: vec![second] }, &[second]),
            (Entry::Missing { bytes: 1, of: vec![(first, false)] }, &[second]),
            (
                Entry::Missing { bytes: 1, of: vec![((Rank(2), Stream::Stdout), true)] },
                &[first, second, (Rank(2), Stream::Stdout)],
            ),
        ];
        for (entry, left) in cases {
            let mut open = both();
            open.follow(&entry);
            let mut left = left.to_vec();
            left.sort_unstable_by_key(|(rank, stream)| (*rank, stream.index()));
            assert_eq!(open.list(), left, "{entry:?}");
        }
    }
}
