//! Output that its destination cannot take yet, first in, first out.
//!
//! The oldest records are in memory, newer ones in a row of unlinked files, each of which goes as soon as it has been
//! read to its end. So the space on disk follows what waits, also when a long and slow job never drains the spool.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::{Attempt, GroupId, Rank, Stream, WorkerId};

/// What waits in memory at most, in bytes, before a file is begun. A short burst should not cost a disk access, and
/// front, guard and agent together have 20 MiB (docs/architecture.md).
pub const SPOOL_MEMORY: u64 = 2 << 20;

/// The greatest file, in bytes: at most this much of what was read already stays on disk, and a spool of 1 GiB has 32
/// files open.
const SEGMENT: u64 = 32 << 20;
/// The smallest file, in bytes: a small limit must not make a file for each record.
const SEGMENT_MIN: u64 = 64 << 10;

/// Group, rank, attempt, stream, seconds and nanoseconds, length: little-endian.
const HEADER: usize = 4 + 4 + 4 + 1 + 8 + 4 + 4;

/// One piece of output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub worker: WorkerId,
    pub stream: Stream,
    /// When it was read. What it counts from is the caller's affair.
    pub time: Duration,
    pub bytes: Bytes,
}

/// The spool has no room for a record now; it comes back here, so that nothing is lost. The ranks are to be slowed down
/// until [`Spool::has_room`].
#[derive(Debug, thiserror::Error)]
#[error("no room in the spool")]
pub struct Full {
    pub record: Record,
    /// Why the file could not be made or written, if this was not the limit.
    pub source: Option<io::Error>,
}

/// What was spooled cannot be read again.
#[derive(Debug, thiserror::Error)]
#[error("cannot read spooled output in \"{}\"", dir.display())]
pub struct SpoolError {
    pub dir: PathBuf,
    pub source: io::Error,
}

/// A queue of records: at most [`SPOOL_MEMORY`] bytes in memory, then on disk up to a limit.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    limit: u64,
    /// The oldest records.
    memory: VecDeque<Record>,
    in_memory: u64,
    /// Newer ones. While there is a segment, nothing goes directly to memory.
    segments: VecDeque<Segment>,
    /// Bytes of output in the segments that are still to be read.
    in_files: u64,
    /// The file could not be written, and nothing was taken out since.
    is_stuck: bool,
}

