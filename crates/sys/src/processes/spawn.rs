//! Starting a worker: into its cgroup before its first instruction (K-1), with only async-signal-safe calls between
//! clone and exec (K-7).
//!
//! A child is started by one permanent thread, because its parent-death signal follows the *thread* that cloned it.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::clone::{ChildStack, clone_into, clone_plain};
use crate::limits::Limits;
use crate::process::Child;
use crate::socket;

/// Everything that a child needs. Made by the agent's loop, used by its spawner thread.
#[derive(Debug)]
pub struct Command {
    /// The path to execute; no search is made.
    pub program: CString,
    pub argv: Vec<CString>,
    /// `NAME=VALUE` each: the child's own, and those that it shares with others.
    pub env: Vec<CString>,
    pub shared_env: Arc<[CString]>,
    /// The working directory, if it is not ours.
    pub wdir: Option<CString>,
    /// The child's descriptors 0, 1 and 2.
    pub stdio: [OwnedFd; 3],
    /// A descriptor that the child keeps, under the number given.
    pub keep: Option<(OwnedFd, i32)>,
    /// Whether the child has no other descriptors, not even those that our caller has left open for us.
    pub keeps_no_other: bool,
    /// The cgroup directory that the child starts in.
    pub cgroup: Option<OwnedFd>,
    /// Whether the child leads a session of its own, or only a process group in ours (it then may get our terminal).
    pub session: Session,
    /// Signals that the child starts with ignored; all others that rankrun changes have their default, and the rest is as our caller has it.
    pub ignored: Vec<i32>,
    /// Limits to put back: what the user had before we raised ours.
    pub limits: Limits,
    /// The CPUs and the memory that it may use, if they are not ours.
    pub place: Option<Place>,
    /// Our pid: the child checks that this is still its parent.
    pub parent: i32,
    /// Whether the child goes on where its parent ends. Others are killed then.
    pub outlives_parent: bool,
}

/// Where a child may run, and where its memory may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The kernel's mask of CPUs: 64 a word, the lowest first.
    pub cpus: Vec<u64>,
    pub memory: Option<MemoryPlace>,
}

/// The NUMA nodes of a child's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryPlace {
    /// A mask, as that of the CPUs.
    pub nodes: Vec<u64>,
    /// Only there; else there first.
    pub is_strict: bool,
}

/// The session of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Session {
    /// A session of its own, without a terminal.
    Own,
    /// Our session, in a process group of its own, which becomes the foreground group of the terminal if requested.
    Shared { foreground: bool },
}

/// The step at which a spawn failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Step {
    Clone = 1,
    Cgroup,
    Session,
    Stdio,
    Limits,
    Bind,
    BindMemory,
    Wdir,
    Exec,
}

impl Step {
    pub(crate) const ALL: [Step; 9] = [
        Step::Clone,
        Step::Cgroup,
        Step::Session,
        Step::Stdio,
        Step::Limits,
        Step::Bind,
        Step::BindMemory,
        Step::Wdir,
        Step::Exec,
    ];

    /// The step of a number that a child has sent.
    pub(crate) fn of_number(number: i32) -> Option<Step> {
        Step::ALL.into_iter().find(|step| *step as i32 == number)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Clone => "clone",
            Step::Cgroup => "enter the cgroup",
            Step::Session => "make a session",
            Step::Stdio => "set up stdio",
            Step::Limits => "set limits",
            Step::Bind => "bind to its CPUs",
            Step::BindMemory => "bind its memory",
            Step::Wdir => "enter the working directory",
            Step::Exec => "exec",
        })
    }
}

/// A spawn that failed: no child of it is alive.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct SpawnError {
    pub step: Step,
    #[source]
    pub source: io::Error,
    /// The child that was cloned and has ended, if there was one. It must still be reaped.
    pub pid: Option<i32>,
}

/// How children can be cloned here. The first spawn finds out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Clone3,
    /// `clone3` is refused: `clone`, and the child enters its cgroup by itself.
    Clone,
}

/// Starts children. Lives on one thread, for as long as its children may live.
#[derive(Debug)]
pub struct Spawner {
    stack: ChildStack,
    way: Way,
    under_way: Arc<UnderWay>,
}

