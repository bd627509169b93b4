//! Writing to the front's own stdout and stderr. These descriptors are shared with others and so are never made non-blocking
//! (docs/output.md): the loop writes what they take at once, where the kernel can be asked for that (`RWF_NOWAIT`, pwritev2(2)), and a
//! thread writes the rest. The thread is started when it is first needed.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rankrun_sys::limits;
use rankrun_sys::poll::{Waker, pause, wait_for};

/// Batches that may wait for the thread. One is being written while the next is made; a third would only add memory.
const BATCHES: usize = 2;
/// Bytes that are written with one call: of a slow reader it is known soon what it has taken.
const AT_ONCE: usize = 64 * 1024;
/// News that may wait for the loop. When there are so many, the thread waits; the loop always reads them.
const NEWS: usize = 16;
/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// More than this is written by the thread: the loop goes on meanwhile.
const SMALL: usize = 16 * 1024;
/// How often a thread is tried again where the limit on processes leaves no room for it.
pub(crate) const THREAD_RETRY: Duration = Duration::from_millis(100);
/// Without a thread as many bytes are written at a time as a destination takes that says it is ready.
const READY: usize = 512;

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
    /// It was told to write no more, and has ended: what it has written is known.
    Halted,
}

/// A destination, seen from the loop.
#[derive(Debug)]
pub(crate) struct Sink {
    name: &'static str,
    fd: Arc<OwnedFd>,
    waker: Waker,
    thread: Option<Thread>,
    /// The kernel can be asked to write only what is taken at once.
    may_ask: bool,
    /// What is not written; the first is under way.
    waiting: VecDeque<Batch>,
    /// How much of the first has been written.
    written: Arc<AtomicUsize>,
    failed: bool,
    /// The thread is to write no more, and has taken note of it.
    halts: Arc<AtomicBool>,
    is_halted: bool,
    /// What the destination had not taken when it failed.
    left: Vec<u8>,
}

/// The thread, seen from the loop.
#[derive(Debug)]
struct Thread {
    batches: SyncSender<Batch>,
    progress: Receiver<Progress>,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Progress::Written => "Written",
            Progress::Full(_) => "Full",
            Progress::Recovered => "Recovered",
            Progress::Failed(_) => "Failed",
            Progress::Halted => "Halted",
        })
    }
}

impl Sink {
    /// Writes to a duplicate of `fd`, and wakes the loop through `waker`.
    pub(crate) fn new(name: &'static str, fd: impl AsFd, waker: Waker) -> io::Result<Sink> {
        let fd = Arc::new(fd.as_fd().try_clone_to_owned()?);
        let (waiting, written) = (VecDeque::new(), Arc::new(AtomicUsize::new(0)));
        let mut sink = Sink {
            name,
            fd,
            waker,
            thread: None,
            may_ask: true,
            waiting,
            written,
            failed: false,
            halts: Arc::default(),
            is_halted: false,
            left: Vec::new(),
        };
        if limits::processes_are_scarce() {
            // Later there may be no room for it.
            sink.thread = Some(sink.start_thread()?);
        }
        Ok(sink)
    }

    fn start_thread(&self) -> io::Result<Thread> {
        let (batches, inbox) = sync_channel::<Batch>(BATCHES);
        let (outbox, progress) = sync_channel(NEWS);
        let (fd, waker) = (Arc::clone(&self.fd), self.waker.clone());
        let (written, halts) = (Arc::clone(&self.written), Arc::clone(&self.halts));
        let writer = Writer { fd, outbox, waker, written, halts };
        std::thread::Builder::new().name(self.name.to_owned()).stack_size(128 * 1024).spawn(move || {
            rankrun_sys::signal::block_all();
            writer.run(&inbox);
        })?;
        Ok(Thread { batches, progress })
    }

