//! Looks into another process: stops one of its threads for a moment, reads its registers and its memory.
//!
//! A thread is seized (`PTRACE_SEIZE`), not attached to: it gets no signal, and when the thread that holds it ends, for
//! whatever reason, the kernel lets it go on. Nothing here has to run for that.

use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, pid_t};
use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::Timespec;

/// Copies memory of a process to `into`, up to the first page that cannot be read; returns how much was copied.
///
/// # Errors
///
/// EPERM: the kernel does not permit it. ESRCH: the process is gone. EFAULT: nothing is mapped at this address.
pub fn read_memory(pid: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let Ok(address) = usize::try_from(address) else { return Err(io::Error::from_raw_os_error(libc::EFAULT)) };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: into.len() };
    // SAFETY: `local` is a buffer that is borrowed for writing; `remote` is not accessed by this process.
    let copied = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    if copied < 0 { Err(io::Error::last_os_error()) } else { Ok(copied as usize) }
}

/// What is needed of a thread's registers to find its frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    pub pc: u64,
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// The return address, where that is in a register (aarch64).
    pub lr: u64,
    /// The thread's own memory; on x86-64 this is also `pthread_self()`.
    pub tls: u64,
}

/// A thread that is stopped. It goes on when this is dropped, and when the calling thread ends.
#[derive(Debug)]
pub struct Held {
    tid: pid_t,
    /// It was about to receive this signal when it was stopped.
    signal: c_int,
    since: Instant,
    /// When it was seen to stand still.
    still_since: Instant,
    is_released: bool,
    /// Only the thread that has seized a thread may do anything with it.
    not_send: PhantomData<*const ()>,
}

/// Why a thread is not held.
#[derive(Debug)]
pub enum NotHeld {
    /// It did not stop in time: it waits in the kernel, uninterruptibly. **The calling thread must end soon:** the other one
    /// would stop when that wait is over, and stay so until then.
    StillPending,
    Gone,
    Refused(io::Error),
}

/// Stops a thread, within `limit`.
///
/// # Errors
///
/// Why it is not held. Except for [`NotHeld::StillPending`], it is as it was.
pub fn hold(tid: i32, limit: Duration) -> Result<Held, NotHeld> {
    let since = Instant::now();
    request(libc::PTRACE_SEIZE, tid, 0).map_err(refusal)?;
    // From here on the end of this thread detaches it.
    if let Err(error) = request(libc::PTRACE_INTERRUPT, tid, 0) {
        return Err(refusal(error));
    }
    match await_stop(tid, since + limit) {
        Ok(Some(signal)) => {
            let still_since = Instant::now();
            Ok(Held { tid, signal, since, still_since, is_released: false, not_send: PhantomData })
        }
        Ok(None) => Err(NotHeld::StillPending),
        Err(error) => Err(error),
    }
}

fn refusal(error: io::Error) -> NotHeld {
    if error.raw_os_error() == Some(libc::ESRCH) { NotHeld::Gone } else { NotHeld::Refused(error) }
}

/// Waits until a seized thread has stopped, and returns the signal that it was about to receive, or 0; `None` at the end of
/// the time.
fn await_stop(tid: pid_t, until: Instant) -> Result<Option<c_int>, NotHeld> {
    /// Where a CPU is free, the other thread stops within microseconds.
    const TRIES_WITHOUT_SLEEP: u32 = 40;
    /// To yield instead would give away a whole slice of time on a busy machine, while the other is stopped.
    const PAUSE: i64 = 20_000;
    /// One that has not stopped after so many pauses waits for a CPU, mostly for milliseconds: looking often takes CPU time from it.
    const SHORT: u32 = 10;
    const LONG_PAUSE: i64 = 150_000;
    for tries in 0u32.. {
        let mut status = 0;
        // SAFETY: `status` is valid for writing. `__WNOTHREAD` waits for nothing that another thread holds.
        let waited = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG | libc::__WNOTHREAD) };
        if waited < 0 {
            let error = io::Error::last_os_error();
            return Err(if error.raw_os_error() == Some(libc::ECHILD) {
                NotHeld::Gone
            } else {
                NotHeld::Refused(error)
            });
        }
        if waited == tid {
            if !libc::WIFSTOPPED(status) {
                return Err(NotHeld::Gone);
            }
            // Our own stop has the event in the upper bits. Without one it is about to receive this signal, and must get it.
            let signal = if status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 };
            return Ok(Some(signal));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        if tries < TRIES_WITHOUT_SLEEP {
            std::hint::spin_loop();
        } else {
            let tv_nsec = if tries < TRIES_WITHOUT_SLEEP + SHORT { PAUSE } else { LONG_PAUSE };
            if let NanosleepRelativeResult::Err(_) = nanosleep(&Timespec { tv_sec: 0, tv_nsec }) {
                rustix::thread::sched_yield();
            }
        }
    }
    Ok(None)
}

