//! What a thread does, in the words of its programmer: the calls that matter of its frames, and what it waits for.

use super::libraries::{inside, inside_mpi};
use super::mpi_calls::{mpi, of_class, of_method, of_mpi};
pub use super::place::{Place, Wait};
use super::{END_OF_THREAD, Frame, Interpreter, OtherProcess, ProcessStack, ThreadStack, ThreadState};

/// Where a thread sleeps in the kernel while a disk or a file server is to answer: FUSE, NFS, SMB, 9P, Ceph, Lustre, pages, journals.
const SERVERS: [&str; 12] = [
    "request_wait_answer",
    "fuse_",
    "rpc_wait_bit_killable",
    "nfs",
    "wait_for_response",
    "p9_",
    "ceph_",
    "ptlrpc_",
    "cl_sync_io_wait",
    "io_schedule",
    "folio_wait_bit",
    "jbd2_",
];

/// Whether it is a disk or a file server for which a thread sleeps at this place in the kernel.
pub fn is_for_disk(place: &str) -> bool {
    SERVERS.iter().any(|start| place.starts_with(start))
}

/// What runs before the program's own first function.
const STARTS: [&str; 14] = [
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_main@@GLIBC_2.34",
    "__libc_start_call_main",
    "start_thread",
    "clone",
    "clone3",
    "__clone3",
    "_run_module_as_main",
    "_run_code",
    "_bootstrap",
    "_bootstrap_inner",
    "thread_run",
];
/// Files of frames between a caller and what it calls, without meaning for either.
const PLUMBING: [&str; 7] = [
    "c10d_logger.py",
    "_contextlib.py",
    "contextlib.py",
    "<frozen runpy>",
    "runpy.py",
    "_dynamo/eval_frame.py",
    "<frozen importlib._bootstrap>",
];
/// How a call is shown that reads nothing but stdin.
const ONLY_STDIN: &str = " stdin,";
/// The file of code that was made at run time.
pub const GENERATED: &str = "generated code";
/// Of torch.distributed, which has its calls in this file.
const TORCH_FILE: &str = "distributed_c10d.py";
const TORCH_MESSAGES: [&str; 3] = ["recv", "irecv", "recv_object_list"];
const TORCH_TAKERS: [&str; 3] = ["send", "isend", "send_object_list"];
/// Native functions that mean a wait, by the end of their names after leading underscores, and what for.
const NATIVE: [(&[&str], Wait); 7] = [
    (&["nanosleep", "clock_nanosleep", "usleep", "sleep"], Wait::Time),
    (&["pthread_join", "pthread_clockjoin_ex", "pthread_timedjoin_ex"], Wait::Thread),
    (
        &[
            "futex",
            "pthread_mutex_lock",
            "lll_lock_wait",
            "pthread_cond_wait",
            "pthread_cond_timedwait",
            "pthread_rwlock_wrlock",
            "pthread_rwlock_rdlock",
            "sem_wait",
            "new_sem_wait_slow",
            "new_sem_wait_slow64",
            "new_sem_wait_common",
            "PyThread_acquire_lock_timed",
            "take_gil",
            "sem_timedwait",
            "sem_clockwait",
            "pthread_barrier_wait",
            "pthread_cond_clockwait",
            "pthread_mutex_timedlock",
            "pthread_mutex_clocklock",
            "pthread_rwlock_timedwrlock",
            "pthread_rwlock_timedrdlock",
            "semop",
            "semtimedop",
            "multiprocessing_SemLock_acquire",
            "flock",
            "fcntl",
        ],
        Wait::Lock,
    ),
    (&["wait4", "waitpid", "waitid", "wait3", "system", "do_system", "vfork"], Wait::Process),
    (&["builtin_input", "builtin_input_impl", "PyOS_Readline", "PyOS_StdioReadline"], Wait::Stdin),
    (&["run_exit_handlers", "cxa_finalize", "libc_exit", "Py_FinalizeEx"], Wait::Exit),
    (
        &[
            "read",
            "pread",
            "pread64",
            "recv",
            "recvfrom",
            "recvmsg",
            "poll",
            "ppoll",
            "select",
            "pselect",
            "epoll_wait",
            "epoll_pwait",
            "accept",
            "accept4",
            "connect",
            "pause",
            "sigsuspend",
            "sigtimedwait",
            "write",
            "send",
            "sendmsg",
            "writev",
            "mq_receive",
            "mq_timedreceive",
            "msgrcv",
            "open",
            "openat",
        ],
        Wait::Event,
    ),
];
/// Python functions that mean a wait.
const PYTHON: [(&str, &str, Wait); 19] = [
    ("subprocess.py", "_wait", Wait::Process),
    ("subprocess.py", "_try_wait", Wait::Process),
    ("subprocess.py", "wait", Wait::Process),
    ("subprocess.py", "communicate", Wait::Process),
    ("popen_fork.py", "poll", Wait::Process),
    ("popen_fork.py", "wait", Wait::Process),
    ("dataloader.py", "_try_get_data", Wait::Process),
    ("dataloader.py", "_get_data", Wait::Process),
    ("threading.py", "_shutdown", Wait::Exit),
    ("threading.py", "join", Wait::Thread),
    ("threading.py", "_wait_for_tstate_lock", Wait::Thread),
    ("connection.py", "_recv", Wait::Process),
    ("connection.py", "_poll", Wait::Process),
    ("pool.py", "get", Wait::Process),
    ("pool.py", "wait", Wait::Process),
    // Only another thread of the process can end these.
    ("_base.py", "result", Wait::Thread),
    ("threading.py", "wait", Wait::Thread),
    ("queue.py", "get", Wait::Thread),
    ("threading.py", "acquire", Wait::Lock),
];