/// The child that a spawner is starting. Its pid is known from the clone on, while the spawner waits for the exec.
#[derive(Debug, Default)]
pub struct UnderWay(AtomicI32);

impl UnderWay {
    /// Of a child that was started.
    pub fn of(child: i32) -> UnderWay {
        UnderWay(AtomicI32::new(child))
    }

    /// The child that was cloned, and has no result yet.
    pub fn child(&self) -> Option<Child> {
        match self.0.load(Ordering::Acquire) {
            pid if pid > 1 => Some(Child::unreaped(pid)),
            _ => None,
        }
    }

    /// A child has come to be.
    pub(crate) fn begin(&self, pid: i32) {
        self.0.store(pid, Ordering::Release);
    }

    /// Call it after the result was sent.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Memory shared with the waiting parent: the child reads its settings there, and writes its error.
struct Shared {
    program: *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    wdir: *const c_char,
    stdio: [i32; 3],
    keep: Option<(i32, i32)>,
    keeps_no_other: bool,
    enter_cgroup: i32,
    session: Session,
    ignored: *const [i32],
    limits: *const Limits,
    place: *const Place,
    parent: i32,
    outlives_parent: bool,
    failed: Option<(Step, i32)>,
}

impl Spawner {
    pub fn new() -> io::Result<Spawner> {
        Ok(Spawner { stack: ChildStack::new()?, way: Way::Clone3, under_way: Arc::default() })
    }

    /// Shows other threads the child that this spawner is starting.
    pub fn under_way(&self) -> Arc<UnderWay> {
        Arc::clone(&self.under_way)
    }

    /// Starts a child and returns its pid after its exec. On failure the error says at which step, and no child lives.
    pub fn spawn(&mut self, command: &Command) -> Result<i32, SpawnError> {
        let argv = pointers(&command.argv, &[]);
        let env = pointers(&command.env, &command.shared_env);
        let mut shared = Shared {
            program: command.program.as_ptr(),
            argv: argv.as_ptr(),
            env: env.as_ptr(),
            wdir: command.wdir.as_deref().map_or(std::ptr::null(), CStr::as_ptr),
            stdio: [command.stdio[0].as_raw_fd(), command.stdio[1].as_raw_fd(), command.stdio[2].as_raw_fd()],
            keep: command.keep.as_ref().map(|(fd, number)| (fd.as_raw_fd(), *number)),
            keeps_no_other: command.keeps_no_other,
            enter_cgroup: -1,
            session: command.session,
            ignored: &raw const *command.ignored,
            limits: &raw const command.limits,
            place: command.place.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            parent: command.parent,
            outlives_parent: command.outlives_parent,
            failed: None,
        };
        let cgroup = command.cgroup.as_ref().map(|fd| fd.as_raw_fd());
        let cloned = self.clone_child(cgroup, &mut shared);
        match (cloned, shared.failed) {
            (Err(source), _) => Err(SpawnError { step: Step::Clone, source, pid: None }),
            (Ok(pid), None) => Ok(pid),
            (Ok(pid), Some((step, errno))) => {
                Err(SpawnError { step, source: io::Error::from_raw_os_error(errno), pid: Some(pid) })
            }
        }
    }

