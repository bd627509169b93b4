//! Writing to the front's own stdout and stderr: each on a thread of its own, since these descriptors are shared with
//! others and so are never made non-blocking (DESIGN §7).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rankrun_sys::poll::Waker;

/// Batches that may wait for the thread. One is being written while the next is made; a third would only add memory.
const BATCHES: usize = 2;
/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes for a destination, and how many bytes of the ranks' output they settle.
struct Batch {
    bytes: Vec<u8>,
    settles: u64,
}

/// What a destination has to say.
#[derive(Debug)]
pub(crate) enum News {
    /// A batch has been written; its memory may be used again.
    Written { settles: u64, memory: Vec<u8> },
    /// The destination is full; it is tried again every second.
    Full,
    /// It takes bytes again.
    Recovered,
    /// Nobody reads it any more, or it fails otherwise. Nothing more is written.
    Failed(io::Error),
}

/// A destination, seen from the loop.
#[derive(Debug)]
pub(crate) struct Sink {
    batches: Option<SyncSender<Batch>>,
    news: Receiver<News>,
    waiting: usize,
    pub(crate) failed: bool,
    /// What the thread has not written yet of its present batch: saved when we give up on it.
    unwritten: Arc<Mutex<Vec<u8>>>,
    /// Ends the thread's wait for a full disk.
    give_up: Option<Sender<()>>,
}

impl Sink {
    /// A thread that writes to a duplicate of `fd`, and wakes the loop through `waker`.
    pub(crate) fn start(name: &str, fd: impl AsFd, waker: Waker) -> io::Result<Sink> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        let (batches, inbox) = sync_channel::<Batch>(BATCHES);
        let (outbox, news) = channel();
        let (give_up, gave_up) = channel();
        let unwritten = Arc::new(Mutex::new(Vec::new()));
        let writer = Writer { fd, outbox, waker, gave_up, unwritten: Arc::clone(&unwritten) };
        std::thread::Builder::new().name(name.to_owned()).stack_size(128 * 1024).spawn(move || {
            rankrun_sys::signal::block_all();
            writer.run(&inbox);
        })?;
        Ok(Sink { batches: Some(batches), news, waiting: 0, failed: false, unwritten, give_up: Some(give_up) })
    }

    /// Whether a batch would be taken without waiting.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting < BATCHES
    }

    /// Whether everything has been written.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// Gives a batch to the thread. To be called only where [`Sink::has_room`].
    pub(crate) fn write(&mut self, bytes: Vec<u8>, settles: u64) {
        let Some(batches) = &self.batches else { return };
        if batches.try_send(Batch { bytes, settles }).is_ok() {
            self.waiting += 1;
        }
    }

    pub(crate) fn next_news(&mut self) -> Option<News> {
        let news = self.news.try_recv().ok()?;
        match news {
            News::Written { .. } => self.waiting -= 1,
            News::Failed(_) => self.failed = true,
            News::Full | News::Recovered => {}
        }
        Some(news)
    }

    /// Gives up on the destination and returns what it has not taken of what was given to it, as far as is known.
    pub(crate) fn abandon(&mut self) -> Vec<u8> {
        self.batches = None;
        self.give_up = None;
        let mut bytes = match self.unwritten.lock() {
            Ok(unwritten) => unwritten.clone(),
            Err(poisoned) => poisoned.into_inner().clone(),
        };
        while let Some(news) = self.next_news() {
            if let News::Written { .. } = news {
                bytes.clear();
            }
        }
        bytes
    }
}

struct Writer {
    fd: OwnedFd,
    outbox: Sender<News>,
    waker: Waker,
    gave_up: Receiver<()>,
    unwritten: Arc<Mutex<Vec<u8>>>,
}

impl Writer {
    fn run(self, inbox: &Receiver<Batch>) {
        for Batch { bytes, settles } in inbox {
            if let Err(error) = self.write(&bytes) {
                self.tell(News::Failed(error));
                // The rest is taken and forgotten, so that the loop does not wait for it.
                self.tell(News::Written { settles, memory: bytes });
                for Batch { bytes, settles } in inbox {
                    self.tell(News::Written { settles, memory: bytes });
                }
                return;
            }
            self.tell(News::Written { settles, memory: bytes });
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        let mut full = false;
        while !rest.is_empty() {
            match rustix::io::write(&self.fd, rest) {
                Ok(count) => {
                    rest = &rest[count..];
                    if full {
                        full = false;
                        self.keep(&[]);
                        self.tell(News::Recovered);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                // Somebody else has made the shared descriptor non-blocking: wait as a blocking one would.
                Err(rustix::io::Errno::AGAIN) => self.wait_writable(),
                Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                    if !full {
                        full = true;
                        self.keep(rest);
                        self.tell(News::Full);
                    }
                    match self.gave_up.recv_timeout(RETRY) {
                        Err(RecvTimeoutError::Timeout) => {}
                        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                            return Err(io::Error::from(rustix::io::Errno::NOSPC));
                        }
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait_writable(&self) {
        use rustix::event::{PollFd, PollFlags, poll};
        let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], None);
    }

    fn keep(&self, bytes: &[u8]) {
        if let Ok(mut unwritten) = self.unwritten.lock() {
            unwritten.clear();
            unwritten.extend_from_slice(bytes);
        }
    }

    fn tell(&self, news: News) {
        // The loop may have ended; then nobody needs to know.
        let _ = self.outbox.send(news);
        self.waker.wake();
    }
}