/// A symbol without what libraries put before and after the names of their functions.
fn bare(function: &str) -> &str {
    let function = function.split('@').next().unwrap_or(function);
    function.trim_start_matches("__GI_").trim_start_matches('_').trim_start_matches("libc_")
}

fn file_is(frame: &Frame, file: &str) -> bool {
    frame.file.as_deref().is_some_and(|known| known == file || known.rsplit('/').next() == Some(file))
}

/// What a frame of torch.distributed waits for.
fn of_torch(frame: &Frame) -> Option<Wait> {
    if !frame.is_python || !file_is(frame, TORCH_FILE) {
        return None;
    }
    let name = frame.function.rsplit('.').next().unwrap_or(&frame.function);
    Some(match name {
        "wrapper" => return None,
        _ if TORCH_MESSAGES.contains(&name) => Wait::Message(name.to_owned()),
        _ if TORCH_TAKERS.contains(&name) => Wait::Taker(name.to_owned()),
        _ => Wait::Collective(name.trim_start_matches('_').to_owned()),
    })
}

/// What a single frame means.
fn meaning(frame: &Frame) -> Option<Wait> {
    if frame.is_python {
        let name = frame.function.rsplit('.').next().unwrap_or(&frame.function);
        let known = PYTHON.iter().find(|(file, function, _)| *function == name && file_is(frame, file));
        return known.map(|(_, _, wait)| wait.clone());
    }
    let name = bare(&frame.function);
    let is_named = |known: &&str| {
        name == *known
            || (name.starts_with(*known)
                && !name[known.len()..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
    };
    if frame.function.starts_with("std::terminate") || name.starts_with("cxxabiv1::") && name.contains("terminate") {
        return Some(Wait::Exit);
    }
    if frame.function == "exit" {
        return Some(Wait::Exit);
    }
    // glibc's futex waits have many names.
    if name.starts_with("futex_") {
        return Some(Wait::Lock);
    }
    NATIVE.iter().find(|(names, _)| names.iter().any(is_named)).map(|(_, wait)| wait.clone())
}

/// What a call of the kernel means that functions without names may have made.
fn meaning_of_call(thread: &ThreadStack) -> Option<Wait> {
    let kernel = thread.kernel.as_deref()?;
    match kernel.split(' ').next()? {
        // The scheduler of Go waits so for work, whatever its goroutines wait for.
        _ if thread.frames.iter().any(Frame::is_of_go) => None,
        "futex" if kernel.contains(END_OF_THREAD) => Some(Wait::Thread),
        "futex" | "semop" | "semtimedop" | "flock" | "fcntl" => Some(Wait::Lock),
        "wait4" | "waitid" => Some(Wait::Process),
        _ => None,
    }
}

/// Whether a frame is of the interpreter itself, or of the glue of an extension.
fn is_glue(frame: &Frame) -> bool {
    let name = frame.function.as_str();
    !frame.is_python
        && ([
            "_Py",
            "Py",
            "__pyx_",
            "cfunction_",
            "method_vectorcall",
            "vectorcall",
            "pymain_",
            "slot_tp_",
            "builtin_exec",
            "type_call",
            "call_ll_exitfuncs",
            "handle_system_exit",
        ]
        .iter()
        .any(|start| name.starts_with(start))
            || name == "main")
}

/// The calls of a thread that matter, and what it waits for. `None` where nothing is known of it.
pub fn place(process: &ProcessStack, thread: &ThreadStack) -> Place {
    let (inner, said) = library_call(thread).map(|(at, call, wait)| ((at, call), wait)).unzip();
    let wait = wait_of(process, thread, said);
    let calls = calls_that_matter(&thread.frames, inner);
    let thread = (!thread.is_main).then(|| thread.name.clone());
    Place { wait, calls, thread }
}

/// The call of a library that a user knows, the frame of it, and what it waits for.
fn library_call(thread: &ThreadStack) -> Option<(usize, Frame, Wait)> {
    let frames = &thread.frames;
    // The outermost call of a library that a user knows hides what is inside of it.
    let mpi_at = frames.iter().rposition(|frame| !frame.is_python && mpi(&frame.function).is_some());
    let torch_at = frames.iter().rposition(|frame| of_torch(frame).is_some());
    match (mpi_at, torch_at) {
        (Some(at), _) => {
            let name = mpi(&frames[at].function).unwrap_or_default();
            let wait = of_mpi(&name);
            // A method of mpi4py that calls others of MPI is known by its own name: `Comm.allreduce` begins with MPI_Comm_dup.
            let outer = frames[at + 1..].iter().take_while(|frame| !frame.is_python);
            let method = outer.filter_map(|frame| frame.function.strip_prefix("mpi4py.MPI.")).last();
            let own = method.map(|method| (method, of_method(method))).filter(|(_, wait)| *wait != Wait::Unknown);
            let (name, wait) = own.map_or((name, wait), |(method, wait)| (method.to_owned(), wait));
            let call = Frame { function: name, file: None, line: None, is_python: false };
            Some((at, call, wait))
        }
        (None, Some(at)) => {
            let name = frames[at].function.rsplit('.').next().unwrap_or_default();
            let call = Frame { function: format!("torch.distributed.{name}"), file: None, line: None, is_python: true };
            Some((at, call, of_torch(&frames[at])?))
        }
        // A library without names, or without what it takes to walk through it.
        (None, None) => {
            let method = |frame: &Frame| {
                frame.function.strip_prefix("mpi4py.MPI.").filter(|_| !frame.is_python).map(str::to_owned)
            };
            let found = frames.iter().rposition(|frame| method(frame).is_some());
            let found = found.and_then(|at| Some((at, method(&frames[at])?)));
            let is_of_mpi4py = found.is_some();
            let known = found.map(|(at, method)| match of_method(&method) {
                Wait::Unknown => (at, of_mpi(&of_class(&method)), of_class(&method)),
                wait => (at, wait, method),
            });
            match known.filter(|(_, wait, _)| *wait != Wait::Unknown) {
                Some((at, wait, name)) => {
                    let call = Frame { function: name, file: None, line: None, is_python: false };
                    Some((at, call, wait))
                }
                // A call of MPI whose name is not known, as of a library that was stripped.
                None => match inside_mpi(thread).filter(|_| thread.is_main && !is_of_mpi4py) {
                    Some(frames) => {
                        let call = Frame { function: "MPI".to_owned(), file: None, line: None, is_python: false };
                        Some((frames - 1, call, Wait::Message("MPI".to_owned())))
                    }
                    None => None,
                },
            }
        }
    }
}

/// What a thread waits for. `said`: what the library that it is in waits for.
fn wait_of(process: &ProcessStack, thread: &ThreadStack, said: Option<Wait>) -> Wait {
    let frames = &thread.frames;
    let meant = frames.iter().filter_map(meaning).chain(meaning_of_call(thread));
    // What is farther out says more: a wait for a thread is one in a lock, too.
    let rank = |wait: &Wait| match wait {
        Wait::Exit => 0,
        Wait::Process | Wait::Stdin => 1,
        Wait::Thread => 2,
        Wait::Lock => 3,
        _ => 4,
    };
    let in_kernel = thread.kernel.as_deref().unwrap_or_default();
    match (&thread.state, said, &process.interpreter) {
        (ThreadState::Stopped, ..) => Wait::Continue,
        (_, Some(said), _) if said != Wait::Unknown => said,
        (_, _, Interpreter::Gone) if thread.is_main => Wait::Gone,
        (ThreadState::Uninterruptible, ..) if frames.iter().all(|frame| bare(&frame.function) != "vfork") => Wait::Disk,
        _ if in_kernel.rsplit(' ').next().is_some_and(is_for_disk) => Wait::Disk,
        // A thread that could not be read: whether it runs or sleeps says nothing of what it does there.
        _ if frames.is_empty() => Wait::Unknown,
        (state, ..) => match (meant.min_by_key(rank), state) {
            // What waits for others beside stdin may be waiting for these.
            (Some(Wait::Event), _) if thread.reads_stdin() && in_kernel.contains(ONLY_STDIN) => Wait::Stdin,
            (Some(Wait::Event), ThreadState::Running) => Wait::Nothing,
            (Some(Wait::Event | Wait::Lock) | None, _) if thread.sleeps() => Wait::Time,
            (Some(wait), _) => wait,
            (None, ThreadState::Running) => Wait::Nothing,
            (None, _) if thread.kernel.is_some() => Wait::Event,
            (None, _) => Wait::Unknown,
        },
    }
}

/// The calls of a thread that matter. `inner`: the call of a library that takes the place of this frame and those inside of it.
fn calls_that_matter(frames: &[Frame], inner: Option<(usize, Frame)>) -> Vec<Frame> {
    let has_python = frames.iter().any(|frame| frame.is_python);
    // Of the frames inside the program's own, only the innermost that means something.
    let first_own = frames.iter().position(|frame| frame.is_python).unwrap_or(frames.len());
    let mut calls: Vec<Frame> = Vec::new();
    match inner {
        Some((at, call)) => {
            calls.push(call);
            calls.extend(frames[at + 1..].iter().cloned());
        }
        None if has_python => {
            let innermost = frames[..first_own].iter().find(|frame| !is_glue(frame) && meaning(frame).is_some());
            calls.extend(innermost.map(|frame| Frame {
                function: bare(&frame.function).to_owned(),
                file: None,
                line: None,
                ..frame.clone()
            }));
            calls.extend(frames[first_own..].iter().cloned());
        }
        None => calls.extend(frames.iter().cloned()),
    }
    if has_python {
        calls = calls
            .into_iter()
            .enumerate()
            .filter(|(at, frame)| *at == 0 || frame.is_python)
            .map(|(_, frame)| frame)
            .collect();
    } else {
        calls.retain(|frame| !is_glue(frame) || frame.function == "main");
    }
    without_addresses(&mut calls);
    calls.retain(|frame| !PLUMBING.iter().any(|file| file_is(frame, file) || frame.file.as_deref() == Some(*file)));
    while calls.len() > 1
        && calls.last().is_some_and(|frame| STARTS.contains(&frame.function.as_str()) || is_thread_start(frame))
    {
        calls.pop();
    }
    // Where the program's own functions are shown, the line that called the first of them says nothing.
    if let [.., inside, last] = calls.as_slice()
        && last.function == "<module>"
        && inside.is_python
        && inside.file == last.file
    {
        calls.pop();
    }
    calls
}

/// Code that was made at run time is elsewhere in each process.
fn without_addresses(calls: &mut Vec<Frame>) {
    for frame in calls.iter_mut().filter(|frame| frame.file.as_deref() == Some(GENERATED)) {
        *frame = Frame { function: GENERATED.to_owned(), file: None, line: None, is_python: false };
    }
    calls.dedup_by(|frame, before| frame.function == GENERATED && before.function == GENERATED);
}

/// `run threading.py`, where a thread of Python begins.
fn is_thread_start(frame: &Frame) -> bool {
    frame.is_python
        && file_is(frame, "threading.py")
        && ["run", "_bootstrap", "_bootstrap_inner"].contains(&frame.function.as_str())
}

/// Where a rank is: the place of the thread that shows it.
pub fn place_of(process: &ProcessStack) -> Option<Place> {
    shown(process).map(|(_, place)| place)
}

/// The thread of a process that shows where its rank is: the main one; but where that only waits for other threads, one that waits
/// for other ranks, or one that computes.
pub(super) fn shown(process: &ProcessStack) -> Option<(&ThreadStack, Place)> {
    let main = process.threads.iter().find(|thread| thread.is_main).or(process.threads.first())?;
    let of_main = place(process, main);
    let others = || process.threads.iter().filter(|thread| !thread.is_main && !thread.is_idle);
    let with_place = |thread| (thread, place(process, thread));
    if matches!(of_main.wait, Wait::Thread | Wait::Lock | Wait::Exit)
        && let Some(found) = others().map(with_place).find(|(_, place)| place.wait.is_for_others())
    {
        return Some(found);
    }
    let is_in_loop = main.frames.iter().any(Frame::is_of_go);
    let is_in_region = !inside(main).is_empty() && inside_mpi(main).is_none();
    if matches!(of_main.wait, Wait::Thread | Wait::Lock) || is_in_loop || is_in_region {
        let computes = |place: &Place| place.wait == Wait::Nothing && !place.calls.is_empty();
        let running = others().filter(|thread| thread.state == ThreadState::Running && inside(thread).is_empty());
        let at_work = running.map(with_place).filter(|(_, place)| computes(place));
        if let Some(found) = at_work.max_by_key(|(thread, _)| thread.run_us) {
            return Some(found);
        }
    }
    // The first thread of a program in Java only waits for the thread that runs it.
    let is_of_java = |thread: &&ThreadStack| thread.frames.iter().any(|frame| frame.function == JAVA_MAIN);
    let java = others().find(is_of_java).filter(|_| of_main.wait == Wait::Thread);
    let java = java.map(with_place).filter(|(_, place)| place.is_known());
    let java = java.map(|(thread, place)| (thread, Place { thread: None, ..place }));
    Some(java.unwrap_or((main, of_main)))
}

/// Where the program in Java begins.
const JAVA_MAIN: &str = "JavaMain";

/// Whether the main thread has left the program, and is on its way out of the process.
pub fn is_leaving(process: &ProcessStack) -> bool {
    let main = process.threads.iter().filter(|thread| thread.is_main);
    main.flat_map(|thread| &thread.frames).any(|frame| meaning(frame) == Some(Wait::Exit))
}

/// Another process of the rank in one line: what it is, and where.
pub fn describe_other(other: &OtherProcess) -> String {
    let OtherProcess { pid, command, state, frames, unseen, .. } = other;
    let place = match (state, frames.first(), unseen) {
        (ThreadState::Zombie, ..) => "has ended, and nobody has taken note of it".to_owned(),
        (ThreadState::Stopped, ..) => "is stopped".to_owned(),
        (_, Some(_), _) => {
            let names: Vec<String> = frames.iter().take(3).map(|frame| show(frame, None)).collect();
            names.join(" < ")
        }
        (_, None, Some(why)) => format!("not seen: {why}"),
        (ThreadState::Running, None, None) => "runs".to_owned(),
        (_, None, None) => "waits".to_owned(),
    };
    format!("process {pid} ({command}): {place}")
}

/// `reduce_gradients train.py:88`; without the file where the frame inside of it has the same.
pub fn show(frame: &Frame, inside: Option<&Frame>) -> String {
    let Frame { function, file, line, .. } = frame;
    let is_same = inside.is_some_and(|inside| inside.file == *file && inside.file.is_some());
    match (file, line) {
        (Some(_), Some(line)) if is_same => format!("{function}:{line}"),
        (Some(file), Some(line)) => format!("{function} {file}:{line}"),
        (Some(_), None) if is_same => function.clone(),
        (Some(file), None) if !frame.is_python && function.starts_with("0x") => format!("{file}+{function}"),
        (Some(_) | None, _) => function.clone(),
    }
}
