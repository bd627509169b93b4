//! `rankrun clean`: ends and removes what dead jobs left behind.
//!
//! A job is dead when its directory is not locked: its agent holds the lock as long as it lives. We hold the lock while
//! we clean, so that two cleaners do not interfere.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankrun_agent::tidy;
use rankrun_core::printable::printable;
use rankrun_core::{ExitCode, JobId};
use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::environments::{Environments, Silent};
use rankrun_sys::{proc, shm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::process::{PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};

use crate::message::{Problem, warn};
use rankrun_sys::reason;

/// The time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// The time from SIGKILL until a process counts as unkillable.
pub(crate) const KILL_BOUND: Duration = Duration::from_secs(5);
/// What a dead job left.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) job: String,
    directory: PathBuf,
    /// Held until all is removed.
    _lock: std::fs::File,
    processes: Vec<proc::Process>,
    /// Processes of ours that do not show whose they are.
    silent: Vec<proc::Process>,
    cgroups: Vec<PathBuf>,
    shared_memory: HashMap<OsString, shm::File>,
}

/// Cleans, or only lists, and prints on stdout what it did.
pub(crate) fn run(dry_run: bool) -> Result<(String, ExitCode), Problem> {
    let mut text = String::new();
    let mut code = ExitCode::SUCCESS;
    let mut environments = Environments::default();
    for leftover in survey(&mut environments)? {
        if dry_run {
            list(&mut text, &leftover);
            continue;
        }
        let left = leftover.remove(&mut text, &mut environments);
        if !left.of_job.is_empty() {
            let alive = count(left.of_job.len(), "process", "processes");
            warn(&format!("{alive} of job {} could not be killed", leftover.job));
            code = ExitCode::LEFT_BEHIND;
        }
        for process in &left.silent {
            let (name, pid, job) = (&process.name, process.pid, &leftover.job);
            warn(&format!("process {pid} ({name}) does not show its environment, and may be of job {job}"));
            code = ExitCode::LEFT_BEHIND;
        }
    }
    if text.is_empty() {
        text.push_str("no crashed jobs left anything\n");
    }
    Ok((text, code))
}

/// Finds the dead jobs of this user. Locks them until the result is dropped.
pub(crate) fn survey(environments: &mut Environments) -> Result<Vec<Leftover>, Problem> {
    let mut found = Vec::new();
    for base in tidy::bases() {
        found.extend(survey_base(&base, environments)?);
    }
    let mut lone = tidy::lone_directories();
    lone.sort_unstable();
    found.extend(lone.into_iter().filter_map(|(job, directory)| examine(job, directory, environments)));
    Ok(found)
}

/// The dead jobs below one directory. A directory of another user has none: no job of ours uses it.
fn survey_base(jobs: &Path, environments: &mut Environments) -> Result<Vec<Leftover>, Problem> {
    if tidy::check(jobs).is_err() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(jobs)
        .map_err(|error| Problem::internal(format!("cannot read \"{}\": {}", jobs.display(), reason(&error))))?;
    let mut directories: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    directories.sort_unstable();
    let job = |directory: &Path| Some(directory.file_name()?.to_str()?.to_owned());
    Ok(directories.into_iter().filter_map(|directory| examine(job(&directory)?, directory, environments)).collect())
}

/// The name of a job's directory and cgroup: that of the job, and on a node that its front reached over ssh the number of the node.
fn parts(name: &str) -> Option<(&str, Option<&str>)> {
    let (job, node) = name.split_once("-n").map_or((name, None), |(job, node)| (job, Some(node)));
    let is_job = job.len() == 8 && job.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_node = node.is_none_or(|node| !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_digit()));
    (is_job && is_node).then_some((job, node))
}

/// Ends all that is there of a job whose agent and guard are gone, and removes what it left. Returns whether nothing is left. A process
/// that does not show whose it is may be of the job.
pub(crate) fn end_all_of(job: &str) -> bool {
    if parts(job).is_none() {
        return false;
    }
    let directories = tidy::bases().into_iter().filter(|base| tidy::check(base).is_ok()).map(|base| base.join(job));
    let lone = tidy::lone_directories().into_iter().filter(|(name, _)| name == job).map(|(_, directory)| directory);
    let mut environments = Environments::default();
    for directory in directories.chain(lone) {
        if let Some(leftover) = examine(job.to_owned(), directory, &mut environments) {
            // What is told of each is for people.
            // What is still alive is looked for below.
            leftover.remove(&mut String::new(), &mut environments);
        }
    }
    // The directory goes last, but it may be gone although somebody is left.
    let processes = processes_of(job, &mut environments).of_job;
    end(&processes, job, (Signal::KILL, KILL_BOUND), &mut environments);
    let groups = cgroups_of(job);
    let is_empty = |path: &PathBuf| GuardedCgroup::open(path).is_ok_and(|group| group.empty() && group.remove());
    processes_of(job, &mut environments).is_empty() && groups.iter().all(is_empty)
}

