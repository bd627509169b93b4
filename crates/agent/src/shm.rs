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

use rankrun_core::job::CleanShm;
use rankrun_sys::{proc, shm};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// Names that may wait for somebody who maps them. A job that makes more at a time (a DataLoader that makes and removes
/// thousands) loses the oldest, which it has most likely removed itself.
const MAX_PENDING: usize = 1024;
/// How often a new name is looked for among the maps before it is left alone.
const MAX_LOOKS: u32 = 4;
/// The shortest time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// A look may take this part of the time at most (1 / n).
const DUTY: u32 = 20;

/// What is known of the shared memory of this node's workers.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    watch: Option<OwnedFd>,
    /// New names, with the number of times that they were looked for.
    pending: BTreeMap<OsString, u32>,
    noted: BTreeSet<OsString>,
    file: Option<std::fs::File>,
    next_look: Option<Duration>,
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
        }
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Takes the news of /dev/shm.
    pub(crate) fn news(&mut self, now: Duration) {
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
        if !self.pending.is_empty() && self.next_look.is_none() {
            self.next_look = Some(now);
        }
    }

    /// When [`SharedMemory::look`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.next_look
    }

    /// Looks which of the new names these processes map. `all`: notes whatever they map, also names from before the watch.
    pub(crate) fn look(&mut self, now: Duration, pids: impl IntoIterator<Item = i32>, all: bool) {
        let begun = Instant::now();
        for pid in pids {
            for name in proc::mapped_shared_memory(pid) {
                if self.pending.remove(&name).is_some() || (all && self.watch.is_none()) {
                    self.note(name);
                }
            }
        }
        self.pending.retain(|_, looks| {
            *looks += 1;
            *looks < MAX_LOOKS
        });
        let pause = LOOK_PAUSE.max(begun.elapsed() * DUTY);
        // Later looks are further apart: a program may open long before it maps.
        let looks = self.pending.values().copied().min().unwrap_or(0);
        self.next_look = (!self.pending.is_empty()).then(|| now + pause * 4u32.pow(looks.min(4)));
    }

    /// Whether there is anything to look for.
    pub(crate) fn is_waiting(&self) -> bool {
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
            .filter(|name| Path::new(name).exists() && !shm::mapped_by_anyone(name))
            .filter(|name| match policy {
                CleanShm::Job => shm::unlink(name),
                CleanShm::List => true,
                CleanShm::No => false,
            })
            .collect()
    }
}
