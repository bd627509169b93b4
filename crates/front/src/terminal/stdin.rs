//! Reading the front's stdin for ranks that share it (`--stdin all`): on a thread, since the descriptor is shared with
//! others and may be a file that cannot be polled.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rankrun_sys::poll::Waker;

/// Bytes read at a time, and the most that is read ahead of the slowest rank: a pipe's worth.
const READ: usize = 64 * 1024;

/// The reader.
#[derive(Debug)]
pub(crate) struct Stdin {
    pieces: Receiver<Option<Vec<u8>>>,
    more: SyncSender<()>,
}

impl Stdin {
    /// Starts the thread. It reads one piece, and each further one on request.
    pub(crate) fn start(waker: Waker) -> io::Result<Stdin> {
        let (outbox, pieces) = sync_channel(1);
        let (more, wanted) = sync_channel(1);
        std::thread::Builder::new().name("stdin".to_owned()).stack_size(128 * 1024).spawn(move || {
            rankrun_sys::signal::block_all();
            loop {
                let mut bytes = vec![0; READ];
                let piece = match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
                    Ok(count) if count > 0 => {
                        bytes.truncate(count);
                        Some(bytes)
                    }
                    Err(rustix::io::Errno::INTR) => continue,
                    Ok(_) | Err(_) => None,
                };
                let ended = piece.is_none();
                if outbox.send(piece).is_err() {
                    return;
                }
                waker.wake();
                if ended || wanted.recv().is_err() {
                    return;
                }
            }
        })?;
        Ok(Stdin { pieces, more })
    }

    /// The next piece that was read: bytes, or the end.
    pub(crate) fn next(&self) -> Option<Option<Vec<u8>>> {
        self.pieces.try_recv().ok()
    }

    /// The ranks have read the last piece.
    pub(crate) fn want_more(&self) {
        // The thread has ended at the end of stdin, or a request is pending already.
        let _ = self.more.try_send(());
    }
}
