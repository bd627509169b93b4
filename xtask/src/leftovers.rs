//! What jobs can leave on a machine beside processes: shared memory, runtime directories, cgroups.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// The names that exist at one moment.
pub(crate) struct Leftovers {
    names: BTreeSet<PathBuf>,
}

impl Leftovers {
    pub(crate) fn now() -> Leftovers {
        let mut names = BTreeSet::new();
        // Where a job finds no room in the temporary directory, its user's directory is in shared memory.
        let (owners, others): (Vec<PathBuf>, Vec<PathBuf>) = entries(Path::new("/dev/shm"))
            .into_iter()
            .partition(|path| name_starts_with(path, "rankrun-") && path.is_dir());
        names.extend(others);
        names.extend(entries(Path::new("/tmp")).into_iter().filter(|path| name_starts_with(path, "hook-")));
        let temporary = entries(Path::new("/tmp")).into_iter().filter(|path| name_starts_with(path, "rankrun-"));
        for owner in owners.into_iter().chain(temporary) {
            // Beside it are the directories of jobs for which there was no room in it.
            let jobs = entries(&owner).into_iter().chain([owner]);
            names.extend(jobs.filter(|path| is_job(path) && !is_alive(path)));
        }
        for mount in cgroup2_mounts() {
            collect_cgroups(&mount, &mut names);
        }
        Leftovers { names }
    }

    /// What exists now and did not exist then.
    pub(crate) fn added_since(&self) -> Vec<String> {
        let now = Leftovers::now();
        now.names.difference(&self.names).map(|path| path.display().to_string()).collect()
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn name_starts_with(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// Beside the jobs' directories, that of a user holds what Python has compiled of the hook.
fn is_job(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.rsplit('-').next().unwrap_or_default();
    name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a runtime directory belongs to a job that still runs: its agent holds a lock on it.
fn is_alive(job: &Path) -> bool {
    match File::open(job) {
        Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(_) => false,
    }
}

/// Where cgroup v2 is mounted.
fn cgroup2_mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    });
    mounts.collect()
}

/// Adds the cgroups that have a job's name and hold no process.
fn collect_cgroups(directory: &Path, names: &mut BTreeSet<PathBuf>) {
    for path in entries(directory) {
        if !path.is_dir() {
            continue;
        }
        if name_starts_with(&path, "rankrun-") {
            let events = fs::read_to_string(path.join("cgroup.events")).unwrap_or_default();
            if events.contains("populated 0") {
                names.insert(path);
            }
        } else {
            collect_cgroups(&path, names);
        }
    }
}