/// What a job left, if it is dead.
fn examine(job: String, directory: PathBuf, environments: &mut Environments) -> Option<Leftover> {
    let meta = std::fs::symlink_metadata(&directory).ok()?;
    if parts(&job).is_none() || !meta.is_dir() || meta.uid() != getuid().as_raw() {
        return None;
    }
    let lock = std::fs::File::open(&directory).ok()?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    let found = processes_of(&job, environments);
    Some(Leftover {
        processes: found.of_job,
        silent: found.silent,
        cgroups: cgroups_of(&job),
        shared_memory: shared_memory_of(&job, &directory),
        directory,
        _lock: lock,
        job,
    })
}

/// Processes of this user.
#[derive(Debug, Default)]
struct Found {
    of_job: Vec<proc::Process>,
    /// Those that may be, since they do not show their environment.
    silent: Vec<proc::Process>,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.of_job.is_empty() && self.silent.is_empty()
    }
}

/// Our live processes with the job's name in their environment, without this one and its ancestors.
fn processes_of(job: &str, environments: &mut Environments) -> Found {
    let all = proc::all();
    let mut spared = vec![std::process::id() as i32];
    while let Some(process) = all.iter().find(|process| Some(&process.pid) == spared.last()) {
        spared.push(process.parent);
    }
    let mut found = Found::default();
    for process in all.into_iter().filter(|process| !spared.contains(&process.pid)) {
        match is_of_job(process.pid, job, environments) {
            Ok(true) => found.of_job.push(process),
            Ok(false) => {}
            Err(Silent) => found.silent.push(process),
        }
    }
    found
}

fn is_of_job(pid: i32, name: &str, environments: &mut Environments) -> Result<bool, Silent> {
    if proc::owner(pid) != Some(getuid().as_raw()) {
        return Ok(false);
    }
    let (job, node) = parts(name).unwrap_or((name, None));
    let environ = environments.read(pid)?.unwrap_or_default();
    let value = |variable| proc::variable_of(&environ, variable);
    // Two nodes may be one machine, and a restart gives them other ranks. Their directories keep their names.
    let is_there = |socket: Vec<u8>| {
        Path::new(OsStr::from_bytes(&socket)).iter().any(|part| part.as_bytes().ends_with(name.as_bytes()))
    };
    Ok(value("RANKRUN_JOB_ID").is_some_and(|value| value == job.as_bytes())
        && node.is_none_or(|_| value("RANKRUN_SOCKET").is_some_and(is_there)))
}

/// The job's directories in the cgroup v2 hierarchy, at any place.
fn cgroups_of(job: &str) -> Vec<PathBuf> {
    let wanted = OsString::from(format!("rankrun-{job}"));
    let mut found = Vec::new();
    // Version 1 has no controller of this name, so that only the v2 hierarchy is found.
    for (_, top) in rankrun_sys::cpus::hierarchies("") {
        let mut waiting = vec![top];
        while let Some(directory) = waiting.pop() {
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                match entry.file_name() == wanted {
                    true => found.push(entry.path()),
                    false => waiting.push(entry.path()),
                }
            }
        }
    }
    found
}

/// The files of /dev/shm that are the job's: those that were noted and are still the ones that were noted, and those that have its name.
fn shared_memory_of(job: &str, directory: &Path) -> HashMap<OsString, shm::File> {
    let noted = tidy::noted_shared_memory(directory);
    let mut found: HashMap<OsString, shm::File> =
        noted.into_iter().filter(|(path, file)| shm::file_at(path) == Some(*file)).collect();
    found.extend(tidy::named_of_dead(&JobId(job.to_owned()), directory));
    found
}

impl Leftover {
    pub(crate) fn process_count(&self) -> usize {
        self.processes.len()
    }

    pub(crate) fn silent(&self) -> &[proc::Process] {
        &self.silent
    }

