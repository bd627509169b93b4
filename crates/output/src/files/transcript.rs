//! The transcript of a job: what its console was given, in files of a bounded size, for those who look from elsewhere or later.
//!
//! A directory holds `head`, which says how the output is shown, and segments. The name of a segment is the position of its first
//! byte in the whole transcript, in 16 hexadecimal digits. A segment is a sequence of entries: four bytes of length
//! (little-endian), then the entry in postcard. The first entry of each is [`Entry::Segment`], so that reading may begin with any.
//! A segment that has reached its size is followed by another, and the oldest is removed when all are larger than the bound.
//!
//! Who reads it only reads files: the job is not asked, does not know, and does not wait.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::JobId;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::entry::{Entry, is_segment, whole};
use crate::left::{LEFT, LEFT_PART};
use crate::recorder::segment_size;
use crate::torn::Torn;

/// The name of the file that says how the output is shown.
pub(super) const HEAD: &str = "head";
const HEAD_PART: &str = "head.part";
/// Bytes read at a time.
const READ: usize = 256 << 10;

/// How the output of a job is shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    pub job: JobId,
    pub config: Config,
    /// When the job began, since the Unix epoch.
    pub started: Duration,
}

/// The files of a transcript, where they are written.
#[derive(Debug)]
pub struct Transcript {
    pub(super) directory: PathBuf,
    pub(super) bound: u64,
    /// Locked while this may write more.
    pub(super) _head: File,
    pub(super) segment: Option<File>,
    /// Where each segment begins. The last is the present one.
    pub(super) starts: VecDeque<u64>,
    /// The position of the end.
    pub(super) end: u64,
    /// Received, and not written yet.
    pub(super) rest: Vec<u8>,
}

impl Transcript {
    /// Makes the directory, with nothing in it but the head, and what the same job has before the position `from`, at which this goes on.
    ///
    /// # Errors
    ///
    /// The directory or the head cannot be made, or another process writes there.
    pub fn create(directory: PathBuf, head: &Head, bound: u64, from: u64) -> io::Result<Transcript> {
        make_private(&directory)?;
        if !TranscriptReader::is_over(&directory) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another job writes there"));
        }
        // What an earlier one has left.
        let is_own = TranscriptReader::head(&directory).is_ok_and(|before| before.job == head.job);
        let is_kept = |start: &u64| is_own && *start < from;
        let (mut before, after): (Vec<u64>, Vec<u64>) = segments(&directory)?.into_iter().partition(is_kept);
        for start in after {
            std::fs::remove_file(directory.join(name(start)))?;
        }
        before.sort_unstable();
        // Its writer may have been killed while it wrote more.
        if let Some(last) = before.last()
            && length(&directory, *last)? > from - last
        {
            crate::open(File::options().write(true), &directory.join(name(*last)))?.set_len(from - last)?;
        }
        if let Err(error) = std::fs::remove_file(directory.join(LEFT))
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let head = make_head(&directory, head)?;
        let (starts, rest) = (before.into(), Vec::new());
        Ok(Transcript { directory, bound, _head: head, segment: None, starts, end: from, rest })
    }

    /// Appends bytes of a [`Recorder`], which may begin and end within an entry.
    ///
    /// # Errors
    ///
    /// They are kept: [`Transcript::retry`] writes them.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.rest.extend_from_slice(bytes);
        self.retry()
    }

    /// Writes what could not be written before.
    ///
    /// # Errors
    ///
    /// It still cannot be written.
    pub fn retry(&mut self) -> io::Result<()> {
        let (mut taken, mut begun) = (0, 0);
        let result = loop {
            let Some(whole) = whole(&self.rest[taken..])? else { break self.write(begun..taken) };
            if is_segment(&self.rest[taken..])
                && self.end + (taken - begun) as u64 > self.starts.back().copied().unwrap_or(0)
            {
                if let Err(error) = self.write(begun..taken) {
                    break Err(error);
                }
                begun = taken;
                if let Err(error) = self.begin_segment() {
                    break Err(error);
                }
            }
            taken += whole;
        };
        let written = if result.is_ok() { taken } else { begun };
        self.rest.drain(..written);
        result
    }

    /// The next bytes begin a segment. Makes room for it. The last one before it stays: else as good as nothing might be there.
    fn begin_segment(&mut self) -> io::Result<()> {
        let room = self.bound.saturating_sub(segment_size(self.bound));
        while self.starts.len() > 1
            && let Some(oldest) = self.starts.front().copied().filter(|oldest| self.end - oldest > room)
        {
            match std::fs::remove_file(self.directory.join(name(oldest))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => drop(self.starts.pop_front()),
            }
        }
        self.segment = None;
        Ok(())
    }

    fn write(&mut self, range: Range<usize>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if self.segment.is_none() {
            let path = self.directory.join(name(self.end));
            self.segment = Some(crate::open(File::options().create(true).append(true), &path)?);
            self.starts.push_back(self.end);
        }
        let (Some(file), Some(start)) = (&mut self.segment, self.starts.back()) else { return Ok(()) };
        if let Err(error) = file.write_all(&self.rest[range.clone()]) {
            // What was written of it is written again.
            file.set_len(self.end - start)?;
            return Err(error);
        }
        self.end += range.len() as u64;
        Ok(())
    }
}

