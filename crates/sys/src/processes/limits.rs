//! Resource limits: ours are raised, the workers get back what the user had.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The least that this program needs on its main stack, and what it asks for where that is less.
const STACK_LEAST: u64 = 256 << 10;
const STACK_WANTED: u64 = 8 << 20;
/// The memory that the front, the guard and the agent of a small job need each, beyond what the program has at its start.
const MEMORY_LEAST: usize = 3 << 19;

/// The user's limit on the stack, where ours was raised.
static USERS_STACK: OnceLock<libc::rlimit> = OnceLock::new();
/// The same for CPU time.
static USERS_CPU: OnceLock<libc::rlimit> = OnceLock::new();

/// The hard limit on the CPU time of a process, which may have ended and is not reaped; `None` if there is none.
pub fn cpu_time_of(pid: i32) -> Option<Duration> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: no limit is set, and `limit` has room for the answer.
    let result = unsafe { libc::prlimit(pid, libc::RLIMIT_CPU, std::ptr::null(), &raw mut limit) };
    (result == 0 && limit.rlim_max != libc::RLIM_INFINITY).then(|| Duration::from_secs(limit.rlim_max))
}

/// One limit of the user's, to be put back in a child.
#[derive(Clone, Copy)]
pub struct Limit {
    pub(crate) resource: i32,
    pub(crate) value: libc::rlimit,
}

impl std::fmt::Debug for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}/{}", self.resource, self.value.rlim_cur, self.value.rlim_max)
    }
}

/// The limits that a child must put back, in the child's order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    entries: [Option<Limit>; 5],
}

impl Limits {
    /// The child gets another soft limit; its hard limit stays.
    pub fn set_soft(&mut self, resource: Resource, soft: Option<u64>) {
        let number = resource.number();
        let hard = raw(number).rlim_max;
        let value = libc::rlimit { rlim_cur: soft.unwrap_or(libc::RLIM_INFINITY).min(hard), rlim_max: hard };
        let has = |entry: &Option<Limit>| entry.is_some_and(|limit| limit.resource == number);
        // There is an entry for each resource.
        let its = self.entries.iter().position(has).or_else(|| self.entries.iter().position(Option::is_none));
        if let Some(its) = its {
            self.entries[its] = Some(Limit { resource: number, value });
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Limit> {
        self.entries.iter().flatten()
    }
}

/// A resource whose limit can be set for a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    OpenFiles,
    Stack,
    Core,
    LockedMemory,
}

impl Resource {
    fn number(self) -> i32 {
        let number = match self {
            Resource::OpenFiles => libc::RLIMIT_NOFILE,
            Resource::Stack => libc::RLIMIT_STACK,
            Resource::Core => libc::RLIMIT_CORE,
            Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
        };
        number as i32
    }