    /// Ends and removes everything. Returns the processes that are still alive.
    fn remove(&self, text: &mut String, environments: &mut Environments) -> Found {
        let ended = self.end_processes(environments);
        let groups: Vec<GuardedCgroup> =
            self.cgroups.iter().filter_map(|path| GuardedCgroup::open(path).ok()).collect();
        groups.iter().for_each(GuardedCgroup::kill);
        let bound = Instant::now() + KILL_BOUND;
        while !groups.iter().all(GuardedCgroup::empty) && Instant::now() < bound {
            wait_for_any(&[], Duration::from_millis(5));
        }
        // Try all, also after a failure.
        let removed_groups = groups.iter().filter(|group| group.remove()).count() == groups.len();
        // Where a process does not answer, nobody knows what it uses.
        let unused = shm::unused_in_time(self.shared_memory.clone()).unwrap_or_default();
        let removed = unused.iter().filter(|path| shm::unlink(path)).count();
        let left = processes_of(&self.job, environments);
        if left.is_empty()
            && removed_groups
            && let Err(error) = std::fs::remove_dir_all(&self.directory)
        {
            warn(&format!("cannot remove \"{}\": {}", self.directory.display(), reason(&error)));
        }
        let cgroups = self.cgroups.iter().filter(|path| !path.exists()).count();
        // Writing into a string does not fail.
        let _ = writeln!(
            text,
            "job {}: {} ended; {} and {} removed",
            self.job,
            count(ended, "process", "processes"),
            count(cgroups, "cgroup", "cgroups"),
            count(removed, "shared memory file", "shared memory files")
        );
        left
    }

    /// SIGTERM to all, then SIGKILL to those that remain and to what they have started. Returns how many ended.
    fn end_processes(&self, environments: &mut Environments) -> usize {
        let mut ended = end(&self.processes, &self.job, (Signal::TERM, GRACE), environments);
        let bound = Instant::now() + KILL_BOUND;
        loop {
            let rest = processes_of(&self.job, environments).of_job;
            if rest.is_empty() || Instant::now() > bound {
                return ended;
            }
            ended += end(&rest, &self.job, (Signal::KILL, KILL_BOUND), environments);
        }
    }
}

/// Sends a signal and waits for the ends; returns how many there were.
fn end(
    processes: &[proc::Process],
    job: &str,
    (signal, bound): (Signal, Duration),
    environments: &mut Environments,
) -> usize {
    let mut waiting: Vec<OwnedFd> = Vec::new();
    for process in processes {
        let Some(pid) = rustix::process::Pid::from_raw(process.pid) else {
            continue;
        };
        // Check the process again after opening the pidfd: if it still belongs to the job now, so does the process of
        // the descriptor.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        if is_of_job(process.pid, job, environments) == Ok(true) && pidfd_send_signal(&pidfd, signal).is_ok() {
            // A stopped process handles SIGTERM only after SIGCONT.
            let _ = pidfd_send_signal(&pidfd, Signal::CONT);
            waiting.push(pidfd);
        }
    }
    let count = waiting.len();
    let deadline = Instant::now() + bound;
    while !waiting.is_empty() && Instant::now() < deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        let gone = wait_for_any(&waiting, left);
        let mut gone = gone.into_iter();
        waiting.retain(|_| !gone.next().unwrap_or(false));
    }
    count - waiting.len()
}

/// Waits until any of the processes has ended, and returns those that have.
pub(crate) fn wait_for_any(pidfds: &[OwnedFd], bound: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> = pidfds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(bound).ok();
    let _ = poll(&mut polled, timeout.as_ref());
    polled.iter().map(|fd| fd.revents().contains(PollFlags::IN)).collect()
}

