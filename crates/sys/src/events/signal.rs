//! Signals: sent by pid, received through a descriptor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

pub use libc::{
    SIGABRT, SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGQUIT, SIGSEGV, SIGSTOP, SIGTERM, SIGTSTP,
    SIGTTIN, SIGTTOU, SIGURG, SIGUSR1, SIGUSR2, SIGWINCH,
};

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set; sigaddset refuses a bad number without touching it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Signals that arrive as bytes of a descriptor instead of interrupting.
#[derive(Debug)]
pub struct SignalFd {
    fd: OwnedFd,
}

impl SignalFd {
    /// Blocks the signals in this thread, and in those that it starts from now on, and opens a descriptor for them.
    pub fn new(signals: &[i32]) -> io::Result<SignalFd> {
        let set = set_of(signals);
        // SAFETY: the set is initialised; the descriptor is new and ours.
        unsafe {
            if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(SignalFd { fd: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// The next signal that has arrived, and the process that sent it.
    pub fn next(&self) -> Option<(i32, i32)> {
        // SAFETY: the kernel writes whole records of this size into the buffer, or nothing.
        unsafe {
            let mut record: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            let read = libc::read(self.fd.as_raw_fd(), (&raw mut record).cast(), size);
            (read == size as isize).then_some((record.ssi_signo as i32, record.ssi_pid as i32))
        }
    }
}

impl std::os::fd::AsFd for SignalFd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Blocks every signal in this thread.
pub fn block_all() {
    // SAFETY: the set is initialised by sigfillset.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// A bit for each signal that was ignored when this program was started.
static IGNORED_AT_START: AtomicU64 = AtomicU64::new(0);

/// Rust's runtime ignores SIGPIPE before `main`, so the caller's dispositions are read before that.
// SAFETY: the section holds pointers to functions of this type, which the dynamic linker calls before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static READ_DISPOSITIONS: extern "C" fn() = read_dispositions;

extern "C" fn read_dispositions() {
    let mut ignored = 0;
    for signal in 1..=31 {
        // SAFETY: reads the disposition into a zeroed struct, changes nothing.
        let is_ignored = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
        };
        ignored |= u64::from(is_ignored) << signal;
    }
    IGNORED_AT_START.store(ignored, Ordering::Relaxed);
}

/// The signals that were ignored when this program was started. The ranks start with the same.
pub fn ignored_at_start() -> Vec<i32> {
    let ignored = IGNORED_AT_START.load(Ordering::Relaxed);
    (1..=31).filter(|signal| ignored >> signal & 1 == 1).collect()
}

/// Sets the dispositions that rankrun needs, whatever its caller had set. Called at the start of `main`, so that all
/// forks and threads have them; ranks get those of [`ignored_at_start`] back.
///
/// * SIGCHLD has its default: if it is ignored, children vanish without an exit status (wait(2)).
/// * SIGPIPE and SIGXFSZ are ignored: a missing reader, or the limit on file size, is then an error of the write.
pub fn set_ours() {
    restore(SIGCHLD);
    ignore(SIGPIPE);
    ignore(libc::SIGXFSZ);
}

/// Restores a signal's default disposition.
pub fn restore(signal: i32) {
    // SAFETY: SIG_DFL runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Ignores a signal.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN runs no code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Ends this process by a signal, as if it had never been caught, so that our parent sees the signal in the status.
pub fn die_of(signal: i32) {
    // SAFETY: restores the default, unblocks the signal in this thread and raises it. Where the default is not to end
    // the process, this returns.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let set = set_of(&[signal]);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}