    /// Whether there is room for a batch.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < BATCHES
    }

    /// Whether everything has been written.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that were given and are not written.
    pub(crate) fn unwritten(&self) -> usize {
        let given: usize = self.waiting.iter().map(|batch| batch.bytes.len()).sum();
        given.saturating_sub(self.written.load(Ordering::Acquire))
    }

    /// Whether nothing more is written, because the destination failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Writes a batch, or has the thread write it. Call it only if [`Sink::has_room`]. Returns the news of a batch that was taken at once;
    /// of others they follow.
    pub(crate) fn write(&mut self, bytes: Vec<u8>, credits: [u64; 2]) -> Option<News> {
        if self.failed {
            return Some(News::Written { credits, memory: Some(bytes) });
        }
        let mut taken = 0;
        if self.waiting.is_empty() && bytes.len() <= SMALL {
            taken = self.write_now(&bytes);
            if taken == bytes.len() {
                return Some(News::Written { credits, memory: Some(bytes) });
            }
        }
        if self.waiting.is_empty() {
            self.written.store(taken, Ordering::Release);
        }
        let batch = Batch { bytes: Arc::new(bytes), credits };
        self.waiting.push_back(batch.clone());
        match &self.thread {
            // There is room, and the thread ends only with us.
            Some(thread) => self.failed |= thread.batches.try_send(batch).is_err(),
            None => self.find_thread(),
        }
        None
    }

    /// Writes what is taken at once. Returns how much that was.
    fn write_now(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while self.may_ask && at < bytes.len() {
            let part = [IoSlice::new(part(&bytes[at..]))];
            // The offset says: where the descriptor is.
            match rustix::io::pwritev2(&self.fd, &part, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT) {
                Ok(count) => at += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                // It cannot be asked, or it fails: the thread finds out why.
                Err(_) => self.may_ask = false,
            }
        }
        at
    }

    /// Starts the thread, with all that waits.
    fn find_thread(&mut self) {
        // It is tried again.
        let Ok(thread) = self.start_thread() else { return };
        for batch in &self.waiting {
            // The inbox has room for all.
            self.failed |= thread.batches.try_send(batch.clone()).is_err();
        }
        self.thread = Some(thread);
    }

    /// Whether there is no thread where one is needed: call [`Sink::retry`] in a moment.
    pub(crate) fn lacks_thread(&self) -> bool {
        self.thread.is_none() && !self.waiting.is_empty()
    }

    /// The limit on processes has left no room for the thread: tries again, and else writes what a destination takes that says it is ready.
    /// Returns the news.
    pub(crate) fn retry(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        if !self.lacks_thread() {
            return news;
        }
        self.find_thread();
        while self.lacks_thread() {
            let Some(first) = self.waiting.front().cloned() else { break };
            let at = self.written.load(Ordering::Acquire);
            let rest = &first.bytes[at..];
            if !is_ready(&self.fd) {
                break;
            }
            match rustix::io::write(&self.fd, &rest[..rest.len().min(READY)]) {
                Ok(count) if count < rest.len() => self.written.store(at + count, Ordering::Release),
                Ok(_) => {
                    self.written.store(0, Ordering::Release);
                    self.waiting.pop_front();
                    news.push(News::Written { credits: first.credits, memory: None });
                }
                // A disk that is full is tried again.
                Err(error) if is_passing(error) => break,
                Err(error) => {
                    self.fail();
                    news.push(News::Failed(error.into()));
                    let left = self.waiting.drain(..);
                    news.extend(left.map(|batch| News::Written { credits: batch.credits, memory: None }));
                }
            }
        }
        news
    }

    pub(crate) fn next_news(&mut self) -> Option<News> {
        Some(match self.thread.as_ref()?.progress.try_recv().ok()? {
            Progress::Written => {
                let batch = self.waiting.pop_front()?;
                News::Written { credits: batch.credits, memory: Arc::try_unwrap(batch.bytes).ok() }
            }
            Progress::Full(error) => News::Full(error),
            Progress::Recovered => News::Recovered,
            Progress::Failed(error) => {
                self.fail();
                News::Failed(error)
            }
            Progress::Halted => {
                self.is_halted = true;
                return None;
            }
        })
    }

    /// No more is to be written: [`Sink::is_halted`] says when that is so.
    pub(crate) fn halt(&self) {
        self.halts.store(true, Ordering::Release);
    }

    /// Whether what is written is known, and no more will be.
    pub(crate) fn is_halted(&self) -> bool {
        self.is_halted || self.waiting.is_empty() || self.thread.is_none()
    }

    fn fail(&mut self) {
        self.failed = true;
        self.left = self.rest();
    }

    /// The bytes that wait, but for those that are written.
    fn rest(&self) -> Vec<u8> {
        let mut skip = self.written.load(Ordering::Acquire);
        let mut bytes = Vec::new();
        for batch in &self.waiting {
            bytes.extend_from_slice(&batch.bytes[skip.min(batch.bytes.len())..]);
            skip = 0;
        }
        bytes
    }

    /// What the destination has not taken, as far as is known.
    pub(crate) fn untaken(&self) -> Vec<u8> {
        if self.failed { self.left.clone() } else { self.rest() }
    }

    /// Gives up the destination: returns the bytes that it has not taken, as far as is known, and their credit. If it is not halted, they
    /// may include what a write under way has already written.
    pub(crate) fn abandon(&mut self) -> (Vec<u8>, [u64; 2]) {
        let mut credits = [0, 0];
        let mut add = |more: [u64; 2]| credits.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        while let Some(news) = self.next_news() {
            if let News::Written { credits, .. } = news {
                add(credits);
            }
        }
        let bytes = self.untaken();
        self.left.clear();
        self.waiting.drain(..).for_each(|batch| add(batch.credits));
        (bytes, credits)
    }
}

