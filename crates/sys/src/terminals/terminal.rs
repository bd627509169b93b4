//! The terminal that the front was started on, and job control.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};

/// Whether a descriptor is a terminal.
pub fn is_terminal(fd: impl AsFd) -> bool {
    rustix::termios::isatty(fd)
}

/// Which of stdin, stdout and stderr were terminals when this process, or the one that it is a fork of, first asked.
pub fn standard() -> [bool; 3] {
    static STANDARD: OnceLock<[bool; 3]> = OnceLock::new();
    *STANDARD.get_or_init(|| {
        [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()].map(rustix::termios::isatty)
    })
}

/// The window of a terminal as rows and columns.
pub fn window(fd: impl AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(fd).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Whether two descriptors lead to the same file, pipe or terminal, by what fstat(2) says of them.
pub fn are_one_file(found: &[Option<rustix::fs::Stat>; 2]) -> bool {
    match found {
        [Some(one), Some(other)] => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// The modes of a terminal, such as raw or cooked, at one time.
#[derive(Clone, Debug)]
pub struct Modes(Termios);

impl Modes {
    /// The same, but for this: a key is read when it is pressed, and not shown.
    pub fn for_keys(&self) -> Modes {
        let Modes(mut modes) = self.clone();
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        Modes(modes)
    }
}

/// The controlling terminal of this process.
#[derive(Debug)]
pub struct ControllingTerminal {
    terminal: OwnedFd,
    own_group: Pid,
}

impl ControllingTerminal {
    /// Opens the controlling terminal of this process. Writing to it from the background, and moving the foreground
    /// group, must not stop us: SIGTTOU is ignored from now on.
    pub fn open() -> io::Result<ControllingTerminal> {
        let terminal = rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?;
        crate::signal::ignore(libc::SIGTTOU);
        Ok(ControllingTerminal { terminal, own_group: rustix::process::getpgrp() })
    }

    /// Whether our own process group is in the foreground.
    pub fn in_foreground(&self) -> bool {
        self.foreground() == Some(self.own_group.as_raw_pid())
    }

    /// The process group that is in the foreground. The kernel names one also after its last process is gone.
    pub fn foreground(&self) -> Option<i32> {
        rustix::termios::tcgetpgrp(&self.terminal).ok().map(Pid::as_raw_pid)
    }

    /// Gives the foreground to another process group of our session.
    pub fn lend(&self, group: i32) -> io::Result<()> {
        let group = Pid::from_raw(group).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(rustix::termios::tcsetpgrp(&self.terminal, group)?)
    }

    /// Forgets what was typed and not read.
    pub fn forget_input(&self) {
        // A terminal that is gone has nothing.
        let _ = rustix::termios::tcflush(&self.terminal, rustix::termios::QueueSelector::IFlush);
    }

    /// Takes the foreground for our own group, whoever has it.
    pub fn take(&self) {
        let _ = rustix::termios::tcsetpgrp(&self.terminal, self.own_group);
    }

    /// The modes as they are now.
    pub fn modes(&self) -> Option<Modes> {
        rustix::termios::tcgetattr(&self.terminal).ok().map(Modes)
    }

    /// Sets the modes at once: output stopped by ^S must not block us.
    pub fn set_modes(&self, modes: &Modes) {
        let _ = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &modes.0);
    }

    /// The window as rows and columns.
    pub fn window(&self) -> Option<(u16, u16)> {
        window(&self.terminal)
    }

    /// Goes on in the background, where a shell waits for us in the foreground: it sees us stop, and takes the terminal. Another parent,
    /// such as a script, sees nothing. Takes 2 s at most.
    pub fn step_aside(&self) {
        let pid = rustix::process::getpid();
        // A shell gives each of its jobs a group.
        let is_job =
            self.own_group == pid && rustix::process::getppid().is_some_and(|parent| is_of_other_group(parent, pid));
        for pause in STEPS_ASIDE {
            if !is_job || !self.in_foreground() || !stop_for(pause) {
                return;
            }
        }
    }
}

impl AsFd for ControllingTerminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}

/// How long we are stopped until the shell has seen it: when it has, it has taken the terminal.
const STEPS_ASIDE: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(600), Duration::from_millis(1200)];

/// Whether a process is of our session, and of another process group.
fn is_of_other_group(process: Pid, group: Pid) -> bool {
    let session = rustix::process::getsid(None).ok();
    let is_of_session = session.is_some() && rustix::process::getsid(Some(process)).ok() == session;
    is_of_session && rustix::process::getpgid(Some(process)).is_ok_and(|its| its != group)
}

/// Stops this process for so long. The kernel continues it, whatever becomes of others. `false`: it was not stopped.
#[expect(clippy::disallowed_methods, reason = "our own pid is ours")]
fn stop_for(time: Duration) -> bool {
    // SAFETY: the structs are initialised before their use, and live as long as the calls; kill touches no memory of ours.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGCONT;
        let mut timer: libc::timer_t = std::mem::zeroed();
        if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0 {
            return false;
        }
        let mut at: libc::itimerspec = std::mem::zeroed();
        at.it_value.tv_sec = time.as_secs() as libc::time_t;
        at.it_value.tv_nsec = time.subsec_nanos() as _;
        // Should it expire before we have stopped, it continues us the next time.
        at.it_interval = at.it_value;
        let is_set = libc::timer_settime(timer, 0, &at, std::ptr::null_mut()) == 0;
        let stopped = is_set && libc::kill(libc::getpid(), libc::SIGSTOP) == 0;
        libc::timer_delete(timer);
        stopped
    }
}

/// Whether a process group has no process.
pub fn is_empty_group(group: i32) -> bool {
    Pid::from_raw(group)
        .is_none_or(|group| matches!(rustix::process::test_kill_process_group(group), Err(rustix::io::Errno::SRCH)))
}

/// Stops this process, and with `group` its whole process group, by a signal of job control, as if the signal had never
/// been caught. Returns after it has been continued.
///
/// `false` says that it was not stopped at all: the kernel drops these signals in an orphaned process group, where no
/// shell could continue it. The calling thread must have SIGCONT blocked, and all threads the signal, except SIGTTOU.
#[expect(clippy::disallowed_methods, reason = "0 is our own process group, and our own pid is ours")]
pub fn stop_by(signal: i32, group: bool) -> bool {
    // SAFETY: the structs are initialised before their use; SIG_DFL runs no code; the former disposition and the former
    // mask are put back. kill touches no memory of ours.
    unsafe {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        let mut former: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, &default, &mut former) != 0 {
            return false;
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        let mut mask: libc::sigset_t = std::mem::zeroed();
        // Sent while it is blocked, the signal is pending for the process; the kernel forgets an earlier SIGCONT with it.
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut mask);
        libc::kill(if group { 0 } else { libc::getpid() }, signal);
        // The process is stopped here.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
        libc::sigaction(signal, &former, std::ptr::null_mut());
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut pending) == 0 && libc::sigismember(&pending, libc::SIGCONT) == 1
    }
}

/// Sends a signal to our own process group: what a key of the terminal does to the foreground.
#[expect(clippy::disallowed_methods, reason = "0 is our own process group")]
pub fn signal_own_group(signal: i32) {
    // SAFETY: kill touches no memory of ours.
    unsafe { libc::kill(0, signal) };
}
