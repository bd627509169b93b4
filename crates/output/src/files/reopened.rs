//! How another process goes on with a transcript whose writer is gone.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::entry::{is_segment, whole};
use crate::transcript::{HEAD, Head, Transcript, make_head, make_private, name, segments};

/// What the writer of a transcript has left to another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recorded {
    pub head: Head,
    pub bound: u64,
    /// The position up to which it was to be written.
    pub end: u64,
    /// The last entries before that, of which it may lack some.
    #[serde(with = "rankrun_core::portable::bytes")]
    pub recorded: Vec<u8>,
}

impl Recorded {
    /// More is to be written.
    pub fn add(&mut self, entries: &[u8]) {
        self.end += entries.len() as u64;
        self.recorded.extend_from_slice(entries);
    }
}

impl Transcript {
    /// Goes on with one whose writer is gone: what it lacks of what was left is to be written ([`Transcript::retry`]), and what it has
    /// beyond that is removed. A writer that is killed may have written a part of an entry. Where it lacks more, it goes on after a gap, as
    /// if the oldest had no room any more.
    ///
    /// # Errors
    ///
    /// It cannot be read or made, or another process writes it (`WouldBlock`).
    pub fn reopen(directory: PathBuf, left: &Recorded) -> io::Result<Transcript> {
        let Recorded { head, bound, end, recorded } = left;
        let head = match File::options().read(true).write(true).open(directory.join(HEAD)) {
            // Somebody has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private(&directory)?;
                make_head(&directory, head)?
            }
            head => {
                let head = head?;
                rustix::fs::flock(&head, FlockOperation::NonBlockingLockExclusive)?;
                head
            }
        };
        let mut starts = segments(&directory)?;
        starts.sort_unstable();
        while let Some(beyond) = starts.pop_if(|start| *start >= *end) {
            std::fs::remove_file(directory.join(name(beyond)))?;
        }
        let segment = match starts.last() {
            Some(last) => Some(crate::open(File::options().append(true), &directory.join(name(*last)))?),
            None => None,
        };
        let length = segment.as_ref().map(File::metadata).transpose()?.map_or(0, |data| data.len());
        let written = starts.last().map_or(0, |last| (last + length).min(*end));
        let first = end.saturating_sub(recorded.len() as u64);
        let mut transcript = Transcript {
            directory,
            bound: *bound,
            _head: head,
            segment,
            starts: starts.into(),
            end: first,
            rest: Vec::new(),
        };
        let mut from = 0;
        match written.checked_sub(first) {
            Some(has) => {
                // The last whole entry that it has ends here.
                let has = usize::try_from(has).unwrap_or(usize::MAX);
                while let Some(length) = whole(&recorded[from..])?
                    && from + length <= has
                {
                    from += length;
                }
                transcript.end += from as u64;
                if let (Some(file), Some(last)) = (&transcript.segment, transcript.starts.back()) {
                    // A segment that begins after it was removed.
                    file.set_len(transcript.end.saturating_sub(*last))?;
                }
            }
            None => {
                while let Some(length) = whole(&recorded[from..])?
                    && !is_segment(&recorded[from..])
                {
                    from += length;
                }
                transcript.end += from as u64;
                transcript.segment = None;
            }
        }
        transcript.rest.extend_from_slice(&recorded[from..]);
        Ok(transcript)
    }
}
