//! The one thread of the agent that touches files. A disk may be slow or may never answer, and the loop must go on. The first job starts it.
//!
//! Jobs are done one after the other, in the order in which they were given. A job is a value of [`Job`], and comes back as
//! a value of [`Done`]; the loop is woken for it.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rankrun_core::GroupId;
use rankrun_output::{Completion, Request};
use rankrun_sys::poll::Waker;
use rankrun_sys::{limits, signal};

/// Jobs that may be under way: the spool needs a read and a write of each stream, and a few closes. When the queue is
/// full, the caller keeps its job and tries again after the next result ([`IoThread::has_room`]): the spool then fills
/// up in memory, captures are no longer read, and the ranks wait. Nothing is dropped.
const QUEUE: usize = 32;

/// Something that touches files.
#[derive(Debug)]
pub(crate) enum Job {
    /// Of the spool of a group.
    Spool(GroupId, Request),
}

/// A job that has been done.
#[derive(Debug)]
pub(crate) enum Done {
    Spool(GroupId, Completion),
}

impl Job {
    fn run(self) -> Done {
        match self {
            Job::Spool(group, request) => Done::Spool(group, request.run()),
        }
    }
}

/// The loop's handle to the thread.
#[derive(Debug)]
pub(crate) struct IoThread {
    waker: Waker,
    thread: Option<Thread>,
    /// Jobs that were done without a thread.
    own: VecDeque<Done>,
    /// Jobs whose results were not taken yet.
    outstanding: usize,
}

#[derive(Debug)]
struct Thread {
    jobs: SyncSender<Job>,
    results: Receiver<Done>,
}

impl Thread {
    fn start(waker: Waker) -> io::Result<Thread> {
        let (jobs, inbox) = sync_channel::<Job>(QUEUE);
        // Never full: a job is taken only when there is a place for its result.
        let (outbox, results) = sync_channel(QUEUE);
        std::thread::Builder::new().name("files".to_owned()).stack_size(128 * 1024).spawn(move || {
            signal::block_all();
            for job in inbox {
                if outbox.send(job.run()).is_err() {
                    break;
                }
                waker.wake();
            }
        })?;
        Ok(Thread { jobs, results })
    }
}

impl IoThread {
    /// Starts the thread where ranks may use up the limit on processes. It wakes the loop through `waker` whenever a job is done.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub(crate) fn start(waker: Waker) -> io::Result<IoThread> {
        let thread = limits::processes_are_scarce().then(|| Thread::start(waker.clone())).transpose()?;
        Ok(IoThread { thread, ..IoThread::new(waker) })
    }

    /// The first job starts the thread.
    fn new(waker: Waker) -> IoThread {
        IoThread { waker, thread: None, own: VecDeque::new(), outstanding: 0 }
    }

    /// Whether there is room for a job.
    pub(crate) fn has_room(&self) -> bool {
        self.outstanding < QUEUE
    }

    /// Sends a job to the thread. Returns it if there is no room.
    pub(crate) fn submit(&mut self, job: Job) -> Result<(), Job> {
        if !self.has_room() {
            return Err(job);
        }
        if self.thread.is_none() {
            self.thread = Thread::start(self.waker.clone()).ok();
        }
        let Some(thread) = &self.thread else {
            // Ranks have used up the limit on processes, and may wait for their output. It is a local disk.
            self.own.push_back(job.run());
            self.outstanding += 1;
            self.waker.wake();
            return Ok(());
        };
        thread.jobs.try_send(job).map_err(|refused| match refused {
            std::sync::mpsc::TrySendError::Full(job) | std::sync::mpsc::TrySendError::Disconnected(job) => job,
        })?;
        self.outstanding += 1;
        Ok(())
    }

    /// A job that has been done.
    pub(crate) fn next_result(&mut self) -> Option<Done> {
        // Nothing yet. The thread cannot have ended while we hold its inbox.
        let own = self.own.pop_front();
        let done = own.or_else(|| self.thread.as_ref()?.results.try_recv().ok())?;
        self.outstanding -= 1;
        Some(done)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use rankrun_core::{Attempt, Rank, Stream, WorkerId};
    use rankrun_output::{Record, Spool};
    use rankrun_sys::poll::{Interest, Poller};

    use super::*;

    #[test]
    fn jobs_come_back_in_order_and_wake_the_loop() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut spool = Spool::new(dir.path(), 1 << 30);
        let mut poller = Poller::new().expect("a poller");
        let waker = Waker::new().expect("a waker");
        poller.add(&waker, 1, Interest::Read).expect("it can be added");
        let mut io = IoThread::new(waker.clone());
        let record = |number| Record {
            worker: WorkerId { rank: Rank(number), attempt: Attempt(0) },
            stream: Stream::Stdout,
            time: Duration::ZERO,
            bytes: Bytes::from(vec![number as u8; 60_000]),
        };
        let (mut pushed, mut popped, mut ready) = (0, 0, Vec::new());
        // What waits, waits for long.
        let mut now = Duration::ZERO;
        let mut next = |spool: &mut Spool| {
            now += Duration::from_secs(1);
            spool.next_request(now).or_else(|| spool.next_request(now + Duration::from_secs(1)))
        };
        while popped < 400 {
            while pushed < 400 && spool.has_room(Stream::Stdout) {
                assert!(spool.push(record(pushed)).is_ok());
                pushed += 1;
            }
            while io.has_room()
                && let Some(request) = next(&mut spool)
            {
                assert!(io.submit(Job::Spool(GroupId(0), request)).is_ok());
            }
            // Nobody reads before half of it is on disk.
            let next = if pushed < 200 { None } else { spool.pop(Stream::Stdout).expect("the file can be read") };
            if let Some(next) = next {
                assert_eq!(next.worker.rank, Rank(popped));
                popped += 1;
                continue;
            }
            poller.wait(Some(Duration::from_secs(5)), &mut ready).expect("an epoll set can be waited for");
            assert!(!ready.is_empty(), "nobody wakes the loop");
            waker.clear();
            while let Some(Done::Spool(_, completion)) = io.next_result() {
                spool.complete(completion);
            }
        }
    }
}
