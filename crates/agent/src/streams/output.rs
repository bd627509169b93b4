//! The ranks' output that is in the agent.
//!
//! stdout and stderr never wait for each other: each has its own place in the spool, its own credit, and its own captures
//! that are left alone while there is no room.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use rankrun_core::Stream;
use rankrun_output::{Record, Spool, SpoolError};

/// Output that is in the agent.
pub(crate) struct Output {
    pub(crate) spool: Spool,
    /// When the spool may have something to be written, though nothing else happens.
    pub(crate) due: Option<Duration>,
    /// Output of workers that are gone, while the spool is full.
    pub(crate) overflow: [VecDeque<Record>; 2],
    /// Memory that is read into.
    pub(crate) buffer: Vec<u8>,
    /// The captures of a stream are out of the poll set, because the spool has no room for it.
    pub(crate) is_stalled: [bool; 2],
    /// Nobody wants the output any more.
    pub(crate) is_discarding: bool,
    /// The stream whose turn it is, if both have credit.
    turn: Stream,
}

impl Output {
    /// `directory` is where the spool's files are made, `limit` how many bytes they may take.
    pub(crate) fn new(directory: &Path, limit: u64) -> Output {
        Output {
            spool: Spool::new(directory, limit),
            due: None,
            overflow: Default::default(),
            buffer: Vec::new(),
            is_stalled: [false; 2],
            is_discarding: false,
            turn: Stream::Stdout,
        }
    }

    /// Whether the captures of a stream are to be left alone.
    pub(crate) fn is_stalled(&self, stream: Stream) -> bool {
        self.is_stalled[stream.index()]
    }

    /// Takes a record. Without room it waits here, in front of the spool.
    pub(crate) fn push(&mut self, record: Record) {
        let overflow = &mut self.overflow[record.stream.index()];
        if !overflow.is_empty() {
            overflow.push_back(record);
        } else if let Err(full) = self.spool.push(record) {
            overflow.push_back(full.record);
        }
    }

    /// The next record of a stream with credit, and whether there is more of this stream.
    pub(crate) fn next(&mut self, credit: [bool; 2]) -> Result<Option<(Record, bool)>, SpoolError> {
        let other = Stream::ALL[1 - self.turn.index()];
        for stream in [self.turn, other] {
            if credit[stream.index()]
                && let Some(record) = self.spool.pop(stream)?
            {
                self.turn = Stream::ALL[1 - stream.index()];
                return Ok(Some((record, self.spool.holds(stream) || !self.overflow[stream.index()].is_empty())));
            }
        }
        Ok(None)
    }

    /// Puts what overflowed into the spool, as far as it has room again. True if there was any.
    pub(crate) fn refill(&mut self) -> bool {
        let mut moved = false;
        for (stream, overflow) in Stream::ALL.into_iter().zip(&mut self.overflow) {
            while self.spool.has_room(stream)
                && let Some(record) = overflow.pop_front()
            {
                if let Err(full) = self.spool.push(record) {
                    overflow.push_front(full.record);
                    break;
                }
                moved = true;
            }
        }
        moved
    }

    pub(crate) fn has_room(&self, stream: Stream) -> bool {
        self.overflow[stream.index()].is_empty() && self.spool.has_room(stream)
    }

    pub(crate) fn clear(&mut self) {
        self.spool.clear();
        self.overflow = Default::default();
    }
}
