//! What the process that the user has started is told by the job (`--detach`).

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

/// All ranks run.
const BEGUN: u8 = 1;

/// The process that the user has started, as the job sees it.
#[derive(Debug)]
pub(crate) struct Parent(File);

impl Parent {
    /// It reads the other end.
    pub(crate) fn new(pipe: OwnedFd) -> Parent {
        Parent(File::from(pipe))
    }

    /// Nobody waits.
    pub(crate) fn nobody() -> io::Result<Parent> {
        Ok(Parent::new(rankrun_sys::null()?))
    }

    /// All ranks run: it may go.
    pub(crate) fn dismiss(mut self) {
        // It may be gone.
        let _ = self.0.write_all(&[BEGUN]);
    }
}
