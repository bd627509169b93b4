//! Threads of libraries that wait for work: nobody needs to see them.

use rankrun_core::stacks::{Frame, ThreadState};

/// Functions that such threads wait in: of UCX, libevent and PMIx, Open MPI, libfabric, gloo, NCCL, CUDA, torch, OpenBLAS, MKL,
/// OpenMP (GNU, LLVM), TBB, Eigen and XLA. The beginning of the name, or of a part of it.
const FUNCTIONS: [&str; 46] = [
    "ucs_async_thread_func",
    "ucs_event_set_wait",
    "ucs_vfs_",
    "event_base_loop",
    "opal_libevent",
    "pmix_progress",
    "progress_engine",
    "ofi_",
    "rxm_",
    "blas_thread_server",
    "exec_blas_async",
    "gomp_",
    "GOMP_",
    "__kmp_",
    "__kmpc_",
    "tbb::",
    "gloo::transport::tcp::Loop",
    "gloo::transport::uv::",
    "uv_run",
    "uv__io_poll",
    "c10d::detail::",
    "c10d::ProcessGroupNCCL::ncclCommWatchdog",
    "c10d::ProcessGroupNCCL::watchdog",
    "c10d::ProcessGroupNCCL::Watchdog",
    "c10d::ProcessGroupNCCL::heartbeatMonitor",
    "c10d::ProcessGroupNCCL::HeartbeatMonitor",
    "c10d::ProcessGroupGloo::runLoop",
    "c10::ThreadPool::main_loop",
    "torch::autograd::Engine::thread_main",
    "torch::autograd::ReadyQueue::pop",
    "ncclProxy",
    "ncclAsync",
    "ncclRas",
    "rasThread",
    "Eigen::ThreadPoolTempl",
    "Eigen::ThreadPool",
    "tsl::",
    "xla::",
    "absl::",
    "grpc_core::",
    "rayon_core::registry::",
    "tokio::runtime::",
    "runtime.stopm",
    "runtime.sysmon",
    "runtime.mPark",
    "runtime.templateThread",
];

/// The kernel's names of such threads.
const NAMES: [&str; 13] = [
    "cuda-EvtHandlr",
    "cuda0",
    "pt_nccl_",
    "pt_autograd_",
    "pt_tcpstore",
    "NCCL ",
    "tf_",
    "llvm-worker",
    "jax_",
    "gloo",
    "iou-wrk",
    "ucx",
    "libfabric",
];

/// The same of the threads that a Java machine has besides the program's. Some of them wait with time limits.
const OF_JAVA: [&str; 15] = [
    "VM Thread",
    "VM Periodic Tas",
    "GC Thread#",
    "G1 ",
    "C1 CompilerThre",
    "C2 CompilerThre",
    "Sweeper thread",
    "Service Thread",
    "Notification Th",
    "Monitor Deflati",
    "Signal Dispatch",
    "Reference Handl",
    "Common-Cleaner",
    "Attach Listener",
    "process reaper",
];
/// The object file of a Java machine.
const JAVA: [&str; 1] = ["libjvm.so"];

/// Python functions that such threads wait in, and their files: an executor's worker, the feeder of a queue, tqdm.
const PYTHON: [(&str, &str); 7] = [
    ("_ResourceSharer._serve", "resource_sharer.py"),
    ("_pin_memory_loop", "pin_memory.py"),
    ("_worker", "thread.py"),
    ("Queue._feed", "queues.py"),
    ("TMonitor.run", "_monitor.py"),
    ("_feed", "queues.py"),
    ("SubprocPool._read_thread", "subproc_pool.py"),
];

/// Files with the functions that these call to wait.
const PYTHON_WAITS: [&str; 6] = ["threading.py", "queue.py", "queues.py", "connection.py", "selectors.py", "socket.py"];

/// Object files whose own threads have no names for their functions.
const FILES: [&str; 8] =
    ["libcuda.so", "libnccl", "libopenblas", "libscipy_openblas", "libmkl_", "libgomp", "libiomp", "libucs"];

/// Object files with the functions that threads wait in.
const WAITING: [&str; 7] = ["libc.so", "libc-2", "libpthread", "libstdc++", "ld-", "libevent", "vdso"];

fn is_known_python(frame: &Frame) -> bool {
    PYTHON.iter().any(|(function, file)| frame.function == *function && frame.file.as_deref() == Some(*file))
}

