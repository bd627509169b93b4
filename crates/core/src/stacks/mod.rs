//! Where the processes of a rank are: the frames of their threads, as they were read from outside, without the help of the
//! program.

pub mod calls;
pub mod fold;
pub mod odd;
pub mod print;
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
    Stopped,
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
        }
    }
}
