//! Checks the limits on processes and open files against what the job needs.
//!
//! A job that would exceed a limit is refused before anything is started.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rankrun_core::job::{IoPolicy, MpiMode};
use rankrun_core::open_files;
use rankrun_sys::kernel;

use crate::message::Problem;
use crate::settings::Settings;
use rankrun_sys::cpus::hierarchies;

/// Front, guard and agent with their threads, and some room for other processes of the user.
const OWN_TASKS: u64 = 16;

/// With so many processes left for more than the ranks, none is kept for rankrun beforehand.
const PLENTY: u64 = 8192;

/// The limits of the whole system are looked at for more ranks than these.
const FEW: u64 = 64;

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
    let bounds = bounds(ranks);
    if bounds.iter().all(|bound| bound.left() >= ranks.saturating_add(PLENTY)) {
        rankrun_sys::limits::processes_are_plenty();
    }
    refuse(ranks, bounds)
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
    /// How many nodes other than this one there are.
    pub(crate) nodes: u32,
    /// What the agent of this machine needs, and the front.
    pub(crate) agent: u64,
    pub(crate) front: u64,
}

/// Log files that are open at once; the least recently used one is closed for the next.
const LOG_FILES: u32 = 256;

impl Descriptors {
    /// Of a job with so many ranks in all, so many of them here, and so many other nodes. A rank with the terminal needs a few less;
    /// they are not counted.
    pub(crate) fn of(
        settings: &Settings,
        world: u32,
        (ranks, nodes): (u32, u32),
        io: &IoPolicy,
        mpi: MpiMode,
    ) -> Descriptors {
        let writes_files = settings.log_dir.is_some() || settings.has_files();
        let logs = if writes_files { world.saturating_mul(2).min(LOG_FILES) } else { 0 };
        let agent = open_files::of_agent(ranks, io, mpi, settings.tf_config);
        Descriptors { ranks, nodes, agent, front: open_files::of_front(logs, nodes) }
    }
}

/// Refuses a job that would need more open files than it may have. Front and agent raise their soft limits to the hard one.
pub(crate) fn check_descriptors(wanted: Descriptors) -> Result<(), Problem> {
    let limit = rankrun_sys::limits::open_files().1.unwrap_or(u64::MAX);
    if wanted.agent.max(wanted.front) < limit / 4 {
        // Whoever has left three quarters of them open for us has none left for itself.
        return Ok(());
    }
    // If they cannot be counted, assume the usual three.
    let open = std::fs::read_dir("/proc/self/fd").map_or(3, Iterator::count) as u64;
    refuse_descriptors(wanted, open, limit)
}

fn refuse_descriptors(wanted: Descriptors, open: u64, limit: u64) -> Result<(), Problem> {
    let [agent, front] = [wanted.agent, wanted.front].map(|needed| needed.saturating_add(open));
    let needed = agent.max(front);
    if needed <= limit {
        return Ok(());
    }
    let what = match agent < front && wanted.nodes > 0 {
        true => format!(
            "cannot run on {}: rankrun needs",
            crate::clean::count(wanted.nodes as usize, "other node", "other nodes")
        ),
        false => format!("cannot start {}: they need", crate::clean::count(wanted.ranks as usize, "rank", "ranks")),
    };
    Err(Problem::usage(format!(
        "{what} up to {needed} open files, and the limit (RLIMIT_NOFILE, \"ulimit -Hn\") is {limit}"
    ))
    .hint("only the administrator can raise it: \"nofile\" in /etc/security/limits.conf, or LimitNOFILE of the unit"))
}

/// The limits on processes that concern us, for a job of so many ranks.
///
/// The user's running processes are counted only if that can matter: on a large machine it takes longer than a launch.
pub(crate) fn bounds(ranks: u64) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let (soft, hard) = rankrun_sys::limits::processes();
    if let Some(limit) = soft.filter(|_| !rustix::process::getuid().is_root()) {
        let system = system_tasks();
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
    // A machine that has no room for so few starts none, and the kernel says so.
    let system_bounds = if ranks > FEW { &["pid_max", "threads-max"][..] } else { &[] };
    let system = if ranks > FEW { system_tasks() } else { 0 };
    for name in system_bounds {
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
    kernel::piece_text(file).ok()?.trim().parse().ok()
}

/// Tasks of the whole system: the second number of the fourth field of /proc/loadavg (proc_loadavg(5)).
fn system_tasks() -> u64 {
    let loadavg = kernel::piece_text("/proc/loadavg").unwrap_or_default();
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
    ours.filter_map(|entry| threads(&kernel::piece_text(entry.path().join("status")).ok()?)).sum()
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
    fn open_files_are_compared_with_the_hard_limit() {
        let of_ranks = Descriptors { ranks: 32, nodes: 0, agent: 240, front: 88 };
        assert_eq!(refuse_descriptors(of_ranks, 10, 250), Ok(()));
        insta::assert_snapshot!(refuse_descriptors(of_ranks, 10, 249).expect_err("too few for the agent"), @r#"
        error: cannot start 32 ranks: they need up to 250 open files, and the limit (RLIMIT_NOFILE, "ulimit -Hn") is 249
        hint: only the administrator can raise it: "nofile" in /etc/security/limits.conf, or LimitNOFILE of the unit
        "#);
        let of_nodes = Descriptors { ranks: 1000, nodes: 999, agent: 40, front: 3405 };
        assert_eq!(refuse_descriptors(of_nodes, 3, 4096), Ok(()));
        insta::assert_snapshot!(refuse_descriptors(of_nodes, 3, 1024).expect_err("too few for the front"), @r#"
        error: cannot run on 999 other nodes: rankrun needs up to 3408 open files, and the limit (RLIMIT_NOFILE, "ulimit -Hn") is 1024
        hint: only the administrator can raise it: "nofile" in /etc/security/limits.conf, or LimitNOFILE of the unit
        "#);
        let largest = Descriptors { ranks: u32::MAX, nodes: u32::MAX, agent: u64::MAX, front: u64::MAX };
        assert!(refuse_descriptors(largest, 10, 1 << 20).is_err());
    }

    #[test]
    fn without_limits_nothing_is_refused() {
        assert_eq!(refuse(u64::MAX, Vec::new()), Ok(()));
    }

    #[test]
    fn the_kernel_lets_a_few_ranks_start() {
        assert!(bounds(FEW + 1).iter().any(|bound| bound.name == "kernel.pid_max"));
        assert!(system_tasks() > 0);
        assert!(user_tasks() > 0);
        assert_eq!(check(1), Ok(()));
    }
}
