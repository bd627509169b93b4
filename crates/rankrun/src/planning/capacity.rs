//! Checks the limits on processes and open files against what the job needs.
//!
//! A job that would exceed a limit is refused before anything is started.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cpus::hierarchies;
use crate::message::Problem;

/// Front, guard and agent with their threads, and some room for other processes of the user.
const OWN_TASKS: u64 = 16;

/// One limit on the number of processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    /// Its name, as in "the limit on processes of a user (RLIMIT_NPROC)".
    pub(crate) name: String,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    /// How to raise it.
    pub(crate) remedy: String,
}

impl Bound {
    /// How many more tasks it allows.
    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Refuses a job that exceeds what is left of a limit.
pub(crate) fn check(ranks: u64) -> Result<(), Problem> {
    refuse(ranks, bounds(ranks))
}

fn refuse(ranks: u64, bounds: Vec<Bound>) -> Result<(), Problem> {
    let Some(tightest) = bounds.into_iter().min_by_key(Bound::left) else {
        return Ok(());
    };
    let room = tightest.left().saturating_sub(OWN_TASKS);
    if ranks <= room {
        return Ok(());
    }
    let Bound { name, limit, used, remedy } = tightest;
    Err(Problem::usage(format!(
        "cannot start {ranks} ranks: {name} is {limit}, {used} are in use, so at most {room} ranks can be started"
    ))
    .hint(remedy))
}

/// The open files that grow with the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptors {
    pub(crate) ranks: u32,
    /// The agent's ends for each rank, as long as it lives.
    pub(crate) each: u32,
    /// Log files that the front holds open.
    pub(crate) logs: u32,
}

/// What the agent opens for itself: poll set, signals, stream, lease, the job's directory, cgroup and shared memory, a spool.
const OF_THE_AGENT: u64 = 32;
/// What the front opens for itself: poll set, signals, stream, threads, terminal.
const OF_THE_FRONT: u64 = 24;
/// What a rank needs until it is started: its stdio, its PMI socket, its cgroup.
const EACH_AT_START: u64 = 5;
/// Ranks that the agent prepares at the same time.
const MADE_READY: u64 = 16;

impl Descriptors {
    /// For an agent, and for a front, in addition to what is open already.
    fn needed(self) -> [u64; 2] {
        let ranks = u64::from(self.ranks);
        let agent = ranks * u64::from(self.each) + ranks.min(MADE_READY) * EACH_AT_START;
        [agent + OF_THE_AGENT, u64::from(self.logs) + OF_THE_FRONT]
    }
}

/// Refuses a job that would need more open files than it may have. The agent raises its soft limit to the hard one.
pub(crate) fn check_descriptors(wanted: Descriptors) -> Result<(), Problem> {
    // If they cannot be counted, assume the usual three.
    let open = std::fs::read_dir("/proc/self/fd").map_or(3, Iterator::count) as u64;
    let (soft, hard) = rankrun_sys::limits::open_files();
    refuse_descriptors(wanted, open, soft.unwrap_or(u64::MAX), hard.unwrap_or(u64::MAX))
}

fn refuse_descriptors(wanted: Descriptors, open: u64, soft: u64, hard: u64) -> Result<(), Problem> {
    let [agent, front] = wanted.needed().map(|needed| needed + open);
    let (needed, limit) = if agent > hard { (agent, hard) } else { (front, soft) };
    if needed <= limit {
        return Ok(());
    }
    let ranks = crate::clean::count(wanted.ranks as usize, "rank", "ranks");
    let remedy = match needed <= hard {
        true => format!("raise it with \"ulimit -n {needed}\""),
        false => {
            "only the administrator can raise it: \"nofile\" in /etc/security/limits.conf, or LimitNOFILE of the unit"
                .to_owned()
        }
    };
    Err(Problem::usage(format!(
        "cannot start {ranks}: they need up to {needed} open files, and the limit (RLIMIT_NOFILE, \"ulimit -n\") is {limit}"
    ))
    .hint(remedy))
}

