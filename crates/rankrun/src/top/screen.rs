//! The terminal: its modes, what is written to it, and that both are put back whatever happens.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rankrun_sys::terminal;
use ratatui_core::backend::Backend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::CrosstermBackend;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios};

/// The alternate screen (xterm), without a cursor; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// The terminal as it was, for a panic: its hook knows nothing else.
static SAVED: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// The terminal, in modes of ours. It is put back when this goes.
#[derive(Debug)]
pub(crate) struct Screen {
    /// A description of our own: it does not block, and the shell's does.
    tty: OwnedFd,
    modes: Termios,
    /// What the terminal has not taken.
    pending: Vec<u8>,
    shown: Buffer,
}

impl Screen {
    /// Takes the terminal that is stdout.
    pub(crate) fn open() -> io::Result<Screen> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |path: &str| rustix::fs::open(path, flags, Mode::empty());
        // Another user's terminal (su) can be opened only as the controlling one.
        let tty = open("/proc/self/fd/1").or_else(|_| open("/dev/tty"))?;
        let modes = rustix::termios::tcgetattr(&tty)?;
        let screen = Screen { tty, modes, pending: Vec::new(), shown: Buffer::default() };
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some((screen.tty.try_clone()?, screen.modes.clone()));
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // A panic while it is locked is not possible: nothing else is done with it.
            if let Some((tty, modes)) = SAVED.try_lock().ok().and_then(|mut saved| saved.take()) {
                put_back(&tty, &modes);
            }
            default(info);
        }));
        screen.enter()
    }

    fn enter(mut self) -> io::Result<Screen> {
        self.take()?;
        Ok(self)
    }

    /// Sets our modes, and begins with an empty screen: also after the process was stopped.
    pub(crate) fn take(&mut self) -> io::Result<()> {
        let mut raw = self.modes.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(&self.tty, OptionalActions::Now, &raw)?;
        self.pending.clear();
        self.pending.extend_from_slice(ENTER);
        self.shown = Buffer::default();
        self.flush()
    }

    /// Puts the terminal back as it was.
    pub(crate) fn give_back(&mut self) {
        // What was not taken is of no use on the other screen.
        self.pending.clear();
        put_back(&self.tty, &self.modes);
    }

    /// The window.
    pub(crate) fn area(&self) -> Rect {
        let (rows, columns) = terminal::window(&self.tty).unwrap_or((24, 80));
        Rect { x: 0, y: 0, width: columns.min(1000), height: rows.min(1000) }
    }

    /// Everything is written again with the next picture.
    pub(crate) fn forget(&mut self) {
        self.shown = Buffer::default();
        self.pending.extend_from_slice(b"\x1b[0m\x1b[2J");
    }

    /// Whether the terminal has taken all that was written.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Shows a picture: what differs from the last one is written.
    pub(crate) fn show(&mut self, picture: Buffer) -> io::Result<()> {
        if self.shown.area != picture.area {
            self.forget();
            self.shown = Buffer::empty(picture.area);
        }
        let mut bytes = std::mem::take(&mut self.pending);
        let mut backend = CrosstermBackend::new(&mut bytes);
        backend.draw(self.shown.diff(&picture).into_iter())?;
        Backend::flush(&mut backend)?;
        self.pending = bytes;
        self.shown = picture;
        self.flush()
    }

    /// Writes as much as the terminal takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            match rustix::io::write(&self.tty, &self.pending) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what was typed. `None`: the terminal is gone.
    pub(crate) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let mut room = [0; 1024];
        match rustix::io::read(&self.tty, &mut room) {
            Ok(0) => Ok(None),
            Ok(count) => Ok(Some(room[..count].to_vec())),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Some(Vec::new())),
            Err(Errno::IO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.give_back();
        SAVED.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl AsFd for Screen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tty.as_fd()
    }
}

fn put_back(tty: &OwnedFd, modes: &Termios) {
    // A terminal that takes nothing, or is gone, cannot be helped.
    if let Ok(tty) = tty.try_clone() {
        let _ = File::from(tty).write_all(LEAVE);
    }
    let _ = rustix::termios::tcsetattr(tty, OptionalActions::Now, modes);
}
