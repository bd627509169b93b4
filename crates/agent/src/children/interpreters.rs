//! Reads, in a thread of its own, why the Python processes of ranks have no hook.
//!
//! What is read belongs to processes: it may take long, or block for ever if such a process holds the lock on its own memory. What is
//! on the user's file systems is read by a process of its own ([`super::reader`]). Nobody waits for the answer.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rankrun_core::WorkerId;
use rankrun_core::absence::{Absence, Environment, Hook, Sight, absence, is_interpreter};
use rankrun_sys::poll::Waker;
use rankrun_sys::process::ProcessId;
use rankrun_sys::{proc, signal};

use super::helpers::is_helper;
use super::reader::{Reader, Readers};

/// Processes of a rank that are looked at, the oldest first.
const PROCESSES: usize = 64;
/// Of these, those in which an embedded interpreter is looked for.
const EMBEDDING: usize = 4;
/// Bytes that are read of an environment and of a command line.
const ENVIRONMENT: u64 = 1 << 20;
const ARGUMENTS: u64 = 1 << 16;
/// A process that is younger may be in its exec, and then has no environment.
const IN_EXEC: Duration = Duration::from_secs(1);

/// A rank of which no process has said hello.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) worker: WorkerId,
    /// The process that is in MPI, on which the rank depends, if it is known.
    pub(crate) in_mpi: Option<ProcessId>,
    pub(crate) processes: Vec<ProcessId>,
}

/// The ranks that run Python without the hook.
pub(crate) type Found = Vec<(WorkerId, Absence)>;

/// The loop's handle to the thread, which lives for one look.
#[derive(Debug)]
pub(crate) struct Interpreters {
    waker: Waker,
    readers: Readers,
    outbox: SyncSender<Found>,
    inbox: Receiver<Found>,
    is_busy: bool,
    /// Asked for during a look: the last request counts.
    next: Option<(Hook, Vec<Subject>)>,
}

impl Interpreters {
    /// The loop is woken through `waker` for an answer.
    pub(crate) fn new(waker: Waker, readers: Readers) -> Interpreters {
        // There is one answer for each look.
        let (outbox, inbox) = sync_channel(1);
        Interpreters { waker, readers, outbox, inbox, is_busy: false, next: None }
    }

    /// Begins a look. Where no thread can be started, there is no answer.
    pub(crate) fn look(&mut self, hook: Hook, subjects: Vec<Subject>) {
        if subjects.is_empty() {
            return;
        }
        if self.is_busy {
            self.next = Some((hook, subjects));
            return;
        }
        let waker = self.waker.clone();
        let outbox = self.outbox.clone();
        let (mut reader, _) = Reader::new(&self.readers);
        let thread = std::thread::Builder::new().name("interpreters".to_owned()).stack_size(256 * 1024);
        let started = thread.spawn(move || {
            signal::block_all();
            let mut why = |subject: &Subject| {
                Some((subject.worker, look_at(subject, &hook, &mut |paths| reader.is_there(paths))?))
            };
            // The loop has ended.
            let _ = outbox.send(subjects.iter().filter_map(&mut why).collect());
            waker.wake();
        });
        self.is_busy = started.is_ok();
    }

    /// The answer, if it has come.
    pub(crate) fn answer(&mut self) -> Option<Found> {
        // Nothing yet; the sender is ours, too.
        let found = self.inbox.try_recv().ok()?;
        self.is_busy = false;
        if let Some((hook, subjects)) = self.next.take() {
            self.look(hook, subjects);
        }
        Some(found)
    }
}

/// Tells whether one of these is a regular file.
type IsThere<'a> = dyn FnMut(Vec<String>) -> bool + 'a;

/// Why the Python of a rank has no hook; `None` if it runs no Python.
fn look_at(subject: &Subject, hook: &Hook, is_there: &mut IsThere<'_>) -> Option<Absence> {
    let mut processes = match subject.in_mpi {
        Some(process) if still(process) => vec![process],
        Some(_) | None => subject.processes.clone(),
    };
    processes.sort_by_key(|process| process.started);
    processes.truncate(PROCESSES);
    let is_python = |id: &&ProcessId| {
        proc::executable(id.pid).is_some_and(|path| is_interpreter(&path.to_string_lossy()))
            && proc::process(id.pid).is_some_and(|process| process.id() == **id && !is_helper(&process))
    };
    match processes.iter().find(is_python) {
        Some(interpreter) => why(*interpreter, hook, None, is_there),
        None => processes.iter().take(EMBEDDING).find_map(|id| {
            let library = proc::mapped_file(id.pid, "libpython")?;
            why(*id, hook, Some(library), is_there)
        }),
    }
}

fn why(id: ProcessId, hook: &Hook, library: Option<String>, is_there: &mut IsThere<'_>) -> Option<Absence> {
    let process = proc::process(id.pid).filter(|process| process.id() == id)?;
    // On a busy machine an interpreter may take a minute to come to the hook.
    let age = proc::age(process.started).saturating_sub(proc::run_delay(id.pid));
    let environment = proc::environment(id.pid, ENVIRONMENT).ok().filter(|bytes| !bytes.is_empty() || age > IN_EXEC);
    let value = |environ: &[u8], name: &str| {
        let mut entries = environ.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(text))
    };
    let arguments = proc::arguments(id.pid, ARGUMENTS).iter().map(|word| text(word)).collect();
    // Of a process that is ending, all these are empty, and this link is the first that cannot be read.
    let executable = proc::executable(id.pid)?;
    let sight = Sight {
        executable: executable.to_string_lossy().into_owned(),
        arguments,
        environment: environment.map(|environ| Environment {
            python_path: value(&environ, "PYTHONPATH"),
            has_socket: value(&environ, "RANKRUN_SOCKET").is_some(),
        }),
        library,
        is_own: proc::owner(id.pid) == Some(rustix::process::geteuid().as_raw()),
        age,
    };
    let found = absence(&sight, hook, |directory| has_module(id.pid, directory, is_there));
    // Else it may have ended, or have become another program, while it was read; or another process has its pid.
    found.filter(|_| still(id) && proc::executable(id.pid).as_ref() == Some(&executable))
}

/// Whether a directory, as a process sees it, has a module `sitecustomize`.
fn has_module(pid: i32, directory: &str, is_there: &mut IsThere<'_>) -> bool {
    let seen = match directory.strip_prefix('/') {
        Some(path) => format!("/proc/{pid}/root/{path}"),
        None => format!("/proc/{pid}/cwd/{directory}"),
    };
    let names = ["sitecustomize.py", "sitecustomize.pyc", "sitecustomize/__init__.py"];
    is_there(names.iter().map(|name| format!("{seen}/{name}")).collect())
}

fn still(id: ProcessId) -> bool {
    proc::process(id.pid).is_some_and(|process| process.id() == id && process.state != 'Z')
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