    /// The user's limits, as the ranks have them.
    pub fn limit(self) -> Pair {
        match (self, USERS_STACK.get()) {
            (Resource::Stack, Some(users)) => pair(*users),
            _ => get(self.number()),
        }
    }
}

/// A soft and a hard limit; `None` is unlimited.
pub type Pair = (Option<u64>, Option<u64>);

/// The limit on open files of this process.
pub fn open_files() -> Pair {
    get(libc::RLIMIT_NOFILE as i32)
}

/// The limit on processes of this user.
pub fn processes() -> Pair {
    get(libc::RLIMIT_NPROC as i32)
}

/// The limit on the size of core files, in bytes.
pub fn core_size() -> Pair {
    get(libc::RLIMIT_CORE as i32)
}

/// The limit on locked memory, in bytes.
pub fn locked_memory() -> Pair {
    get(libc::RLIMIT_MEMLOCK as i32)
}

fn get(resource: i32) -> Pair {
    pair(raw(resource))
}

fn pair(value: libc::rlimit) -> Pair {
    let known = |limit: libc::rlim_t| (limit != libc::RLIM_INFINITY).then_some(limit);
    (known(value.rlim_cur), known(value.rlim_max))
}

/// Makes sure that this program has room for itself: raises its soft limit on the stack if that is small, and that on CPU time, by which
/// the kernel would end it with SIGXCPU. To be called before anything that needs much of either.
///
/// # Errors
///
/// The text names the limit that is too low, and what would do.
pub fn ensure_room() -> Result<(), String> {
    let stack = raw(libc::RLIMIT_STACK as i32);
    if stack.rlim_cur < STACK_WANTED.min(stack.rlim_max) && stack.rlim_cur < 2 * STACK_LEAST {
        let new = libc::rlimit { rlim_cur: STACK_WANTED.min(stack.rlim_max), rlim_max: stack.rlim_max };
        // SAFETY: the struct is initialised. The kernel looks at the limit when the stack grows.
        if unsafe { libc::setrlimit(libc::RLIMIT_STACK, &new) } == 0 {
            // Set once: this is called once.
            let _ = USERS_STACK.set(stack);
        }
    }
    let cpu = raw(libc::RLIMIT_CPU as i32);
    let new = libc::rlimit { rlim_cur: cpu.rlim_max, rlim_max: cpu.rlim_max };
    // SAFETY: the struct is initialised.
    if cpu.rlim_cur < cpu.rlim_max && unsafe { libc::setrlimit(libc::RLIMIT_CPU, &new) } == 0 {
        // As said above.
        let _ = USERS_CPU.set(cpu);
    }
    let stack = raw(libc::RLIMIT_STACK as i32).rlim_cur;
    if stack < STACK_LEAST {
        let (have, need) = (stack >> 10, STACK_LEAST >> 10);
        return Err(format!("the limit on the stack is {have} KiB (ulimit -s), and rankrun needs {need} KiB"));
    }
    let limits = [("memory for data", "-d", libc::RLIMIT_DATA), ("address space", "-v", libc::RLIMIT_AS)];
    let limited = limits.into_iter().filter_map(|(what, flag, number)| Some((what, flag, get(number as i32).0?)));
    // The lower one is the one that counts.
    let Some((what, flag, limit)) = limited.min_by_key(|(_, _, limit)| *limit) else { return Ok(()) };
    if has_memory() {
        return Ok(());
    }
    let (have, need) = (limit >> 10, MEMORY_LEAST >> 10);
    Err(format!("the limit on {what} is {have} KiB (ulimit {flag}), and rankrun needs {need} KiB beside its program"))
}

/// Whether there is room for a mapping of this size. It is not used, and costs no memory.
fn has_memory() -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping at an address that the kernel chooses touches no memory of ours, and is ours to remove.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), MEMORY_LEAST, protection, flags, -1, 0);
        base != libc::MAP_FAILED && libc::munmap(base, MEMORY_LEAST) == 0
    }
}

fn raw(resource: i32) -> libc::rlimit {
    // SAFETY: the kernel fills the struct in; zeroed, it is a valid (empty) limit if it does not.
    unsafe {
        let mut value = std::mem::zeroed();
        libc::getrlimit(resource as _, &mut value);
        value
    }
}

/// Raises the soft limit on open files to the hard one, and returns what is to be put back in children.
pub fn raise_open_files() -> io::Result<Limits> {
    let mut limits = Limits::default();
    limits.entries[0] = USERS_STACK.get().map(|users| Limit { resource: libc::RLIMIT_STACK as i32, value: *users });
    limits.entries[2] = USERS_CPU.get().map(|users| Limit { resource: libc::RLIMIT_CPU as i32, value: *users });
    let old = raw(libc::RLIMIT_NOFILE as i32);
    if old.rlim_cur >= old.rlim_max {
        return Ok(limits);
    }
    let new = libc::rlimit { rlim_cur: old.rlim_max, rlim_max: old.rlim_max };
    // SAFETY: the struct is initialised.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &new) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limits.entries[1] = Some(Limit { resource: libc::RLIMIT_NOFILE as i32, value: old });
    Ok(limits)
}

/// Until somebody knows better, ranks may use up what there is.
static ARE_SCARCE: AtomicBool = AtomicBool::new(true);

/// Whether ranks may use up the processes and threads that the limits allow: what rankrun needs of them is then made before the first rank,
/// and else when it is needed.
pub fn processes_are_scarce() -> bool {
    ARE_SCARCE.load(Ordering::Relaxed)
}

/// There are so many that no job uses them up by mistake. Holds for this process and its forks.
pub fn processes_are_plenty() {
    ARE_SCARCE.store(false, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_set_once_whatever_was_there_before() {
        let all = [Resource::OpenFiles, Resource::Stack, Resource::Core, Resource::LockedMemory];
        let open_files = Limit { resource: Resource::OpenFiles.number(), value: raw(Resource::OpenFiles.number()) };
        for entries in [[None; 5], [None, Some(open_files), None, None, None]] {
            let mut limits = Limits { entries };
            all.into_iter().for_each(|resource| limits.set_soft(resource, Some(1)));
            let mut set: Vec<i32> = limits.entries().map(|limit| limit.resource).collect();
            set.sort_unstable();
            let mut wanted: Vec<i32> = all.map(Resource::number).to_vec();
            wanted.sort_unstable();
            assert_eq!(set, wanted);
            assert!(limits.entries().all(|limit| limit.value.rlim_cur == 1.min(limit.value.rlim_max)));
        }
    }
}
