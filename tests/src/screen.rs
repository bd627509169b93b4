//! A terminal with a person at it: a pty whose other end is read into a screen, and a shell with job control on it.

use std::ffi::OsString;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::helper::{rankrun, shared_directory};
use crate::job::{Ended, Job, Running};
use crate::processes;
use crate::tier::Tier;
use crate::time::{monotonic, wait_until};

/// How long a screen may take to show what is expected.
const BOUND: Duration = Duration::from_secs(30);
/// What the shell says when it is ready. Nothing that is typed looks the same.
const PROMPT: &str = "ready>";

/// A terminal: what has been typed and shown.
#[derive(Debug)]
pub struct Screen {
    master: OwnedFd,
    /// Held so that the terminal outlives the processes on it.
    slave: OwnedFd,
    path: PathBuf,
    shown: Arc<Mutex<Shown>>,
}

struct Shown {
    parser: vt100::Parser,
    /// Every byte, for what has scrolled away or been overwritten.
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shown").finish_non_exhaustive()
    }
}

impl Screen {
    /// A terminal with this window.
    ///
    /// # Panics
    /// If the system has none left.
    pub fn new(rows: u16, columns: u16) -> Screen {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).expect("a pty can be had");
        rustix::pty::unlockpt(&master).expect("the pty is ours");
        let path = rustix::pty::ptsname(&master, Vec::new()).expect("the pty has a name");
        let path = PathBuf::from(path.into_string().expect("an ASCII name"));
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&path, flags, Mode::empty()).expect("the pty is ours");
        let parser = vt100::Parser::new(size(rows), size(columns), 1000);
        let shown = Arc::new(Mutex::new(Shown { parser, bytes: Vec::new() }));
        let screen = Screen { master, slave, path, shown };
        screen.set_window(rows, columns);
        let reader = screen.master.try_clone().expect("a descriptor can be copied");
        let shown = Arc::clone(&screen.shown);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The end of the terminal is an error (EIO).
            while let Ok(count @ 1..) = rustix::io::read(&reader, &mut buffer) {
                let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                shown.parser.process(&buffer[..count]);
                shown.bytes.extend_from_slice(&buffer[..count]);
            }
        });
        screen
    }

    /// The end of the programs on it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn set_window(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.master, size).expect("the terminal is ours");
    }

    /// Sets the window of the terminal: the kernel sends SIGWINCH to the programs on it.
    pub fn resize(&self, rows: u16, columns: u16) {
        self.look(|shown| shown.parser.screen_mut().set_size(size(rows), size(columns)));
        self.set_window(rows, columns);
    }

    fn look<T>(&self, look: impl FnOnce(&mut Shown) -> T) -> T {
        look(&mut self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Presses keys.
    pub fn press(&self, keys: &str) {
        let mut rest = keys.as_bytes();
        while !rest.is_empty() {
            let count = rustix::io::write(&self.master, rest).expect("the terminal is ours");
            rest = &rest[count..];
        }
    }

    /// The rows of the screen, without the spaces at their ends.
    pub fn rows(&self) -> Vec<String> {
        self.look(|shown| {
            let screen = shown.parser.screen();
            let columns = screen.size().1.get();
            screen.rows(0, columns).map(|row| row.trim_end().to_owned()).collect()
        })
    }

    /// The screen as text.
    pub fn text(&self) -> String {
        self.rows().join("\n").trim_end().to_owned()
    }

    /// Everything that was ever written to the terminal.
    pub fn all(&self) -> String {
        self.look(|shown| String::from_utf8_lossy(&shown.bytes).into_owned())
    }

    /// Row and column of the cursor.
    pub fn cursor(&self) -> (u16, u16) {
        self.look(|shown| shown.parser.screen().cursor_position())
    }

    /// Whether a program shows a screen of its own, as editors do.
    pub fn is_alternate(&self) -> bool {
        self.look(|shown| shown.parser.screen().alternate_screen())
    }

    /// The process group in the foreground.
    pub fn foreground(&self) -> i32 {
        rustix::termios::tcgetpgrp(&self.master).map_or(0, |group| group.as_raw_nonzero().get())
    }

    /// The modes of the terminal as `stty` prints them, without the window.
    pub fn modes(&self) -> String {
        let modes = rustix::termios::tcgetattr(&self.slave).expect("the terminal is ours");
        format!("{:?} {:?} {:?}", modes.input_modes, modes.output_modes, modes.local_modes)
    }

    /// Waits until the screen is as `condition` wants it.
    ///
    /// # Panics
    /// If that does not come within the bound.
    pub fn wait(&self, what: &str, mut condition: impl FnMut(&Screen) -> bool) {
        if wait_until(BOUND, || condition(self).then_some(())).is_none() {
            panic!("no {what} within {BOUND:?}; cursor {:?}, screen:\n{}", self.cursor(), self.text());
        }
    }

    /// Waits until the text stands on the screen.
    pub fn wait_for(&self, text: &str) {
        self.wait(&format!("\"{text}\""), |screen| screen.text().contains(text));
    }

    /// Waits until a row of the screen is just this.
    pub fn wait_for_row(&self, row: &str) {
        self.wait(&format!("row \"{row}\""), |screen| screen.rows().iter().any(|shown| shown == row));
    }
}

fn size(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a window has rows and columns")
}

/// A person at a shell.
#[derive(Debug)]
pub struct Session {
    pub screen: Screen,
    pub running: Running,
    /// How many prompts have been seen.
    prompts: usize,
}

impl Session {
    /// An interactive bash on a screen of 24 rows of 80 columns, whose `$R` is rankrun.
    pub fn start(tier: Tier) -> Session {
        Session::start_by(tier, ["bash", "--norc", "--noprofile", "--noediting", "-i"])
    }

    /// Another shell, such as `sh -im`.
    pub fn start_by<const N: usize>(tier: Tier, shell: [&str; N]) -> Session {
        Session::start_job(tier, Job::of_program(shell[0], &shell[1..]).env("PS1", PROMPT), true)
    }

    /// A program on the terminal that is not a shell, and that no shell controls: what `xterm -e` and `ssh -t` do.
    pub fn start_alone(tier: Tier, arguments: &[&str]) -> Session {
        Session::start_job(tier, Job::new(arguments), false)
    }

    fn start_job(tier: Tier, job: Job, has_prompt: bool) -> Session {
        let screen = Screen::new(24, 80);
        let mut path = OsString::from(shared_directory());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let job = job.tier(tier).env("R", rankrun()).env("PATH", path).env("TERM", "xterm");
        let job = job.env_remove("PROMPT_COMMAND").env("HISTFILE", "").env("LC_ALL", "C.UTF-8").env("LANG", "C.UTF-8");
        let running = job.terminal(&screen.path).start();
        let mut session = Session { screen, running, prompts: 0 };
        if has_prompt {
            session.wait_for_prompt();
        }
        session
    }

    /// Types a line.
    pub fn line(&self, line: &str) {
        self.screen.press(&format!("{line}\n"));
    }

    /// Presses ^C until the text is on the screen. Interpreters that are just about to read keep the first one until the
    /// next key.
    pub fn interrupt_until(&self, text: &str) {
        let mut next = monotonic();
        self.screen.wait(&format!("\"{text}\" after ^C"), |screen| {
            if screen.text().contains(text) {
                return true;
            }
            if monotonic() >= next {
                screen.press("\x03");
                next = monotonic() + Duration::from_secs(2);
            }
            false
        });
    }

    /// Waits until a program of this name has the terminal: the shell says so before it is so, and would get the next key itself.
    pub fn wait_for_foreground(&self, name: &str) {
        let leader = || processes::process(self.screen.foreground());
        let is_there = || leader().filter(|leader| leader.name == name);
        assert!(wait_until(BOUND, is_there).is_some(), "{name} has no terminal; screen:\n{}", self.screen.text());
    }

    /// Waits for the shell's next prompt.
    pub fn wait_for_prompt(&mut self) {
        self.prompts += 1;
        let prompts = self.prompts;
        self.screen.wait("prompt", |screen| screen.all().matches(PROMPT).count() >= prompts);
        self.prompts = prompts;
    }

    /// Types a line and waits until the shell has done it.
    pub fn run(&mut self, line: &str) {
        self.line(line);
        self.wait_for_prompt();
    }

    /// Waits until rank 0 of a single-rank job runs, and returns its pid. The command writes it to a file of this name.
    pub fn pid(&self, name: &str) -> i32 {
        let path = self.running.directory().join(name);
        let read = || std::fs::read_to_string(&path).ok()?.strip_suffix('\n')?.parse().ok();
        wait_until(BOUND, read).unwrap_or_else(|| panic!("no pid in \"{name}\"; screen:\n{}", self.screen.text()))
    }

    /// Leaves the shell, and proves that nothing is left.
    pub fn finish(mut self) -> Ended {
        self.wait_for_exit_of_jobs();
        self.line("exit");
        self.running.finish(BOUND)
    }

    fn wait_for_exit_of_jobs(&mut self) {
        self.screen.wait("end of the shell's jobs", |_| {
            let shell = crate::processes::children(self.running.front());
            shell.is_empty()
        });
    }
}