/// Makes the head of a transcript, which is locked as long as this writes it.
pub(super) fn make_head(directory: &Path, head: &Head) -> io::Result<File> {
    let bytes = postcard::to_allocvec(head).map_err(io::Error::other)?;
    let part = directory.join(HEAD_PART);
    let mut head = crate::open(File::options().create(true).write(true).truncate(true), &part)?;
    rustix::fs::flock(&head, FlockOperation::NonBlockingLockExclusive)?;
    head.write_all(&bytes)?;
    std::fs::rename(&part, directory.join(HEAD))?;
    Ok(head)
}

/// Makes a directory that nobody else may read, in one that is there. One that is there already must be ours: a link, or the directory of
/// another user, leads the output to where others read it.
pub(super) fn make_private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = std::fs::symlink_metadata(directory)?;
    if !found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there, and is no directory"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it belongs to another user"));
    }
    match found.mode() & 0o077 {
        0 => Ok(()),
        _ => std::fs::set_permissions(directory, Permissions::from_mode(0o700)),
    }
}

/// Whether a file of a transcript may have this name.
pub fn is_of_transcript(name: &OsStr) -> bool {
    let is_segment = |name: &str| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.to_str().is_some_and(|name| [HEAD, HEAD_PART, LEFT, LEFT_PART].contains(&name) || is_segment(name))
}

pub(super) fn name(start: u64) -> String {
    format!("{start:016x}")
}

/// The positions at which the segments in a directory begin, in no order.
pub(super) fn segments(directory: &Path) -> io::Result<Vec<u64>> {
    let names = std::fs::read_dir(directory)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.len() == 16).filter_map(|name| u64::from_str_radix(&name, 16).ok()).collect())
}

fn length(directory: &Path, start: u64) -> io::Result<u64> {
    Ok(std::fs::metadata(directory.join(name(start)))?.len())
}

/// Reads a transcript, while it is written or after.
#[derive(Debug)]
pub struct TranscriptReader {
    directory: PathBuf,
    /// The open segment, with its name.
    segment: Option<(u64, File)>,
    /// The position of the next entry.
    at: u64,
    /// Read, from `at` on.
    buffer: Vec<u8>,
    /// How much of the buffer was returned.
    taken: usize,
    /// What was before the next segment is not known to who reads.
    begins_anew: bool,
    /// The lines whose beginning is not known: the rest of them is passed over.
    torn: Torn,
}

/// What is next in a transcript.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next<'a> {
    Entry(Entry<'a>),
    /// So many bytes were removed before they were read.
    Lost(u64),
    /// No more is there yet.
    Nothing,
}

impl TranscriptReader {
    /// The head of a transcript.
    ///
    /// # Errors
    ///
    /// There is none, or another release has written it.
    pub fn head(directory: &Path) -> io::Result<Head> {
        postcard::from_bytes(&std::fs::read(directory.join(HEAD))?).map_err(io::Error::other)
    }

