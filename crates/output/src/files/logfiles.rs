//! A file for each rank and stream.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use rankrun_core::{GroupId, Rank, Stream};

use crate::console::Source;
use crate::matches::Unfinished;
use crate::places::{LogPlaces, open};

/// How many files are open at once: each costs a descriptor, and a process commonly may have 1,024.
const OPEN_FILES: usize = 256;

/// An unterminated line of this many bytes is written although a `\r` may still follow.
const HELD_LINE: usize = 64 << 10;

/// What failed at a log file or at their directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} \"{}\"", path.display())]
pub struct LogError {
    /// `create`, `open`, `read`, `use` or `write`.
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// The files of the ranks' streams.
///
/// In a log directory each holds what one stream of one rank wrote, and is created with the first of it. Of a line that overwrites
/// itself with `\r`, as progress bars do, only the last state is kept; an unterminated line is written when more comes, or when the
/// stream is closed. A file that stands for the console has every byte, and whole lines where several streams share it.
#[derive(Debug)]
pub struct LogFiles {
    places: LogPlaces,
    /// The files that several streams write.
    shared: HashSet<PathBuf>,
    /// The files that were made before their ranks write.
    made: HashSet<PathBuf>,
    world_size: u32,
    capacity: usize,
    logs: HashMap<Source, Log>,
    open: HashMap<Source, OpenFile>,
    /// Counts uses, to know which file was used least recently.
    uses: u64,
    /// Bytes of all streams that could not be written yet.
    unwritten: usize,
    /// Lines of each stream of which it is not known yet whether they are copied.
    unfinished: [Unfinished; 2],
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    used: u64,
}

/// One file, open or not.
#[derive(Debug, Default)]
struct Log {
    /// It was created by us: from now on it is appended to.
    is_begun: bool,
    /// The unfinished line, as far as it may still be overwritten.
    line: Vec<u8>,
    /// A `\r` followed the line.
    returned: bool,
    /// Bytes that are to be written, in order; most often empty.
    unwritten: Vec<u8>,
}

impl LogFiles {
    /// Makes the places, with the directories above them, and proves that they can be written.
    ///
    /// # Errors
    ///
    /// A place cannot be used: a directory that holds log files of an earlier job, or a name that is taken by something other
    /// than a regular file.
    pub fn create(places: impl Into<LogPlaces>, world_size: u32) -> Result<LogFiles, LogError> {
        LogFiles::with_capacity(places.into(), world_size, OPEN_FILES)
    }

    fn with_capacity(places: LogPlaces, world_size: u32, capacity: usize) -> Result<LogFiles, LogError> {
        places.prepare()?;
        Ok(LogFiles {
            unwritten: 0,
            unfinished: Default::default(),
            world_size,
            shared: places.shared(),
            made: places.made(),
            places,
            capacity,
            logs: HashMap::new(),
            open: HashMap::new(),
            uses: 0,
        })
    }

    /// A rank is started again: from now on it writes to the files that it has in these places, which are of the same kind.
    ///
    /// # Errors
    ///
    /// One of them cannot be made.
    pub fn move_rank(&mut self, rank: Rank, places: &LogPlaces) -> Result<(), LogError> {
        for stream in Stream::ALL {
            // What could not be written yet is not lost: it comes first in the new file.
            let is_written = self.logs.get(&(rank, stream)).is_none_or(|log| log.unwritten.is_empty());
            if is_written {
                self.logs.remove(&(rank, stream));
            }
            self.open.remove(&(rank, stream));
        }
        self.shared.extend(places.shared());
        self.places.move_rank(rank, places, self.world_size, &mut self.made)
    }

    /// The file of a stream, if it has one.
    pub fn path(&self, rank: Rank, stream: Stream) -> Option<PathBuf> {
        self.places.file(rank, stream, self.world_size)
    }

    /// A rank wrote these bytes.
    ///
    /// # Errors
    ///
    /// The file could not be opened or written. Nothing is lost: what is unwritten is kept, and written by
    /// [`retry`](Self::retry) or before anything else that comes for this file.
    pub fn write(&mut self, rank: Rank, stream: Stream, bytes: &[u8]) -> Result<(), LogError> {
        let matches = self.places.matches(stream);
        let found = matches.map(|matches| matches.take(&mut self.unfinished[stream.index()], rank, bytes));
        let copied = self.copy(rank, stream, found);
        let source = (rank, stream);
        let Some(path) = self.path(rank, stream) else { return copied };
        let is_begun = self.places.is_made(rank, stream);
        if is_begun && rank.group() != GroupId(0) && !self.shared.contains(&path) {
            // One rank had the file until now.
            self.shared.insert(path.clone());
        }
        let log = self.logs.entry(source).or_insert_with(|| Log { is_begun, ..Log::default() });
        let before = log.unwritten.len();
        match self.places.are_files() {
            true => log.take_exactly(bytes, self.shared.contains(&path)),
            false => log.take(bytes),
        }
        self.unwritten += log.unwritten.len() - before;
        self.flush(source).and(copied)
    }

