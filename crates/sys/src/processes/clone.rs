//! A vfork-style clone: the child runs on a stack of its own in our memory, and we wait until it has called exec.
//!
//! glibc's `clone` cannot place a child in a cgroup (`CLONE_INTO_CGROUP` exists in `clone3` alone), and its `vfork`
//! would share our stack frame. So the system call is made here, in a dozen instructions per architecture.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::AtomicI32;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// The kernel's `struct clone_args`, version 2 (Linux 5.7).
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// What the child runs. It must not return, allocate, lock or panic.
pub(crate) type ChildMain = unsafe extern "C" fn(*mut c_void) -> !;

/// Memory for the child's stack, made once per spawner. The lowest page is left unmapped to catch an overflow.
#[derive(Debug)]
pub(crate) struct ChildStack {
    base: *mut c_void,
}

// SAFETY: the mapping belongs to this value alone; nothing in it depends on the thread that made it.
unsafe impl Send for ChildStack {}

const STACK_SIZE: usize = 64 * 1024;
const GUARD_SIZE: usize = 4096;

impl ChildStack {
    pub(crate) fn new() -> io::Result<ChildStack> {
        // SAFETY: an anonymous mapping at an address that the kernel chooses touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                STACK_SIZE + GUARD_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page lies within the mapping just made, and nothing points into it yet.
        unsafe { libc::mprotect(base, GUARD_SIZE, libc::PROT_NONE) };
        Ok(ChildStack { base })
    }

    fn bottom(&self) -> u64 {
        self.base as u64 + GUARD_SIZE as u64
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: `base` is the start of a mapping of this size, made in `new`; the child that used it has called exec.
        unsafe { libc::munmap(self.base, STACK_SIZE + GUARD_SIZE) };
    }
}

/// Clones a child into `cgroup` (a directory descriptor) or, without one, into our own. Returns its pid once it has
/// called exec or ended; `under_way` has it from the clone on.
///
/// # Safety
/// `main` must be async-signal-safe, must not return, and `argument` must stay valid until this returns.
pub(crate) unsafe fn clone_into(
    stack: &mut ChildStack,
    cgroup: Option<i32>,
    under_way: &AtomicI32,
    main: ChildMain,
    argument: *mut c_void,
) -> io::Result<i32> {
    let mut flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID) as u64 | CLONE_CLEAR_SIGHAND;
    if cgroup.is_some() {
        flags |= CLONE_INTO_CGROUP;
    }
    let args = CloneArgs {
        flags,
        parent_tid: under_way.as_ptr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.bottom(),
        stack_size: STACK_SIZE as u64,
        cgroup: cgroup.unwrap_or(0) as u64,
        ..CloneArgs::default()
    };
    // SAFETY: `args` is a valid clone_args of the size given; the stack is ours alone until the child calls exec, since
    // CLONE_VFORK holds this thread until then; `main` never returns (the caller's promise).
    let result = unsafe { clone3(&args, main, argument) };
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as i32) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn clone3(args: &CloneArgs, main: ChildMain, argument: *mut c_void) -> i64 {
    let result: i64;
    // SAFETY: the child starts on its own stack with all registers as they are here; it calls `main` and never comes
    // back, so it never touches this frame. The parent sees an ordinary system call.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") args as *const CloneArgs,
            in("rsi") size_of::<CloneArgs>(),
            in("r12") argument,
            in("r13") main,
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn clone3(args: &CloneArgs, main: ChildMain, argument: *mut c_void) -> i64 {
    let result: i64;
    // SAFETY: as for x86_64.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "brk #0",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") args as *const CloneArgs => result,
            in("x1") size_of::<CloneArgs>(),
            in("x20") argument,
            in("x21") main,
        );
    }
    result
}

/// The same without `clone3`, for kernels and containers that refuse it (seccomp answers ENOSYS or EPERM).
///
/// # Safety
/// As for [`clone_into`].
pub(crate) unsafe fn clone_plain(
    stack: &mut ChildStack,
    under_way: &AtomicI32,
    main: ChildMain,
    argument: *mut c_void,
) -> io::Result<i32> {
    struct Trampoline {
        main: ChildMain,
        argument: *mut c_void,
    }
    extern "C" fn start(raw: *mut c_void) -> i32 {
        // SAFETY: `raw` is the trampoline below, alive while the parent is held by CLONE_VFORK.
        let trampoline = unsafe { &*(raw as *const Trampoline) };
        // SAFETY: the caller of `clone_plain` promised that `main` may run here.
        unsafe { (trampoline.main)(trampoline.argument) }
    }
    let mut trampoline = Trampoline { main, argument };
    let top = (stack.bottom() + STACK_SIZE as u64) as *mut c_void;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    // SAFETY: `top` is the end of a mapping of ours, 16-byte aligned; CLONE_VFORK holds this thread until exec; the kernel
    // writes the pid into `under_way`, which outlives the call.
    let pid = unsafe { libc::clone(start, top, flags, (&raw mut trampoline).cast(), under_way.as_ptr()) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
}
