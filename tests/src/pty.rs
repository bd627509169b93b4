//! A terminal for a job to run on, with a test in the place of the person.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::time::wait_until;

/// How long a test waits for something to appear.
const BOUND: Duration = Duration::from_secs(10);

/// A pty: the job has one end, the test types and reads at the other.
#[derive(Debug)]
pub struct Pty {
    keyboard: File,
    path: PathBuf,
    seen: Arc<Mutex<Vec<u8>>>,
    /// The job's end stays open here too, or what is shown would be lost between two jobs.
    _job_end: File,
}

impl Pty {
    /// A new terminal of this size.
    ///
    /// # Panics
    /// If the system gives none.
    pub fn open(rows: u16, columns: u16) -> Pty {
        let open = || -> std::io::Result<Pty> {
            let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
            rustix::pty::grantpt(&master)?;
            rustix::pty::unlockpt(&master)?;
            let path =
                PathBuf::from(std::ffi::OsString::from_vec(rustix::pty::ptsname(&master, Vec::new())?.into_bytes()));
            let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            rustix::termios::tcsetwinsize(&master, size)?;
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            let job_end = File::from(rustix::fs::open(&path, flags, Mode::empty())?);
            let keyboard = File::from(master);
            let mut screen = keyboard.try_clone()?;
            let seen = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&seen);
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = screen.read(&mut buffer) {
                    sink.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
                }
            });
            Ok(Pty { keyboard, path, seen, _job_end: job_end })
        };
        open().expect("the system has ptys")
    }

    /// The job's end.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Presses keys.
    ///
    /// # Panics
    /// If nobody can read them any more.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// All bytes that have been written to the terminal.
    pub fn seen(&self) -> Vec<u8> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `text` has been shown `times` times.
    ///
    /// # Panics
    /// If it does not come.
    pub fn wait_for(&self, text: &str, times: usize) {
        let shown = || String::from_utf8_lossy(&self.seen()).matches(text).count() >= times;
        let came = wait_until(BOUND, || shown().then_some(()));
        assert!(came.is_some(), "{text:?} was not shown {times} times: {:?}", String::from_utf8_lossy(&self.seen()));
    }
}
