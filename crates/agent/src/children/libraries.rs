//! Reads, in a thread of its own, which ranks have an MPI library loaded, and whether they use it.
//!
//! What is read belongs to processes: it may block for as long as such a process holds the lock on its own memory. The program of one is
//! on the user's file systems, and read by a process of its own ([`super::reader`]). Nobody waits for the answer.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rankrun_core::WorkerId;
use rankrun_core::alone::{
    LINKED, Progress, Sight, connects, is_launcher, is_library, is_segment, is_transport, progress,
};
use rankrun_sys::poll::Waker;
use rankrun_sys::process::ProcessId;
use rankrun_sys::{libraries, proc, signal};

use super::reader::{Reader, Readers};

/// Processes of a rank that are looked at, the oldest first.
const PROCESSES: usize = 64;
/// Bytes that are read of an environment.
const ENVIRONMENT: u64 = 1 << 20;

/// The ranks that have an MPI library loaded.
pub(crate) type Found = Vec<(WorkerId, Sight)>;

/// The loop's handle to the thread, which lives for one look.
#[derive(Debug)]
pub(crate) struct Libraries {
    waker: Waker,
    readers: Readers,
    outbox: SyncSender<Found>,
    inbox: Receiver<Found>,
    is_busy: bool,
}

impl Libraries {
    /// The loop is woken through `waker` for an answer.
    pub(crate) fn new(waker: Waker, readers: Readers) -> Libraries {
        // There is one answer for each look.
        let (outbox, inbox) = sync_channel(1);
        Libraries { waker, readers, outbox, inbox, is_busy: false }
    }

    /// Whether a look is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Begins a look, unless one is under way: others follow. Where no thread can be started, there is no answer.
    pub(crate) fn look(&mut self, ranks: Vec<(WorkerId, Vec<ProcessId>)>) {
        if ranks.is_empty() || self.is_busy {
            return;
        }
        let waker = self.waker.clone();
        let outbox = self.outbox.clone();
        let (mut reader, _) = Reader::new(&self.readers);
        let thread = std::thread::Builder::new().name("libraries".to_owned()).stack_size(256 * 1024);
        let started = thread.spawn(move || {
            signal::block_all();
            let mut has_mpi = |program| reader.has_mpi(program);
            let look = |(worker, processes)| Some((worker, look_at(processes, &mut has_mpi)?));
            let found = ranks.into_iter().filter_map(look);
            // The loop has ended.
            let _ = outbox.send(found.collect());
            waker.wake();
        });
        self.is_busy = started.is_ok();
    }

    /// The answer, if it has come.
    pub(crate) fn answer(&mut self) -> Option<Found> {
        // Nothing yet; the sender is ours, too.
        let found = self.inbox.try_recv().ok()?;
        self.is_busy = false;
        Some(found)
    }
}

/// Tells whether MPI is linked into a program.
type HasMpi<'a> = dyn FnMut(String) -> bool + 'a;

/// The process of a rank that is furthest in MPI; `None` if none has a library, or a launcher among them connects them.
fn look_at(mut processes: Vec<ProcessId>, has_mpi: &mut HasMpi<'_>) -> Option<Sight> {
    processes.sort_by_key(|process| process.started);
    processes.truncate(PROCESSES);
    let alive = || processes.iter().filter_map(|id| proc::process(id.pid).filter(|process| process.id() == *id));
    if alive().any(|process| is_launcher(&process.name)) {
        return None;
    }
    processes.iter().filter_map(|id| sight(*id, has_mpi)).max_by_key(|sight| sight.progress)
}

fn sight(id: ProcessId, has_mpi: &mut HasMpi<'_>) -> Option<Sight> {
    let has_transport = Cell::new(false);
    let is_file = |path: &str| {
        has_transport.set(has_transport.get() || is_transport(path));
        is_segment(path)
    };
    let mapped = libraries::mapped(id.pid, is_library, is_file)?;
    let mut is_linked = || has_mpi(format!("/proc/{}/exe", id.pid));
    let (library, progress) = match mapped.library {
        Some(library) => (library.name, progress(library.touched, mapped.has_file)),
        // Only MPI makes such a segment; a transport has other users, too.
        None if mapped.has_file || (has_transport.get() && is_linked()) => (LINKED.to_owned(), Progress::Inited),
        None => return None,
    };
    let environment = proc::environment(id.pid, ENVIRONMENT).ok().filter(|bytes| !bytes.is_empty());
    let has_variables = |bytes: &Vec<u8>| {
        bytes.split(|byte| *byte == 0).any(|entry| connects(entry.split(|byte| *byte == b'=').next().unwrap_or(entry)))
    };
    let is_removed = environment.as_ref().is_some_and(|bytes| !has_variables(bytes));
    // Else it may have ended while it was read, and another process may have its pid.
    let is_same = proc::process(id.pid).is_some_and(|process| process.id() == id);
    is_same.then_some(Sight { library, progress, is_removed })
}
