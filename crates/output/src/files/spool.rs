//! Holds output that its destination cannot take yet: for each stream first in, first out.
//!
//! The oldest records of a stream are in memory, newer ones in a series of unlinked files, and the newest in memory again,
//! until there is enough of them for a write. A file is closed as soon as it was read to its end. So the space on disk
//! follows what waits, also when a long and slow job never drains the spool.
//!
//! The spool itself touches no file. It makes [`Request`]s, which a thread of the caller's runs, one after the other, and it
//! takes their [`Completion`]s. Writes begin only while the destination is slow: the ranks wait for a fast one, and not for the disk
//! (docs/adr/0036-no-disk-before-a-fast-destination.md). A disk that hangs blocks the records that are on it, and the ranks once the memory is full,
//! but not the caller. Records that are being written are still in memory, and can be read if they are the oldest.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::{Stream, WorkerId};

mod file;
mod pace;
#[cfg(test)]
mod tests;

pub use file::{Completion, Request};
use file::{Job, Outcome};
use pace::Pace;

/// What waits in memory at most, in bytes. Each stream has half of it, so that neither can block the other. Front,
/// guard and agent together have 20 MiB (docs/architecture.md).
pub const SPOOL_MEMORY: u64 = 4 << 20;
/// What is in front of the files of a stream at most: enough to keep a fast destination busy while the disk is read.
const HEAD: u64 = SPOOL_MEMORY / 4;
/// What is behind the files of a stream at most, together with what is being written.
const TAIL: u64 = SPOOL_MEMORY / 4;
/// The size of a read or write: large enough for few of them, and several fit into the memory.
const BATCH: u64 = 256 << 10;

/// The greatest file, in bytes: at most this much of what was read already stays on disk, and a spool of 1 GiB has 32
/// files open.
const SEGMENT: u64 = 32 << 20;
/// The smallest file, in bytes: a small limit must not make a file for each record.
const SEGMENT_MIN: u64 = 64 << 10;

/// Group, rank, attempt, stream, seconds and nanoseconds, length, and a checksum of these: little-endian.
const HEADER: usize = 4 + 4 + 4 + 1 + 8 + 4 + 4 + 4;

/// One piece of output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub worker: WorkerId,
    pub stream: Stream,
    /// When it was read. The caller chooses the origin.
    pub time: Duration,
    pub bytes: Bytes,
}

/// The spool has no room for this record now, and returns it. Read no more output until [`Spool::has_room`].
#[derive(Debug, thiserror::Error)]
#[error("no room in the spool")]
pub struct Full {
    pub record: Record,
}

/// What was spooled cannot be read again.
#[derive(Debug, thiserror::Error)]
#[error("cannot read spooled output in \"{}\"", dir.display())]
pub struct SpoolError {
    pub dir: PathBuf,
    pub source: io::Error,
}

/// A queue of records for each stream: at most [`SPOOL_MEMORY`] bytes in memory, the rest on disk up to a limit that the
/// two share.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    limit: u64,
    queues: [Queue; 2],
    /// Bytes that the files take, with what is being written.
    on_disk: u64,
    /// Writing a file failed, and no record was read since.
    is_stuck: bool,
    /// Files that were read to their end. Closing one frees its space, which may take the disk long.
    to_close: Vec<Arc<File>>,
    /// Rises with each [`Spool::clear`]: results of earlier requests are ignored.
    era: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// The oldest records. New ones are added here while nothing is behind them.
    head: VecDeque<Record>,
    head_size: u64,
    /// Newer ones. All but the last have unread records.
    segments: VecDeque<Segment>,
    is_reading: bool,
    /// The records that are being written to the last segment, except those that were read meanwhile, and the bytes of
    /// those.
    writing: VecDeque<Record>,
    writing_size: u64,
    writing_taken: u64,
    is_writing: bool,
    /// The newest.
    tail: VecDeque<Record>,
    tail_size: u64,
    /// Unread bytes of output in the segments.
    in_files: u64,
    pace: Pace,
    error: Option<io::Error>,
}

#[derive(Debug, Default)]
struct Segment {
    /// Made by the first write.
    file: Option<Arc<File>>,
    read: u64,
    written: u64,
}

impl Spool {
    /// `dir` is where files are made when they are needed, unlinked from the start; `limit` is how many bytes they may
    /// take. With 0 there is only the memory.
    pub fn new(dir: impl Into<PathBuf>, limit: u64) -> Spool {
        Spool {
            dir: dir.into(),
            limit,
            queues: Default::default(),
            on_disk: 0,
            is_stuck: false,
            to_close: Vec::new(),
            era: 0,
        }
    }