#[derive(Debug)]
struct Segment {
    file: File,
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
            memory: VecDeque::new(),
            in_memory: 0,
            segments: VecDeque::new(),
            in_files: 0,
            is_stuck: false,
        }
    }

    /// Takes a record, or gives it back. An empty spool takes a record of any size.
    pub fn push(&mut self, record: Record) -> Result<(), Full> {
        let size = size_of(&record);
        if self.segments.is_empty() && (self.memory.is_empty() || self.in_memory + size <= SPOOL_MEMORY) {
            self.in_memory += size;
            self.memory.push_back(record);
            return Ok(());
        }
        if self.on_disk() + size > self.limit {
            return Err(Full { record, source: None });
        }
        match self.append(&record) {
            Ok(()) => {
                self.in_files += record.bytes.len() as u64;
                self.is_stuck = false;
                Ok(())
            }
            Err(source) => {
                self.is_stuck = true;
                Err(Full { record, source: Some(source) })
            }
        }
    }

    /// Whether a record of 64 KiB would be taken, as far as is known. After a file could not be written, this is false
    /// until something has been taken out.
    pub fn has_room(&self) -> bool {
        const FRAME: u64 = 64 << 10;
        if self.segments.is_empty() && (self.memory.is_empty() || self.in_memory + FRAME <= SPOOL_MEMORY) {
            return true;
        }
        !self.is_stuck && self.on_disk() + FRAME + HEADER as u64 <= self.limit
    }

    /// Takes the oldest record out.
    ///
    /// # Errors
    ///
    /// What is in the file cannot be read. The record stays, and another call tries again.
    pub fn pop(&mut self) -> Result<Option<Record>, SpoolError> {
        if self.memory.is_empty()
            && let Some(record) = self.read_back()?
        {
            self.is_stuck = false;
            return Ok(Some(record));
        }
        let record = self.memory.pop_front();
        if let Some(record) = &record {
            self.in_memory -= size_of(record);
            self.is_stuck = false;
        }
        Ok(record)
    }

    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.segments.is_empty()
    }

    /// How many bytes of output wait, in memory and on disk.
    pub fn bytes(&self) -> u64 {
        let headers = (self.memory.len() * HEADER) as u64;
        self.in_memory - headers + self.in_files
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Spool::new(std::mem::take(&mut self.dir), self.limit);
    }

    /// The bytes that the files take.
    fn on_disk(&self) -> u64 {
        self.segments.iter().map(|segment| segment.written).sum()
    }

    /// Writes a record behind all others. If that fails, whatever was written of it is overwritten by the next.
    fn append(&mut self, record: &Record) -> io::Result<()> {
        let mut encoded = Vec::with_capacity(HEADER + record.bytes.len());
        encoded.extend_from_slice(&header(record));
        encoded.extend_from_slice(&record.bytes);
        let size = encoded.len() as u64;
        let segment_size = (self.limit / 8).clamp(SEGMENT_MIN, SEGMENT);
        if let Some(last) = self.segments.back_mut()
            && last.written + size <= segment_size
        {
            return last.append(&encoded);
        }
        let mut segment = Segment { file: tempfile::tempfile_in(&self.dir)?, read: 0, written: 0 };
        segment.append(&encoded)?;
        self.segments.push_back(segment);
        Ok(())
    }

    /// Takes the oldest record from the files.
    fn read_back(&mut self) -> Result<Option<Record>, SpoolError> {
        let Some(first) = self.segments.front_mut() else {
            return Ok(None);
        };
        let record = first.next().map_err(|source| SpoolError { dir: self.dir.clone(), source })?;
        if first.read == first.written {
            self.segments.pop_front();
        }
        self.in_files -= record.bytes.len() as u64;
        Ok(Some(record))
    }
}

impl Segment {
    fn append(&mut self, encoded: &[u8]) -> io::Result<()> {
        self.file.write_all_at(encoded, self.written)?;
        self.written += encoded.len() as u64;
        Ok(())
    }

    /// The next record. A segment always has one: it goes as soon as it is read to its end.
    fn next(&mut self) -> io::Result<Record> {
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, self.read)?;
        let mut fields = Fields(&header);
        let worker =
            WorkerId { group: GroupId(fields.u32()), rank: Rank(fields.u32()), attempt: Attempt(fields.u32()) };
        let [stream] = fields.take();
        let time = Duration::new(u64::from_le_bytes(fields.take()), fields.u32());
        let length = fields.u32();
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, self.read + HEADER as u64)?;
        self.read += HEADER as u64 + u64::from(length);
        let stream = if stream == 0 { Stream::Stdout } else { Stream::Stderr };
        Ok(Record { worker, stream, time, bytes: Bytes::from(bytes) })
    }
}

/// The fields of a header that are still to be read. Beyond the end there is zero.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

fn header(record: &Record) -> [u8; HEADER] {
    let WorkerId { group, rank, attempt } = record.worker;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&group.0.to_le_bytes());
    header[4..8].copy_from_slice(&rank.0.to_le_bytes());
    header[8..12].copy_from_slice(&attempt.0.to_le_bytes());
    header[12] = record.stream.index() as u8;
    header[13..21].copy_from_slice(&record.time.as_secs().to_le_bytes());
    header[21..25].copy_from_slice(&record.time.subsec_nanos().to_le_bytes());
    header[25..].copy_from_slice(&(record.bytes.len() as u32).to_le_bytes());
    header
}

