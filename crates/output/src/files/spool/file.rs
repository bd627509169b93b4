//! The spool's requests for files, and how a thread that may block runs them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::{Attempt, GroupId, Rank, Stream, WorkerId};

use super::{BATCH, HEADER, Record};

/// A request for a file of the spool.
#[derive(Debug)]
pub struct Request {
    pub(super) era: u64,
    pub(super) stream: Stream,
    pub(super) job: Job,
}

#[derive(Debug)]
pub(super) enum Job {
    /// Writes records at a place of a file, which is made first if there is none.
    Write {
        file: Option<Arc<File>>,
        dir: PathBuf,
        at: u64,
        records: Vec<Record>,
    },
    /// Reads one batch of records from an offset, not beyond `end`.
    Read {
        file: Arc<File>,
        at: u64,
        end: u64,
    },
    Close(Vec<Arc<File>>),
}

/// The result of a request.
#[derive(Debug)]
pub struct Completion {
    pub(super) era: u64,
    pub(super) stream: Stream,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Written(io::Result<Arc<File>>),
    /// The records, and how many bytes of the file they were.
    Read(io::Result<(Vec<Record>, u64)>),
    Closed,
}

impl Request {
    /// Runs the request. This may block as long as the disk does. Run the requests in their order.
    pub fn run(self) -> Completion {
        let Request { era, stream, job } = self;
        let outcome = match job {
            Job::Write { file, dir, at, records } => Outcome::Written(write(file, dir, at, &records)),
            Job::Read { file, at, end } => Outcome::Read(read(&file, at, end)),
            Job::Close(files) => {
                drop(files);
                Outcome::Closed
            }
        };
        Completion { era, stream, outcome }
    }

    /// No thread runs it: as if the disk had failed.
    pub fn refuse(self) -> Completion {
        let failed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let outcome = match self.job {
            Job::Write { .. } => Outcome::Written(Err(failed())),
            Job::Read { .. } => Outcome::Read(Err(failed())),
            Job::Close(_) => Outcome::Closed,
        };
        Completion { era: self.era, stream: self.stream, outcome }
    }
}

fn write(file: Option<Arc<File>>, dir: PathBuf, at: u64, records: &[Record]) -> io::Result<Arc<File>> {
    let file = match file {
        Some(file) => file,
        None => Arc::new(tempfile::tempfile_in(dir)?),
    };
    let mut encoded = Vec::with_capacity(records.iter().map(|record| HEADER + record.bytes.len()).sum());
    for record in records {
        encoded.extend_from_slice(&header(record));
        encoded.extend_from_slice(&record.bytes);
    }
    file.write_all_at(&encoded, at)?;
    Ok(file)
}

fn read(file: &File, at: u64, end: u64) -> io::Result<(Vec<Record>, u64)> {
    let mut bytes = vec![0; (end - at).min(BATCH) as usize];
    file.read_exact_at(&mut bytes, at)?;
    if let Some(header) = bytes.first_chunk::<HEADER>() {
        // The first record may be larger than a batch.
        let length = decode(header).map_or(0, |(_, length)| length);
        let needed = (HEADER as u64 + length as u64).min(end - at) as usize;
        if let Some(more) = needed.checked_sub(bytes.len()) {
            let have = bytes.len();
            bytes.resize(have + more, 0);
            file.read_exact_at(&mut bytes[have..], at + have as u64)?;
        }
    }
    let bytes = Bytes::from(bytes);
    let (mut records, mut taken) = (Vec::new(), 0);
    while let Some(header) = bytes[taken..].first_chunk::<HEADER>() {
        // What was read so far can be used; the next read begins with what cannot.
        let Some((record, length)) = decode(header) else { break };
        let Some(end) = (taken + HEADER).checked_add(length).filter(|end| *end <= bytes.len()) else { break };
        // Copied, so that a small record that waits does not keep the whole batch in memory.
        let content = Bytes::copy_from_slice(&bytes[taken + HEADER..end]);
        records.push(Record { bytes: content, ..record });
        taken = end;
    }
    if records.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "another program has changed the file"));
    }
    Ok((records, taken as u64))
}

fn header(record: &Record) -> [u8; HEADER] {
    let WorkerId { rank, attempt } = record.worker;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&rank.group().0.to_le_bytes());
    header[4..8].copy_from_slice(&rank.number().to_le_bytes());
    header[8..12].copy_from_slice(&attempt.0.to_le_bytes());
    header[12] = record.stream.index() as u8;
    header[13..21].copy_from_slice(&record.time.as_secs().to_le_bytes());
    header[21..25].copy_from_slice(&record.time.subsec_nanos().to_le_bytes());
    header[25..CHECKED].copy_from_slice(&(record.bytes.len() as u32).to_le_bytes());
    let sum = checksum(&header[..CHECKED]);
    header[CHECKED..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The bytes of a header that its checksum covers.
const CHECKED: usize = HEADER - 4;

/// FNV-1a. The user's programs can change the files, and a file that is cut and written on has zeros in its hole: those must
/// not be taken for records, which nobody wrote.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A record without its bytes, and how many there are. `None`: this is no header that was written here.
fn decode(header: &[u8; HEADER]) -> Option<(Record, usize)> {
    let mut fields = Fields(header);
    let worker = {
        let rank = Rank::of(GroupId(fields.u32()), fields.u32());
        WorkerId { rank, attempt: Attempt(fields.u32()) }
    };
    let [stream] = fields.take();
    let stream = if stream == 0 { Stream::Stdout } else { Stream::Stderr };
    let seconds = u64::from_le_bytes(fields.take());
    // A value beyond a second was not written by us. It must not overflow the sum.
    let time = Duration::from_secs(seconds).saturating_add(Duration::from_nanos(fields.u32().into()));
    let length = fields.u32() as usize;
    let is_ours = fields.u32() == checksum(&header[..CHECKED]);
    is_ours.then_some((Record { worker, stream, time, bytes: Bytes::new() }, length))
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
