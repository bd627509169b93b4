//! Which file each stream of each rank goes to.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rankrun_core::{GroupId, Rank, Stream, portable};
use serde::{Deserialize, Serialize};

use crate::logfiles::LogError;
use crate::matches::Matches;

/// The least number of digits of a rank in the name of its file: jobs of different sizes use the same names.
const RANK_WIDTH: usize = 4;

/// Which files the streams of the ranks go to, beside the console or instead of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogPlaces {
    kind: Kind,
    /// For each stream, whether all ranks have the same file, however many there will be.
    is_of_all: [bool; 2],
    /// Directories that the ranks themselves write into.
    #[serde(with = "portable::paths")]
    directories: Vec<PathBuf>,
    /// The files that keep what they have: an earlier attempt has written it.
    #[serde(with = "portable::paths")]
    kept: BTreeSet<PathBuf>,
    /// For each stream the lines that are copied to a file of their own.
    matches: [Option<Matches>; 2],
    /// For each stream the files of these lines that ranks have which were started again.
    #[serde(with = "portable::paths")]
    moved: [Vec<PathBuf>; 2],
    /// Which of them a rank has: an index.
    movers: [HashMap<Rank, usize>; 2],
}

/// Stands for the file of the copied lines of a stream, among those of the ranks: no rank has this number. The numbers below it
/// stand for the files that ranks have which were started again: there are far fewer attempts than numbers.
const MATCHES: Rank = Rank(u32::MAX);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Kind {
    /// `rank-0007.stdout` and `rank-0007.stderr` in one directory for all ranks, or in one for each.
    Directories(#[serde(with = "portable::paths")] Vec<PathBuf>),
    /// For each stream the file of each rank that has one, in the order of the ranks; several may have the same.
    Files(#[serde(with = "portable::paths")] [Vec<Option<PathBuf>>; 2]),
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
        LogPlaces::of_kind(Kind::Directories(dirs))
    }

    /// The file of each rank for stdout, and for stderr; a stream without a file goes to the console only.
    pub fn files(stdout: Vec<Option<PathBuf>>, stderr: Vec<Option<PathBuf>>) -> LogPlaces {
        LogPlaces::of_kind(Kind::Files([stdout, stderr]))
    }

    fn of_kind(kind: Kind) -> LogPlaces {
        LogPlaces {
            kind,
            is_of_all: [false; 2],
            directories: Vec::new(),
            kept: BTreeSet::new(),
            matches: [None, None],
            moved: Default::default(),
            movers: Default::default(),
        }
    }

    /// The same; and whether every rank writes to the file of a stream, those too that another rank asks for later.
    pub fn of_all(self, is_of_all: [bool; 2]) -> LogPlaces {
        LogPlaces { is_of_all, ..self }
    }

    /// The same, and directories that are made too.
    pub fn with_directories(self, directories: Vec<PathBuf>) -> LogPlaces {
        LogPlaces { directories, ..self }
    }

    /// The same, and these files keep what they have.
    pub fn keeping(self, kept: BTreeSet<PathBuf>) -> LogPlaces {
        LogPlaces { kept, ..self }
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
        let index = stream.index();
        let number = rank.number();
        if rank.group() != GroupId(0) {
            return self.file_of_spawned(rank, stream);
        }
        if number >= world_size {
            let moved = self.moved[index].get((MATCHES.number() - number).checked_sub(1).unwrap_or(u32::MAX) as usize);
            return moved.or(self.matches(stream).map(|matches| &matches.file)).cloned();
        }
        match &self.kind {
            Kind::Directories(dirs) => {
                let width = world_size.saturating_sub(1).to_string().len().max(RANK_WIDTH);
                let directory = dirs.get(number as usize).or(dirs.first())?;
                Some(directory.join(format!("rank-{number:0width$}.{stream}")))
            }
            Kind::Files(files) => files[index].get(number as usize)?.clone(),
        }
    }

    /// The file of a rank that another rank has asked for. Nobody has named it: it is beside that of the first rank, or the same if all
    /// ranks share one.
    fn file_of_spawned(&self, rank: Rank, stream: Stream) -> Option<PathBuf> {
        let (group, number) = (rank.group(), rank.number());
        match &self.kind {
            Kind::Directories(dirs) => {
                Some(dirs.first()?.join(format!("spawn-{group}-rank-{number:0RANK_WIDTH$}.{stream}")))
            }
            Kind::Files(files) => {
                let first = files[stream.index()].first()?.as_ref()?;
                if self.is_of_all[stream.index()] {
                    return Some(first.clone());
                }
                let mut name = first.clone().into_os_string();
                name.push(format!(".spawn-{group}-rank-{number}"));
                Some(name.into())
            }
        }
    }

    /// What stands for the file of the copied lines of a rank.
    pub(crate) fn copies_of(&self, rank: Rank, stream: Stream) -> Rank {
        let moved = self.movers[stream.index()].get(&rank);
        Rank(MATCHES.number() - moved.map_or(0, |index| *index as u32 + 1))
    }

    /// The directory, or the file, that rank 0 writes to; else that of the copied lines.
    pub fn first(&self) -> &Path {
        let first = match &self.kind {
            Kind::Directories(dirs) => dirs.first(),
            Kind::Files(files) => files.iter().flatten().flatten().next(),
        };
        let copies = self.matches.iter().flatten().map(|matches| &matches.file).next();
        first.or(self.directories.first()).or(copies).map_or(Path::new("."), PathBuf::as_path)
    }

    /// Makes what is missing and proves that it can be written: directories, which must hold no log file of an earlier job,
    /// or the files themselves, which lose what they had if they are not kept.
    ///
    /// # Errors
    ///
    /// The first place that cannot be used.
    pub(crate) fn prepare(&self) -> Result<(), LogError> {
        self.directories.iter().try_for_each(|dir| make_directory(dir))?;
        self.matches.iter().flatten().try_for_each(|matches| self.make(&matches.file))?;
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
                .try_for_each(|path| self.make(path)),
        }
    }

    fn make(&self, path: &Path) -> Result<(), LogError> {
        file(path, self.kept.contains(path))
    }

    /// The files of a rank are those of other places from now on. `made` has the files that are there already, and gets those
    /// that were made.
    ///
    /// # Errors
    ///
    /// One cannot be made. The rank has it all the same: the next write tells.
    pub(crate) fn move_rank(
        &mut self,
        rank: Rank,
        to: &LogPlaces,
        world_size: u32,
        made: &mut HashSet<PathBuf>,
    ) -> Result<(), LogError> {
        let mut fresh = Vec::new();
        let at = rank.number() as usize;
        match (&mut self.kind, &to.kind) {
            (Kind::Directories(dirs), Kind::Directories(others)) => {
                if let (1, Some(all)) = (dirs.len(), dirs.first().cloned()) {
                    dirs.resize(world_size as usize, all);
                }
                if let (Some(own), Some(other)) = (dirs.get_mut(at), others.get(at).or(others.first())) {
                    other.clone_into(own);
                    make_directory(own)?;
                }
            }
            (Kind::Files(files), Kind::Files(others)) => {
                for (files, others) in files.iter_mut().zip(others) {
                    if let (Some(own), Some(other)) = (files.get_mut(at), others.get(at)) {
                        other.clone_into(own);
                        fresh.extend(other.clone());
                    }
                }
            }
            (Kind::Directories(_), Kind::Files(_)) | (Kind::Files(_), Kind::Directories(_)) => {}
        }
        for (index, matches) in to.matches.iter().enumerate() {
            let Some(other) = matches.as_ref().map(|matches| &matches.file) else { continue };
            if self.matches[index].as_ref().is_none_or(|first| first.file == *other) {
                continue;
            }
            let moved = &mut self.moved[index];
            let at = moved.iter().position(|file| file == other).unwrap_or_else(|| {
                moved.push(other.clone());
                moved.len() - 1
            });
            self.movers[index].insert(rank, at);
            fresh.push(other.clone());
        }
        to.directories.iter().try_for_each(|dir| make_directory(dir))?;
        fresh.into_iter().filter(|path| made.insert(path.clone())).try_for_each(|path| file(&path, false))
    }

    /// The files that are made before the ranks write.
    pub(crate) fn made(&self) -> HashSet<PathBuf> {
        let files = match &self.kind {
            Kind::Files(files) => files.iter().flatten().flatten().cloned().collect(),
            Kind::Directories(_) => Vec::new(),
        };
        files.into_iter().chain(self.matches.iter().flatten().map(|matches| matches.file.clone())).collect()
    }

    /// The files that several streams write, so that their lines must each have an end.
    pub(crate) fn shared(&self) -> HashSet<PathBuf> {
        let Kind::Files(files) = &self.kind else { return HashSet::new() };
        let mut seen = HashSet::new();
        files.iter().flatten().flatten().filter(|path| !seen.insert(*path)).cloned().collect()
    }

    /// Whether the files have names of their own, and hold exactly what was written.
    pub(crate) fn are_files(&self) -> bool {
        matches!(self.kind, Kind::Files(_))
    }

    /// Whether a file is there before its rank first writes, so that every write appends.
    pub(crate) fn is_made(&self, rank: Rank, stream: Stream) -> bool {
        let is_spawned = rank.group() != GroupId(0);
        matches!(self.kind, Kind::Files(_)) && (!is_spawned || self.is_of_all[stream.index()])
    }
}