/// What a record counts for, in memory and on disk: an empty one is not free.
fn size_of(record: &Record) -> u64 {
    (HEADER + record.bytes.len()) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(number: u32, length: usize) -> Record {
        Record {
            worker: WorkerId { group: GroupId(number % 3), rank: Rank(number), attempt: Attempt(number % 5) },
            stream: Stream::ALL[number as usize % 2],
            time: Duration::new(u64::from(number), number),
            bytes: Bytes::from(vec![number as u8; length]),
        }
    }

    fn pop(spool: &mut Spool) -> Option<Record> {
        spool.pop().expect("the file can be read")
    }

    #[test]
    fn a_spool_without_disk_space_refuses_at_the_memory_bound_and_loses_nothing() {
        let mut spool = Spool::new("/nonexistent", 1 << 30);
        let mut taken = 0;
        let refused = loop {
            match spool.push(record(taken, 60_000)) {
                Ok(()) => taken += 1,
                Err(full) => break full,
            }
        };
        assert_eq!(refused.record, record(taken, 60_000));
        assert_eq!(refused.source.map(|source| source.kind()), Some(io::ErrorKind::NotFound));
        assert!(!spool.has_room());
        assert!(spool.bytes() <= SPOOL_MEMORY && spool.bytes() > SPOOL_MEMORY - 100_000);
        assert_eq!(pop(&mut spool), Some(record(0, 60_000)));
        assert_eq!(pop(&mut spool), Some(record(1, 60_000)));
        assert!(spool.has_room());
        spool.push(refused.record).expect("there is room again");
        for number in 2..=taken {
            assert_eq!(pop(&mut spool), Some(record(number, 60_000)));
        }
        assert_eq!(pop(&mut spool), None);
        assert_eq!(spool.bytes(), 0);
    }

    #[test]
    fn the_limit_bounds_what_is_on_disk_and_the_space_comes_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let limit = 8 << 20;
        let mut spool = Spool::new(dir.path(), limit);
        let (mut pushed, mut popped) = (0, 0);
        // Never drained, a hundred times its limit passes through.
        while u64::from(pushed) * 60_000 < 100 * limit {
            while spool.has_room() {
                spool.push(record(pushed, 60_000)).expect("there is room");
                pushed += 1;
            }
            assert!(spool.on_disk() <= limit);
            assert!(spool.bytes() > limit / 2);
            for _ in 0..20 {
                assert_eq!(pop(&mut spool), Some(record(popped, 60_000)));
                popped += 1;
            }
        }
        let in_directory = std::fs::read_dir(dir.path()).expect("a directory").count();
        assert_eq!(in_directory, 0, "the files have no name");
    }

    #[test]
    fn an_empty_spool_takes_a_record_of_any_size() {
        let mut spool = Spool::new("/nonexistent", 0);
        let large = record(1, 2 * SPOOL_MEMORY as usize);
        spool.push(large.clone()).expect("it is empty");
        assert!(!spool.has_room());
        spool.push(record(2, 1)).expect_err("it is full");
        assert_eq!(pop(&mut spool), Some(large));
        assert!(spool.has_room());
    }

    #[test]
    fn a_cleared_spool_is_as_new() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut spool = Spool::new(dir.path(), 1 << 30);
        for number in 0..100 {
            spool.push(record(number, 100_000)).expect("there is room");
        }
        assert!(spool.on_disk() > 0);
        spool.clear();
        assert!(spool.is_empty() && spool.has_room());
        assert_eq!((spool.bytes(), spool.on_disk()), (0, 0));
        assert_eq!(pop(&mut spool), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn records_come_out_as_they_went_in(steps in proptest::collection::vec((0usize..400_000, 0usize..3), 1..200)) {
            let dir = tempfile::tempdir().expect("a directory");
            let mut spool = Spool::new(dir.path(), 6 << 20);
            let mut model = VecDeque::new();
            for (number, (length, pops)) in steps.into_iter().enumerate() {
                let record = record(number as u32, length);
                if spool.push(record.clone()).is_ok() {
                    model.push_back(record);
                }
                // Two of three rounds only fill, so that the border to the file is crossed both ways.
                for _ in 0..pops * (number % 3 / 2) * 2 {
                    prop_assert_eq!(pop(&mut spool), model.pop_front());
                }
                prop_assert_eq!(spool.bytes(), model.iter().map(|record: &Record| record.bytes.len() as u64).sum::<u64>());
            }
            while let Some(expected) = model.pop_front() {
                prop_assert_eq!(pop(&mut spool), Some(expected));
            }
            prop_assert!(spool.is_empty());
        }
    }
}
