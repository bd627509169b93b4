//! What the process that the user has started is told by the job (`--detach`).

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// All ranks run.
pub(crate) const BEGUN: u8 = 1;
/// The job is over before that. The exit code follows.
pub(crate) const OVER: u8 = 2;

/// The process that the user has started, as the job sees it.
#[derive(Debug)]
pub(crate) struct Parent {
    pipe: File,
    /// It is no parent of this process, which has taken the place of another one, and waits until all ranks run.
    pub(crate) is_inherited: bool,
}

impl Parent {
    /// It reads the other end.
    pub(crate) fn new(pipe: OwnedFd) -> Parent {
        Parent { pipe: File::from(pipe), is_inherited: false }
    }

    /// What an heir has as its stdout, which it has for the front that it becomes.
    pub(crate) fn inherited() -> io::Result<Parent> {
        let pipe = rustix::stdio::stdout().try_clone_to_owned()?;
        rustix::stdio::dup2_stdout(rankrun_sys::null()?)?;
        Ok(Parent { is_inherited: true, ..Parent::new(pipe) })
    }

    pub(crate) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// All ranks run: it may go.
    pub(crate) fn dismiss(mut self) {
        // It may be gone.
        let _ = self.pipe.write_all(&[BEGUN]);
    }

    /// The job is over: whoever is our parent sees our end.
    pub(crate) fn tell_end(mut self, code: u8) {
        if self.is_inherited {
            // As above.
            let _ = self.pipe.write_all(&[OVER, code]);
        }
    }
}
