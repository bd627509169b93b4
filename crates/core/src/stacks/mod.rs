//! Where the processes of a rank are: the frames of their threads, as they were read from outside, without the help of the
//! program.

pub mod calls;
pub mod fold;
mod libraries;
mod mpi_calls;
pub mod odd;
mod place;
pub mod print;
pub mod profile;
pub mod proof;
pub mod stall;

#[cfg(test)]
pub(crate) mod samples;

use serde::{Deserialize, Serialize};

use crate::WorkerStatus;
use crate::ids::Pid;

/// A call.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Frame {
    /// Its name as people write it: demangled, without arguments. Where there is none, the offset in its module (`0x1f40`).
    pub function: String,
    /// The Python file, or the source file or else the object file of native code: the name, without its directory.
    pub file: Option<String>,
    pub line: Option<u32>,
    pub is_python: bool,
}

/// What the kernel says that a thread does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadState {
    Running,
    Sleeping,
    /// It sleeps, and no signal wakes it: mostly it waits for a disk or a file server (D).
    Uninterruptible,
    /// By a signal (SIGSTOP).
    Stopped,
    /// By a debugger or strace.
    Traced,
    Zombie,
    /// The letter of `/proc/PID/stat`.
    Other(char),
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ThreadStack {
    pub tid: Pid,
    /// What the program calls it, or else the kernel.
    pub name: String,
    pub is_main: bool,
    pub state: ThreadState,
    /// The CPU time that it has had, in microseconds.
    pub run_us: u64,
    pub holds_gil: bool,
    /// The system call or the place in the kernel in which it sleeps.
    pub kernel: Option<String>,
    /// How long that call lasts yet, or at most where it is not known when it began. `None`: until something happens.
    #[serde(default)]
    pub limit_ms: Option<u64>,
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// A thread of a known library that waits for work.
    pub is_idle: bool,
    /// There are more frames: a bound was reached, or they could not be read further.
    pub is_cut: bool,
}

/// The Python interpreter of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interpreter {
    /// There is none.
    None,
    Running {
        version: String,
    },
    /// There was one, and it has been finalized.
    Gone,
    /// There is one, and it could not be read.
    Unknown {
        why: String,
    },
}

/// Another process of a rank: what it started, directly or not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OtherProcess {
    pub pid: Pid,
    pub parent: Pid,
    pub command: String,
    pub state: ThreadState,
    /// How it has ended, if it has, and its parent has not taken note of it.
    #[serde(default)]
    pub status: Option<WorkerStatus>,
    /// Those of its main thread, innermost first; none where it could not be looked into.
    pub frames: Vec<Frame>,
    /// Why not.
    pub unseen: Option<String>,
    /// A thread of it sleeps until some time has passed.
    #[serde(default)]
    pub sleeps: bool,
    /// The longest time limit of the calls in which its threads are.
    #[serde(default)]
    pub limit_ms: Option<u64>,
    /// It reads the stdin that the rank has.
    #[serde(default)]
    pub reads_stdin: bool,
}

/// A process with all its threads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessStack {
    pub pid: Pid,
    pub command: String,
    pub interpreter: Interpreter,
    /// The main thread first.
    pub threads: Vec<ThreadStack>,
    /// What it started.
    pub others: Vec<OtherProcess>,
    /// Why it could not be looked into, or not wholly.
    pub unseen: Option<String>,
    /// The longest time for which a thread was stopped, in microseconds.
    pub stopped_us: u32,
    /// Bytes that it has passed to write and the like. `None`: not known.
    #[serde(default)]
    pub written: Option<u64>,
}

/// Calls that end by themselves after a time.
const SLEEPS: [&str; 4] = ["nanosleep", "clock_nanosleep", "usleep", "sleep"];
/// What follows the name of a call that waits for files, where it is given none: it is used to sleep.
pub const WITHOUT_FILES: &str = " without files";
/// What follows the name of a call that waits for events, and has a time limit.
pub const UNTIL_A_TIME: &str = " until a time";
/// What follows the name of a call that waits for the end of a thread of the same process.
pub const END_OF_THREAD: &str = "for the end of thread";
/// What follows the name of a call that reads stdin, or waits to be able to.
pub const AT_STDIN: &str = "stdin";
/// Functions that sleep in another call: Java's waits for a condition with a time limit.
const SLEEPING_FUNCTIONS: [&str; 1] = ["JVM_Sleep"];
/// Functions of Go's scheduler, which runs between goroutines.
const GO: [&str; 4] = ["runtime.schedule", "runtime.findRunnable", "runtime.stopm", "runtime.mPark"];

/// Whether a call that the kernel shows (`clock_nanosleep`) ends after a time, whatever happens.
pub fn is_sleep(kernel: &str) -> bool {
    let call = kernel.split([' ', '(']).next().unwrap_or_default();
    kernel.ends_with(WITHOUT_FILES) || SLEEPS.contains(&call.trim_start_matches("__GI_").trim_start_matches('_'))
}

/// Whether a call that the kernel shows (`read stdin, pipe:[7]`) reads stdin, or waits to be able to.
pub fn is_at_stdin(kernel: &str) -> bool {
    kernel.split(' ').nth(1).is_some_and(|word| word.trim_end_matches(',') == AT_STDIN)
}

impl Frame {
    /// Whether it is of Go's scheduler.
    pub(crate) fn is_of_go(&self) -> bool {
        GO.contains(&self.function.as_str())
    }
}

impl ThreadStack {
    /// Whether it reads stdin, alone or beside others.
    pub fn reads_stdin(&self) -> bool {
        self.kernel.as_deref().is_some_and(is_at_stdin)
    }

    /// Whether it is in a call that ends after a time.
    pub fn sleeps(&self) -> bool {
        // The scheduler of Go waits with a time limit where a goroutine sleeps.
        let has_timer = self.kernel.as_deref().is_some_and(|kernel| kernel.ends_with(UNTIL_A_TIME));
        let is_known = |frame: &Frame| {
            let sleeps = !frame.is_python && SLEEPING_FUNCTIONS.contains(&frame.function.as_str());
            sleeps || has_timer && frame.is_of_go()
        };
        let innermost = self.frames.first().is_some_and(|frame| !frame.is_python && is_sleep(&frame.function));
        self.kernel.as_deref().is_some_and(is_sleep) || innermost || self.frames.iter().any(is_known)
    }
}

impl ProcessStack {
    /// Of a process that was not looked into, and why.
    pub fn not_seen(pid: Pid, why: &str) -> ProcessStack {
        ProcessStack {
            pid,
            command: String::new(),
            interpreter: Interpreter::Unknown { why: why.to_owned() },
            threads: Vec::new(),
            others: Vec::new(),
            unseen: Some(why.to_owned()),
            stopped_us: 0,
            written: None,
        }
    }
}
