//! A file for each rank and stream.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rankrun_core::{Rank, Stream};

use crate::console::Source;

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

/// Why an existing file is not used as a log file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it is {0}, not a regular file")]
struct WrongKind(&'static str);

/// The kind of a file that may block us when it is opened or written, and so is refused. A character device
/// (`/dev/null`) is accepted.
fn wrong_kind(kind: FileType) -> Option<WrongKind> {
    match kind {
        kind if kind.is_fifo() => Some(WrongKind("a FIFO")),
        kind if kind.is_socket() => Some(WrongKind("a socket")),
        kind if kind.is_block_device() => Some(WrongKind("a block device")),
        _ => None,
    }
}

/// Where the files go: one directory for all ranks, or one for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogDirs(Vec<PathBuf>);

impl LogDirs {
    /// The directory of each rank, in order.
    pub fn each(dirs: Vec<PathBuf>) -> LogDirs {
        LogDirs(dirs)
    }

    /// The directory of a rank.
    pub fn of(&self, rank: Rank) -> &Path {
        self.0.get(rank.index()).map_or(self.first(), PathBuf::as_path)
    }

    /// The directory of rank 0.
    pub fn first(&self) -> &Path {
        self.0.first().map_or(Path::new("."), PathBuf::as_path)
    }

    fn distinct(&self) -> BTreeSet<&PathBuf> {
        self.0.iter().collect()
    }
}

impl<P: Into<PathBuf>> From<P> for LogDirs {
    fn from(dir: P) -> LogDirs {
        LogDirs(vec![dir.into()])
    }
}

/// The files `rank-0007.stdout` and `rank-0007.stderr` of each rank.
///
/// Each holds the bytes that its rank wrote. Of a line that overwrites itself with `\r`, as progress bars do, only the
/// last state is kept. A file is created when its rank first writes. The unterminated end of a stream is written when
/// more comes, or when the stream is closed.
#[derive(Debug)]
pub struct LogFiles {
    dirs: LogDirs,
    rank_width: usize,
    capacity: usize,
    logs: HashMap<Source, Log>,
    open: HashMap<Source, OpenFile>,
    /// Counts uses, to know which file was used least recently.
    uses: u64,
    /// Bytes of all streams that could not be written yet.
    unwritten: usize,
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

/// The least number of digits of a rank in the name of its file: jobs of different sizes use the same names.
const RANK_WIDTH: usize = 4;

/// What an earlier job left in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it holds log files of an earlier job; --log-dir 'DIR/{{job}}' gives each job a directory")]
struct NotEmpty;

/// Makes a directory for log files.
fn prepare(dir: &Path) -> Result<(), LogError> {
    let failed = |action, source| LogError { action, path: dir.to_owned(), source };
    std::fs::create_dir_all(dir).map_err(|source| failed("create", source))?;
    tempfile::tempfile_in(dir).map_err(|source| failed("write", source))?;
    for entry in std::fs::read_dir(dir).map_err(|source| failed("read", source))? {
        let entry = entry.map_err(|source| failed("read", source))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_log = name.starts_with("rank-") && Stream::ALL.iter().any(|end| name.ends_with(&format!(".{end}")));
        if is_log && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            return Err(failed("use", io::Error::other(NotEmpty)));
        }
        if is_log && let Some(wrong) = entry.file_type().ok().and_then(wrong_kind) {
            return Err(LogError { action: "open", path: entry.path(), source: io::Error::other(wrong) });
        }
    }
    Ok(())
}

impl LogFiles {
    /// Makes each directory, with those above it, and proves that files can be made in it, that it holds none of an earlier
    /// job, and that no file name is taken by something other than a regular file.
    pub fn create(dirs: impl Into<LogDirs>, world_size: u32) -> Result<LogFiles, LogError> {
        LogFiles::with_capacity(dirs.into(), world_size, OPEN_FILES)
    }

    fn with_capacity(dirs: LogDirs, world_size: u32, capacity: usize) -> Result<LogFiles, LogError> {
        dirs.distinct().into_iter().try_for_each(|dir| prepare(dir))?;
        Ok(LogFiles {
            unwritten: 0,
            rank_width: world_size.saturating_sub(1).to_string().len().max(RANK_WIDTH),
            dirs,
            capacity,
            logs: HashMap::new(),
            open: HashMap::new(),
            uses: 0,
        })
    }

    /// The file of a stream.
    pub fn path(&self, rank: Rank, stream: Stream) -> PathBuf {
        self.dirs.of(rank).join(format!("rank-{:0width$}.{stream}", rank.0, width = self.rank_width))
    }

    /// A rank wrote these bytes.
    ///
    /// # Errors
    ///
    /// The file could not be opened or written. Nothing is lost: what is unwritten is kept, and written by
    /// [`retry`](Self::retry) or before anything else that comes for this file.
    pub fn write(&mut self, rank: Rank, stream: Stream, bytes: &[u8]) -> Result<(), LogError> {
        let source = (rank, stream);
        let log = self.logs.entry(source).or_default();
        let before = log.unwritten.len();
        log.take(bytes);
        self.unwritten += log.unwritten.len() - before;
        self.flush(source)
    }

    /// A stream of a rank has ended: writes its unterminated last line and closes the file.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub fn close(&mut self, rank: Rank, stream: Stream) -> Result<(), LogError> {
        let source = (rank, stream);
        let Some(log) = self.logs.get_mut(&source) else {
            return Ok(());
        };
        let before = log.unwritten.len();
        log.end();
        self.unwritten += log.unwritten.len() - before;
        self.flush(source)?;
        self.open.remove(&source);
        Ok(())
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
        let path = self.path(source.0, source.1);
        let Some(log) = self.logs.get_mut(&source) else {
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
            // A FIFO without a reader must not block us.
            options.create(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
            if log.is_begun {
                options.append(true);
            } else {
                options.write(true).truncate(true);
            }
            let file = match open(&options, &path) {
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

/// Opens a file that can be written without blocking.
fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.open(path).map_err(|error| {
        let found = std::fs::metadata(path).ok().and_then(|found| wrong_kind(found.file_type()));
        match found.filter(|_| error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())) {
            Some(wrong) => io::Error::other(wrong),
            None => error,
        }
    })?;
    match wrong_kind(file.metadata()?.file_type()) {
        Some(wrong) => Err(io::Error::other(wrong)),
        None => Ok(file),
    }
}

impl Log {
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

    /// The stream has ended.
    fn end(&mut self) {
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
    use super::*;

    fn read(logs: &LogFiles, rank: u32, stream: Stream) -> String {
        let bytes = std::fs::read(logs.path(Rank(rank), stream)).expect("the file is there");
        String::from_utf8_lossy(&bytes).into_owned()
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
        std::fs::remove_file(logs.path(Rank(11), Stream::Stderr)).expect("it is ours");
        std::fs::write(dir.path().join("rank-sums.txt"), "").expect("it is ours");
        LogFiles::create(dir.path(), 2).expect("other files are no obstacle");
    }

    #[test]
    fn each_rank_may_have_a_directory_of_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let dirs = LogDirs::each(vec![dir.path().join("0"), dir.path().join("1")]);
        let mut logs = LogFiles::create(dirs, 2).expect("they can be made");
        logs.write(Rank(1), Stream::Stdout, b"one\n").expect("it can be written");
        assert_eq!(std::fs::read(dir.path().join("1/rank-0001.stdout")).expect("the file is there"), b"one\n");
        assert!(dir.path().join("0").is_dir());
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
        assert!(logs.path(rank, Stream::Stderr).ends_with("a/b/rank-0007.stderr"));
        assert!(!logs.path(rank, Stream::Stderr).exists(), "nothing was written to it");
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
        let path = logs.path(Rank(1), Stream::Stdout);
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
        let path = logs.path(Rank(0), Stream::Stdout);
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
        let path = logs.path(Rank(0), Stream::Stdout);
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