/// The limits on processes that concern us, for a job of so many ranks.
///
/// The user's running processes are counted only if that can matter: on a large machine it takes longer than a launch.
pub(crate) fn bounds(ranks: u64) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let system = system_tasks();
    let (soft, hard) = rankrun_sys::limits::processes();
    if let Some(limit) = soft.filter(|_| !rustix::process::getuid().is_root()) {
        let remedy = match hard {
            Some(hard) if hard <= limit => {
                "ask the administrator to raise \"nproc\" in /etc/security/limits.conf, or TasksMax of the user's slice"
                    .to_owned()
            }
            Some(hard) => format!("raise it with \"ulimit -u {hard}\""),
            None => "raise it with \"ulimit -u unlimited\"".to_owned(),
        };
        let name = "the limit on processes of a user (RLIMIT_NPROC, \"ulimit -u\")".to_owned();
        let used = match limit.saturating_sub(system) > ranks.saturating_add(OWN_TASKS) {
            true => system,
            false => user_tasks(),
        };
        bounds.push(Bound { name, limit, used, remedy });
    }
    for (own, top) in hierarchies("pids") {
        bounds.extend(cgroup_bounds(&own, &top));
    }
    for name in ["pid_max", "threads-max"] {
        if let Some(limit) = number(&Path::new("/proc/sys/kernel").join(name)) {
            let name = format!("kernel.{name}");
            let remedy = format!("the administrator can raise it with \"sysctl {name}=NUMBER\"");
            let used = system;
            bounds.push(Bound { name, limit, used, remedy });
        }
    }
    bounds
}

/// The `pids.max` of a cgroup and of all above it; the files are the same in both versions.
fn cgroup_bounds(own: &Path, top: &Path) -> Vec<Bound> {
    let above = own.ancestors().take_while(|directory| directory.starts_with(top));
    let bound = |directory: &Path| {
        let file: PathBuf = directory.join("pids.max");
        Some(Bound {
            limit: number(&file)?,
            used: number(&directory.join("pids.current"))?,
            name: format!("\"{}\"", file.display()),
            remedy: "raise it there, or with TasksMax= of the systemd unit, --pids-limit of the container, or the pod's limit".to_owned(),
        })
    };
    above.filter_map(bound).collect()
}

/// A file that holds one number; `max` is none.
fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Tasks of the whole system: the second number of the fourth field of /proc/loadavg (proc_loadavg(5)).
fn system_tasks() -> u64 {
    let loadavg = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let tasks = loadavg.split(' ').nth(3).and_then(|field| field.split_once('/'));
    tasks.and_then(|(_, all)| all.parse().ok()).unwrap_or(0)
}

/// Tasks of our user, as the kernel counts them for RLIMIT_NPROC: every thread of every process.
fn user_tasks() -> u64 {
    let user = rustix::process::getuid().as_raw();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return 0;
    };
    let processes = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    let ours = processes.filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == user));
    let threads =
        |status: &str| status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse::<u64>().ok());
    ours.filter_map(|entry| threads(&std::fs::read_to_string(entry.path().join("status")).ok()?)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(name: &str, limit: u64, used: u64) -> Bound {
        Bound { name: name.to_owned(), limit, used, remedy: format!("raise {name}") }
    }

    #[test]
    fn the_limit_with_the_least_room_is_named() {
        let bounds = vec![bound("a", 1000, 10), bound("b", 2000, 1900), bound("c", 5000, 0)];
        assert_eq!(refuse(84, bounds.clone()), Ok(()));
        let problem = refuse(85, bounds).expect_err("100 - 16 are left");
        insta::assert_snapshot!(problem, @"
        error: cannot start 85 ranks: b is 2000, 1900 are in use, so at most 84 ranks can be started
        hint: raise b
        ");
    }

    #[test]
    fn open_files_are_counted_for_the_agent_by_the_hard_limit_and_for_the_front_by_the_soft_one() {
        let wanted = Descriptors { ranks: 32, each: 4, logs: 64 };
        // 10 are open; the agent needs 32, 32 * 4 and 16 * 5 more, the front 24 and 64.
        let check = |soft, hard| refuse_descriptors(wanted, 10, soft, hard);
        assert_eq!(check(98, 250), Ok(()));
        insta::assert_snapshot!(check(98, 249).expect_err("too few for the agent"), @r#"
        error: cannot start 32 ranks: they need up to 250 open files, and the limit (RLIMIT_NOFILE, "ulimit -n") is 249
        hint: only the administrator can raise it: "nofile" in /etc/security/limits.conf, or LimitNOFILE of the unit
        "#);
        insta::assert_snapshot!(check(97, 1000).expect_err("too few for the front"), @r#"
        error: cannot start 32 ranks: they need up to 98 open files, and the limit (RLIMIT_NOFILE, "ulimit -n") is 97
        hint: raise it with "ulimit -n 98"
        "#);
        let largest = Descriptors { ranks: u32::MAX, each: u32::MAX, logs: u32::MAX };
        assert!(refuse_descriptors(largest, 10, 1024, 1 << 20).is_err());
    }

    #[test]
    fn without_limits_nothing_is_refused() {
        assert_eq!(refuse(u64::MAX, Vec::new()), Ok(()));
    }

    #[test]
    fn the_kernel_lets_a_few_ranks_start() {
        assert!(bounds(1).iter().any(|bound| bound.name == "kernel.pid_max"));
        assert!(system_tasks() > 0);
        assert!(user_tasks() > 0);
        assert_eq!(check(1), Ok(()));
    }
}