    /// Goes on from a position that [`TranscriptReader::position`] has returned.
    pub fn new(directory: PathBuf, from: u64) -> TranscriptReader {
        let (buffer, torn) = (Vec::new(), Torn::default());
        TranscriptReader { directory, segment: None, at: from, buffer, taken: 0, begins_anew: false, torn }
    }

    /// The same, but from the beginning of the segment that has this position: the ranks are known from there on.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn before(directory: PathBuf, from: u64) -> io::Result<TranscriptReader> {
        let start = segments(&directory)?.into_iter().filter(|start| *start <= from).max();
        Ok(TranscriptReader::new(directory, start.unwrap_or(from)))
    }

    /// Reads only whole lines: the beginning of those in which it begins is not known. (Without this they are, up to where it begins.)
    #[must_use]
    pub fn anew(self) -> TranscriptReader {
        TranscriptReader { begins_anew: true, ..self }
    }

    /// The same, so that at least so many of the last bytes are read, if they are kept.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn last(directory: PathBuf, bytes: u64) -> io::Result<TranscriptReader> {
        let end = match segments(&directory)?.into_iter().max() {
            Some(start) => start + length(&directory, start)?,
            None => 0,
        };
        Ok(TranscriptReader::before(directory, end.saturating_sub(bytes))?.anew())
    }

    /// Whether something is there.
    pub fn has_begun(directory: &Path) -> bool {
        segments(directory).is_ok_and(|segments| !segments.is_empty())
    }

    /// Whether nobody will write more.
    pub fn is_over(directory: &Path) -> bool {
        let is_free = |head: File| rustix::fs::flock(&head, FlockOperation::NonBlockingLockShared).is_ok();
        File::open(directory.join(HEAD)).map_or(true, is_free)
    }

    /// Where the next entry is.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Who reads knows how the present lines have begun.
    pub fn know_lines(&mut self) {
        self.torn = Torn::default();
    }

    /// How many bytes of an entry are there that is not whole. Where nobody writes more, they are damaged.
    pub fn incomplete(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// The next entry.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or holds what no recorder has written.
    pub fn read(&mut self) -> io::Result<Next<'_>> {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        let whole = loop {
            if let Some(length) = whole(&self.buffer)? {
                break length;
            }
            if self.segment.is_none() {
                match self.open()? {
                    Opened::Yes => {}
                    Opened::No => return Ok(Next::Nothing),
                    Opened::Lost(bytes) => {
                        self.begins_anew = true;
                        return Ok(Next::Lost(bytes));
                    }
                }
            }
            if self.fill()? == 0 && !self.advance()? {
                return Ok(Next::Nothing);
            }
        };
        self.taken = whole;
        self.at += whole as u64;
        let mut entry = postcard::from_bytes(&self.buffer[4..whole]).map_err(io::Error::other)?;
        match &mut entry {
            Entry::Segment { within, .. } if std::mem::take(&mut self.begins_anew) => {
                self.torn = Torn::of(within);
            }
            other => self.torn.trim(other),
        }
        Ok(Next::Entry(entry))
    }

    /// Reads more of the segment.
    fn fill(&mut self) -> io::Result<usize> {
        let Some((_, file)) = &mut self.segment else { return Ok(0) };
        let before = self.buffer.len();
        self.buffer.resize(before + READ, 0);
        let read = loop {
            match file.read(&mut self.buffer[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(before + read.as_ref().copied().unwrap_or(0));
        read
    }

    /// Opens the segment that has the next entry, or the oldest one after it.
    fn open(&mut self) -> io::Result<Opened> {
        let starts = match segments(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            starts => starts?,
        };
        let last = starts.iter().copied().max();
        let has_it = |start: u64| {
            let end = length(&self.directory, start).map(|length| start + length);
            // Only the last one may have more.
            start <= self.at && end.is_ok_and(|end| self.at < end || (self.at == end && Some(start) == last))
        };
        let found = starts.iter().copied().filter(|start| has_it(*start)).max();
        let start = match found.or_else(|| starts.iter().copied().filter(|start| *start > self.at).min()) {
            Some(start) => start,
            None => return Ok(Opened::No),
        };
        match crate::open(File::options().read(true), &self.directory.join(name(start))) {
            Ok(mut file) => {
                let lost = start.saturating_sub(self.at);
                self.at += lost;
                file.seek(SeekFrom::Start(self.at - start))?;
                self.segment = Some((start, file));
                Ok(if lost > 0 { Opened::Lost(lost) } else { Opened::Yes })
            }
            // It was removed in this moment: the next one is there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Opened::No),
            Err(error) => Err(error),
        }
    }

    /// The segment has been read to its end: goes on to the next if there is one, and then nothing is added to this.
    fn advance(&mut self) -> io::Result<bool> {
        let Some((own, _)) = self.segment else { return Ok(false) };
        let starts = match segments(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            starts => starts?,
        };
        if !starts.iter().any(|start| *start > own) {
            return Ok(false);
        }
        if self.fill()? == 0 {
            // An entry that never ended is lost with the others up to the next segment.
            self.at += self.buffer.len() as u64;
            self.buffer.clear();
            self.segment = None;
        }
        Ok(true)
    }
}

enum Opened {
    Yes,
    No,
    Lost(u64),
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;
    use rankrun_core::{GroupId, Rank, RankMap, Stream};

    use super::*;
    use crate::config::Mode;
    use crate::entry::entries;
    use crate::left::Left;
    use crate::recorder::{Recorder, SEGMENT_MIN};
    use crate::reopened::Recorded;

    fn map(ranks: u32) -> RankMap {
        RankMap::single_node("here", &[ranks])
    }

    fn head() -> Head {
        Head { job: JobId("1".to_owned()), config: Config::new(Mode::Line, 2), started: Duration::from_secs(1) }
    }

    fn output(bytes: &[u8]) -> Entry<'_> {
        Entry::Output { rank: Rank(0), stream: Stream::Stdout, wall: Duration::ZERO, bytes }
    }

    /// All that is there from a position on: the bytes of the ranks, those that are lost, and how many segments began.
    fn read_all(reader: &mut TranscriptReader) -> (Vec<u8>, u64, usize) {
        let (mut bytes, mut lost, mut segments) = (Vec::new(), 0, 0);
        loop {
            match reader.read().expect("it can be read") {
                Next::Entry(Entry::Output { bytes: more, .. }) => bytes.extend_from_slice(more),
                Next::Entry(Entry::Segment { .. }) => segments += 1,
                Next::Entry(_) => {}
                Next::Lost(more) => lost += more,
                Next::Nothing => return (bytes, lost, segments),
            }
        }
    }

    fn size_of(directory: &Path) -> u64 {
        let files = segments(directory).expect("it is ours");
        files.iter().map(|start| length(directory, *start).expect("it is there")).sum()
    }

    #[test]
    fn what_is_older_than_the_bound_is_removed_and_who_reads_from_there_is_told() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("transcript");
        let bound = 8 * SEGMENT_MIN;
        let mut transcript = Transcript::create(directory.clone(), &head(), bound, 0).expect("it is ours");
        let mut recorder = Recorder::new(bound, map(2), Vec::new());
        let mut early = TranscriptReader::new(directory.clone(), 0);
        let line = [[b'x'; 999].as_slice(), b"\n"].concat();
        for _ in 0..2000 {
            recorder.record(&output(&line));
            transcript.append(recorder.pending()).expect("it is ours");
            recorder.pending().clear();
        }
        assert!(size_of(&directory) <= bound, "{}", size_of(&directory));
        // The first was open before it was removed, if at all.
        let (bytes, lost, segments) = read_all(&mut early);
        assert!(lost > 0 && bytes.len() as u64 > bound / 2 && segments > 4, "{lost} {} {segments}", bytes.len());
        assert_eq!(early.position(), recorder.position());
        assert_eq!(read_all(&mut early), (Vec::new(), 0, 0), "there is no more");
        for (wanted, most) in [(1, SEGMENT_MIN), (3 * SEGMENT_MIN, 5 * SEGMENT_MIN), (u64::MAX, bound)] {
            let mut late = TranscriptReader::last(directory.clone(), wanted).expect("it is ours");
            let (bytes, ..) = read_all(&mut late);
            let least = wanted.min(bound / 2) * 9 / 10;
            assert!((least..=most).contains(&(bytes.len() as u64)), "{wanted}: {}", bytes.len());
            assert_eq!(late.position(), recorder.position());
        }
        let mut none = TranscriptReader::last(top.path().to_owned(), 1).expect("it is ours");
        assert_eq!(read_all(&mut none), (Vec::new(), 0, 0));
    }

    /// The bytes of a rank that are read.
    fn read_of(reader: &mut TranscriptReader, of: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            match reader.read().expect("it can be read") {
                Next::Entry(Entry::Output { rank, bytes: more, .. }) if rank == Rank(of) => bytes.extend(more),
                Next::Nothing => return bytes,
                _ => {}
            }
        }
    }

    #[test]
    fn who_does_not_know_how_a_line_begins_reads_only_those_after_it() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("transcript");
        let mut transcript = Transcript::create(directory.clone(), &head(), 0, 0).expect("it is ours");
        let mut recorder = Recorder::new(0, map(3), Vec::new());
        let mut write = |recorder: &mut Recorder| {
            transcript.append(recorder.pending()).expect("it is ours");
            recorder.pending().clear();
        };
        let of = |rank, bytes| Entry::Output { rank: Rank(rank), stream: Stream::Stdout, wall: Duration::ZERO, bytes };
        recorder.record(&of(1, b"this one "));
        recorder.record(&of(2, b"this one too"));
        // All that is older has no room any more.
        let line = [[b'x'; 999].as_slice(), b"\n"].concat();
        for _ in 0..1000 {
            recorder.record(&output(&line));
            write(&mut recorder);
        }
        recorder.record(&of(1, b"has "));
        recorder.record(&of(1, b"ended\nand another "));
        recorder.record(&of(2, b" 1%\r 2%"));
        recorder.record(&of(1, b"not\n"));
        write(&mut recorder);
        let mut late = TranscriptReader::new(directory.clone(), 0);
        assert_eq!(read_of(&mut late, 1), b"and another not\n");
        let mut last = TranscriptReader::last(directory.clone(), 1).expect("it is ours");
        assert_eq!(read_of(&mut last, 2), b" 2%");
        let mut known = TranscriptReader::before(directory.clone(), late.position()).expect("it is ours");
        assert_eq!(read_of(&mut known, 1), b"has ended\nand another not\n", "who has seen it goes on with the rest");
    }

    #[test]
    fn of_the_lines_in_which_bytes_are_missing_only_the_beginning_is_read() {
        let mut recorder = Recorder::new(0, map(2), Vec::new());
        let source = |rank| (Rank(rank), Stream::Stdout);
        recorder.record(&output(b"begins "));
        recorder.pass_over(source(0), b"goes on, and ");
        recorder.pass_over(source(1), b"whole\n");
        recorder.record(&output(b"ends\nnext\n"));
        let missing = Entry::Missing { bytes: 19, of: vec![(source(0), true), (source(1), false)] };
        let bytes = recorder.pending().clone();
        assert_eq!(entries(&bytes).expect("they are ours")[2], missing);
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("transcript");
        let mut transcript = Transcript::create(directory.clone(), &head(), 0, 0).expect("it is ours");
        transcript.append(&bytes).expect("it is ours");
        assert_eq!(read_of(&mut TranscriptReader::new(directory, 0), 0), b"begins next\n");
    }

    #[test]
    fn whoever_reads_sees_the_end_when_the_writer_is_gone_and_another_begins_anew() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("transcript");
        assert!(TranscriptReader::is_over(&directory), "there is none");
        let transcript = Transcript::create(directory.clone(), &head(), 0, 0).expect("it is ours");
        assert!(!TranscriptReader::is_over(&directory));
        assert!(Transcript::create(directory.clone(), &head(), 0, 0).is_err(), "two do not write the same");
        drop(transcript);
        assert!(TranscriptReader::is_over(&directory));
        let left = Left { at: 7, ready: [b"ab".to_vec(), Vec::new()], unfinished: Vec::new() };
        left.save(&directory).expect("it is ours");
        assert_eq!(Left::read(&directory), Some(left));
        let again = Transcript::create(directory.clone(), &head(), 0, 0).expect("it is free");
        assert_eq!(Left::read(&directory), None, "positions begin anew");
        drop(again);
    }

    #[test]
    fn another_writer_goes_on_wherever_the_first_one_was_killed() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("transcript");
        let mut recorder = Recorder::new(0, map(2), Vec::new());
        let mut wanted = Vec::new();
        for size in [10, SEGMENT_MIN as usize, 0, 300, 5] {
            wanted.extend(std::iter::repeat_n(size as u8, size));
            recorder.record(&output(&vec![size as u8; size]));
        }
        let all = recorder.pending().clone();
        let near_end = (all.len() - 330..=all.len()).step_by(3);
        let ends: Vec<usize> = (0..=12).chain(near_end).collect();
        // The last one was given no more than this.
        for given in [all.len(), all.len() - whole_of_last(&all)] {
            for &written in &ends {
                let mut first = Transcript::create(directory.clone(), &head(), u64::MAX, 0).expect("it is ours");
                first.append(&all).expect("it is ours");
                drop(first);
                let mut starts = segments(&directory).expect("it is ours");
                starts.sort_unstable();
                for start in starts {
                    let path = directory.join(name(start));
                    match (written as u64).checked_sub(start) {
                        Some(length) => {
                            let file = File::options().write(true).open(path).expect("it is there");
                            let length = length.min(file.metadata().expect("it is there").len());
                            file.set_len(length).expect("it is ours");
                        }
                        None => std::fs::remove_file(path).expect("it is ours"),
                    }
                }
                let left = recorded(given as u64, &all[..given]);
                let again = Transcript::reopen(directory.clone(), &left);
                let mut again = again.unwrap_or_else(|error| panic!("{written}: {error}"));
                again.append(&all[given..]).expect("it is ours");
                let (bytes, lost, _) = read_all(&mut TranscriptReader::new(directory.clone(), 0));
                assert!(bytes == wanted && lost == 0, "{written} of {given}: {} bytes, {lost} lost", bytes.len());
            }
        }
    }

    fn recorded(end: u64, bytes: &[u8]) -> Recorded {
        Recorded { head: head(), bound: u64::MAX, end, recorded: bytes.to_owned() }
    }

    #[test]
    fn a_writer_goes_on_after_what_is_missing() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("transcript");
        for is_removed in [true, false] {
            let mut first = Transcript::create(directory.clone(), &head(), u64::MAX, 0).expect("it is ours");
            let mut recorder = Recorder::new(0, map(2), Vec::new());
            (0..200).for_each(|_| recorder.record(&output(b"early\n")));
            first.append(recorder.pending()).expect("it is ours");
            drop(first);
            if is_removed {
                std::fs::remove_dir_all(&directory).expect("it is ours");
            } else {
                let path = directory.join(name(0));
                File::options().write(true).open(path).and_then(|file| file.set_len(20)).expect("it is ours");
            }
            let mut recorder = Recorder::at(u64::MAX, map(2), Vec::new(), recorder.position(), &[]);
            let late = Transcript::reopen(directory.clone(), &recorded(recorder.position(), &[]));
            recorder.record(&output(b"late\n"));
            late.and_then(|mut late| late.append(recorder.pending())).expect("it goes on");
            let (bytes, ..) = read_all(&mut TranscriptReader::new(directory.clone(), 0));
            assert!(bytes.ends_with(b"late\n"), "{is_removed}: {:?}", String::from_utf8_lossy(&bytes));
        }
    }

    /// How long the last entry is.
    fn whole_of_last(mut bytes: &[u8]) -> usize {
        let mut last = 0;
        while let Some(length) = whole(bytes).expect("entries") {
            (last, bytes) = (length, &bytes[length..]);
        }
        last
    }

    #[test]
    fn each_segment_says_which_ranks_there_are() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("transcript");
        let mut transcript = Transcript::create(directory.clone(), &head(), 0, 0).expect("it is ours");
        let mut recorder = Recorder::new(0, map(2), Vec::new());
        recorder.record(&Entry::World(Cow::Owned(map(3))));
        recorder.record(&Entry::Group(GroupId(1), Cow::Owned(map(5))));
        let size = SEGMENT_MIN as usize;
        recorder.record(&output(&vec![b'x'; size]));
        let second = recorder.position();
        recorder.record(&output(b"y"));
        transcript.append(recorder.pending()).expect("it is ours");
        let mut reader = TranscriptReader::before(directory.clone(), recorder.position() - 1).expect("it is ours");
        assert_eq!(reader.position(), second);
        let Next::Entry(Entry::Segment { world, groups, .. }) = reader.read().expect("it is there") else {
            panic!("a segment begins")
        };
        assert_eq!((world.world_size(), groups.len()), (3, 1));
        assert_eq!(groups[0].1.world_size(), 5);
    }

    #[test]
    fn a_damaged_transcript_is_an_error_and_no_crash() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("transcript");
        drop(Transcript::create(directory.clone(), &head(), 0, 0).expect("it is ours"));
        for bytes in [&[0xff; 64][..], &[4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], &[1, 0, 0, 0, 1, 0, 0, 0]] {
            std::fs::write(directory.join(name(0)), bytes).expect("it is ours");
            assert!(TranscriptReader::new(directory.clone(), 0).read().is_err(), "{bytes:?}");
        }
        std::fs::write(directory.join(HEAD), b"x").expect("it is ours");
        assert!(TranscriptReader::head(&directory).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// However it is written and read, nothing is lost, doubled or torn: writes may end within an entry, and fail.
        #[test]
        fn a_reader_that_keeps_up_gets_every_byte(
            sizes in prop::collection::vec(0usize..40_000, 1..60),
            cuts in prop::collection::vec(1usize..50_000, 1..40),
            leaves in prop::collection::vec(any::<bool>(), 60),
        ) {
            let top = tempfile::tempdir().expect("a directory");
            let directory = top.path().join("transcript");
            // An eighth is more than is written at once.
            const PIECE: u64 = 64 << 10;
            let bound = 8 * PIECE;
            let mut transcript = Transcript::create(directory.clone(), &head(), bound, 0).expect("it is ours");
            let mut recorder = Recorder::new(bound, map(2), Vec::new());
            let mut reader = TranscriptReader::new(directory.clone(), 0);
            let (mut wanted, mut seen, mut rest) = (Vec::new(), Vec::new(), Vec::new());
            let mut cuts = cuts.iter().cycle();
            for (number, size) in sizes.iter().enumerate() {
                let bytes: Vec<u8> = (0..*size).map(|at| (at + number) as u8).collect();
                recorder.record(&output(&bytes));
                wanted.extend_from_slice(&bytes);
                rest.append(recorder.pending());
                let cut = (*cuts.next().unwrap_or(&1)).min(rest.len());
                let given: Vec<u8> = rest.drain(..cut).collect();
                transcript.append(&given).expect("it is ours");
                let (bytes, lost, _) = read_all(&mut reader);
                prop_assert_eq!(lost, 0);
                seen.extend_from_slice(&bytes);
                if leaves[number] {
                    reader = TranscriptReader::new(directory.clone(), reader.position());
                }
            }
            // A reader does not keep up with more than the bound at once.
            for given in rest.chunks(PIECE as usize) {
                transcript.append(given).expect("it is ours");
                let (bytes, lost, _) = read_all(&mut reader);
                prop_assert_eq!(lost, 0);
                seen.extend_from_slice(&bytes);
            }
            prop_assert_eq!(seen.len(), wanted.len());
            prop_assert!(seen == wanted);
            prop_assert_eq!(reader.position(), recorder.position());
        }
    }

    #[test]
    fn nobody_else_reads_a_transcript_in_a_directory_that_was_there() {
        let top = tempfile::tempdir().expect("a directory");
        let head = head();
        let open = top.path().join("open");
        std::fs::create_dir(&open).expect("it is ours");
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("it is ours");
        Transcript::create(open.clone(), &head, 1 << 20, 0).expect("it is ours");
        assert_eq!(std::fs::metadata(&open).expect("it is there").mode() & 0o777, 0o700);
        let link = top.path().join("link");
        std::os::unix::fs::symlink(&open, &link).expect("it is ours");
        let refused = Transcript::create(link, &head, 1 << 20, 0).expect_err("it leads elsewhere");
        assert_eq!(refused.to_string(), "it is there, and is no directory");
    }
}