    /// Adds a record, or returns it. An empty queue takes a record of any size.
    pub fn push(&mut self, record: Record) -> Result<(), Full> {
        let queue = &mut self.queues[record.stream.index()];
        let size = size_of(&record);
        if queue.takes_to_head(size) {
            queue.head_size += size;
            queue.head.push_back(record);
        } else if queue.takes_to_tail(size) {
            queue.tail_size += size;
            queue.tail.push_back(record);
        } else {
            return Err(Full { record });
        }
        Ok(())
    }

    /// Whether there is room for a record of 64 KiB of this stream.
    pub fn has_room(&self, stream: Stream) -> bool {
        const FRAME: u64 = (64 << 10) + HEADER as u64;
        let queue = &self.queues[stream.index()];
        queue.takes_to_head(FRAME) || queue.takes_to_tail(FRAME)
    }

    /// Takes the oldest record of a stream out. `None` if there is none, or if it is still to be read from a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read. The record stays, and the next call tries again.
    pub fn pop(&mut self, stream: Stream) -> Result<Option<Record>, SpoolError> {
        let queue = &mut self.queues[stream.index()];
        if queue.head.is_empty()
            && let Some(source) = queue.error.take()
        {
            return Err(SpoolError { dir: self.dir.clone(), source });
        }
        let record = queue.pop();
        queue.pace.took(record.as_ref().map_or(0, size_of));
        self.is_stuck &= record.is_none();
        Ok(record)
    }

    /// Whether something of a stream is here, in memory or on disk.
    pub fn holds(&self, stream: Stream) -> bool {
        !self.queues[stream.index()].is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(Queue::is_empty)
    }

    /// How many bytes of output wait, in memory and on disk.
    pub fn bytes(&self) -> u64 {
        self.queues.iter().map(Queue::bytes).sum()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        for queue in &mut self.queues {
            self.to_close.extend(queue.segments.drain(..).filter_map(|segment| segment.file));
            *queue = Queue::default();
        }
        self.on_disk = 0;
        self.is_stuck = false;
        self.era += 1;
    }

    /// When [`Spool::next_request`] may have a write, though nothing was pushed, popped or completed since it was last asked.
    pub fn deadline(&self) -> Option<Duration> {
        self.queues.iter().filter_map(|queue| queue.pace.due()).min()
    }

    /// The next request, if there is one. A read and a write of each stream may be under way at a time, and some
    /// closes.
    pub fn next_request(&mut self, now: Duration) -> Option<Request> {
        let era = self.era;
        for stream in Stream::ALL {
            if let Some(job) = self.queues[stream.index()].next_read() {
                return Some(Request { era, stream, job });
            }
        }
        for stream in Stream::ALL {
            if let Some(job) = self.next_write(stream, now) {
                return Some(Request { era, stream, job });
            }
        }
        if self.to_close.is_empty() {
            return None;
        }
        Some(Request { era, stream: Stream::Stdout, job: Job::Close(std::mem::take(&mut self.to_close)) })
    }

    /// The result of a request.
    pub fn complete(&mut self, completion: Completion) {
        let Completion { era, stream, outcome } = completion;
        if era != self.era {
            if let Outcome::Written(Ok(file)) = outcome {
                self.to_close.push(file);
            }
            return;
        }
        let queue = &mut self.queues[stream.index()];
        match outcome {
            Outcome::Closed => {}
            Outcome::Read(Ok((records, size))) => {
                queue.is_reading = false;
                for record in records {
                    // Another program may have changed the file.
                    queue.in_files = queue.in_files.saturating_sub(record.bytes.len() as u64);
                    queue.head_size += size_of(&record);
                    queue.head.push_back(record);
                }
                if let Some(first) = queue.segments.front_mut() {
                    first.read += size;
                }
            }
            Outcome::Read(Err(error)) => {
                queue.is_reading = false;
                queue.error = Some(error);
            }
            Outcome::Written(Ok(file)) => queue.written(file),
            Outcome::Written(Err(_)) => {
                // The disk is full before our limit: the records stay in memory.
                self.is_stuck = true;
                self.on_disk -= queue.writing_size + queue.writing_taken;
                queue.not_written();
            }
        }
        if let Some(segment) = queue.end_of_first() {
            self.on_disk -= segment.written;
            self.to_close.extend(segment.file);
        }
    }

