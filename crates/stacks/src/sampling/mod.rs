//! Looks into the same processes again and again, and folds what it sees.
//!
//! What a look has read is kept for the next one: object files, unwinding tables, names, the interpreter's layout and its code objects.
//! A thread that has not run since the look before is where it was: it costs one read. One that sleeps is read without a stop. One that
//! runs is stopped while its registers and the used part of its stack are copied.

mod files;
mod process;
mod subject;

use std::time::Instant;

use rankrun_core::Pid;
use rankrun_core::stacks::profile::Samples;

use crate::Bounds;
use crate::images::Images;
use process::Process;

/// What came of a look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Look {
    Seen,
    /// The process is gone.
    Ended,
    /// A thread was told to stop and has not: **the calling thread must end soon**, or that one stays stopped.
    Pending,
}

/// Samples processes. What it learns of object files serves for all of them.
#[derive(Debug)]
pub struct Sampler {
    bounds: Bounds,
    images: Images,
    processes: Vec<Process>,
}

impl Sampler {
    pub fn new(bounds: Bounds) -> Sampler {
        Sampler { bounds, images: Images::default(), processes: Vec::new() }
    }

    /// Adds a process. Returns its index.
    pub fn add(&mut self, pid: Pid) -> usize {
        self.processes.push(Process::new(pid.0));
        self.processes.len() - 1
    }

    /// The rank of this index is played by another process from now on.
    pub fn replace(&mut self, index: usize, pid: Pid) {
        if let Some(process) = self.processes.get_mut(index).filter(|process| process.pid() != pid.0) {
            let gathered = process.take();
            *process = Process::new(pid.0);
            process.keep(&gathered);
        }
    }

    /// The process of this index.
    pub fn pid(&self, index: usize) -> Option<Pid> {
        self.processes.get(index).map(|process| Pid(process.pid()))
    }

    /// Looks at the process of this index. `window`: in which part of the time.
    pub fn look(&mut self, index: usize, now: Instant, window: usize) -> Look {
        match self.processes.get_mut(index) {
            Some(process) => process.look(&mut self.images, &self.bounds, now, window),
            None => Look::Ended,
        }
    }

    /// What was seen of the process of this index since it was last taken.
    pub fn take(&mut self, index: usize) -> Samples {
        self.processes.get_mut(index).map(Process::take).unwrap_or_default()
    }
}
