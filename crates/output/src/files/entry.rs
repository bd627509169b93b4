//! The entries of a transcript, and their bytes.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use rankrun_core::{GroupId, Rank, RankMap, Stream};
use serde::{Deserialize, Serialize};

use crate::console::Source;
use crate::left::Left;
use crate::unfinished::Unfinished;

/// The longest entry that is read: a larger one is not ours.
const ENTRY_MAX: u32 = 64 << 20;

/// What the console was given.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Entry<'a> {
    /// A segment begins: the ranks as they are now. It says nothing new to who has read the segment before.
    Segment {
        world: Cow<'a, RankMap>,
        groups: Vec<(GroupId, Cow<'a, RankMap>)>,
        /// The streams that are within a line.
        within: Vec<Source>,
    },
    /// A rank wrote these bytes, so long after the Unix epoch.
    Output {
        rank: Rank,
        stream: Stream,
        wall: Duration,
        #[serde(with = "slices", borrow)]
        bytes: &'a [u8],
    },
    /// A stream of a rank has ended.
    Closed { rank: Rank, stream: Stream },
    /// What was ready for a console, and was not taken by it before this begins.
    Text {
        stream: Stream,
        #[serde(with = "slices", borrow)]
        bytes: &'a [u8],
    },
    /// The console is left. This is for who goes on from here in its place, and for nobody who has read what is before.
    Leave(Left),
    /// So many bytes of the ranks are missing: the file system was too slow for who only looks.
    Missing {
        bytes: u64,
        /// The streams that wrote them, and whether each is within a line now.
        of: Vec<(Source, bool)>,
    },
    /// Nobody looked for a time: what the ranks wrote then is not here. Present lines follow from their beginning.
    Gap {
        /// The streams that are within a line of which the beginning does not follow.
        within: Vec<Source>,
    },
    /// A line of rankrun's own.
    Notice(&'a str),
    /// A rank has sent a note.
    Note { rank: Rank, text: &'a str },
    /// A rank has ended.
    Ended(Rank),
    /// What was kept for the end of the attempt is shown.
    Rest,
    /// An attempt begins.
    Attempt,
    /// It has other ranks than the last.
    World(Cow<'a, RankMap>),
    /// A further group of ranks begins.
    Group(GroupId, Cow<'a, RankMap>),
    /// A rank is started again.
    Rank(Rank),
}

impl Entry<'_> {
    /// A line that was not ended, as its rank wrote it.
    pub fn unfinished(unfinished: &Unfinished) -> Entry<'_> {
        let Unfinished { rank, stream, wall, bytes } = unfinished;
        Entry::Output { rank: *rank, stream: *stream, wall: *wall, bytes }
    }
}

/// Bytes as a slice of what they are read from.
mod slices {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'de [u8], D::Error> {
        <&[u8]>::deserialize(deserializer)
    }
}

/// The entries in bytes of a [`Recorder`](crate::Recorder).
///
/// # Errors
///
/// The bytes are none.
pub fn entries(mut bytes: &[u8]) -> io::Result<Vec<Entry<'_>>> {
    let mut found = Vec::new();
    while let Some(length) = whole(bytes)? {
        let (entry, rest) = bytes.split_at(length);
        found.push(postcard::from_bytes(&entry[4..]).map_err(io::Error::other)?);
        bytes = rest;
    }
    Ok(found)
}

/// Appends an entry. Returns how long it is.
pub(super) fn encode(entry: &Entry<'_>, bytes: &mut Vec<u8>) -> u64 {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    match postcard::to_extend(entry, std::mem::take(bytes)) {
        Ok(more) => *bytes = more,
        Err(error) => unreachable!("an entry is plain data: {error}"),
    }
    let length = (bytes.len() - start - 4) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    u64::from(length) + 4
}

/// How long the first entry is with its length, if all of it is there.
pub(super) fn whole(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(length) = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else { return Ok(None) };
    if length > ENTRY_MAX {
        return Err(io::Error::other("it is damaged"));
    }
    let whole = length as usize + 4;
    Ok(Some(whole).filter(|whole| bytes.len() >= *whole))
}

/// Whether an entry is the first of a segment.
pub(super) fn is_segment(entry: &[u8]) -> bool {
    // The number of the variant.
    entry.get(4) == Some(&0)
}
