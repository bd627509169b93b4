//! The terminal that the front was started on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios};

/// Whether a descriptor is a terminal.
pub fn is_terminal(fd: impl AsFd) -> bool {
    rustix::termios::isatty(fd)
}

/// The window of a terminal as rows and columns.
pub fn window(fd: impl AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(fd).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Whether two descriptors lead to the same file, pipe or terminal.
pub fn same_file(one: impl AsFd, other: impl AsFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// The controlling terminal, lent to a worker: its foreground group and its modes are put back when this is done.
#[derive(Debug)]
pub struct ControllingTerminal {
    terminal: OwnedFd,
    modes: Option<Termios>,
    own_group: Pid,
}

impl ControllingTerminal {
    /// Opens the controlling terminal of this process. Writing to it from the background, and moving the foreground
    /// group, must not stop us: SIGTTOU is ignored from now on.
    pub fn open() -> io::Result<ControllingTerminal> {
        let terminal = rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?;
        crate::signal::ignore(libc::SIGTTOU);
        let modes = rustix::termios::tcgetattr(&terminal).ok();
        Ok(ControllingTerminal { terminal, modes, own_group: rustix::process::getpgrp() })
    }

    /// Whether our own process group is in the foreground.
    pub fn in_foreground(&self) -> bool {
        rustix::termios::tcgetpgrp(&self.terminal).is_ok_and(|group| group == self.own_group)
    }

    /// Gives the foreground to the process group of a worker.
    pub fn lend(&self, group: i32) -> io::Result<()> {
        let group = Pid::from_raw(group).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(rustix::termios::tcsetpgrp(&self.terminal, group)?)
    }

    /// The modes as they are now.
    pub fn modes(&self) -> Option<Termios> {
        rustix::termios::tcgetattr(&self.terminal).ok()
    }

    /// Sets the modes.
    pub fn set_modes(&self, modes: &Termios) {
        let _ = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Drain, modes);
    }

    /// Takes the foreground back from the group that it was lent to, with the modes that the terminal had when it was
    /// opened. Where somebody else has the terminal by now (`bg`), it is left alone.
    pub fn take_back(&self, from: i32) {
        let holder = rustix::termios::tcgetpgrp(&self.terminal);
        if holder.is_ok_and(|holder| holder.as_raw_pid() == from || holder == self.own_group) {
            let _ = rustix::termios::tcsetpgrp(&self.terminal, self.own_group);
            if let Some(modes) = &self.modes {
                self.set_modes(modes);
            }
        }
    }
}
