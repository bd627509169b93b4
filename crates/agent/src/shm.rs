//! The shared memory that the workers make (K-8): noted while they live, since a dead process maps nothing.
//!
//! The kernel tells when a name appears in /dev/shm; who maps it is looked up soon after. What was found is also written to
//! the job's directory, for the guard and for `rankrun clean`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankrun_core::job::CleanShm;
use rankrun_sys::watched::Watched;
use rankrun_sys::{proc, shm};

use crate::node::Node;
use crate::runtime::SHARED_MEMORY;

/// Names that may wait for somebody who maps them. A job that makes more at a time (a DataLoader that makes and removes
/// thousands) loses the oldest, which it has most likely removed itself.
const MAX_PENDING: usize = 1024;
/// When a new name is looked for, after it appeared: at once, since whoever made it has it open, and again, since it may
/// be mapped by others later or the first look may have come before the `open` returned.
const LOOKS: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_secs(1),
];
/// A look may take this part of the time at most (1 / n).
const DUTY: u32 = 10;

/// How often it is looked for new names where the kernel does not tell of them.
const UNTOLD: Duration = Duration::from_secs(1);

/// What is known of the shared memory of this node's workers.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    policy: CleanShm,
    /// Where the kernel tells of new names.
    hint: Option<Watched>,
    /// There may be names that are not known yet.
    has_news: bool,
    /// The names that were there at the last look, by inode: one that was removed and made again is new.
    seen: HashMap<OsString, u64>,
    /// New names, with the number of times that they were looked for.
    pending: BTreeMap<OsString, usize>,
    noted: BTreeSet<OsString>,
    /// The list of the noted names, once there is one.
    list: PathBuf,
    file: Option<std::fs::File>,
    next_look: Option<Duration>,
    not_before: Option<Duration>,
}

impl SharedMemory {
    /// Begins to watch.
    pub(crate) fn watch(policy: CleanShm, runtime_dir: &Path) -> SharedMemory {
        let mut memory = SharedMemory {
            policy,
            hint: None,
            has_news: false,
            seen: HashMap::new(),
            pending: BTreeMap::new(),
            noted: BTreeSet::new(),
            list: runtime_dir.join(SHARED_MEMORY),
            file: None,
            next_look: None,
            not_before: None,
        };
        if policy != CleanShm::No {
            memory.hint = Watched::new(Path::new(shm::DIRECTORY)).ok();
            memory.seen = shm::names();
            memory.next_look = memory.must_ask().then_some(UNTOLD);
        }
        memory
    }

    /// The kernel tells that names have appeared in /dev/shm.
    fn told(&mut self, now: Duration) {
        self.has_news = true;
        // However much is new, looking must not become the agent's main work.
        let at = self.not_before.map_or(now, |time| time.max(now));
        self.next_look = Some(self.next_look.map_or(at, |next| next.min(at)));
    }

    /// Whether the directory is to be read because nobody tells of it.
    fn must_ask(&self) -> bool {
        self.hint.is_none() && self.policy != CleanShm::No
    }

    /// Takes the names that are new.
    fn scan(&mut self) {
        if !std::mem::take(&mut self.has_news) && !self.must_ask() {
            return;
        }
        let names = shm::names();
        self.pending.retain(|name, _| names.contains_key(name));
        for (name, inode) in &names {
            let is_new = self.seen.get(name) != Some(inode) && !self.noted.contains(name);
            if is_new && self.pending.len() < MAX_PENDING {
                self.pending.insert(name.clone(), 0);
            }
        }
        self.seen = names;
    }

    /// When [`SharedMemory::look`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.next_look
    }

    /// Looks which names are new, and which of them the workers map or have open. The leaders are looked at first: it is
    /// mostly they who make shared memory, and a quick look can be there before whoever made it is gone. `thorough` looks
    /// at everybody at once.
    fn look(&mut self, now: Duration, leaders: impl Iterator<Item = i32>, thorough: bool) {
        let begun = Instant::now();
        self.scan();
        if !self.pending.is_empty() {
            for pid in leaders {
                self.look_at(pid);
            }
        }
        if self.pending.values().any(|looks| thorough || *looks > 0) {
            for process in proc::descendants(std::process::id() as i32) {
                self.look_at(process.pid);
            }
        }
        self.pending.retain(|_, looks| {
            *looks += 1;
            *looks < LOOKS.len()
        });
        let pause = begun.elapsed() * DUTY;
        let next = self.pending.values().copied().min().map(|looks| LOOKS[looks] - LOOKS[looks - 1]);
        let untold = self.must_ask().then_some(UNTOLD);
        self.next_look = next.or(untold).map(|step| now + step.max(pause));
        self.not_before = Some(now + pause);
    }

    fn look_at(&mut self, pid: i32) {
        for name in proc::shared_memory_of(pid) {
            if self.pending.remove(&name).is_some() {
                self.note(name);
            }
        }
    }

    fn note(&mut self, name: OsString) {
        // The list is for those who remove what is on it when we cannot.
        if self.file.is_none() && self.policy == CleanShm::Job {
            self.file = std::fs::OpenOptions::new().create(true).append(true).open(&self.list).ok();
        }
        if let Some(file) = &mut self.file {
            let mut line = name.clone().into_vec();
            line.push(b'\n');
            let _ = file.write_all(&line);
        }
        self.noted.insert(name);
    }

    /// After the job: removes what is still there and mapped by nobody, or only lists it. Returns the names.
    pub(crate) fn finish(&mut self) -> Vec<OsString> {
        let left = std::mem::take(&mut self.noted);
        left.into_iter()
            .filter(|name| Path::new(name).exists() && !shm::in_use(name))
            .filter(|name| match self.policy {
                CleanShm::Job => shm::unlink(name),
                CleanShm::List => true,
                CleanShm::No => false,
            })
            .collect()
    }
}

impl Node {
    /// The kernel tells that names have appeared in /dev/shm.
    pub(crate) fn shared_memory_news(&mut self, now: Duration) {
        if let Some(shared_memory) = &mut self.shared_memory {
            shared_memory.told(now);
        }
        self.look_for_shared_memory(now, false);
    }

    /// Looks who maps what is new in /dev/shm, if that is due; `at_once`: before they are gone.
    pub(crate) fn look_for_shared_memory(&mut self, now: Duration, at_once: bool) {
        let Some(shared_memory) = &mut self.shared_memory else { return };
        if !at_once && shared_memory.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let leaders = self.slots.iter().filter(|slot| slot.leader_alive).filter_map(|slot| slot.leader);
        shared_memory.look(now, leaders, at_once);
    }
}