/// A number with its noun.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn list(text: &mut String, leftover: &Leftover) {
    // The job chose the names of processes and files.
    let mut line = |line: String| {
        text.push_str(&printable(&line));
        text.push('\n');
    };
    line(format!("job {}", leftover.job));
    for process in &leftover.processes {
        line(format!("  process        {} ({})", process.pid, process.name));
    }
    for process in &leftover.silent {
        line(format!("  may be         {} ({}): it does not show its environment", process.pid, process.name));
    }
    for cgroup in &leftover.cgroups {
        line(format!("  cgroup         {}", cgroup.display()));
    }
    let mut names: Vec<&OsString> = leftover.shared_memory.keys().collect();
    names.sort();
    for name in names {
        line(format!("  shared memory  {}", OsStr::from_bytes(name.as_bytes()).display()));
    }
    line(format!("  directory      {}", leftover.directory.display()));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn job_directory(jobs: &Path, job: &str) -> PathBuf {
        let directory = jobs.join(job);
        std::fs::create_dir_all(&directory).expect("a directory");
        directory
    }

    /// A process of a job that reads a pipe which nobody closes; a shell if it must ignore SIGTERM.
    fn process_of(job: &str, ignores_term: bool) -> Child {
        let mut command = Command::new(if ignores_term { "sh" } else { "cat" });
        if ignores_term {
            command.args(["-c", "trap '' TERM; echo ready; while :; do read line; done"]);
        }
        let mut child =
            command.env("RANKRUN_JOB_ID", job).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        if ignores_term {
            let mut ready = [0; 6];
            let stdout = child.stdout.as_mut().expect("a pipe was asked for");
            std::io::Read::read_exact(stdout, &mut ready).expect("the shell says that it is ready");
        }
        child
    }

    fn names(leftovers: &[Leftover]) -> Vec<&str> {
        leftovers.iter().map(|leftover| leftover.job.as_str()).collect()
    }

    #[test]
    fn what_is_locked_or_no_job_is_spared() {
        let jobs = tempfile::tempdir().expect("a directory for the test");
        let alive = job_directory(jobs.path(), "aaaaaaaa");
        let held = std::fs::File::open(&alive).expect("the directory");
        rustix::fs::flock(&held, FlockOperation::LockShared).expect("a lock");
        job_directory(jobs.path(), "not-a-job");
        job_directory(jobs.path(), "cccccccc");
        assert_eq!(names(&survey_base(jobs.path(), &mut Environments::default()).expect("a survey")), ["cccccccc"]);
        drop(held);
        assert_eq!(
            names(&survey_base(jobs.path(), &mut Environments::default()).expect("a survey")),
            ["aaaaaaaa", "cccccccc"]
        );
    }

    #[test]
    fn no_directory_is_nothing_to_clean() {
        let top = tempfile::tempdir().expect("a directory for the test");
        assert!(survey_base(&top.path().join("rankrun"), &mut Environments::default()).expect("nothing").is_empty());
    }

    #[test]
    fn processes_files_and_the_directory_of_a_dead_job_are_removed_and_others_are_not() {
        let jobs = tempfile::tempdir().expect("a directory for the test");
        let job = format!("{:08x}", std::process::id());
        let other = format!("{:08x}", u32::MAX - std::process::id());
        let directory = job_directory(jobs.path(), &job);
        let shared = PathBuf::from(format!("/dev/shm/rankrun-test-{job}"));
        std::fs::write(&shared, "left").expect("a shared memory file");
        // In which a program of MPICH's of this job has left a segment that nobody noted.
        let hash = format!("rankrun_{job}_0_0_0")
            .bytes()
            .fold(2_166_136_261u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
        let segments = [hash, !hash].map(|hash| PathBuf::from(format!("/dev/shm/mpich_shm_{hash:x}_0")));
        for path in &segments {
            std::fs::write(path, "left").expect("a shared memory file");
        }
        let inode = |path: &Path| std::fs::metadata(path).expect("it is there").ino();
        let hostname = Path::new("/etc/hostname");
        let list = format!("{} {}\n{} /etc/hostname\n", inode(&shared), shared.display(), inode(hostname));
        std::fs::write(directory.join("shm"), list).expect("the list");
        let mut ended = [process_of(&job, false), process_of(&job, true)];
        let mut bystander = process_of(&other, false);

        let mut environments = Environments::default();
        let leftovers = survey_base(jobs.path(), &mut environments).expect("a survey");
        assert_eq!(leftovers[0].process_count(), 2);
        let mut text = String::new();
        assert!(leftovers[0].remove(&mut text, &mut environments).is_empty());
        assert!(text.contains("2 processes ended"), "{text}");
        assert!(text.contains("2 shared memory files"), "{text}");
        assert!(!segments[0].exists() && segments[1].exists(), "the segment of another job was removed");
        std::fs::remove_file(&segments[1]).expect("it is there");
        assert!(!shared.exists() && !directory.exists() && Path::new("/etc/hostname").exists());
        let signals = ended.each_mut().map(|child| child.wait().expect("it ended").signal());
        assert_eq!(signals, [Some(15), Some(9)]);
        assert!(bystander.try_wait().expect("a child of ours").is_none(), "another job's process was ended");
        bystander.kill().expect("it is alive");
        bystander.wait().expect("it ends");
    }
}