/// Whether a thread is a library's that waits for work. The main thread never is, nor is one that runs.
pub(crate) fn is_idle(is_main: bool, state: ThreadState, name: &str, frames: &[Frame]) -> bool {
    if is_main || state != ThreadState::Sleeping {
        return false;
    }
    if frames.iter().any(|frame| frame.is_python) {
        // It waits in one of these functions, or in what that calls to wait: else it works, and its work may be what hangs.
        let is_wait = |frame: &&Frame| frame.file.as_deref().is_some_and(|file| PYTHON_WAITS.contains(&file));
        let waits_in =
            frames.iter().filter(|frame| frame.is_python).find(|frame| !is_wait(frame) || is_known_python(frame));
        return waits_in.is_some_and(is_known_python);
    }
    let has_file = |frame: &Frame, files: &[&str]| {
        frame.file.as_deref().is_some_and(|file| files.iter().any(|known| file.starts_with(known)))
    };
    let is_known =
        |frame: &Frame| FUNCTIONS.iter().any(|known| frame.function.starts_with(known)) || has_file(frame, &FILES);
    let is_of_java = || frames.iter().any(|frame| has_file(frame, &JAVA));
    if OF_JAVA.iter().any(|known| name.starts_with(known)) && is_of_java() {
        return true;
    }
    // What it has called from there only waits: else it works, and its work may be what hangs.
    let inner = frames.iter().take_while(|frame| is_known(frame) || has_file(frame, &WAITING)).count();
    let is_wholly_known = inner == frames.len();
    frames[..inner].iter().any(is_known) || (is_wholly_known && NAMES.iter().any(|known| name.starts_with(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: &str, is_python: bool) -> Frame {
        Frame { function: function.to_owned(), file: Some(file.to_owned()), line: None, is_python }
    }

    #[test]
    fn a_progress_thread_is_idle_until_it_runs() {
        let frames = [frame("epoll_wait", "libc.so.6", false), frame("ucs_event_set_wait", "libucs.so.0", false)];
        assert!(is_idle(false, ThreadState::Sleeping, "python3", &frames));
        assert!(!is_idle(false, ThreadState::Running, "python3", &frames));
        assert!(!is_idle(true, ThreadState::Sleeping, "python3", &frames));
        let frames = [
            frame("pthread_cond_wait", "libc.so.6", false),
            frame("gloo::(anonymous namespace)::allreduce", "libtorch_cpu.so", false),
            frame("c10d::ProcessGroupGloo::runLoop", "libtorch_cpu.so", false),
        ];
        assert!(!is_idle(false, ThreadState::Sleeping, "pt_gloo_runloop", &frames));
        assert!(is_idle(false, ThreadState::Sleeping, "cuda-EvtHandlr", &frames[..1]));
    }

    #[test]
    fn the_threads_of_a_java_machine_are_idle_and_those_of_its_program_are_not() {
        let frames = [frame("futex", "libc.so.6", false), frame("Monitor::wait", "libjvm.so", false)];
        assert!(is_idle(false, ThreadState::Sleeping, "Common-Cleaner", &frames));
        assert!(is_idle(false, ThreadState::Sleeping, "GC Thread#0", &frames));
        assert!(!is_idle(false, ThreadState::Sleeping, "Thread-0", &frames));
        assert!(!is_idle(false, ThreadState::Sleeping, "Common-Cleaner", &frames[..1]));
    }

    #[test]
    fn a_thread_of_the_program_is_not_idle() {
        let frames = [frame("pthread_cond_wait", "libc.so.6", false), frame("consumer", "app.cpp", false)];
        assert!(!is_idle(false, ThreadState::Sleeping, "app", &frames));
        let frames = [frame("Condition.wait", "threading.py", true), frame("load", "train.py", true)];
        assert!(!is_idle(false, ThreadState::Sleeping, "python3", &frames));
        let frames = [frame("Queue.get", "queue.py", true), frame("_worker", "thread.py", true)];
        assert!(is_idle(false, ThreadState::Sleeping, "python3", &frames));
        assert!(is_idle(false, ThreadState::Sleeping, "python3", &frames[1..]));
        // It waits in what it was given to do.
        let frames = [frame("_WorkItem.run", "thread.py", true), frame("_worker", "thread.py", true)];
        assert!(!is_idle(false, ThreadState::Sleeping, "python3", &frames));
    }
}
