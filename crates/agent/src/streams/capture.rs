//! One stream of one worker, on its way from the worker to the spool.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rankrun_wire::frame::MAX_OUTPUT;

/// The reading end of a worker's stdout or stderr: a pipe or the master of a pty.
#[derive(Debug)]
pub(crate) struct Capture {
    fd: OwnedFd,
}

/// What a read found.
#[derive(Debug)]
pub(crate) enum Read {
    Bytes(Bytes),
    /// Nothing now.
    Empty,
    /// Nobody can write any more.
    End,
}

impl Capture {
    /// `fd` is non-blocking, and nobody else reads it.
    pub(crate) fn new(fd: OwnedFd) -> Capture {
        Capture { fd }
    }

    /// Reads once, up to one frame's worth. `buffer` is memory shared by all captures of the loop; it is empty.
    pub(crate) fn read(&self, buffer: &mut Vec<u8>) -> Read {
        buffer.clear();
        buffer.reserve_exact(MAX_OUTPUT);
        loop {
            match rustix::io::read(&self.fd, rustix::buffer::spare_capacity(buffer)) {
                Ok(0) => return Read::End,
                // A small piece is copied, so that it does not keep a large buffer alive while it waits.
                Ok(count) if count < MAX_OUTPUT / 2 => return Read::Bytes(Bytes::copy_from_slice(buffer)),
                Ok(_) => return Read::Bytes(std::mem::take(buffer).into()),
                Err(rustix::io::Errno::AGAIN) => return Read::Empty,
                Err(rustix::io::Errno::INTR) => {}
                // EIO is how the master of a pty says that all slaves are closed.
                Err(_) => return Read::End,
            }
        }
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
