//! Reads the user's files for the agent, in processes of their own.
//!
//! A thread that waits for a file system that does not answer is in state D, and keeps its process from being reaped. So the agent does
//! not read the user's files: a *reader* does (`rankrun --as=file-reader`), and nobody waits for it. When the agent ends, the guard is told
//! the readers, and does not count one that stays in state D as left of the job (ADR 32). The spawner's search for programs is the one
//! call of a thread of the agent to the user's file systems that is left.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use rankrun_core::alone::{INITS, is_library};
use rankrun_core::{ExitCode, Pid, Purpose};
use rankrun_stacks::{Origin, origin};
use rankrun_sys::process::Child;
use rankrun_sys::spawn::{self, Spawner, UnderWay};
use rankrun_sys::{name, proc};
use rankrun_wireup::messages::{Decoder, encode};
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::helpers::control::receive;

/// Bytes of a file that are read.
const MOST: u64 = 1 << 20;

/// What a reader is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Question {
    /// What a regular file holds.
    Content(OsString),
    /// Whether one of these is a regular file.
    IsThere(Vec<String>),
    /// Whether MPI is linked into a program.
    HasMpi(String),
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Content(Option<Vec<u8>>),
    Is(bool),
}

impl Question {
    fn answer(&self) -> Answer {
        match self {
            Question::Content(path) => Answer::Content(content(path)),
            Question::IsThere(paths) => {
                let is_file = |path: &String| std::fs::metadata(path).is_ok_and(|found| found.is_file());
                Answer::Is(paths.iter().any(is_file))
            }
            Question::HasMpi(program) => {
                Answer::Is(origin(program.as_ref(), &INITS, is_library) == Some(Origin::Linked))
            }
        }
    }
}

/// What a regular file holds, if it can be read. The path may lead to something that blocks, such as a FIFO.
pub(crate) fn content(path: &OsStr) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(file.as_fd()).ok()?;
    let mut bytes = Vec::new();
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_read = is_file && std::fs::File::from(file).take(MOST).read_to_end(&mut bytes).is_ok();
    is_read.then_some(bytes)
}

/// Runs a reader. Returns the exit code.
pub fn serve() -> u8 {
    let run = || -> io::Result<()> {
        let mut agent = UnixStream::from(spawn::own_socket()?);
        // If the name cannot be set, it is only harder to see what this is.
        let _ = name::set("rr-reader", "rr-reader");
        let mut decoder = Decoder::default();
        while let Some(question) = receive::<Question>(&mut agent, &mut decoder)? {
            agent.write_all(&encode(&question.answer()).map_err(io::Error::other)?)?;
        }
        Ok(())
    };
    // The agent sees the end.
    if run().is_ok() { ExitCode::SUCCESS.0 } else { ExitCode::INTERNAL.0 }
}

/// The readers of this agent, each known from its clone on until it is reaped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readers(Arc<Mutex<Vec<Arc<UnderWay>>>>);

impl Readers {
    /// The processes that are not reaped yet.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter_map(|reader| reader.child()).map(Child::pid).collect()
    }

    /// Starts a reader. Returns the socket to it.
    fn start(&self, mut spawner: Spawner) -> Option<UnixStream> {
        let process = spawner.under_way();
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the clone: the loop may look at its children at once.
        known().push(Arc::clone(&process));
        match spawner.start_own(&[Purpose::Reader.argument()], Vec::new()) {
            Ok((_, socket)) => Some(socket.into()),
            Err(error) => {
                // What was cloned in vain is reaped by the loop, which asks whose it is.
                if error.pid.is_none() {
                    known().retain(|known| !Arc::ptr_eq(known, &process));
                }
                None
            }
        }
    }

    /// Another process of rankrun's own waits for the user's files.
    pub(super) fn add(&self, pid: i32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(UnderWay::of(pid)));
    }

    pub(super) fn has(&self, pid: i32) -> bool {
        self.pids().contains(&pid)
    }

    /// A child has ended. Returns whether it was a reader; the caller reaps it.
    pub(super) fn ended(&self, pid: i32) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.len();
        known.retain(|reader| reader.child().map(Child::pid) != Some(pid));
        known.len() < before
    }
}

