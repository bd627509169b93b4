//! Pseudo-terminals for ranks' stdout: raw (no echo, no newline translation), mode 0600, without an entry in utmp, and
//! nobody's controlling terminal.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pty::OpenptFlags;
use rustix::termios::{OptionalActions, Winsize};

/// The two ends of a pty.
#[derive(Debug)]
pub struct Pty {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// Opens a pty with the given window (rows, columns). Both ends are close-on-exec.
pub fn open(window: Option<(u16, u16)>) -> io::Result<Pty> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let slave =
        rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    // devpts may be mounted with a mode that lets the group write (`wall`, `mesg y`).
    let _ = rustix::fs::fchmod(&slave, rustix::fs::Mode::from_raw_mode(0o600));
    let mut modes = rustix::termios::tcgetattr(&slave)?;
    modes.make_raw();
    rustix::termios::tcsetattr(&slave, OptionalActions::Now, &modes)?;
    if let Some(window) = window {
        resize(&master, window)?;
    }
    Ok(Pty { master, slave })
}

/// Sets the window of a pty (rows, columns).
pub fn resize(master: &OwnedFd, (rows, columns): (u16, u16)) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}
