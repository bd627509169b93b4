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
/// News that may wait for the loop, which always reads them. The thread waits for it when there are so many.
const NEWS: usize = 16;
/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes for a destination, and how many bytes of the ranks' output they settle, by stream.
#[derive(Clone, Debug)]
struct Batch {
    bytes: Arc<Vec<u8>>,
    settles: [u64; 2],
}

/// What a destination has to say.
#[derive(Debug)]
pub(crate) enum News {
    /// A batch has been written; its memory may be used again.
    Written { settles: [u64; 2], memory: Option<Vec<u8>> },
    /// The destination is full, or a limit is reached; it is tried again every second.
    Full(io::Error),
    /// It takes bytes again.
    Recovered,
    /// Nobody reads it any more, or it fails otherwise. Nothing more is written.
    Failed(io::Error),
}

enum Told {
    Written,
    Full(io::Error),
    Recovered,
    Failed(io::Error),
}

/// A destination, seen from the loop.
#[derive(Debug)]
pub(crate) struct Sink {
    batches: SyncSender<Batch>,
    told: Receiver<Told>,
    /// What the thread has been given and has not written; the first is under way.
    waiting: VecDeque<Batch>,
    /// How much of the first has been written.
    written: Arc<AtomicUsize>,
    failed: bool,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Told::Written => "Written",
            Told::Full(_) => "Full",
            Told::Recovered => "Recovered",
            Told::Failed(_) => "Failed",
        })
    }
}

impl Sink {
    /// A destination whose thread will write to a duplicate of `fd`, and wake the loop through `waker`.
    pub(crate) fn new(name: &str, fd: impl AsFd, waker: Waker) -> io::Result<Sink> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        let (batches, inbox) = sync_channel::<Batch>(BATCHES);
        let (outbox, told) = sync_channel(NEWS);
        let written = Arc::new(AtomicUsize::new(0));
        let writer = Writer { fd, outbox, waker, written: Arc::clone(&written) };
        std::thread::Builder::new().name(name.to_owned()).stack_size(128 * 1024).spawn(move || {
            rankrun_sys::signal::block_all();
            writer.run(&inbox);
        })?;
        Ok(Sink { batches, told, waiting: VecDeque::new(), written, failed: false })
    }

    /// Whether a batch would be taken without waiting.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < BATCHES
    }

    /// Whether everything has been written.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether nothing more is written, because the destination failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Gives a batch to the thread. To be called only where [`Sink::has_room`].
    pub(crate) fn write(&mut self, bytes: Vec<u8>, settles: [u64; 2]) {
        let batch = Batch { bytes: Arc::new(bytes), settles };
        // There is room, and the thread ends only with us.
        match self.batches.try_send(batch.clone()) {
            Ok(()) => self.waiting.push_back(batch),
            Err(_) => self.failed = true,
        }
    }

    pub(crate) fn next_news(&mut self) -> Option<News> {
        Some(match self.told.try_recv().ok()? {
            Told::Written => {
                let batch = self.waiting.pop_front()?;
                News::Written { settles: batch.settles, memory: Arc::try_unwrap(batch.bytes).ok() }
            }
            Told::Full(error) => News::Full(error),
            Told::Recovered => News::Recovered,
            Told::Failed(error) => {
                self.failed = true;
                News::Failed(error)
            }
        })
    }

    /// Gives up on the destination: returns what it has not taken, as far as is known, and what that settles. What a
    /// write that is under way has already placed may be among it.
    pub(crate) fn abandon(&mut self) -> (Vec<u8>, [u64; 2]) {
        let (mut bytes, mut settles) = (Vec::new(), [0, 0]);
        let mut add = |more: [u64; 2]| settles.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        while let Some(news) = self.next_news() {
            if let News::Written { settles, .. } = news {
                add(settles);
            }
        }
        let mut skip = self.written.load(Ordering::Acquire);
        for batch in self.waiting.drain(..) {
            bytes.extend_from_slice(&batch.bytes[skip.min(batch.bytes.len())..]);
            add(batch.settles);
            skip = 0;
        }
        (bytes, settles)
    }
}

#[derive(Debug)]
struct Writer {
    fd: OwnedFd,
    outbox: SyncSender<Told>,
    waker: Waker,
    written: Arc<AtomicUsize>,
}

impl Writer {
    fn run(self, inbox: &Receiver<Batch>) {
        let mut failed = false;
        for Batch { bytes, .. } in inbox {
            if !failed && let Err(error) = self.write(&bytes) {
                failed = true;
                self.tell(Told::Failed(error));
            }
            // After a failure the rest is taken and forgotten, so that the loop does not wait for it.
            drop(bytes);
            self.written.store(0, Ordering::Release);
            self.tell(Told::Written);
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        let mut full = false;
        while at < bytes.len() {
            match rustix::io::write(&self.fd, &bytes[at..]) {
                Ok(count) => {
                    at += count;
                    self.written.store(at, Ordering::Release);
                    if std::mem::take(&mut full) {
                        self.tell(Told::Recovered);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                // Somebody else has made the shared descriptor non-blocking: wait as a blocking one would.
                Err(rustix::io::Errno::AGAIN) => self.wait(None),
                // A file size limit (EFBIG) can be raised from outside as a quota can.
                Err(error @ (rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT | rustix::io::Errno::FBIG)) => {
                    if !std::mem::replace(&mut full, true) {
                        self.tell(Told::Full(error.into()));
                    }
                    self.wait(Some(RETRY));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until the destination can be written, or for a time.
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

    fn tell(&self, told: Told) {
        // The loop may have ended; then nobody needs to know.
        let _ = self.outbox.send(told);
        self.waker.wake();
    }
}
