//! Which test made a file of /dev/shm: a dead process holds nothing, so that it must be seen while the tests run.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

const DIRECTORY: &str = "/dev/shm";
/// How the names begin that programs under test give to their files: MPICH, Open MPI, Intel MPI, UCX, NCCL, torch, Python, semaphores.
const PREFIXES: [&str; 12] = [
    "mpich_",
    "sm_segment.",
    "vader_segment.",
    "open_mpi.",
    "Intel_MPI_",
    "shm-",
    "ucx_shm_",
    "nccl-",
    "torch_",
    "psm_",
    "sem.",
    "wnsm_",
];
/// The walks over the process table may take this part of the time at most (1 / n): the tests need the CPUs.
const DUTY: u32 = 20;
/// Files that are noted. Those that are gone make room.
const MAX_NOTED: usize = 4096;

/// The makers that were seen, by the files' names.
#[derive(Clone, Default)]
pub(crate) struct Makers {
    seen: Arc<Mutex<HashMap<String, String>>>,
}

impl Makers {
    /// Watches from now on, in a thread that lasts as long as this program. Where nothing can be watched, no maker is known.
    pub(crate) fn watch() -> Makers {
        let makers = Makers::default();
        let inotify = init(CreateFlags::CLOEXEC);
        if let Ok(inotify) = inotify.and_then(|it| add_watch(&it, DIRECTORY, WatchFlags::CREATE).map(|_| it)) {
            let seen = Arc::clone(&makers.seen);
            thread::spawn(move || follow(&inotify, &seen));
        }
        makers
    }

    /// A path as it is to be printed, with whoever made it.
    pub(crate) fn describe(&self, path: &str) -> String {
        let name = path.strip_prefix("/dev/shm/").unwrap_or_default();
        match self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            Some(maker) => format!("{path} ({maker})"),
            None => path.to_owned(),
        }
    }
}

fn follow(inotify: &OwnedFd, seen: &Mutex<HashMap<String, String>>) {
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut reader = Reader::new(inotify, &mut buffer);
    while let Ok(event) = reader.next() {
        let mut names = BTreeSet::new();
        names.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
        // All that the kernel has given with it have one walk.
        while !reader.is_buffer_empty()
            && let Ok(event) = reader.next()
        {
            names.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
        names.retain(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
        if names.is_empty() {
            continue;
        }
        let begun = Instant::now();
        let found = makers_of(&names);
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() > MAX_NOTED {
            seen.retain(|name, _| Path::new(DIRECTORY).join(name).exists());
        }
        seen.extend(found);
        drop(seen);
        rest(begun.elapsed() * DUTY);
    }
}

#[expect(clippy::disallowed_methods, reason = "a share of the CPU is kept, and no condition is waited for")]
fn rest(time: Duration) {
    thread::sleep(time);
}

/// Who holds these files now; for a file that nobody holds any more, the tests that run.
fn makers_of(names: &BTreeSet<String>) -> HashMap<String, String> {
    let mut makers = HashMap::new();
    let mut running = BTreeSet::new();
    for pid in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = pid.path();
        let Some(test) = test_of(&process) else { continue };
        for name in names {
            if holds(&process, name) {
                let command = fs::read(process.join("cmdline")).unwrap_or_default();
                let command = String::from_utf8_lossy(&command).replace('\0', " ");
                let command: String = command.trim().chars().take(120).collect();
                makers.insert(name.clone(), format!("made by {test}, {command}"));
            }
        }
        running.insert(test);
    }
    let running = running.into_iter().collect::<Vec<_>>().join(", ");
    for name in names {
        makers.entry(name.clone()).or_insert_with(|| format!("made while these ran: {running}"));
    }
    makers
}

/// The test that a process belongs to, by what nextest gives to it and its descendants.
fn test_of(process: &Path) -> Option<String> {
    let environment = fs::read(process.join("environ")).ok()?;
    let value = environment.split(|&byte| byte == 0).find_map(|it| it.strip_prefix(b"NEXTEST_TEST_NAME="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

fn holds(process: &Path, name: &str) -> bool {
    let path = Path::new(DIRECTORY).join(name);
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let mut lines = maps.split(|&byte| byte == b'\n');
    lines.any(|line| line.ends_with(path.as_os_str().as_encoded_bytes()))
        || fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path))
}

#[cfg(test)]
mod unit {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_file_is_described_with_the_test_whose_process_holds_it() {
        let makers = Makers::watch();
        let name = format!("shm-xtask-{}", std::process::id());
        let path = format!("{DIRECTORY}/{name}");
        let script = format!("exec 3>{path}; read line");
        let mut maker = Command::new("sh")
            .args(["-c", &script])
            .env("NEXTEST_TEST_NAME", "of_this_test")
            .stdin(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let wanted = format!("{path} (made by of_this_test, sh -c {script})");
        let is_described = (0..1000).any(|_| {
            rest(Duration::from_millis(10));
            makers.describe(&path) == wanted
        });
        let described = makers.describe(&path);
        maker.kill().expect("it waits");
        maker.wait().expect("it ends");
        fs::remove_file(&path).expect("it is there");
        assert!(is_described, "{described}");
        assert_eq!(makers.describe("/dev/shm/of nobody"), "/dev/shm/of nobody");
    }
}
