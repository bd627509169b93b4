//! Looks into live processes: the Python and native frames of all threads, read from outside, without the help of the program.
//!
//! Nothing here starts a thread of the other process, writes to its memory, or sends it a signal. A thread is stopped for the
//! time of copying its stack, mostly well below a millisecond, and goes on even if the process that looks is killed then
//! (`rankrun_sys::trace`). Reads of a process may block, as on a file server that does not answer: run this in a process
//! that may be killed.
//!
//! * `capture` copies registers, stack and Python's chain of frames of each thread;
//! * `native` unwinds the copy and names its addresses, with the object files in `images`;
//! * `python` reads what Python's frames are called;
//! * `library` tells whether a program file calls a library;
//! * `sampling` does all of that again and again, and keeps what it has read;
//! * `merge` makes one stack of both; `idle` tells which threads only wait for work.

mod capture;
mod idle;
mod image;
mod images;
mod kernel;
mod library;
mod look;
mod maps;
mod memory;
mod merge;
mod names;
mod native;
mod python;
mod reason;
mod sampling;
mod symbols;

use std::time::Duration;

pub use library::{Origin, origin};
pub use look::Looker;
pub use reason::tracer_of;
pub use sampling::{Look, Sampler};

/// What a look may cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Time for one process. Threads that are not reached have no frames and are marked as cut.
    pub per_process: Duration,
    /// Frames of a thread: native ones, and Python's.
    pub depth: usize,
    /// Bytes of a stack that are copied.
    pub stack_bytes: usize,
    /// Threads of a process that are looked into; the others are left out, and `unseen` says so.
    pub threads: usize,
    /// Descendants of a process that are listed.
    pub others: usize,
    /// Whether the frames of the Python interpreter itself, and those below a program's own `main`, are kept.
    pub is_native_whole: bool,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            per_process: Duration::from_millis(500),
            depth: 128,
            // Deep recursion of C++ needs more; a copy of this size takes some 50 µs.
            stack_bytes: 256 << 10,
            threads: 256,
            others: 64,
            is_native_whole: false,
        }
    }
}
