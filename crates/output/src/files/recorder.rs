//! Who makes the entries of a transcript, where the job runs.

use std::borrow::Cow;

use rankrun_core::{GroupId, RankMap};

use crate::console::Source;
use crate::entry::{Entry, encode};
use crate::torn::OpenLines;

/// The bound is reached with so many segments.
const SEGMENTS: u64 = 8;
/// The smallest segment, in bytes.
pub(super) const SEGMENT_MIN: u64 = 8 << 10;

/// Makes the bytes of a transcript, where the job runs.
#[derive(Debug)]
pub struct Recorder {
    /// Bytes of a segment.
    size: u64,
    /// Bytes of the present one.
    length: u64,
    world: RankMap,
    groups: Vec<(GroupId, RankMap)>,
    /// The streams that are within a line.
    within: OpenLines,
    /// Bytes that were passed over, and the streams that wrote them.
    missing: u64,
    missing_of: OpenLines,
    /// What is to be written next.
    pending: Vec<u8>,
    /// The position of its end.
    position: u64,
}

impl Recorder {
    /// One that keeps to about so many bytes. Nothing is recorded yet.
    pub fn new(bound: u64, world: RankMap, groups: Vec<(GroupId, RankMap)>) -> Recorder {
        let size = segment_size(bound);
        let (within, missing_of, pending) = (OpenLines::default(), OpenLines::default(), Vec::new());
        Recorder { size, length: size, world, groups, within, missing: 0, missing_of, pending, position: 0 }
    }

    /// One that goes on at this position, after these last entries. It begins another segment.
    pub fn at(
        bound: u64,
        world: RankMap,
        groups: Vec<(GroupId, RankMap)>,
        position: u64,
        last: &[Entry<'_>],
    ) -> Recorder {
        let mut recorder = Recorder { position, ..Recorder::new(bound, world, groups) };
        last.iter().for_each(|entry| recorder.within.follow(entry));
        recorder
    }

    /// The same, with these streams within a line of which nothing was recorded.
    #[must_use]
    pub fn within(mut self, sources: impl IntoIterator<Item = Source>) -> Recorder {
        sources.into_iter().for_each(|source| self.within.add(source));
        self
    }

    /// Where the next entry will be.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The console was given this, and there is no room for it here: it will be missing.
    pub fn pass_over(&mut self, source: Source, bytes: &[u8]) {
        self.missing += bytes.len() as u64;
        self.missing_of.add(source);
        self.within.wrote(source, bytes);
    }

    /// The console was given this.
    pub fn record(&mut self, entry: &Entry<'_>) {
        let bytes = std::mem::take(&mut self.missing);
        if bytes > 0 {
            let of = std::mem::take(&mut self.missing_of).list();
            let of = of.into_iter().map(|source| (source, self.within.contains(source))).collect();
            self.add(&Entry::Missing { bytes, of });
        }
        self.add(entry);
    }

    fn add(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::World(map) => {
                self.world = map.clone().into_owned();
                self.groups.clear();
            }
            Entry::Group(group, map) => self.groups.push((*group, map.clone().into_owned())),
            _ => {}
        }
        if self.length >= self.size {
            let groups = self.groups.iter().map(|(group, map)| (*group, Cow::Borrowed(map))).collect();
            let first = Entry::Segment { world: Cow::Borrowed(&self.world), groups, within: self.within.list() };
            self.length = encode(&first, &mut self.pending);
            self.position += self.length;
        }
        self.within.follow(entry);
        let length = encode(entry, &mut self.pending);
        self.length += length;
        self.position += length;
    }

    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The bytes that are to be written: whole entries.
    pub fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }
}

pub(super) fn segment_size(bound: u64) -> u64 {
    (bound / SEGMENTS).max(SEGMENT_MIN)
}