    fn clone_child(&mut self, cgroup: Option<i32>, shared: &mut Shared) -> io::Result<i32> {
        let argument: *mut c_void = (&raw mut *shared).cast();
        if self.way == Way::Clone3 {
            // SAFETY: `child_main` makes only system calls, and `shared` outlives the child's use of it, since
            // CLONE_VFORK holds us until exec or exit.
            match unsafe { clone_into(&mut self.stack, cgroup, &self.under_way.0, child_main, argument) } {
                Err(error) if refused(&error, cgroup.is_some()) => self.way = Way::Clone,
                result => return result,
            }
        }
        // The argument was changed: take its pointer again.
        shared.enter_cgroup = cgroup.unwrap_or(-1);
        let argument: *mut c_void = (&raw mut *shared).cast();
        // SAFETY: as above.
        unsafe { clone_plain(&mut self.stack, &self.under_way.0, child_main, argument) }
    }
}

/// The descriptor of the socket of a process that [`Spawner::start_own`] has started.
const OWN_SOCKET: i32 = 3;

impl Spawner {
    /// Starts this program anew, called with these words: in a session of its own, with /dev/null as its streams and its socket as the only
    /// other descriptor, so that it holds nothing that somebody reads to its end. Returns its pid, and our end of a socket; it takes its own end with [`own_socket`].
    ///
    /// # Errors
    ///
    /// As of [`Spawner::spawn`].
    pub fn start_own(&mut self, words: &[&str], env: Vec<CString>) -> Result<(i32, OwnedFd), SpawnError> {
        let failed = |source: io::Error| SpawnError { step: Step::Stdio, source, pid: None };
        let null = crate::null;
        let argv = ["rankrun"].iter().chain(words).map(|word| CString::new(*word).map_err(io::Error::from));
        let (ours, theirs) = socket::pair().map_err(failed)?;
        let command = Command {
            program: c"/proc/self/exe".to_owned(),
            argv: argv.collect::<Result<_, _>>().map_err(failed)?,
            env,
            shared_env: Arc::new([]),
            wdir: None,
            stdio: [null().map_err(failed)?, null().map_err(failed)?, null().map_err(failed)?],
            keep: Some((theirs, OWN_SOCKET)),
            keeps_no_other: true,
            cgroup: None,
            session: Session::Own,
            ignored: Vec::new(),
            limits: Limits::default(),
            place: None,
            parent: std::process::id() as i32,
            outlives_parent: false,
        };
        Ok((self.spawn(&command)?, ours))
    }
}

/// The socket to the process that has started this one with [`Spawner::start_own`]. Call it once.
pub fn own_socket() -> io::Result<OwnedFd> {
    inherited(OWN_SOCKET)
}

/// Whether the kernel or a seccomp filter refuses `clone3` as such; other errors belong to this spawn.
fn refused(error: &io::Error, with_cgroup: bool) -> bool {
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::E2BIG) => true,
        Some(libc::EACCES) => with_cgroup,
        _ => false,
    }
}