/// A reader, started with the first question. It belongs to the thread that asks first, and ends with it.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    readers: Readers,
    /// Starts the process.
    spawner: Option<Spawner>,
    backend: Option<Backend>,
}

/// The process; or, where none can be started, the work itself.
#[derive(Debug)]
enum Backend {
    Process(UnixStream, Decoder),
    Here,
}

impl Reader {
    /// A reader, and its process, once there is one.
    pub(crate) fn new(readers: &Readers) -> (Reader, Arc<UnderWay>) {
        let spawner = Spawner::new().ok();
        let process = spawner.as_ref().map(Spawner::under_way).unwrap_or_default();
        (Reader { readers: readers.clone(), spawner, backend: None }, process)
    }

    /// What a regular file holds, if it can be read.
    pub(crate) fn content(&mut self, path: OsString) -> Option<Vec<u8>> {
        match self.ask(&Question::Content(path)) {
            Some(Answer::Content(bytes)) => bytes,
            Some(Answer::Is(_)) | None => None,
        }
    }

    /// Whether one of these is a regular file.
    pub(crate) fn is_there(&mut self, paths: Vec<String>) -> bool {
        matches!(self.ask(&Question::IsThere(paths)), Some(Answer::Is(true)))
    }

    /// Whether MPI is linked into a program.
    pub(crate) fn has_mpi(&mut self, program: String) -> bool {
        matches!(self.ask(&Question::HasMpi(program)), Some(Answer::Is(true)))
    }

    fn ask(&mut self, question: &Question) -> Option<Answer> {
        let Reader { readers, spawner, backend } = self;
        // Where no process can be started, the answer is worth more than the risk.
        let start = || match spawner.take().and_then(|spawner| readers.start(spawner)) {
            Some(socket) => Backend::Process(socket, Decoder::default()),
            None => Backend::Here,
        };
        match backend.get_or_insert_with(start) {
            Backend::Here => Some(question.answer()),
            Backend::Process(socket, decoder) => {
                socket.write_all(&encode(question).ok()?).ok()?;
                receive(socket, decoder).ok()?
            }
        }
    }
}

/// Whether the process of a reader that has not answered waits for something: a file system. One that lacks a CPU does not.
pub(crate) fn waits(reader: &UnderWay) -> Option<Pid> {
    let process = reader.child().and_then(|child| proc::process(child.pid()))?;
    (process.state != 'R').then_some(Pid(process.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_regular_file_holds_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, fifo) = (directory.path().join("file"), directory.path().join("fifo"));
        std::fs::write(&file, "text").expect("it is ours");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).expect("it is ours");
        assert_eq!(content(file.as_os_str()).as_deref(), Some(&b"text"[..]));
        for path in [fifo.as_path(), directory.path(), &directory.path().join("missing")] {
            assert_eq!(content(path.as_os_str()), None, "{path:?}");
        }
    }

    #[test]
    fn questions_and_answers_pass_over_the_socket() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        std::fs::write(&file, "text").expect("it is ours");
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let thread = std::thread::spawn(move || {
            let (mut agent, mut decoder) = (theirs, Decoder::default());
            while let Ok(Some(question)) = receive::<Question>(&mut agent, &mut decoder) {
                agent.write_all(&encode(&question.answer()).expect("it is short")).expect("it is read");
            }
        });
        let backend = Some(Backend::Process(ours, Decoder::default()));
        let mut reader = Reader { backend, ..Reader::default() };
        assert_eq!(reader.content(file.clone().into_os_string()).as_deref(), Some(&b"text"[..]));
        let missing = directory.path().join("missing").display().to_string();
        assert!(!reader.is_there(vec![missing.clone()]));
        assert!(reader.is_there(vec![missing, file.display().to_string()]));
        assert!(!reader.has_mpi("/proc/self/exe".to_owned()));
        drop(reader);
        thread.join().expect("it ends with the socket");
    }

    #[test]
    fn a_reader_that_is_asked_nothing_is_not_known() {
        let readers = Readers::default();
        for _ in 0..3 {
            drop(Reader::new(&readers));
        }
        assert_eq!(readers.0.lock().expect("nobody has panicked").len(), 0);
    }
}