    /// A stream of a rank has ended: writes its unterminated last line and closes the file.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub fn close(&mut self, rank: Rank, stream: Stream) -> Result<(), LogError> {
        let matches = self.places.matches(stream);
        let found = matches.map(|matches| matches.end(&mut self.unfinished[stream.index()], rank));
        let copied = self.copy(rank, stream, found);
        let source = (rank, stream);
        let Some(log) = self.logs.get_mut(&source) else {
            return copied;
        };
        let before = log.unwritten.len();
        let is_shared = self.places.file(rank, stream, self.world_size).is_some_and(|path| self.shared.contains(&path));
        log.end(is_shared);
        self.unwritten += log.unwritten.len() - before;
        self.flush(source)?;
        self.open.remove(&source);
        copied
    }

    /// Writes lines of a rank to the file of the copied ones.
    fn copy(&mut self, rank: Rank, stream: Stream, lines: Option<Vec<u8>>) -> Result<(), LogError> {
        let Some(lines) = lines.filter(|lines| !lines.is_empty()) else { return Ok(()) };
        let source = (self.places.copies_of(rank, stream), stream);
        // The file was made before the rank.
        let log = self.logs.entry(source).or_insert_with(|| Log { is_begun: true, ..Log::default() });
        log.unwritten.extend_from_slice(&lines);
        self.unwritten += lines.len();
        self.flush(source)
    }

    /// Tries again to write what could not be written, and stops at the first failure.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub fn retry(&mut self) -> Result<(), LogError> {
        let mut unwritten: Vec<Source> =
            self.logs.iter().filter(|(_, log)| !log.unwritten.is_empty()).map(|(source, _)| *source).collect();
        unwritten.sort_unstable();
        unwritten.into_iter().try_for_each(|source| self.flush(source))
    }

    /// How many bytes could not be written yet.
    pub fn unwritten(&self) -> usize {
        self.unwritten
    }

    fn flush(&mut self, source: Source) -> Result<(), LogError> {
        let (Some(path), Some(log)) =
            (self.places.file(source.0, source.1, self.world_size), self.logs.get_mut(&source))
        else {
            return Ok(());
        };
        if log.unwritten.is_empty() {
            return Ok(());
        }
        self.uses += 1;
        if !self.open.contains_key(&source) {
            if self.open.len() >= self.capacity
                && let Some(oldest) = self.open.iter().min_by_key(|(_, file)| file.used).map(|(source, _)| *source)
            {
                self.open.remove(&oldest);
            }
            let mut options = OpenOptions::new();
            options.create(true);
            if log.is_begun {
                options.append(true);
            } else {
                options.write(true).truncate(true);
            }
            let file = match open(&mut options, &path) {
                Ok(file) => file,
                Err(source) => {
                    return Err(LogError { action: "open", path, source });
                }
            };
            log.is_begun = true;
            self.open.insert(source, OpenFile { file, used: self.uses });
        }
        let Some(open) = self.open.get_mut(&source) else {
            return Ok(());
        };
        open.used = self.uses;
        let before = log.unwritten.len();
        let result = log.write_to(&mut open.file);
        self.unwritten -= before - log.unwritten.len();
        result.map_err(|source| LogError { action: "write", path, source })
    }
}

