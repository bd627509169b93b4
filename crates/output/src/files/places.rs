//! Which file each stream of each rank goes to.

use std::collections::{BTreeSet, HashSet};
use std::fs::{FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rankrun_core::{Rank, Stream};

use crate::logfiles::LogError;
use crate::matches::Matches;

/// The least number of digits of a rank in the name of its file: jobs of different sizes use the same names.
const RANK_WIDTH: usize = 4;

/// Which files the streams of the ranks go to, beside the console or instead of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogPlaces {
    kind: Kind,
    /// Directories that the ranks themselves write into.
    directories: Vec<PathBuf>,
    /// An earlier attempt may have written to the files.
    is_appending: bool,
    /// For each stream the lines that are copied to a file of their own.
    matches: [Option<Matches>; 2],
}

/// Stands for the file of the copied lines of a stream, among those of the ranks: no rank has this number.
pub(crate) const MATCHES: Rank = Rank(u32::MAX);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    /// `rank-0007.stdout` and `rank-0007.stderr` in one directory for all ranks, or in one for each.
    Directories(Vec<PathBuf>),
    /// For each stream the file of each rank that has one, in the order of the ranks; several may have the same.
    Files([Vec<Option<PathBuf>>; 2]),
}

/// What an earlier job left in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it holds log files of an earlier job; --log-dir 'DIR/{{job}}' gives each job a directory")]
struct NotEmpty;

/// Why an existing file is not used as a log file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it is {0}, not a regular file")]
pub(crate) struct WrongKind(&'static str);

/// The kind of a file that may block us when it is opened or written, and so is refused. A character device
/// (`/dev/null`) is accepted.
pub(crate) fn wrong_kind(kind: FileType) -> Option<WrongKind> {
    match kind {
        kind if kind.is_fifo() => Some(WrongKind("a FIFO")),
        kind if kind.is_socket() => Some(WrongKind("a socket")),
        kind if kind.is_block_device() => Some(WrongKind("a block device")),
        _ => None,
    }
}

impl LogPlaces {
    /// A file for each rank and stream, in the directory of each rank, in order.
    pub fn directories(dirs: Vec<PathBuf>) -> LogPlaces {
        LogPlaces { kind: Kind::Directories(dirs), directories: Vec::new(), is_appending: false, matches: [None, None] }
    }

    /// The file of each rank for stdout, and for stderr; a stream without a file goes to the console only.
    pub fn files(stdout: Vec<Option<PathBuf>>, stderr: Vec<Option<PathBuf>>) -> LogPlaces {
        LogPlaces {
            kind: Kind::Files([stdout, stderr]),
            directories: Vec::new(),
            is_appending: false,
            matches: [None, None],
        }
    }

    /// The same, and directories that are made too.
    pub fn with_directories(self, directories: Vec<PathBuf>) -> LogPlaces {
        LogPlaces { directories, ..self }
    }

    /// The same, and files keep what they have.
    pub fn appending(self) -> LogPlaces {
        LogPlaces { is_appending: true, ..self }
    }

    /// The same, and lines that are copied to files of their own.
    pub fn with_matches(self, matches: [Option<Matches>; 2]) -> LogPlaces {
        LogPlaces { matches, ..self }
    }

    /// The lines of a stream that are copied.
    pub(crate) fn matches(&self, stream: Stream) -> Option<&Matches> {
        self.matches[stream.index()].as_ref()
    }

    /// The file of a stream, if it has one. `world_size` is the number of ranks.
    pub fn file(&self, rank: Rank, stream: Stream, world_size: u32) -> Option<PathBuf> {
        if rank == MATCHES {
            return self.matches(stream).map(|matches| matches.file.clone());
        }
        match &self.kind {
            Kind::Directories(dirs) => {
                let width = world_size.saturating_sub(1).to_string().len().max(RANK_WIDTH);
                let directory = dirs.get(rank.index()).or(dirs.first())?;
                Some(directory.join(format!("rank-{:0width$}.{stream}", rank.0)))
            }
            Kind::Files(files) => files[stream.index()].get(rank.index())?.clone(),
        }
    }

    /// The directory, or the file, that rank 0 writes to.
    pub fn first(&self) -> &Path {
        let first = match &self.kind {
            Kind::Directories(dirs) => dirs.first(),
            Kind::Files(files) => files.iter().flatten().flatten().next(),
        };
        first.or(self.directories.first()).map_or(Path::new("."), PathBuf::as_path)
    }

    /// Makes what is missing and proves that it can be written: directories, which must hold no log file of an earlier job,
    /// or the files themselves, which lose what they had.
    ///
    /// # Errors
    ///
    /// The first place that cannot be used.
    pub(crate) fn prepare(&self) -> Result<(), LogError> {
        for dir in &self.directories {
            std::fs::create_dir_all(dir).map_err(|source| LogError { action: "create", path: dir.clone(), source })?;
        }
        self.matches.iter().flatten().try_for_each(|matches| file(&matches.file, self.is_appending))?;
        match &self.kind {
            Kind::Directories(dirs) => {
                dirs.iter().collect::<BTreeSet<_>>().into_iter().try_for_each(|dir| directory(dir))
            }
            Kind::Files(files) => files
                .iter()
                .flatten()
                .flatten()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .try_for_each(|path| file(path, self.is_appending)),
        }
    }

    /// Gives a rank another directory.
    pub(crate) fn move_rank(&mut self, rank: Rank, directory: PathBuf, world_size: u32) {
        let Kind::Directories(dirs) = &mut self.kind else { return };
        if let (1, Some(all)) = (dirs.len(), dirs.first().cloned()) {
            dirs.resize(world_size as usize, all);
        }
        if let Some(own) = dirs.get_mut(rank.index()) {
            *own = directory;
        }
    }

    /// The directory of a rank, if there are directories.
    pub fn directory(&self, rank: Rank) -> Option<&Path> {
        match &self.kind {
            Kind::Directories(dirs) => dirs.get(rank.index()).or(dirs.first()).map(PathBuf::as_path),
            Kind::Files(_) => None,
        }
    }

    /// The files that several streams write, so that their lines must each have an end.
    pub(crate) fn shared(&self) -> HashSet<PathBuf> {
        let Kind::Files(files) = &self.kind else { return HashSet::new() };
        let mut seen = HashSet::new();
        files.iter().flatten().flatten().filter(|path| !seen.insert(*path)).cloned().collect()
    }

    /// Whether a file is there before its rank first writes, so that every write appends.
    pub(crate) fn are_made(&self) -> bool {
        matches!(self.kind, Kind::Files(_))
    }
}

impl<P: Into<PathBuf>> From<P> for LogPlaces {
    fn from(dir: P) -> LogPlaces {
        LogPlaces::directories(vec![dir.into()])
    }
}

/// Makes a directory for log files.
fn directory(dir: &Path) -> Result<(), LogError> {
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

/// Makes an empty file, with the directories above it.
fn file(path: &Path, keep: bool) -> Result<(), LogError> {
    let failed = |action, path: &Path, source| LogError { action, path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|source| failed("create", parent, source))?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(!keep);
    open(&mut options, path).map_err(|source| failed("open", path, source)).map(drop)
}

/// Opens a file that can be written without blocking.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<std::fs::File> {
    // A FIFO without a reader must not block us.
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
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
