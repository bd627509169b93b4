//! The storage process: does tasks for one destination, one after the other ([`super::files`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::ExitCode;
use rankrun_core::result::ResultPiece;
use rankrun_core::{Rank, Stream};
use rankrun_output::{LogError, LogFiles, Recorded, Transcript};
use rankrun_sys::poll::once_free;
use rankrun_sys::{build, name, spawn};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::delivery::task::{Directory, Done, Task};
use crate::delivery::{core_file, prune, termination};

/// Runs a storage process: the job's id and the name of the destination are its words.
///
/// Returns the exit code.
pub fn run_storage(words: &[std::ffi::OsString]) -> u8 {
    let title: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let run = || -> io::Result<()> {
        let socket = spawn::own_socket()?;
        // If the name cannot be set, it is only harder to see what this is.
        let _ = name::set("rr-storage", &format!("rr-storage {}", title.join(" ")));
        serve(&socket)
    };
    // The front sees the end.
    if run().is_ok() { ExitCode::SUCCESS.0 } else { ExitCode::INTERNAL.0 }
}

/// Does tasks until the front closes the socket.
fn serve(socket: &OwnedFd) -> io::Result<()> {
    let mut storage = Storage::default();
    let mut reader = io::BufReader::with_capacity(128 * 1024, File::from(socket.try_clone()?));
    let mut writer = File::from(socket.try_clone()?);
    loop {
        match receive(&mut reader) {
            Ok(task) => send(&mut writer, &storage.perform(task))?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Sends a value: its length in four bytes, then itself.
pub(super) fn send(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut frame = postcard::to_extend(value, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&frame)
}

/// Receives a value. The peer is a process of the same build.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    let mut frame = Vec::new();
    if from.take(u64::from(length)).read_to_end(&mut frame)? < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&frame).map_err(io::Error::other)
}

/// The open files of a destination.
#[derive(Debug, Default)]
pub(super) struct Storage {
    logs: Option<LogFiles>,
    /// Bytes for log files without credit returned, by stream.
    uncredited: [u64; 2],
    transcript: Option<Transcript>,
    /// What another process has left to this one, and this one could not open yet.
    left: Option<(PathBuf, Box<Recorded>)>,
    /// Credit of what the transcript has not written.
    untranscribed: [u64; 2],
    kept: [Option<File>; 2],
    journal: Option<File>,
}

impl Storage {
    pub(super) fn perform(&mut self, task: Task) -> Done {
        match task {
            Task::OpenLogs { places, world_size } => {
                let opened = LogFiles::create(*places, world_size);
                Done::LogsOpened(opened.map(|logs| self.logs = Some(logs)).map_err(Into::into))
            }
            Task::MoveLog { rank, places } => {
                let moved = self.logs.as_mut().map_or(Ok(()), |logs| logs.move_rank(rank, &places));
                Done::LogsOpened(moved.map_err(Into::into))
            }
            Task::Log { rank, stream, bytes } => {
                self.uncredited[stream.index()] += bytes.len() as u64;
                self.log(|logs| logs.write(rank, stream, &bytes))
            }
            Task::CloseLog { rank, stream } => self.close_log(rank, stream),
            // A failure was reported already.
            Task::RetryLogs => match self.logs.as_mut().map(LogFiles::retry) {
                Some(Ok(())) => Done::Recovered { bytes: std::mem::take(&mut self.uncredited) },
                Some(Err(_)) | None => Done::NotRecovered,
            },
            Task::GiveUpLogs => {
                self.logs = None;
                Done::GivenUp
            }
            Task::OpenTranscript { directory, path, head, bound, from } => {
                let create = || Transcript::create(path.clone(), &head, bound, from);
                let opened =
                    directory.make().and_then(|()| once_free(io::ErrorKind::AlreadyExists, GIVEN_UP_BOUND, create));
                Done::TranscriptOpened(opened.map(|transcript| self.transcript = Some(transcript)).map_err(Into::into))
            }
            Task::ReopenTranscript { path, left } => {
                self.left = Some((path, left));
                let failure = self.go_on_with_transcript().err();
                let is_behind = failure.is_some();
                Done::Transcribed { credits: [0, 0], failure: failure.map(Into::into), is_behind }
            }
            Task::Transcript { bytes, credits } => {
                self.untranscribed.iter_mut().zip(credits).for_each(|(sum, more)| *sum += more);
                let failure = match (&mut self.transcript, &mut self.left) {
                    (Some(transcript), _) => transcript.append(&bytes).err(),
                    (None, Some((_, left))) => {
                        left.add(&bytes);
                        self.go_on_with_transcript().err()
                    }
                    (None, None) => Some(io::Error::other("it is not open")),
                };
                let is_behind = failure.is_some();
                let credits = if is_behind { [0, 0] } else { std::mem::take(&mut self.untranscribed) };
                Done::Transcribed { credits, failure: failure.map(Into::into), is_behind }
            }
            // A failure was reported already.
            Task::RetryTranscript => match self.go_on_with_transcript() {
                Ok(()) => Done::TranscriptRecovered { credits: std::mem::take(&mut self.untranscribed) },
                Err(_) => Done::NotRecovered,
            },
            Task::Probe(directory) => Done::Probed(directory.check()),
            Task::Keep { stream, directory, bytes, credits } => {
                let result = self.keep(stream, &directory, &bytes).map_err(Into::into);
                Done::Kept { stream, credits, result }
            }
            Task::Save { directory, path, bytes } => {
                let result = match directory {
                    Some(directory) => directory.make().and_then(|()| save_at_once(&path, &bytes)),
                    // A place of the user's: it may be no plain file.
                    None => create(&path).and_then(|mut file| file.write_all(&bytes)),
                };
                Done::Saved { path, result: result.map_err(Into::into) }
            }
            Task::Result { node, path, piece } => {
                let result = add_to_result(&path, &piece).map_err(Into::into);
                Done::ResultAdded { node, cost: piece.cost(), path, result }
            }
            Task::OpenJournal(path) => {
                let opened = create(&path).map(|file| self.journal = Some(file));
                Done::JournalOpened(opened.map_err(Into::into))
            }
            Task::Journal(bytes) => {
                let file = self.journal.as_mut().ok_or_else(|| io::Error::other("it is not open"));
                let result = file.and_then(|file| file.write_all(&bytes)).map_err(Into::into);
                Done::Journaled { bytes: bytes.len(), result }
            }
            Task::Stamp { of, path } => {
                let stamp = |found: std::fs::Metadata| Some((found.modified().ok()?, found.len()));
                Done::Stamped(of, std::fs::metadata(&path).ok().and_then(stamp))
            }
            Task::Prune { own, keep } => {
                prune::prune(&own, keep);
                Done::Removed
            }
            Task::Point { from, to } => {
                // Without it the job is found by the directory that the user has named.
                let _ = from.make().and_then(|()| prune::point(&from.path, &to));
                Done::Removed
            }
            Task::Forget { directory, own } => {
                prune::forget(&directory, &own);
                Done::Removed
            }
            Task::FindCore { pid, signal, directory, took } => {
                Done::CoreFound(core_file::find(pid, signal, &directory, took))
            }
            Task::SayWhyEnded(text) => {
                // It is for people only, who have the log too.
                let _ = termination::write(&text);
                Done::Removed
            }
            Task::ReadBinary => match build::bytes() {
                Ok(bytes) => Done::BinaryRead { bytes, result: Ok(()) },
                Err(error) => Done::BinaryRead { bytes: Vec::new(), result: Err(error.into()) },
            },
        }
    }

    fn close_log(&mut self, rank: Rank, stream: Stream) -> Done {
        self.log(|logs| logs.close(rank, stream))
    }

    fn log(&mut self, write: impl FnOnce(&mut LogFiles) -> Result<(), LogError>) -> Done {
        let Some(logs) = &mut self.logs else {
            return Done::Logged { bytes: [0, 0], failure: None, is_behind: false };
        };
        let failure = write(logs).err().map(Into::into);
        let is_behind = logs.unwritten() > 0;
        let bytes = if is_behind { [0, 0] } else { std::mem::take(&mut self.uncredited) };
        Done::Logged { bytes, failure, is_behind }
    }

    /// Writes what the transcript lacks. It is opened for that where it could not be before.
    fn go_on_with_transcript(&mut self) -> io::Result<()> {
        if let Some((path, left)) = &self.left {
            self.transcript = Some(reopen(path, left)?);
            self.left = None;
        }
        self.transcript.as_mut().map_or_else(|| Err(io::Error::other("it is not open")), Transcript::retry)
    }

    fn keep(&mut self, stream: Stream, directory: &Directory, bytes: &[u8]) -> io::Result<()> {
        let path: PathBuf = directory.path.join(format!("unwritten.{stream}"));
        let file = &mut self.kept[stream.index()];
        if file.is_none() {
            directory.make()?;
            *file = Some(create(&path)?);
        }
        file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }
}

/// Opens a file that is written from its start. Refuses what may block.
fn create(path: &Path) -> io::Result<File> {
    let file = rankrun_output::open(File::options().create(true).write(true), path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Appends a piece to the unfinished file, which gets its name with the last one. Without a piece there is no file: those that follow
/// cannot be appended to it.
fn add_to_result(path: &Path, piece: &ResultPiece) -> io::Result<()> {
    let part = path.with_extension("part");
    let add = || {
        let mut options = File::options();
        let mut file = match piece.is_first {
            true => options.create(true).write(true).truncate(true).open(&part)?,
            false => options.append(true).open(&part)?,
        };
        file.write_all(piece.data.as_bytes())?;
        file.write_all(b"\n")?;
        if piece.is_last { std::fs::rename(&part, path) } else { Ok(()) }
    };
    let added = add();
    if added.is_err() {
        // On a disk that is full it would only take room.
        let _ = std::fs::remove_file(&part);
    }
    added
}

/// Writes a file that nobody sees before it is complete.
fn save_at_once(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = Path::new(&name);
    let written = create(part).and_then(|mut file| file.write_all(bytes)).and_then(|()| std::fs::rename(part, path));
    if written.is_err() {
        // On a disk that is full it would only take room.
        let _ = std::fs::remove_file(part);
    }
    written
}

/// How long the process may take to end that has written a transcript before.
const WRITER_BOUND: Duration = Duration::from_secs(5);

/// How long one may take that was killed since nobody looked at the job any more. Where another job writes there, that is said after it.
const GIVEN_UP_BOUND: Duration = Duration::from_millis(500);

/// Goes on with a transcript. The process that wrote it for the front before ends by itself.
fn reopen(path: &Path, left: &Recorded) -> io::Result<Transcript> {
    once_free(io::ErrorKind::WouldBlock, WRITER_BOUND, || Transcript::reopen(path.to_owned(), left))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use rankrun_core::NodeId;
    use rankrun_output::LogPlaces;
    use rankrun_sys::socket;

    use super::*;

    /// A storage process without the process: a thread that serves the other end.
    fn storage() -> (File, io::BufReader<File>) {
        let (ours, theirs) = socket::pair().expect("a pair of sockets");
        std::thread::spawn(move || serve(&theirs));
        let writer = File::from(ours);
        let reader = io::BufReader::new(writer.try_clone().expect("a descriptor"));
        (writer, reader)
    }

    #[test]
    fn paths_of_any_bytes_are_written_and_answered() {
        let top = tempfile::tempdir().expect("a directory");
        let odd = top.path().join(OsStr::from_bytes(b"od\xffd"));
        let (mut writer, mut reader) = storage();
        let directory = Directory { path: odd.clone(), below: None, is_chosen: true };
        let places = Box::new(LogPlaces::directories(vec![odd.join("logs")]));
        let tasks = [
            Task::Save { directory: Some(directory), path: odd.join("report"), bytes: b"all".to_vec() },
            Task::OpenLogs { places, world_size: 1 },
            Task::Log { rank: Rank(0), stream: Stream::Stdout, bytes: b"line\n".to_vec() },
            Task::CloseLog { rank: Rank(0), stream: Stream::Stdout },
        ];
        tasks.iter().for_each(|task| send(&mut writer, task).expect("it can be sent"));
        let answers: [Done; 4] = std::array::from_fn(|_| receive(&mut reader).expect("an answer"));
        let [saved, opened, logged, _] = &answers;
        assert!(matches!(saved, Done::Saved { path, result: Ok(()) } if *path == odd.join("report")), "{saved:?}");
        assert!(matches!(opened, Done::LogsOpened(Ok(()))), "{opened:?}");
        assert!(matches!(logged, Done::Logged { bytes: [5, 0], failure: None, is_behind: false }), "{logged:?}");
        assert_eq!(std::fs::read(odd.join("report")).expect("the report"), b"all");
        assert_eq!(std::fs::read(odd.join("logs/rank-0000.stdout")).expect("the log"), b"line\n");
    }

    #[test]
    fn a_report_that_exists_is_complete() {
        let top = tempfile::tempdir().expect("a directory");
        let path = top.path().join("report.json");
        let whole = vec![b'x'; 4 << 20];
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                loop {
                    if let Ok(bytes) = std::fs::read(&path) {
                        return bytes.len();
                    }
                }
            });
            save_at_once(&path, &whole).expect("the report is saved");
            assert_eq!(reader.join().expect("the reader ends"), whole.len());
        });
        assert_eq!(std::fs::read_dir(top.path()).expect("the directory").count(), 1, "nothing else is left");
    }

    #[test]
    fn a_result_of_which_a_piece_could_not_be_written_never_gets_its_name() {
        let top = tempfile::tempdir().expect("a directory");
        let (path, part) = (top.path().join("0.result"), top.path().join("0.part"));
        let mut storage = Storage::default();
        let mut add = |is_first, is_last| {
            let piece = ResultPiece { is_error: false, data: "AAAA".to_owned(), is_first, is_last };
            let cost = piece.cost();
            match storage.perform(Task::Result { node: NodeId(1), path: path.clone(), piece }) {
                Done::ResultAdded { node: NodeId(1), cost: answered, result, .. } if answered == cost => result.is_ok(),
                other => panic!("{other:?}"),
            }
        };
        // A disk that is full, and later is not.
        std::os::unix::fs::symlink("/dev/full", &part).expect("it is ours");
        assert!(!add(true, false));
        assert!(part.symlink_metadata().is_err(), "it takes no room");
        assert!(!add(false, false) && !add(false, true));
        assert!(!path.exists());
        assert!(add(true, false) && add(false, true));
        assert_eq!(std::fs::read(&path).expect("the result"), b"AAAA\nAAAA\n");
    }

    /// The streams of a storage process are /dev/null: what is written there is lost.
    #[test]
    fn a_path_that_stands_for_a_stream_is_refused() {
        let top = tempfile::tempdir().expect("a directory");
        let link = top.path().join("link");
        std::os::unix::fs::symlink("/dev/stderr", &link).expect("it is ours");
        let paths = ["/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/2"];
        let mut storage = Storage::default();
        for path in paths.iter().map(PathBuf::from).chain(["/proc/self/fd/900".into(), link]) {
            let refused =
                Err(io::Error::other("it stands for an open file of rankrun itself: give the name of a file").into());
            match storage.perform(Task::OpenJournal(path.clone())) {
                Done::JournalOpened(result) => assert_eq!(result, refused, "{}", path.display()),
                other => panic!("{other:?}"),
            }
            // The error file of torchrun.
            match storage.perform(Task::Save { directory: None, path: path.clone(), bytes: b"all".to_vec() }) {
                Done::Saved { result, .. } => assert_eq!(result, refused, "{}", path.display()),
                other => panic!("{other:?}"),
            }
            // --stdout-file, --error-file.
            let places = Box::new(LogPlaces::files(vec![Some(path.clone())], Vec::new()));
            match storage.perform(Task::OpenLogs { places, world_size: 1 }) {
                Done::LogsOpened(Err(failure)) => assert_eq!(Err(io::Error::other(failure.why).into()), refused),
                other => panic!("{other:?}"),
            }
        }
        let nowhere = storage.perform(Task::OpenJournal("/dev/null".into()));
        assert!(matches!(nowhere, Done::JournalOpened(Ok(()))), "{nowhere:?}");
    }

    #[test]
    fn a_refusal_says_why_and_where() {
        let top = tempfile::tempdir().expect("a directory");
        let file = top.path().join("file");
        std::fs::write(&file, "").expect("it is ours");
        let (mut writer, mut reader) = storage();
        let places = Box::new(LogPlaces::directories(vec![file.join("logs")]));
        send(&mut writer, &Task::OpenLogs { places, world_size: 1 }).expect("it can be sent");
        send(&mut writer, &Task::Journal(b"x".to_vec())).expect("it can be sent");
        let failure = match receive(&mut reader).expect("an answer") {
            Done::LogsOpened(Err(failure)) => failure,
            other => panic!("{other:?}"),
        };
        assert_eq!((failure.path.clone(), failure.why.as_str()), (file.join("logs"), "Not a directory"));
        let journaled: Done = receive(&mut reader).expect("an answer");
        assert!(matches!(journaled, Done::Journaled { bytes: 1, result: Err(_) }), "{journaled:?}");
    }
}