fn pointers(first: &[CString], rest: &[CString]) -> Vec<*const c_char> {
    first.iter().chain(rest).map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

unsafe extern "C" fn child_main(raw: *mut c_void) -> ! {
    // SAFETY: `raw` is the `Shared` of the parent's frame, which CLONE_VFORK keeps alive and untouched until we are
    // gone from its memory. All calls below are system calls.
    unsafe {
        let shared = &mut *(raw as *mut Shared);
        if let Err(step) = prepare(shared) {
            shared.failed = Some((step, *libc::__errno_location()));
            libc::_exit(127);
        }
        libc::execve(shared.program, shared.argv, shared.env);
        let mut errno = *libc::__errno_location();
        if errno == libc::ENOEXEC && is_text(shared.program) {
            errno = exec_by_shell(shared);
        }
        shared.failed = Some((Step::Exec, errno));
        libc::_exit(127);
    }
}

/// Whether a file begins as text does. A program of another machine must not be read as a script; bash decides alike.
unsafe fn is_text(path: *const c_char) -> bool {
    let mut first = [0u8; 128];
    // SAFETY: `path` is a string that ends with a null, and `first` has room for what is read.
    let count = unsafe {
        let file = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let count = libc::read(file, first.as_mut_ptr().cast(), first.len());
        libc::close(file);
        count
    };
    let first = &first[..usize::try_from(count).unwrap_or(0)];
    !first.iter().take_while(|byte| **byte != b'\n').any(|byte| *byte == 0)
}

/// A text file without `#!` is run by /bin/sh, as `execvp` and every shell do. Returns the errno if that fails too.
unsafe fn exec_by_shell(shared: &Shared) -> i32 {
    const MAX: usize = 1024;
    let shell = c"/bin/sh";
    let mut argv = [std::ptr::null::<c_char>(); MAX];
    argv[0] = shell.as_ptr();
    argv[1] = shared.program;
    let mut count = 1;
    // SAFETY: `shared.argv` is a null-terminated array; the copy stays within `argv`, whose last element stays null.
    unsafe {
        while !(*shared.argv.add(count)).is_null() {
            if count + 2 >= MAX {
                return libc::E2BIG;
            }
            argv[count + 1] = *shared.argv.add(count);
            count += 1;
        }
        libc::execve(shell.as_ptr(), argv.as_ptr(), shared.env);
        *libc::__errno_location()
    }
}

/// Everything between clone and exec. On failure `errno` is that of the step returned.
unsafe fn prepare(shared: &Shared) -> Result<(), Step> {
    // SAFETY: system calls on descriptors and memory that the parent keeps for us; the signal set and the path are
    // valid for the calls. Every descriptor of ours is close-on-exec.
    unsafe {
        if shared.enter_cgroup >= 0 {
            let procs = libc::openat(shared.enter_cgroup, c"cgroup.procs".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if procs < 0 || libc::write(procs, c"0".as_ptr().cast(), 1) != 1 {
                return Err(Step::Cgroup);
            }
        }
        match shared.session {
            Session::Own if libc::setsid() < 0 => return Err(Step::Session),
            Session::Shared { .. } if libc::setpgid(0, 0) < 0 => return Err(Step::Session),
            // The child does it itself, so that it is in the foreground before it can read. SIGTTOU is blocked here.
            Session::Shared { foreground: true } => {
                if let Some(&terminal) = shared.stdio.iter().find(|fd| libc::isatty(**fd) == 1) {
                    libc::tcsetpgrp(terminal, libc::getpid());
                }
            }
            Session::Own | Session::Shared { .. } => {}
        }
        if !shared.outlives_parent {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        if libc::getppid() != shared.parent {
            libc::_exit(127);
        }
        // Where only ancestors may look into a process (kernel.yama.ptrace_scope = 1), its parent's other children may too. It
        // fails where there is no such rule.
        libc::prctl(libc::PR_SET_PTRACER, shared.parent as libc::c_ulong, 0, 0, 0);
        install(shared)?;
        if shared.keeps_no_other {
            close_all_above(shared.keep.map_or(2, |(_, number)| number));
        }
        for limit in (*shared.limits).entries() {
            if libc::setrlimit(limit.resource as _, &limit.value) != 0 {
                return Err(Step::Limits);
            }
        }
        if let Some(place) = shared.place.as_ref() {
            bind(place)?;
        }
        if !shared.wdir.is_null() && libc::chdir(shared.wdir) != 0 {
            return Err(Step::Wdir);
        }
        crate::signal::set_ignored(&*shared.ignored);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    Ok(())
}

/// Binds this process to its CPUs, and its memory to its nodes.
unsafe fn bind(place: &Place) -> Result<(), Step> {
    // SAFETY: both calls read masks of the lengths that they are told. Glibc's wrapper takes the length in bytes, as the kernel does.
    unsafe {
        if libc::sched_setaffinity(0, size_of_val(&place.cpus[..]), place.cpus.as_ptr().cast()) != 0 {
            return Err(Step::Bind);
        }
        let Some(memory) = &place.memory else { return Ok(()) };
        // With one node more than the mask has bits: the kernel takes one off (set_mempolicy(2)).
        let bits = memory.nodes.len() as libc::c_ulong * 64 + 1;
        let set = |mode: libc::c_int| libc::syscall(libc::SYS_set_mempolicy, mode, memory.nodes.as_ptr(), bits) == 0;
        if !memory.is_strict {
            // One that prefers several nodes is of Linux 5.15; before that the first of them is taken. Without either the kernel does what it does
            // unasked.
            let _ = set(MPOL_PREFERRED_MANY) || set(libc::MPOL_PREFERRED);
            return Ok(());
        }
        if set(libc::MPOL_BIND) { Ok(()) } else { Err(Step::BindMemory) }
    }
}

/// Of Linux 5.15 (uapi/linux/mempolicy.h).
const MPOL_PREFERRED_MANY: libc::c_int = 5;

/// Puts the descriptors in their places. A source may itself lie in a place (a front started with stdin closed has its
/// pipes at 0..2), so sources are lifted above all places first.
unsafe fn install(shared: &Shared) -> Result<(), Step> {
    let mut pairs = [(shared.stdio[0], 0), (shared.stdio[1], 1), (shared.stdio[2], 2), (-1, -1)];
    let mut highest = 2;
    if let Some((fd, number)) = shared.keep {
        pairs[3] = (fd, number);
        highest = highest.max(number);
    }
    // SAFETY: descriptors are duplicated within the child's own table; nothing of the parent's changes.
    unsafe {
        for (source, place) in &mut pairs {
            if *place >= 0 && *source <= highest {
                *source = libc::fcntl(*source, libc::F_DUPFD_CLOEXEC, highest + 1);
                if *source < 0 {
                    return Err(Step::Stdio);
                }
            }
        }
        for (source, place) in pairs {
            if place >= 0 && libc::dup2(source, place) < 0 {
                return Err(Step::Stdio);
            }
        }
    }
    Ok(())
}

/// Where `close_range` is refused, descriptors up to this one are closed.
const CLOSED: u64 = 65_536;

/// Closes all descriptors above one.
unsafe fn close_all_above(last: i32) {
    // SAFETY: descriptors in the child's own table; nothing of the parent's changes. `limit` has room for what is written.
    unsafe {
        // It is of Linux 5.9; seccomp may refuse it.
        if libc::syscall(libc::SYS_close_range, last as u32 + 1, u32::MAX, 0u32) != 0 {
            let mut limit: libc::rlimit = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            for fd in last + 1..limit.rlim_cur.clamp(64, CLOSED) as i32 {
                libc::close(fd);
            }
        }
    }
}

/// Takes a descriptor beyond 0, 1 and 2 that this process was started with ([`Command::keep`]). Children of this process do not get it.
///
/// # Errors
///
/// There is no such descriptor, or it is close-on-exec: then this process has opened it, or taken it before.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers; it fails if there is no such descriptor.
    let flags = if number <= 2 { -1 } else { unsafe { libc::fcntl(number, libc::F_GETFD) } };
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open. Nothing in this process owns it: what this process opens is close-on-exec, and so is what was taken here.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Duplicates a descriptor for a child, close-on-exec until the child has it in its place.
pub fn duplicate(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    fd.try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    /// The descriptors that `ls` finds in itself.
    fn descriptors(keeps_no_other: bool, keep: Option<(OwnedFd, i32)>) -> Vec<String> {
        let null =
            || OwnedFd::from(std::fs::File::options().read(true).write(true).open("/dev/null").expect("it is there"));
        let (reader, writer) = socket::pipe().expect("a pipe");
        let command = Command {
            program: c"/bin/ls".to_owned(),
            argv: vec![c"ls".to_owned(), c"/proc/self/fd".to_owned()],
            env: Vec::new(),
            shared_env: Arc::new([]),
            wdir: None,
            stdio: [null(), writer, null()],
            keep,
            keeps_no_other,
            cgroup: None,
            session: Session::Own,
            ignored: Vec::new(),
            limits: Limits::default(),
            place: None,
            parent: std::process::id() as i32,
            outlives_parent: false,
        };
        let pid = Spawner::new().and_then(|mut it| it.spawn(&command).map_err(io::Error::other)).expect("ls is there");
        drop(command);
        let mut text = String::new();
        std::fs::File::from(reader).read_to_string(&mut text).expect("it lists them");
        crate::wait::reap(pid);
        text.lines().map(str::to_owned).collect()
    }

    /// Whoever waits for the end of a pipe that it has left open for rankrun waits for no process of rankrun that outlives it.
    #[test]
    fn a_child_of_our_own_has_nothing_that_our_caller_left_open() {
        let (reader, writer) = socket::pipe().expect("a pipe");
        // As a caller's: it is not close-on-exec.
        // SAFETY: the calls duplicate a descriptor that is open, and close the duplicate once.
        let left_open = |fd: &OwnedFd, number: i32| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, number) };
        let (low, high) = (left_open(&writer, 20), left_open(&writer, 251));
        let kept = || reader.as_fd().try_clone_to_owned().expect("a descriptor");
        let of_a_rank = descriptors(false, None);
        let own = descriptors(true, Some((kept(), 3)));
        let without = descriptors(true, None);
        // SAFETY: they are ours, and nothing else owns them.
        unsafe {
            libc::close(low);
            libc::close(high);
        }
        for number in [low, high].map(|fd| fd.to_string()) {
            assert!(of_a_rank.contains(&number), "a rank has what our caller has left open for it: {of_a_rank:?}");
        }
        // The last one is the directory that ls reads.
        assert_eq!(own, ["0", "1", "2", "3", "4"]);
        assert_eq!(without, ["0", "1", "2", "3"]);
    }
}