impl Held {
    /// Its registers.
    ///
    /// # Errors
    ///
    /// ESRCH: it was killed meanwhile.
    pub fn registers(&self) -> io::Result<Registers> {
        read_registers(self.tid)
    }

    /// Has the kernel begin a system call again that the stop has ended with EINTR, if it is one of `calls`: signal(7) has those
    /// that fail so after every stop. Such a call waits for its whole time again. If the thread is about to run a signal
    /// handler, the call fails with EINTR after that, as it would have without the stop.
    ///
    /// Only on x86-64: elsewhere the kernel has given up the call's arguments at this point.
    ///
    /// # Errors
    ///
    /// ESRCH: it was killed meanwhile.
    pub fn restart_call(&self, calls: impl Fn(i64) -> bool) -> io::Result<()> {
        restart_call(self.tid, calls)
    }

    /// For how long it has been seen to stand still.
    pub fn still_for(&self) -> Duration {
        self.still_since.elapsed()
    }

    /// Lets it go on, and returns for how long it was stopped, at most.
    pub fn release(mut self) -> Duration {
        self.detach();
        self.since.elapsed()
    }

    fn detach(&mut self) {
        if !std::mem::replace(&mut self.is_released, true) {
            // It fails only for a thread that was killed.
            let _ = request(libc::PTRACE_DETACH, self.tid, self.signal as usize);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.detach();
    }
}

fn request(request: libc::c_uint, tid: pid_t, data: usize) -> io::Result<()> {
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: the three requests in use (seize, interrupt, detach) take no pointer.
    let result = unsafe { libc::ptrace(request, tid, none, data as *mut c_void) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a set of registers into `set`, which must be of the set's type.
///
/// # Safety
///
/// `T` is plain numbers, of which any values are valid.
unsafe fn read_set<T>(tid: pid_t, kind: c_int, set: &mut T) -> io::Result<()> {
    let mut vector = libc::iovec { iov_base: std::ptr::from_mut(set).cast(), iov_len: size_of::<T>() };
    // SAFETY: the kernel writes at most `iov_len` bytes to the value that is borrowed here.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, kind as usize as *mut c_void, &raw mut vector) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(target_arch = "x86_64")]
fn read_registers(tid: pid_t) -> io::Result<Registers> {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut set: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the same structure.
    unsafe { read_set(tid, libc::NT_PRSTATUS, &mut set) }?;
    Ok(Registers { pc: set.rip, sp: set.rsp, fp: set.rbp, lr: 0, tls: set.fs_base })
}

#[cfg(target_arch = "x86_64")]
fn restart_call(tid: pid_t, calls: impl Fn(i64) -> bool) -> io::Result<()> {
    /// The kernel's own word, include/linux/errno.h: start again, unless a signal handler runs.
    const ERESTARTNOHAND: i64 = 514;
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut set: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the same structure.
    unsafe { read_set(tid, libc::NT_PRSTATUS, &mut set) }?;
    // -1 in place of the number: it was stopped in its own code.
    let (call, result) = (set.orig_rax as i64, set.rax as i64);
    if call < 0 || result != -i64::from(libc::EINTR) || !calls(call) {
        return Ok(());
    }
    let place = std::mem::offset_of!(libc::user, regs) + std::mem::offset_of!(libc::user_regs_struct, rax);
    let (place, value) = (place as *mut c_void, -ERESTARTNOHAND as *mut c_void);
    // SAFETY: this request takes an offset and a value, and no pointer.
    let written = unsafe { libc::ptrace(libc::PTRACE_POKEUSER, tid, place, value) };
    if written == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(not(target_arch = "x86_64"))]
fn restart_call(_: pid_t, _: impl Fn(i64) -> bool) -> io::Result<()> {
    Ok(())
}

#[cfg(target_arch = "aarch64")]
fn read_registers(tid: pid_t) -> io::Result<Registers> {
    /// `NT_ARM_TLS` of elf.h.
    const NT_ARM_TLS: c_int = 0x401;
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut set: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the same structure.
    unsafe { read_set(tid, libc::NT_PRSTATUS, &mut set) }?;
    let mut tls = 0u64;
    // SAFETY: a number. Newer kernels have two in this set; the size of the buffer bounds what is written.
    unsafe { read_set(tid, NT_ARM_TLS, &mut tls) }?;
    Ok(Registers { pc: set.pc, sp: set.sp, fp: set.regs[29], lr: set.regs[30], tls })
}

/// The numbers of system calls, by name.
#[allow(non_upper_case_globals, reason = "these are the names of the calls")]
pub mod numbers {
    macro_rules! numbers {
        ($($name:ident = $number:ident)*) => { $(pub const $name: i64 = libc::$number as i64;)* };
    }

    numbers! {
        clone = SYS_clone
        clone3 = SYS_clone3
        read = SYS_read
        write = SYS_write
        readv = SYS_readv
        writev = SYS_writev
        pread64 = SYS_pread64
        pwrite64 = SYS_pwrite64
        openat = SYS_openat
        close = SYS_close
        fsync = SYS_fsync
        fdatasync = SYS_fdatasync
        flock = SYS_flock
        fcntl = SYS_fcntl
        ioctl = SYS_ioctl
        statx = SYS_statx
        newfstatat = SYS_newfstatat
        getdents64 = SYS_getdents64
        renameat2 = SYS_renameat2
        unlinkat = SYS_unlinkat
        mkdirat = SYS_mkdirat
        ftruncate = SYS_ftruncate
        fallocate = SYS_fallocate
        sync = SYS_sync
        mmap = SYS_mmap
        munmap = SYS_munmap
        mprotect = SYS_mprotect
        madvise = SYS_madvise
        execve = SYS_execve
        futex = SYS_futex
        nanosleep = SYS_nanosleep
        clock_nanosleep = SYS_clock_nanosleep
        restart_syscall = SYS_restart_syscall
        wait4 = SYS_wait4
        waitid = SYS_waitid
        ppoll = SYS_ppoll
        pselect6 = SYS_pselect6
        rt_sigsuspend = SYS_rt_sigsuspend
        sched_yield = SYS_sched_yield
        connect = SYS_connect
        accept = SYS_accept
        accept4 = SYS_accept4
        sendto = SYS_sendto
        sendmsg = SYS_sendmsg
        recvfrom = SYS_recvfrom
        recvmsg = SYS_recvmsg
        recvmmsg = SYS_recvmmsg
        splice = SYS_splice
        sendfile = SYS_sendfile
        epoll_pwait = SYS_epoll_pwait
        epoll_pwait2 = SYS_epoll_pwait2
        semop = SYS_semop
        semtimedop = SYS_semtimedop
        msgrcv = SYS_msgrcv
        msgsnd = SYS_msgsnd
        io_getevents = SYS_io_getevents
        io_uring_enter = SYS_io_uring_enter
        rt_sigtimedwait = SYS_rt_sigtimedwait
    }

    #[cfg(target_arch = "x86_64")]
    numbers! {
        epoll_wait = SYS_epoll_wait
        pause = SYS_pause
        poll = SYS_poll
        select = SYS_select
        vfork = SYS_vfork
    }

    /// Those that newer architectures do not have.
    #[cfg(not(target_arch = "x86_64"))]
    mod absent {
        pub const epoll_wait: i64 = -2;
        pub const pause: i64 = -2;
        pub const poll: i64 = -2;
        pub const select: i64 = -2;
        pub const vfork: i64 = -2;
    }
    #[cfg(not(target_arch = "x86_64"))]
    pub use absent::*;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_thread_that_was_held_goes_on() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("sleep starts");
        let pid = child.id() as i32;
        let held = hold(pid, Duration::from_secs(10)).expect("it is a child");
        assert_eq!(crate::proc::process(pid).map(|process| process.state), Some('t'));
        let registers = held.registers().expect("it is stopped");
        let mut word = [0u8; 8];
        assert_eq!(read_memory(pid, registers.sp, &mut word).expect("a stack"), 8);
        held.release();
        while crate::proc::process(pid).map(|process| process.state) == Some('t') {
            rustix::thread::sched_yield();
        }
        assert!(matches!(hold(i32::MAX, Duration::from_secs(1)), Err(NotHeld::Gone)));
        child.kill().expect("it lives");
        child.wait().expect("it is a child");
    }
}
