//! What a thread with a certain stack does.

use serde::{Deserialize, Serialize};

use super::samples::{Activity, MORE, NOT_READABLE};
use crate::ids::Pid;
use crate::stacks::calls::{is_for_disk, place};
use crate::stacks::libraries::{inside, waits_for_gpu};
use crate::stacks::place::Wait;
use crate::stacks::{Frame, Interpreter, ProcessStack, ThreadStack};

/// What takes the time of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It computes, in a function that the others call too.
    Cpu,
    /// It is in a function that the others do not call.
    Branch,
    /// Page faults, swapping, changes of its mappings.
    Memory,
    /// It reads or writes files.
    Io,
    /// It waits for a lock.
    Lock,
    /// It collects garbage.
    Gc,
    /// It sleeps until some time has passed.
    Sleep,
    /// It waits for a process that it has started.
    Process,
    /// It waits for a socket, a pipe, a signal.
    Event,
    /// It waits for a GPU.
    Gpu,
    /// It could run, and had no CPU.
    Starved,
    /// It waits for the others, and has less to do than they.
    Waits,
    /// It is stopped.
    Stopped,
    Unknown,
}

/// What a thread does at one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meaning {
    /// The call in which it waits for other ranks, and how many of the innermost frames are of it.
    pub others: Option<(String, usize)>,
    /// It waits for another thread of its process.
    pub is_for_thread: bool,
    pub kind: Kind,
}

/// Functions that collect garbage, by their beginning: of CPython, of the Boehm collector, of Go, of Java.
const COLLECTING: [&str; 16] = [
    "gc_collect",
    "gc_alloc",
    "_PyGC_",
    "PyGC_",
    "_Py_RunGC",
    "_Py_HandlePending",
    "collect_generations",
    "collect_with_callback",
    "deduce_unreachable",
    "subtract_refs",
    "update_refs",
    "move_unreachable",
    "visit_reachable",
    "visit_decref",
    "GC_",
    "runtime.gc",
];
/// System calls and functions of the C library that read and write files.
const FILES: [&str; 28] = [
    "read",
    "readv",
    "pread",
    "pread64",
    "preadv",
    "preadv2",
    "write",
    "writev",
    "pwrite",
    "pwrite64",
    "pwritev",
    "fsync",
    "fdatasync",
    "sync",
    "syncfs",
    "sync_file_range",
    "open",
    "openat",
    "open64",
    "openat64",
    "statx",
    "newfstatat",
    "getdents64",
    "ftruncate",
    "ftruncate64",
    "fallocate",
    "copy_file_range",
    "sendfile",
];
/// Those that change what is mapped.
const MAPPINGS: [&str; 8] = ["madvise", "mmap", "mmap64", "munmap", "mremap", "mprotect", "brk", "sbrk"];
/// Libraries of torch.distributed and of NVIDIA that wait for other ranks, by the beginning of their functions.
const COLLECTIVES: [&str; 8] = [
    "gloo::",
    "c10d::ProcessGroup",
    "c10d::Work",
    "c10d::Reducer::finalize",
    "c10d::Store",
    "c10d::TCPStore",
    "nccl",
    "pncclAllReduce",
];

/// What a thread does. The frames come innermost first; `call` is the system call that it sleeps in, with its file.
pub fn meaning(frames: &[Frame], activity: Activity, call: Option<&str>, is_main: bool) -> Meaning {
    let thread = thread(frames, activity, call, is_main);
    let place = place(&process(), &thread);
    let by_library = frames
        .iter()
        .rposition(|frame| !frame.is_python && COLLECTIVES.iter().any(|start| frame.function.starts_with(start)));
    let others = match &place.wait {
        wait if wait.is_for_others() => {
            let name = place.calls.first().map(|frame| frame.function.clone()).unwrap_or_default();
            Some((name, inner_frames(frames, place.calls.first())))
        }
        _ => by_library.map(|at| (frames[at].function.clone(), at + 1)),
    };
    let is_for_thread = others.is_none()
        && activity == Activity::Sleeping
        && matches!(place.wait, Wait::Thread | Wait::Lock | Wait::Unknown | Wait::Exit);
    Meaning { others, is_for_thread, kind: kind(&thread, call, &place.wait, activity) }
}

