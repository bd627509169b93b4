//! The shared memory that the workers make (K-8): noted while they live, since a dead process maps nothing.
//!
//! inotify tells when a name appears in /dev/shm; who maps it is looked up soon after. What was found is also written to
//! the job's directory, for the guard and for `rankrun clean`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::node::Node;
use rankrun_core::job::CleanShm;
use rankrun_sys::{proc, shm};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

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

/// What is known of the shared memory of this node's workers.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    watch: Option<OwnedFd>,
    /// New names, with the number of times that they were looked for.
    pending: BTreeMap<OsString, usize>,
    noted: BTreeSet<OsString>,
    file: Option<std::fs::File>,
    next_look: Option<Duration>,
    not_before: Option<Duration>,
}

impl SharedMemory {
    /// Begins to watch. Where that cannot be, names are found only by [`SharedMemory::look`].
    pub(crate) fn watch(policy: CleanShm, runtime_dir: &Path) -> SharedMemory {
        let watch = (policy != CleanShm::No).then(|| {
            let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
            let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
            inotify::add_watch(&fd, "/dev/shm", events).ok()?;
            Some(fd)
        });
        let file = std::fs::OpenOptions::new().create(true).append(true).open(runtime_dir.join("shm")).ok();
        SharedMemory {
            watch: watch.flatten(),
            pending: BTreeMap::new(),
            noted: BTreeSet::new(),
            file,
            next_look: None,
            not_before: None,
        }
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Takes the news of /dev/shm.
    fn news(&mut self, now: Duration) {
        let Some(fd) = &self.watch else { return };
        let mut memory = [MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = inotify::Reader::new(fd, &mut memory);
        while let Ok(event) = reader.next() {
            let Some(name) = event.file_name() else { continue };
            let mut path = b"/dev/shm/".to_vec();
            path.extend_from_slice(name.to_bytes());
            let path = OsString::from_vec(path);
            if event.events().contains(ReadFlags::DELETE) {
                self.pending.remove(&path);
            } else if self.pending.len() < MAX_PENDING && !self.noted.contains(&path) {
                self.pending.insert(path, 0);
            }
        }
        if self.pending.values().any(|looks| *looks == 0) {
            // However much is new, looking must not become the agent's main work.
            self.next_look = Some(self.not_before.map_or(now, |time| time.max(now)));
        }
    }

    /// When [`SharedMemory::look`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.next_look
    }

    /// Looks which of the new names the workers map or have open. The leaders are looked at first: it is mostly they who
    /// make shared memory, and a quick look can be there before whoever made it is gone. `thorough` looks at everybody at
    /// once.
    fn look(&mut self, now: Duration, leaders: impl Iterator<Item = i32>, thorough: bool) {
        let begun = Instant::now();
        for pid in leaders {
            self.look_at(pid);
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
        self.next_look = next.map(|step| now + step.max(pause));
        self.not_before = Some(now + pause);
    }

    fn look_at(&mut self, pid: i32) {
        for name in proc::shared_memory_of(pid) {
            if self.pending.remove(&name).is_some() || (self.watch.is_none() && !self.noted.contains(&name)) {
                self.note(name);
            }
        }
    }

    /// Whether there is anything to look for.
    fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    fn note(&mut self, name: OsString) {
        if let Some(file) = &mut self.file {
            let mut line = name.clone().into_vec();
            line.push(b'\n');
            let _ = file.write_all(&line);
        }
        self.noted.insert(name);
    }

    /// After the job: removes what is still there and mapped by nobody, or only lists it. Returns the names.
    pub(crate) fn finish(&mut self, policy: CleanShm) -> Vec<OsString> {
        let left = std::mem::take(&mut self.noted);
        left.into_iter()
            .filter(|name| Path::new(name).exists() && !shm::in_use(name))
            .filter(|name| match policy {
                CleanShm::Job => shm::unlink(name),
                CleanShm::List => true,
                CleanShm::No => false,
            })
            .collect()
    }
}

impl Node {
    pub(crate) fn shared_memory_news(&mut self, now: Duration) {
        self.look_for_shared_memory(now, false);
    }

    /// Looks who maps what is new in /dev/shm, if that is due; `at_once`: before they are gone.
    pub(crate) fn look_for_shared_memory(&mut self, now: Duration, at_once: bool) {
        let Some(shared_memory) = &mut self.shared_memory else { return };
        shared_memory.news(now);
        let due = shared_memory.deadline().is_some_and(|deadline| deadline <= now);
        if shared_memory.is_waiting() && (due || at_once) {
            let leaders = self.slots.iter().filter(|slot| slot.leader_alive).filter_map(|slot| slot.leader);
            shared_memory.look(now, leaders, at_once);
        }
    }
}