/// What is written with one call: whole lines, where there are some. Another program may append to the same file.
fn part(bytes: &[u8]) -> &[u8] {
    let Some(most) = bytes.get(..AT_ONCE) else { return bytes };
    most.iter().rposition(|byte| *byte == b'\n').map_or(most, |last| &most[..=last])
}

/// Whether a write that has failed so may succeed later.
fn is_passing(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::INTR | Errno::AGAIN | Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
}

/// Whether a destination takes something now.
fn is_ready(fd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

#[derive(Debug)]
struct Writer {
    fd: Arc<OwnedFd>,
    outbox: SyncSender<Progress>,
    waker: Waker,
    written: Arc<AtomicUsize>,
    halts: Arc<AtomicBool>,
}

impl Writer {
    fn run(self, inbox: &Receiver<Batch>) {
        let mut failed = false;
        for Batch { bytes, .. } in inbox {
            match if failed { Ok(true) } else { self.write(&bytes) } {
                Ok(true) => {}
                Ok(false) => return self.report(Progress::Halted),
                Err(error) => {
                    failed = true;
                    self.report(Progress::Failed(error));
                }
            }
            // After a failure the rest is received and dropped, so that the loop does not wait for it.
            drop(bytes);
            if !failed {
                self.written.store(0, Ordering::Release);
            }
            self.report(Progress::Written);
        }
    }

    /// Returns whether all was written: not if it is halted.
    fn write(&self, bytes: &[u8]) -> io::Result<bool> {
        // The loop may have written a part of it.
        let mut at = self.written.load(Ordering::Acquire);
        let mut full = false;
        while at < bytes.len() {
            if self.halts.load(Ordering::Acquire) {
                return Ok(false);
            }
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
        Ok(true)
    }

    /// Waits until the destination is writable, or for a time.
    fn wait(&self, time: Option<Duration>) {
        use rustix::event::{PollFd, PollFlags};
        match time {
            None => wait_for(&mut [PollFd::new(&self.fd, PollFlags::OUT)], None),
            Some(time) => pause(time),
        }
    }

    fn report(&self, progress: Progress) {
        // The loop may have ended.
        let _ = self.outbox.send(progress);
        self.waker.wake();
    }
}