/// How many of the innermost frames belong to a call of a library, as `place` shows it.
fn inner_frames(frames: &[Frame], call: Option<&Frame>) -> usize {
    // The frames outside of the call are those that follow in the program: from the last one of the library on.
    let is_library = |frame: &Frame| {
        !frame.is_python && (frame.function.contains("MPI") || frame.function.to_ascii_lowercase().starts_with("mpi_"))
            || frame.is_python && frame.file.as_deref() == Some("distributed_c10d.py")
    };
    let known = frames.iter().rposition(is_library);
    let inside = frames.iter().take_while(|frame| !frame.is_python && frame.line.is_none()).count();
    match (known, call) {
        (Some(at), _) => at + 1,
        (None, Some(_)) => inside.max(1).min(frames.len()),
        (None, None) => 0,
    }
}

fn kind(thread: &ThreadStack, call: Option<&str>, wait: &Wait, activity: Activity) -> Kind {
    let frames = &thread.frames;
    let native = || frames.iter().take_while(|frame| !frame.is_python);
    let innermost = frames.first().filter(|frame| !frame.is_python).map(|frame| bare(&frame.function));
    let call_name = call.and_then(|call| call.split(' ').next());
    let is_of_file =
        call.is_none_or(|call| !["socket", "pipe", "anon_inode", "stdin"].iter().any(|it| call.contains(it)));
    if native().any(|frame| COLLECTING.iter().any(|start| frame.function.starts_with(start))) {
        return Kind::Gc;
    }
    if waits_for_gpu(inside(thread)) {
        return Kind::Gpu;
    }
    let is_of = |names: &[&str], name: Option<&str>| name.is_some_and(|name| names.contains(&name));
    match activity {
        Activity::Other => Kind::Stopped,
        Activity::Running | Activity::Queued if is_of(&FILES, innermost) => Kind::Io,
        Activity::Running | Activity::Queued if is_of(&MAPPINGS, innermost) => Kind::Memory,
        Activity::Running | Activity::Queued if frames.is_empty() || is_special(frames) => Kind::Unknown,
        Activity::Running | Activity::Queued => Kind::Cpu,
        Activity::Disk if is_of(&MAPPINGS, call_name) => Kind::Memory,
        // Outside of a system call it sleeps in a page fault.
        Activity::Disk if call_name.is_none_or(|name| name == PAGE_FAULT) => Kind::Memory,
        Activity::Disk => Kind::Io,
        Activity::Sleeping => match wait {
            _ if is_of(&FILES, call_name) && is_of_file || call_name.is_some_and(is_for_disk) => Kind::Io,
            _ if call_name == Some(PAGE_FAULT) => Kind::Memory,
            Wait::Disk => Kind::Io,
            Wait::Lock | Wait::Thread => Kind::Lock,
            Wait::Time => Kind::Sleep,
            Wait::Process => Kind::Process,
            Wait::Event | Wait::Stdin => Kind::Event,
            Wait::Continue => Kind::Stopped,
            _ if is_of(&["futex"], call_name) => Kind::Lock,
            _ => Kind::Event,
        },
    }
}

/// How a sleep outside of system calls is called.
pub const PAGE_FAULT: &str = "page-fault";

/// Whether a stack is none of a thread.
pub(super) fn is_special(frames: &[Frame]) -> bool {
    frames.last().is_some_and(|frame| frame.function == NOT_READABLE || frame.function == MORE)
}

/// `read` for `__libc_read`, `__GI___libc_read` and `read@GLIBC`.
pub(super) fn bare(function: &str) -> &str {
    let function = function.split('@').next().unwrap_or(function);
    let function = function.trim_start_matches("__GI_").trim_start_matches('_').trim_start_matches("libc_");
    function.trim_end_matches("_nocancel").trim_end_matches('_')
}

fn thread(frames: &[Frame], activity: Activity, call: Option<&str>, is_main: bool) -> ThreadStack {
    ThreadStack {
        tid: Pid(1),
        name: String::new(),
        is_main,
        state: activity.state(),
        run_us: 0,
        holds_gil: false,
        kernel: call.map(str::to_owned),
        limit_ms: None,
        frames: frames.to_vec(),
        is_idle: false,
        is_cut: false,
    }
}

fn process() -> ProcessStack {
    ProcessStack { interpreter: Interpreter::None, unseen: None, ..ProcessStack::not_seen(Pid(1), "") }
}
