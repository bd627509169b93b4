//! The one thread that starts workers. It lives as long as the agent: a worker's parent-death signal follows the thread
//! that cloned it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use rankrun_sys::poll::Waker;
use rankrun_sys::signal;
use rankrun_sys::spawn::{Command, SpawnError, Spawner};

/// The result of one spawn.
pub(crate) struct Spawned {
    pub(crate) slot: usize,
    pub(crate) result: Result<i32, SpawnError>,
}

/// The agent's handle to its spawner.
pub(crate) struct SpawnerThread {
    // Bounded by the ranks of the node: each is asked for once an attempt.
    requests: Sender<(usize, Command)>,
    results: Receiver<Spawned>,
    /// Spawns that were asked for and not yet answered.
    outstanding: usize,
}

impl SpawnerThread {
    /// Starts the thread. It wakes the loop through `waker` whenever a spawn is done.
    pub(crate) fn start(waker: Waker) -> io::Result<SpawnerThread> {
        let (requests, inbox) = channel::<(usize, Command)>();
        let (outbox, results) = channel();
        let mut spawner = Spawner::new()?;
        std::thread::Builder::new().name("spawner".to_owned()).stack_size(128 * 1024).spawn(move || {
            signal::block_all();
            for (slot, command) in inbox {
                let result = spawner.spawn(&command);
                // The child has its descriptors; ours must be closed before the loop hears of it, or the end of a
                // stream would be missed.
                drop(command);
                if outbox.send(Spawned { slot, result }).is_err() {
                    break;
                }
                waker.wake();
            }
            // The agent is ending. Leaving the thread would end the workers that it lets go; the process ends it.
            loop {
                std::thread::park();
            }
        })?;
        Ok(SpawnerThread { requests, results, outstanding: 0 })
    }

    pub(crate) fn spawn(&mut self, slot: usize, command: Command) {
        // The thread ends only with the process.
        if self.requests.send((slot, command)).is_ok() {
            self.outstanding += 1;
        }
    }

    pub(crate) fn next_result(&mut self) -> Option<Spawned> {
        let spawned = self.results.try_recv().ok()?;
        self.outstanding -= 1;
        Some(spawned)
    }

    /// How many spawns were asked for and not yet answered.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether a child may exist that the loop has not been told of.
    pub(crate) fn is_busy(&self) -> bool {
        self.outstanding > 0
    }
}

/// A descriptor for /dev/null.
pub(crate) fn null() -> io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into())
}