    /// Writes begin when there is enough for one, when the limit allows, and when the destination is slow.
    fn next_write(&mut self, stream: Stream, now: Duration) -> Option<Job> {
        let queue = &mut self.queues[stream.index()];
        let left = self.limit.saturating_sub(self.on_disk);
        let first = queue.tail.front().map_or(0, size_of);
        if queue.is_writing {
            return None;
        }
        if queue.tail_size < BATCH || self.is_stuck || first > left {
            queue.pace.rest();
            return None;
        }
        if !queue.pace.is_slow(now) {
            return None;
        }
        let segment_size = (self.limit / 8).clamp(SEGMENT_MIN, SEGMENT);
        if queue.segments.back().is_none_or(|last| last.written + first > segment_size) {
            queue.segments.push_back(Segment::default());
        }
        let last = queue.segments.back()?;
        let bound = left.min(BATCH).min(segment_size.saturating_sub(last.written)).max(first);
        while let Some(record) = queue.tail.front()
            && queue.writing_size + size_of(record) <= bound
            && let Some(record) = queue.tail.pop_front()
        {
            queue.tail_size -= size_of(&record);
            queue.writing_size += size_of(&record);
            queue.writing.push_back(record);
        }
        queue.is_writing = true;
        self.on_disk += queue.writing_size;
        let records = queue.writing.iter().cloned().collect();
        Some(Job::Write { file: last.file.clone(), dir: self.dir.clone(), at: last.written, records })
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.head.is_empty() && !self.has_unread() && self.writing.is_empty() && self.tail.is_empty()
    }

    fn bytes(&self) -> u64 {
        let memory = self.head_size + self.writing_size + self.tail_size;
        let records = self.head.len() + self.writing.len() + self.tail.len();
        memory - (records * HEADER) as u64 + self.in_files
    }

    /// Whether something on disk is older than all that is in `writing` and `tail`.
    fn has_unread(&self) -> bool {
        self.segments.front().is_some_and(|first| first.read < first.written)
    }

    fn takes_to_head(&self, size: u64) -> bool {
        let is_last = !self.has_unread() && self.writing.is_empty() && self.tail.is_empty();
        is_last && (self.head.is_empty() || self.head_size + size <= HEAD)
    }

    fn takes_to_tail(&self, size: u64) -> bool {
        self.writing_size + self.tail_size + size <= TAIL
    }

    fn pop(&mut self) -> Option<Record> {
        if let Some(record) = self.head.pop_front() {
            self.head_size -= size_of(&record);
            self.advance();
            return Some(record);
        }
        if self.has_unread() {
            return None;
        }
        if let Some(record) = self.writing.pop_front() {
            self.writing_size -= size_of(&record);
            self.writing_taken += size_of(&record);
            return Some(record);
        }
        let record = self.tail.pop_front()?;
        self.tail_size -= size_of(&record);
        Some(record)
    }

    /// With nothing on disk between them, the tail is moved to the head.
    fn advance(&mut self) {
        while !self.has_unread()
            && self.writing.is_empty()
            && let Some(record) = self.tail.front()
            && self.head_size + size_of(record) <= HEAD
            && let Some(record) = self.tail.pop_front()
        {
            self.tail_size -= size_of(&record);
            self.head_size += size_of(&record);
            self.head.push_back(record);
        }
    }

    /// The next read, begun while there is still something in front.
    fn next_read(&mut self) -> Option<Job> {
        if self.is_reading || self.error.is_some() || self.head_size > HEAD - BATCH || !self.has_unread() {
            return None;
        }
        let first = self.segments.front()?;
        let file = Arc::clone(first.file.as_ref()?);
        self.is_reading = true;
        Some(Job::Read { file, at: first.read, end: first.written })
    }

    fn written(&mut self, file: Arc<File>) {
        if let Some(last) = self.segments.back_mut() {
            // Records read while they were being written were the oldest: everything before them has been read.
            if self.writing_taken > 0 {
                last.read = last.written + self.writing_taken;
            }
            last.written += self.writing_taken + self.writing_size;
            last.file = Some(file);
        }
        self.in_files += self.writing.iter().map(|record| record.bytes.len() as u64).sum::<u64>();
        self.writing.clear();
        (self.writing_size, self.writing_taken, self.is_writing) = (0, 0, false);
    }

    /// Whatever was written of the batch is overwritten by the next.
    fn not_written(&mut self) {
        self.tail_size += self.writing_size;
        while let Some(record) = self.writing.pop_back() {
            self.tail.push_front(record);
        }
        (self.writing_size, self.writing_taken, self.is_writing) = (0, 0, false);
        self.advance();
    }

    /// The first segment, if it has been read to its end and nothing is being written to it.
    fn end_of_first(&mut self) -> Option<Segment> {
        let first = self.segments.front()?;
        let is_last = self.segments.len() == 1;
        if first.read < first.written || (is_last && self.is_writing) {
            return None;
        }
        self.segments.pop_front()
    }
}

/// The size of a record, in memory and on disk: an empty one has a header.
fn size_of(record: &Record) -> u64 {
    (HEADER + record.bytes.len()) as u64
}
