//! Writing to the front's own stdout and stderr: each on a thread of its own, since these descriptors are shared with
//! others and so are never made non-blocking (docs/output.md).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rankrun_sys::poll::Waker;

/// Batches that may wait for the thread. One is being written while the next is made; a third would only add memory.
const BATCHES: usize = 2;
/// Bytes that are written with one call: of a slow reader it is known soon what it has taken.
const AT_ONCE: usize = 64 * 1024;
/// News that may wait for the loop. When there are so many, the thread waits; the loop always reads them.
const NEWS: usize = 16;
/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes for a destination, and the credit to return when they are written, by stream.
#[derive(Clone, Debug)]
struct Batch {
    bytes: Arc<Vec<u8>>,
    credits: [u64; 2],
}

/// What a destination reports.
#[derive(Debug)]
pub(crate) enum News {
    /// A batch has been written; its memory may be used again.
    Written { credits: [u64; 2], memory: Option<Vec<u8>> },
    /// The destination is full, or a limit is reached; writing is tried again every second.
    Full(io::Error),
    /// It takes bytes again.
    Recovered,
    /// Its reader is gone, or it fails otherwise. Nothing more is written.
    Failed(io::Error),
}

enum Progress {
    Written,
    Full(io::Error),
    Recovered,
    Failed(io::Error),
}

/// A destination, seen from the loop.
#[derive(Debug)]
pub(crate) struct Sink {
    batches: SyncSender<Batch>,
    progress: Receiver<Progress>,
    /// What the thread has got and not written; the first is under way.
    waiting: VecDeque<Batch>,
    /// How much of the first has been written.
    written: Arc<AtomicUsize>,
    failed: bool,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Progress::Written => "Written",
            Progress::Full(_) => "Full",
            Progress::Recovered => "Recovered",
            Progress::Failed(_) => "Failed",
        })
    }
}

impl Sink {
    /// Starts the thread. It writes to a duplicate of `fd`, and wakes the loop through `waker`.
    pub(crate) fn new(name: &str, fd: impl AsFd, waker: Waker) -> io::Result<Sink> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        let (batches, inbox) = sync_channel::<Batch>(BATCHES);
        let (outbox, progress) = sync_channel(NEWS);
        let written = Arc::new(AtomicUsize::new(0));
        let writer = Writer { fd, outbox, waker, written: Arc::clone(&written) };
        std::thread::Builder::new().name(name.to_owned()).stack_size(128 * 1024).spawn(move || {
            rankrun_sys::signal::block_all();
            writer.run(&inbox);
        })?;
        Ok(Sink { batches, progress, waiting: VecDeque::new(), written, failed: false })
    }

    /// Whether there is room for a batch.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < BATCHES
    }

    /// Whether everything has been written.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that the thread has got and not written.
    pub(crate) fn unwritten(&self) -> usize {
        let given: usize = self.waiting.iter().map(|batch| batch.bytes.len()).sum();
        given.saturating_sub(self.written.load(Ordering::Acquire))
    }

    /// Whether nothing more is written, because the destination failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Sends a batch to the thread. Call it only if [`Sink::has_room`].
    pub(crate) fn write(&mut self, bytes: Vec<u8>, credits: [u64; 2]) {
        let batch = Batch { bytes: Arc::new(bytes), credits };
        // There is room, and the thread ends only with us.
        match self.batches.try_send(batch.clone()) {
            Ok(()) => self.waiting.push_back(batch),
            Err(_) => self.failed = true,
        }
    }

    pub(crate) fn next_news(&mut self) -> Option<News> {
        Some(match self.progress.try_recv().ok()? {
            Progress::Written => {
                let batch = self.waiting.pop_front()?;
                News::Written { credits: batch.credits, memory: Arc::try_unwrap(batch.bytes).ok() }
            }
            Progress::Full(error) => News::Full(error),
            Progress::Recovered => News::Recovered,
            Progress::Failed(error) => {
                self.failed = true;
                News::Failed(error)
            }
        })
    }

    /// Gives up the destination: returns the bytes that it has not taken, as far as is known, and their credit. They
    /// may include what a write under way has already written.
    pub(crate) fn abandon(&mut self) -> (Vec<u8>, [u64; 2]) {
        let (mut bytes, mut credits) = (Vec::new(), [0, 0]);
        let mut add = |more: [u64; 2]| credits.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        while let Some(news) = self.next_news() {
            if let News::Written { credits, .. } = news {
                add(credits);
            }
        }
        let mut skip = self.written.load(Ordering::Acquire);
        for batch in self.waiting.drain(..) {
            bytes.extend_from_slice(&batch.bytes[skip.min(batch.bytes.len())..]);
            add(batch.credits);
            skip = 0;
        }
        (bytes, credits)
    }
}

/// What is written with one call: whole lines, where there are some. Another program may append to the same file.
fn part(bytes: &[u8]) -> &[u8] {
    let Some(most) = bytes.get(..AT_ONCE) else { return bytes };
    most.iter().rposition(|byte| *byte == b'\n').map_or(most, |last| &most[..=last])
}

#[derive(Debug)]
struct Writer {
    fd: OwnedFd,
    outbox: SyncSender<Progress>,
    waker: Waker,
    written: Arc<AtomicUsize>,
}

impl Writer {
    fn run(self, inbox: &Receiver<Batch>) {
        let mut failed = false;
        for Batch { bytes, .. } in inbox {
            if !failed && let Err(error) = self.write(&bytes) {
                failed = true;
                self.report(Progress::Failed(error));
            }
            // After a failure the rest is received and dropped, so that the loop does not wait for it.
            drop(bytes);
            self.written.store(0, Ordering::Release);
            self.report(Progress::Written);
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        let mut full = false;
        while at < bytes.len() {
            match rustix::io::write(&self.fd, part(&bytes[at..])) {
                Ok(count) => {
                    at += count;
                    self.written.store(at, Ordering::Release);
                    if std::mem::take(&mut full) {
                        self.report(Progress::Recovered);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                // Somebody else has made the shared descriptor non-blocking: wait as a blocking one would.
                Err(rustix::io::Errno::AGAIN) => self.wait(None),
                // A file size limit (EFBIG) can be raised from outside as a quota can.
                Err(error @ (rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT | rustix::io::Errno::FBIG)) => {
                    if !std::mem::replace(&mut full, true) {
                        self.report(Progress::Full(error.into()));
                    }
                    self.wait(Some(RETRY));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until the destination is writable, or for a time.
    fn wait(&self, time: Option<Duration>) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        match time {
            None => {
                // The write is tried again in any case.
                let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], None);
            }
            Some(time) => {
                let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
                // As above.
                let _ = poll(&mut [], Some(&timeout));
            }
        }
    }

    fn report(&self, progress: Progress) {
        // The loop may have ended.
        let _ = self.outbox.send(progress);
        self.waker.wake();
    }
}
