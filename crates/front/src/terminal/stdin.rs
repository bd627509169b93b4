//! Reading the front's stdin for ranks that share it (`--stdin all`): on a thread, since the descriptor is shared with
//! others and may be a file that cannot be polled.
//!
//! What was read of a pipe belongs to one attempt; its end belongs to the job, and each attempt is told it. A file is read again
//! from where it was at first.

use std::cell::Cell;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rankrun_sys::poll::{Waker, wait_for};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;
use rustix::stdio::stdin;

/// Bytes read at a time, and the most that is read ahead of the slowest rank: a pipe's worth.
const READ: usize = 64 * 1024;

/// The reader.
#[derive(Debug)]
pub(crate) struct Reader {
    thread: Thread,
    waker: Waker,
    /// Where a file was at first; `None` if it cannot be read again.
    first: Option<u64>,
    is_at_end: Cell<bool>,
    /// The present attempt is still to be told so.
    tells_end: Cell<bool>,
}

/// Bytes, or the end (no bytes), or an error, after which nothing is read.
pub(crate) type Piece = Result<Vec<u8>, Errno>;

#[derive(Debug)]
struct Thread {
    pieces: Receiver<Piece>,
    more: SyncSender<()>,
}

fn is_end(piece: &Piece) -> bool {
    piece.as_ref().map_or(true, Vec::is_empty)
}

impl Reader {
    /// Starts the thread. It reads one piece, and each further one on request.
    pub(crate) fn start(waker: Waker) -> io::Result<Reader> {
        let is_file = rustix::fs::fstat(stdin()).map(|found| FileType::from_raw_mode(found.st_mode).is_file());
        let first = rustix::fs::seek(stdin(), SeekFrom::Current(0)).ok().filter(|_| is_file == Ok(true));
        let thread = Thread::start(waker.clone(), first)?;
        Ok(Reader { thread, waker, first, is_at_end: Cell::new(false), tells_end: Cell::new(false) })
    }

    /// The next piece that was read.
    pub(crate) fn next(&self) -> Option<Piece> {
        if self.tells_end.take() {
            return Some(Ok(Vec::new()));
        }
        let piece = self.thread.pieces.try_recv().ok().filter(|_| !self.is_at_end.get())?;
        self.is_at_end.set(is_end(&piece));
        Some(piece)
    }

    /// The terminal is left: there is no more.
    pub(crate) fn end(&mut self) {
        (self.first, self.is_at_end, self.tells_end) = (None, Cell::new(true), Cell::new(true));
        self.waker.wake();
    }

    /// The ranks have read the last piece.
    pub(crate) fn want_more(&self) {
        // The thread has ended at the end of stdin, or a request is pending already.
        let _ = self.thread.more.try_send(());
    }

    /// Another attempt begins. `is_owed`: the ranks of the one before have not read their last piece, and never will.
    pub(crate) fn begin_attempt(&mut self, is_owed: bool) {
        let again = self.first.and_then(|first| Thread::start(self.waker.clone(), Some(first)).ok());
        if let Some(again) = again {
            self.thread = again;
            (self.is_at_end, self.tells_end) = Default::default();
            return;
        }
        self.tells_end.set(self.is_at_end.get());
        if is_owed {
            self.want_more();
        }
        self.waker.wake();
    }
}

impl Thread {
    /// Reads a file from `from`, whatever others do with the descriptor: a thread of the attempt before may be about to read.
    fn start(waker: Waker, mut from: Option<u64>) -> io::Result<Thread> {
        let (outbox, pieces) = sync_channel(1);
        let (more, wanted) = sync_channel(1);
        std::thread::Builder::new().name("stdin".to_owned()).stack_size(128 * 1024).spawn(move || {
            rankrun_sys::signal::block_all();
            loop {
                let mut bytes = vec![0; READ];
                let read = match from {
                    Some(from) => rustix::io::pread(stdin(), &mut bytes, from),
                    None => {
                        // The terminal may be left meanwhile: what is typed then is for another program.
                        wait_for(&mut [PollFd::new(&stdin(), PollFlags::IN)], None);
                        rustix::io::read(stdin(), &mut bytes)
                    }
                };
                let piece = match read {
                    Ok(count) if count > 0 => {
                        bytes.truncate(count);
                        if let Some(from) = &mut from {
                            *from += count as u64;
                            // For the process that reads stdin after us. The offset could be read before, so that a seek cannot fail.
                            let _ = rustix::fs::seek(stdin(), SeekFrom::Start(*from));
                        }
                        Ok(bytes)
                    }
                    Ok(_) => Ok(Vec::new()),
                    Err(Errno::INTR) => continue,
                    // Somebody else has made it non-blocking.
                    Err(Errno::AGAIN) => {
                        wait_for(&mut [PollFd::new(&stdin(), PollFlags::IN)], None);
                        continue;
                    }
                    Err(error) => Err(error),
                };
                let ended = is_end(&piece);
                if outbox.send(piece).is_err() {
                    return;
                }
                waker.wake();
                if ended || wanted.recv().is_err() {
                    return;
                }
            }
        })?;
        Ok(Thread { pieces, more })
    }
}
