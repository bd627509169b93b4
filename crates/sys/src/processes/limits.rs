//! Resource limits: ours are raised, the workers get back what the user had.

use std::io;

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
    entries: [Option<Limit>; 4],
}

impl Limits {
    /// The child gets another soft limit; its hard limit stays.
    pub fn set_soft(&mut self, resource: Resource, soft: Option<u64>) {
        let number = resource.number();
        let hard = raw(number).rlim_max;
        let value = libc::rlimit { rlim_cur: soft.unwrap_or(libc::RLIM_INFINITY).min(hard), rlim_max: hard };
        let is_its = |entry: &&mut Option<Limit>| entry.is_none_or(|limit| limit.resource == number);
        // There is an entry for each resource.
        if let Some(entry) = self.entries.iter_mut().find(is_its) {
            *entry = Some(Limit { resource: number, value });
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

    /// Its limits in this process.
    pub fn limit(self) -> Pair {
        get(self.number())
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
    let value = raw(resource);
    let known = |limit: libc::rlim_t| (limit != libc::RLIM_INFINITY).then_some(limit);
    (known(value.rlim_cur), known(value.rlim_max))
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
    let old = raw(libc::RLIMIT_NOFILE as i32);
    if old.rlim_cur >= old.rlim_max {
        return Ok(Limits::default());
    }
    let new = libc::rlimit { rlim_cur: old.rlim_max, rlim_max: old.rlim_max };
    // SAFETY: the struct is initialised.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &new) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Limits { entries: [Some(Limit { resource: libc::RLIMIT_NOFILE as i32, value: old }), None, None, None] })
}
