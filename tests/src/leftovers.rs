//! What a job can leave beside processes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rankrun_core::segments::{Names, is_probe};
use rankrun_core::{Attempt, JobId};
use rustix::fs::FlockOperation;

use crate::processes::{self, Process};

/// Names in /dev/shm that contain `tag`, runtime directories and cgroups of the jobs.
pub(crate) fn of_jobs(tag: &str, jobs: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(Path::new("/dev/shm")) {
        if name(&path).contains(tag) {
            found.push(path);
        }
    }
    found.extend(
        job_directories(Path::new("/")).into_iter().filter(|(job, _)| jobs.contains(job)).map(|(_, path)| path),
    );
    for mount in cgroup2_mounts() {
        cgroups(&mount, jobs, &mut found);
    }
    found
}

/// The last attempt whose segments are looked for: each makes a mistake about a name of Open MPI 5, which has 16 bits, more likely.
const LAST_ATTEMPT: Attempt = Attempt(3);

/// Segments of /dev/shm that were made since then, and that MPI libraries have named after one of these jobs. A name of Open MPI 5 may be another job's that runs beside:
/// then it is gone soon.
pub(crate) fn segments_of(jobs: &[String], since: SystemTime) -> Vec<PathBuf> {
    let names_for = |user: u32| jobs.iter().map(move |job| Names::of(&JobId(job.clone()), LAST_ATTEMPT, user));
    let is_of_job = |path: &PathBuf| {
        let owner = fs::symlink_metadata(path).map(|meta| meta.uid());
        // An empty `open_mpi.NNNN` may be of any job.
        let name = Some(name(path)).filter(|name| !is_probe(name));
        name.zip(owner.ok()).is_some_and(|(name, owner)| names_for(owner).any(|names| names.have(&name)))
    };
    let made = entries(Path::new("/dev/shm")).into_iter().filter(|path| is_newer(path, since));
    if jobs.is_empty() { Vec::new() } else { made.filter(is_of_job).collect() }
}

/// Names in /dev/shm, and runtime directories of jobs, below the root of a host that has nothing else to do.
pub(crate) fn below(root: &Path) -> Vec<PathBuf> {
    let jobs = job_directories(root).into_iter().map(|(_, path)| path);
    entries(&root.join("dev/shm")).into_iter().chain(jobs).collect()
}

/// The files of /dev/shm that these processes have mapped.
pub fn shared_memory_of(processes: &[Process]) -> BTreeSet<PathBuf> {
    let maps = processes.iter().filter_map(|process| fs::read_to_string(format!("/proc/{}/maps", process.pid)).ok());
    let found = maps.flat_map(|maps| {
        let names = maps.lines().filter_map(|line| Some(&line[line.find("/dev/shm/")?..]));
        names.filter(|name| !name.ends_with(" (deleted)")).map(PathBuf::from).collect::<Vec<_>>()
    });
    found.collect()
}

/// Whether a job of ours has noted a file of /dev/shm in its directory, so that whoever tidies up removes it.
pub fn is_noted(file: &Path) -> bool {
    let name = file.display().to_string();
    let user = rustix::process::geteuid().as_raw();
    let jobs = fs::read_dir(format!("/tmp/rankrun-{user}")).into_iter().flatten().flatten();
    let mut lists = jobs.filter_map(|job| fs::read_to_string(job.path().join("shm")).ok());
    lists.any(|list| list.lines().any(|line| line.contains(&name)))
}

/// Directories of these jobs that no agent holds, and of which no process is alive. Where no job is known, because it was killed before it
/// told its id, those of all jobs that began after `since`: a job of another test that is just beginning or ending is among them for a moment.
pub(crate) fn dead_directories(jobs: &[String], since: SystemTime) -> Vec<PathBuf> {
    let is_ours = |job: &String, path: &Path| jobs.contains(job) || jobs.is_empty() && is_newer(path, since);
    let dead = job_directories(Path::new("/")).into_iter();
    let dead = dead.filter(|(job, path)| is_ours(job, path) && is_unlocked(path) && !has_processes(job));
    dead.map(|(_, path)| path).collect()
}

/// Whether a guard has the job's name, or a process has it in its environment.
fn has_processes(job: &str) -> bool {
    let holds = |pid: i32, file: &str, wanted: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes())
    };
    let variable = format!("RANKRUN_JOB_ID={job}");
    processes::all().iter().any(|process| {
        process.state != 'Z' && (holds(process.pid, "environ", &variable) || holds(process.pid, "cmdline", job))
    })
}

/// The directories of jobs with the jobs' ids: `/tmp/rankrun-UID/JOB`, and `/tmp/rankrun-UID-JOB` where somebody else made
/// the former.
fn job_directories(root: &Path) -> Vec<(String, PathBuf)> {
    let owners: Vec<PathBuf> = entries(&root.join("tmp"));
    let owners: Vec<PathBuf> = owners.into_iter().filter(|owner| name(owner).starts_with("rankrun-")).collect();
    let mut found: Vec<(String, PathBuf)> =
        owners.iter().flat_map(|owner| entries(owner)).map(|path| (name(&path), path)).collect();
    found.extend(owners.into_iter().filter_map(|path| Some((name(&path).rsplit_once('-')?.1.to_owned(), path))));
    found.retain(|(job, _)| is_job(job));
    found
}

/// Beside the jobs' directories, that of a user holds what Python has compiled of the hook.
fn is_job(name: &str) -> bool {
    name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_newer(path: &Path, since: SystemTime) -> bool {
    // The clock of a file system goes on with the tick of the kernel, 10 ms at most.
    let since = since - Duration::from_millis(10);
    fs::metadata(path).and_then(|meta| meta.created()).is_ok_and(|created| created >= since)
}

fn is_unlocked(job: &Path) -> bool {
    File::open(job).is_ok_and(|job| rustix::fs::flock(&job, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Where cgroup v2 is mounted: not always at the usual place.
fn cgroup2_mounts() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let cgroup2 = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    });
    cgroup2.collect()
}

/// Whether we may make a cgroup below our own.
pub(crate) fn can_make_cgroups() -> bool {
    own_cgroup().is_some()
}

/// Our own cgroup, if we may make others below it.
pub(crate) fn own_cgroup() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    cgroup2_mounts().into_iter().map(|mount| mount.join(own)).find(|own| {
        let probe = own.join(format!("probe-{}-{:?}", std::process::id(), std::thread::current().id()));
        fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)).is_ok()
    })
}

fn cgroups(directory: &Path, jobs: &[String], found: &mut Vec<PathBuf>) {
    for path in entries(directory) {
        if path.is_dir() {
            let name = name(&path);
            if name.strip_prefix("rankrun-").is_some_and(|job| jobs.iter().any(|known| job.starts_with(known.as_str())))
            {
                found.push(path);
            } else {
                cgroups(&path, jobs, found);
            }
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