impl<P: Into<PathBuf>> From<P> for LogPlaces {
    fn from(dir: P) -> LogPlaces {
        LogPlaces::directories(vec![dir.into()])
    }
}

fn make_directory(dir: &Path) -> Result<(), LogError> {
    std::fs::create_dir_all(dir).map_err(|source| LogError { action: "create", path: dir.to_owned(), source })
}

/// Makes a directory for log files.
fn directory(dir: &Path) -> Result<(), LogError> {
    let failed = |action, source| LogError { action, path: dir.to_owned(), source };
    make_directory(dir)?;
    tempfile::tempfile_in(dir).map_err(|source| failed("write", source))?;
    for entry in std::fs::read_dir(dir).map_err(|source| failed("read", source))? {
        let entry = entry.map_err(|source| failed("read", source))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_log = (name.starts_with("rank-") || name.starts_with("spawn-"))
            && Stream::ALL.iter().any(|end| name.ends_with(&format!(".{end}")));
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

/// Links that are followed on the way to a file, as many as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Why `/dev/stdout` and the like are refused. Files are opened by a process that has other descriptors than the one that the user has
/// started: what is written there would be lost.
#[derive(Debug, thiserror::Error)]
#[error("it stands for an open file of rankrun itself: give the name of a file")]
struct OwnDescriptor;

/// Whether a path stands for a descriptor of this process (`/dev/stdout`, `/dev/fd/3`, `/proc/self/fd/1`), or links to one.
fn is_own_descriptor(path: &Path) -> bool {
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(parent) = parent.canonicalize() else { return false };
        // Those of a thread are below `task`.
        if parent.starts_with(&own) && parent.ends_with("fd") {
            return true;
        }
        let Ok(target) = std::fs::read_link(&path) else { return false };
        path = parent.join(target);
    }
    false
}

/// Opens a file that can be written without blocking.
///
/// # Errors
///
/// It cannot be opened, is a FIFO or the like, or stands for a descriptor of this process.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<std::fs::File> {
    // A FIFO without a reader must not block us.
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    // Only a link can be one, and only a wrong number is missing.
    if std::fs::symlink_metadata(path).map_or(true, |found| found.is_symlink()) && is_own_descriptor(path) {
        return Err(io::Error::other(OwnDescriptor));
    }
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
