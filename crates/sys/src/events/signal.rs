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

/// Blocks every signal in this thread until the result goes.
pub(crate) struct Blocked(libc::sigset_t);

impl Blocked {
    pub(crate) fn all() -> Blocked {
        // SAFETY: sigfillset initialises the set, pthread_sigmask the one before it.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Blocked(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set was initialised by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Blocks these signals in this thread, and no others.
pub fn block_only(signals: &[i32]) {
    let set = set_of(signals);
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
}

/// Blocks these signals in this thread, and in those that it starts and forks from now on. A process that they are sent to does not notice.
pub fn block(signals: &[i32]) {
    let set = set_of(signals);
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// The signals whose disposition rankrun may change in itself.
const OURS: [i32; 12] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGCHLD,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGXFSZ,
];

/// A bit for each of ours that was ignored when this program was started.
static IGNORED_AT_START: AtomicU64 = AtomicU64::new(0);
/// The same, now.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// In programs that begin as those of the standard library do, SIGPIPE is ignored before `main`: the caller's dispositions are read before that.
// SAFETY: the section holds pointers to functions of this type, which the dynamic linker calls before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static READ_DISPOSITIONS: extern "C" fn() = read_dispositions;

extern "C" fn read_dispositions() {
    let ignored = OURS.iter().filter(|signal| is_ignored(**signal)).fold(0, |bits, signal| bits | 1 << signal);
    IGNORED_AT_START.store(ignored, Ordering::Relaxed);
    // The runtime does the same in a moment, or `set_ours`.
    IGNORED.store(ignored | 1 << SIGPIPE, Ordering::Relaxed);
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: reads the disposition into a zeroed struct, changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// The signals that were ignored when this program was started, among those that rankrun changes. All others, children get as they are.
pub fn ignored_at_start() -> Vec<i32> {
    let ignored = IGNORED_AT_START.load(Ordering::Relaxed);
    (1..=31).filter(|signal| ignored >> signal & 1 == 1).collect()
}

/// All signals that were ignored when this program was started: ranks on other machines start with the same.
pub fn all_ignored_at_start() -> Vec<i32> {
    let others = (1..=31).filter(|signal| !OURS.contains(signal) && is_ignored(*signal));
    ignored_at_start().into_iter().chain(others).collect()
}

/// Sets a child's dispositions: these signals are ignored, all others of ours have their default. Async-signal-safe.
pub(crate) fn set_ignored(ignored: &[i32]) {
    let now = IGNORED.load(Ordering::Relaxed);
    let is_ignored = |signal: i32| now >> signal & 1 == 1;
    for &signal in OURS.iter().filter(|signal| is_ignored(**signal) && !ignored.contains(signal)) {
        // SAFETY: it runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    for &signal in ignored.iter().filter(|signal| !is_ignored(**signal)) {
        // SAFETY: as above.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Sets the dispositions that rankrun needs, whatever its caller had set. The first thing in `main`, so that all
/// forks and threads have them; ranks get those of [`ignored_at_start`] back.
///
/// * SIGCHLD has its default: if it is ignored, children vanish without an exit status (wait(2)).
/// * SIGPIPE and SIGXFSZ are ignored: a missing reader, or the limit on file size, is then an error of the write.
pub fn set_ours() {
    if IGNORED.load(Ordering::Relaxed) >> SIGCHLD & 1 == 1 {
        restore(SIGCHLD);
    }
    ignore(SIGPIPE);
    ignore(libc::SIGXFSZ);
}

/// Restores the default disposition of all signals that the caller may have ignored.
pub fn restore_all() {
    (1..=31).filter(|signal| ![SIGPIPE, libc::SIGXFSZ].contains(signal) && is_ignored(*signal)).for_each(restore);
}

/// Restores a signal's default disposition.
pub fn restore(signal: i32) {
    IGNORED.fetch_and(!(1 << signal), Ordering::Relaxed);
    // SAFETY: SIG_DFL runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Ignores a signal.
pub fn ignore(signal: i32) {
    IGNORED.fetch_or(1 << signal, Ordering::Relaxed);
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