impl Log {
    /// Takes bytes of a stream that has no other place: all are kept. Where streams share the file, a line waits for its end.
    fn take_exactly(&mut self, bytes: &[u8], is_shared: bool) {
        let end = if is_shared { memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1) } else { bytes.len() };
        if end > 0 {
            self.unwritten.append(&mut self.line);
            self.unwritten.extend_from_slice(&bytes[..end]);
        }
        self.extend(&bytes[end..]);
    }

    /// Sorts bytes into those to be written and the line that may still be overwritten.
    fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if !self.line.is_empty() || self.returned {
            let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
            self.take_slowly(&rest[..end]);
            rest = &rest[end..];
        }
        let whole = memchr::memrchr(b'\n', rest).map_or(0, |end| end + 1);
        if memchr::memchr(b'\r', &rest[..whole]).is_none() {
            self.unwritten.extend_from_slice(&rest[..whole]);
            rest = &rest[whole..];
        }
        self.take_slowly(rest);
    }

    fn take_slowly(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr::memchr2(b'\r', b'\n', bytes) {
            self.extend(&bytes[..end]);
            if bytes[end] == b'\r' {
                self.returned = true;
            } else {
                let ending: &[u8] = if self.returned { b"\r\n" } else { b"\n" };
                self.unwritten.append(&mut self.line);
                self.unwritten.extend_from_slice(ending);
                self.returned = false;
            }
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    /// Takes bytes without a line ending.
    fn extend(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.returned {
            self.line.clear();
            self.returned = false;
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > HELD_LINE {
            self.unwritten.append(&mut self.line);
        }
    }

    /// The stream has ended. In a file that others write too the last line gets an end.
    fn end(&mut self, is_shared: bool) {
        if is_shared && !self.line.is_empty() {
            self.line.push(b'\n');
        }
        self.unwritten.append(&mut self.line);
        self.line = Vec::new();
        self.returned = false;
    }

    /// Writes what is to be written; keeps what could not be.
    fn write_to(&mut self, file: &mut File) -> io::Result<()> {
        let mut done = 0;
        let result = loop {
            let rest = &self.unwritten[done..];
            if rest.is_empty() {
                break Ok(());
            }
            match file.write(rest) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.unwritten.drain(..done);
        if self.unwritten.is_empty() && self.unwritten.capacity() > HELD_LINE {
            self.unwritten = Vec::new();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use rankrun_core::RankSet;

    use super::*;
    use crate::matches::Matches;

    fn read(logs: &LogFiles, rank: u32, stream: Stream) -> String {
        let bytes = std::fs::read(path(logs, rank, stream)).expect("the file is there");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn path(logs: &LogFiles, rank: u32, stream: Stream) -> PathBuf {
        logs.path(Rank(rank), stream).expect("it has a file")
    }

    fn logs(world_size: u32, capacity: usize) -> (tempfile::TempDir, LogFiles) {
        let dir = tempfile::tempdir().expect("a directory");
        let logs =
            LogFiles::with_capacity(dir.path().join("a/b").into(), world_size, capacity).expect("it can be made");
        (dir, logs)
    }

    #[test]
    fn the_files_of_an_earlier_job_are_never_mixed_with_ours() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let mut logs = LogFiles::create(dir.path(), 12).expect("it is empty");
        logs.write(Rank(11), Stream::Stderr, b"old\n").expect("there is room");
        let error = LogFiles::create(dir.path(), 2).expect_err("a log of rank 11 is there");
        assert_eq!((error.action, error.path.as_path()), ("use", dir.path()));
        assert!(error.source.to_string().contains("an earlier job"), "{}", error.source);
        std::fs::remove_file(path(&logs, 11, Stream::Stderr)).expect("it is ours");
        std::fs::write(dir.path().join("rank-sums.txt"), "").expect("it is ours");
        LogFiles::create(dir.path(), 2).expect("other files are no obstacle");
    }

    #[test]
    fn each_rank_may_have_a_directory_of_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let dirs = LogPlaces::directories(vec![dir.path().join("0"), dir.path().join("1")]);
        let mut logs = LogFiles::create(dirs, 2).expect("they can be made");
        logs.write(Rank(1), Stream::Stdout, b"one\n").expect("it can be written");
        assert_eq!(std::fs::read(dir.path().join("1/rank-0001.stdout")).expect("the file is there"), b"one\n");
        assert!(dir.path().join("0").is_dir());
    }

    #[test]
    fn ranks_that_share_a_file_keep_their_lines_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let shared = dir.path().join("a/out");
        std::fs::create_dir(dir.path().join("a")).expect("it can be made");
        std::fs::write(&shared, "of an earlier job\n").expect("it can be written");
        let places = LogPlaces::files(vec![Some(shared.clone()); 2], Vec::new());
        let mut logs = LogFiles::create(places, 2).expect("it can be made");
        assert_eq!(std::fs::read(&shared).expect("it is there"), b"", "nothing of an earlier job stays");
        for (rank, bytes) in [(0, "ze"), (1, "one\n"), (0, "ro\n"), (1, "end")] {
            logs.write(Rank(rank), Stream::Stdout, bytes.as_bytes()).expect("it can be written");
        }
        logs.write(Rank(0), Stream::Stderr, b"elsewhere\n").expect("this stream has no file");
        logs.close(Rank(1), Stream::Stdout).expect("it can be written");
        assert_eq!(std::fs::read(&shared).expect("it is there"), b"one\nzero\nend\n");
        assert_eq!(logs.path(Rank(0), Stream::Stderr), None);
    }

    #[test]
    fn a_rank_that_another_asks_for_shares_the_file_that_is_for_all_also_where_there_was_one_rank() {
        let dir = tempfile::tempdir().expect("a directory");
        let (common, own) = (dir.path().join("common"), dir.path().join("own-0"));
        let places = LogPlaces::files(vec![Some(common.clone())], vec![Some(own)]).of_all([true, false]);
        let mut logs = LogFiles::create(places, 1).expect("they can be made");
        let spawned = Rank::of(GroupId(1), 0);
        for (rank, bytes) in [(Rank(0), "zero\n"), (spawned, "sp"), (Rank(0), "one\n"), (spawned, "awned\n")] {
            logs.write(rank, Stream::Stdout, bytes.as_bytes()).expect("it can be written");
        }
        assert_eq!(std::fs::read(&common).expect("it is there"), b"zero\none\nspawned\n");
        assert_eq!(logs.path(spawned, Stream::Stderr), Some(dir.path().join("own-0.spawn-1-rank-0")));
    }

    #[test]
    fn a_rank_that_is_started_again_has_the_files_of_its_attempt() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let places = |attempt: u32| {
            let stdout = (0..3).map(|rank| Some(at(&format!("out-{attempt}-{rank}")))).collect();
            // Ranks of the same attempt share this one, and all of them the next.
            let stderr = vec![Some(at(&format!("err-{attempt}"))); 3];
            let matches = |file: String| Matches {
                file: at(&file),
                ranks: RankSet::of((0..3).map(Rank)),
                texts: vec![b"!".to_vec()],
                prefixes: Vec::new(),
            };
            let matches = [Some(matches(format!("copies-{attempt}"))), Some(matches("all".to_owned()))];
            LogPlaces::files(stdout, stderr).with_matches(matches).with_directories(vec![at(&format!("dir-{attempt}"))])
        };
        std::fs::write(at("err-1"), "of an earlier job\n").expect("it can be written");
        let mut logs = LogFiles::create(places(0), 3).expect("they can be made");
        let mut say = |attempt: u32, rank: u32| {
            if attempt > 0 {
                logs.move_rank(Rank(rank), &places(attempt)).expect("they can be made");
            }
            for stream in Stream::ALL {
                let line = format!("{attempt} {rank}!\n");
                logs.write(Rank(rank), stream, line.as_bytes()).expect("it can be written");
                logs.close(Rank(rank), stream).expect("it can be written");
            }
        };
        for (attempt, rank) in [(0, 0), (0, 1), (1, 1), (0, 2), (2, 1), (1, 2)] {
            say(attempt, rank);
        }
        for (name, text) in [
            ("out-0-0", "0 0!\n"),
            ("out-0-1", "0 1!\n"),
            ("out-1-1", "1 1!\n"),
            ("out-2-1", "2 1!\n"),
            ("out-1-2", "1 2!\n"),
            ("err-0", "0 0!\n0 1!\n0 2!\n"),
            ("err-1", "1 1!\n1 2!\n"),
            ("err-2", "2 1!\n"),
            ("copies-0", "0 0!\n0 1!\n0 2!\n"),
            ("copies-1", "1 1!\n1 2!\n"),
            ("copies-2", "2 1!\n"),
            ("all", "0 0!\n0 1!\n1 1!\n0 2!\n2 1!\n1 2!\n"),
        ] {
            assert_eq!(std::fs::read_to_string(at(name)).unwrap_or_default(), text, "{name}");
        }
        assert!(at("dir-2").is_dir());
    }

    #[test]
    fn a_file_that_replaces_the_console_has_every_byte() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = ["a", "b"].map(|name| dir.path().join(name)).to_vec();
        let mut logs = LogFiles::create(LogPlaces::files(paths.iter().cloned().map(Some).collect(), Vec::new()), 2)
            .expect("it can be made");
        let bytes: Vec<u8> = (0..=255).cycle().take(2_000).collect();
        for piece in bytes.chunks(7) {
            logs.write(Rank(0), Stream::Stdout, piece).expect("it can be written");
        }
        logs.write(Rank(1), Stream::Stdout, b"10%\r20%\r\nend").expect("it can be written");
        logs.close(Rank(1), Stream::Stdout).expect("it can be written");
        assert!(std::fs::read(&paths[0]).expect("it is there") == bytes);
        assert_eq!(std::fs::read(&paths[1]).expect("it is there"), b"10%\r20%\r\nend");
    }

    #[test]
    fn files_hold_what_was_written_with_the_last_state_of_progress_lines() {
        let (_dir, mut logs) = logs(1001, 8);
        let rank = Rank(7);
        for bytes in [&b"one\ntw"[..], b"o\xff\0\n10%\r20", b"%\r30%\nfour\r", b"\nfive\rlast\r"] {
            logs.write(rank, Stream::Stdout, bytes).expect("it can be written");
        }
        assert_eq!(read(&logs, 7, Stream::Stdout), "one\ntwo\u{fffd}\0\n30%\nfour\r\n");
        logs.close(rank, Stream::Stdout).expect("it can be written");
        assert_eq!(read(&logs, 7, Stream::Stdout), "one\ntwo\u{fffd}\0\n30%\nfour\r\nlast");
        assert!(path(&logs, 7, Stream::Stderr).ends_with("a/b/rank-0007.stderr"));
        assert!(!path(&logs, 7, Stream::Stderr).exists(), "nothing was written to it");
    }

    #[test]
    fn many_ranks_share_few_descriptors() {
        let (_dir, mut logs) = logs(10_000, 16);
        for round in 0..2 {
            for rank in 0..2000 {
                logs.write(Rank(rank), Stream::Stderr, format!("{rank} {round}\n").as_bytes())
                    .expect("it can be written");
                assert!(logs.open.len() <= 16);
            }
        }
        for rank in [0, 999, 1999] {
            assert_eq!(read(&logs, rank, Stream::Stderr), format!("{rank} 0\n{rank} 1\n"));
        }
    }

    #[test]
    fn what_could_not_be_written_is_written_by_a_retry() {
        let (_dir, mut logs) = logs(4, 8);
        let path = path(&logs, 1, Stream::Stdout);
        std::fs::create_dir(&path).expect("it can be made");
        let error = logs.write(Rank(1), Stream::Stdout, b"a\n").expect_err("a directory is in the way");
        assert_eq!((error.path, error.action), (path.clone(), "open"));
        logs.write(Rank(1), Stream::Stdout, b"b\nc").expect_err("it still is");
        logs.write(Rank(2), Stream::Stdout, b"other\n").expect("others are not concerned");
        assert_eq!(logs.unwritten(), 4);
        std::fs::remove_dir(&path).expect("it is empty");
        logs.retry().expect("it can be written now");
        logs.close(Rank(1), Stream::Stdout).expect("it can be written");
        assert_eq!(logs.unwritten(), 0);
        assert_eq!(read(&logs, 1, Stream::Stdout), "a\nb\nc");
    }

    #[test]
    fn a_full_device_keeps_the_bytes_for_later() {
        let (_dir, mut logs) = logs(1, 8);
        let path = path(&logs, 0, Stream::Stdout);
        std::os::unix::fs::symlink("/dev/full", &path).expect("it can be made");
        let error = logs.write(Rank(0), Stream::Stdout, b"kept\n").expect_err("the device is full");
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
        assert_eq!(error.to_string(), format!("cannot write \"{}\"", path.display()));
        assert_eq!(logs.unwritten(), 5);
        logs.retry().expect_err("it still is");
        assert_eq!(logs.unwritten(), 5);
    }

    #[test]
    fn what_may_block_is_no_log_file() {
        let (dir, mut logs) = logs(1, 8);
        let path = path(&logs, 0, Stream::Stdout);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("it can be made");
        let reason = "it is a FIFO, not a regular file";
        let error = logs.write(Rank(0), Stream::Stdout, b"kept\n").expect_err("nobody reads the FIFO");
        assert_eq!((error.action, error.source.to_string().as_str()), ("open", reason));
        let _reader = rustix::fs::open(&path, rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK, mode)
            .expect("it can be read");
        let error = logs.retry().expect_err("it is a FIFO still");
        assert_eq!((error.source.to_string().as_str(), logs.unwritten()), (reason, 5));
        let error = LogFiles::create(dir.path().join("a/b"), 1).expect_err("a FIFO is in the place of a log file");
        assert_eq!((error.path, error.source.to_string().as_str()), (path, reason));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("it can be written");
        let error = LogFiles::create(file.join("logs"), 1).expect_err("a file is no directory");
        assert_eq!((error.action, error.path), ("create", file.join("logs")));
    }

    #[test]
    fn a_long_line_is_not_held_in_memory() {
        let (_dir, mut logs) = logs(1, 8);
        let piece = vec![b'x'; 1000];
        for _ in 0..1000 {
            logs.write(Rank(0), Stream::Stdout, &piece).expect("it can be written");
            let log = &logs.logs[&(Rank(0), Stream::Stdout)];
            assert!(log.line.len() <= HELD_LINE);
        }
        logs.close(Rank(0), Stream::Stdout).expect("it can be written");
        assert_eq!(read(&logs, 0, Stream::Stdout).len(), 1_000_000);
    }
}
