//! How many CPUs a job may use on this machine (`-n auto`).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::kernel;

/// The CPUs of our affinity mask, but not more than the quotas of our cgroups allow; at least 1. Found out once.
pub fn allowed() -> u32 {
    static ALLOWED: OnceLock<u32> = OnceLock::new();
    *ALLOWED.get_or_init(find_allowed)
}

fn find_allowed() -> u32 {
    let affinity = affinity().len() as u32;
    let quotas = hierarchies("cpu").into_iter().flat_map(|(own, top)| quotas(&own, &top));
    // Round down: a rank on half a CPU would slow down all others.
    let quota = quotas.map(|cpus| cpus.floor() as u32).min().unwrap_or(u32::MAX);
    affinity.min(quota).max(1)
}

/// Whether the kernel lets this process bind others: a filter of system calls may refuse it.
///
/// # Errors
///
/// What it says.
pub fn may_bind() -> std::io::Result<()> {
    // No process has this number, so that nothing is changed.
    let mask = 1u64;
    // SAFETY: the kernel reads no more than the length that it is told.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, i32::MAX, size_of_val(&mask), &raw const mask) };
    match std::io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        error => Err(error),
    }
}

/// The CPUs of our affinity mask, which a cpuset narrows; 0 where it cannot be read. In order.
pub fn affinity() -> Vec<u32> {
    // The kernel refuses a mask that is shorter than its own.
    for words in [16usize, 256] {
        let mut mask = vec![0u64; words];
        // SAFETY: the kernel writes no more than the length that it is told.
        let written =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask[..]), mask.as_mut_ptr()) };
        if written > 0 {
            let of_word = |(at, word): (usize, u64)| {
                (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 64 + bit)
            };
            return mask.into_iter().enumerate().flat_map(of_word).collect();
        }
    }
    vec![0]
}

/// How many packages (sockets) this machine has; at least 1.
pub fn packages() -> u32 {
    let numbers: std::collections::BTreeSet<String> = directories("/sys/devices/system/cpu", "cpu")
        .filter_map(|cpu| kernel::piece_text(cpu.join("topology/physical_package_id")).ok())
        .collect();
    numbers.len().max(1) as u32
}

/// How many NUMA nodes this machine has; at least 1.
pub fn numa_nodes() -> u32 {
    directories("/sys/devices/system/node", "node").count().max(1) as u32
}

/// What a directory has whose name is `prefix` and a number.
fn directories(directory: &str, prefix: &'static str) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter(move |entry| {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(prefix));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
        .map(|entry| entry.path())
}

/// The quotas, in CPUs, of a cgroup and of all above it.
fn quotas(own: &Path, top: &Path) -> Vec<f64> {
    let mut found = Vec::new();
    for directory in own.ancestors().take_while(|directory| directory.starts_with(top)) {
        let read = |name: &str| kernel::piece_text(directory.join(name)).ok();
        let version2 = read("cpu.max").and_then(|text| parse_cpu_max(&text));
        let version1 = || parse_cfs(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?);
        found.extend(version2.or_else(version1));
    }
    found
}

/// `QUOTA PERIOD` in microseconds, or `max PERIOD` (cgroup-v2.rst, "cpu.max").
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

/// The same in two files; a quota of -1 is none (sched-bwc.rst).
fn parse_cfs(quota: &str, period: &str) -> Option<f64> {
    ratio(quota.trim(), period.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let quota: u64 = quota.parse().ok()?;
    let period: u64 = period.parse().ok().filter(|period| *period > 0)?;
    Some(quota as f64 / period as f64)
}

/// The directory of a controller's files for our cgroup, and the mount point at which to stop going up.
///
/// Both the v1 hierarchy of the controller and the v2 hierarchy are named, whichever are mounted.
pub fn hierarchies(controller: &str) -> Vec<(PathBuf, PathBuf)> {
    let [mounts, cgroups] = [kernel::mounts(), kernel::cgroups()].map(String::from_utf8_lossy);
    find_hierarchies(controller, &mounts, &cgroups)
}

fn find_hierarchies(controller: &str, mountinfo: &str, membership: &str) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        // "31 23 0:28 ROOT MOUNT OPTIONS - TYPE SOURCE SUPER-OPTIONS" (proc_pid_mountinfo(5)).
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        let (Some(root), Some(mount)) = (left.next(), left.next()) else {
            continue;
        };
        let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
        let wanted = |list: &str| list.split(',').any(|name| name == controller);
        let own = membership.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let ours = match kind {
                Some("cgroup2") => controllers.is_empty(),
                Some("cgroup") => wanted(options) && wanted(controllers),
                _ => false,
            };
            ours.then_some(path)
        });
        if let Some(own) = own {
            let below = Path::new(own).strip_prefix(root).or_else(|_| Path::new(own).strip_prefix("/"));
            found.push((Path::new(mount).join(below.unwrap_or(Path::new(""))), PathBuf::from(mount)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_in_both_versions() {
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(1.5));
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cfs("400000\n", "100000\n"), Some(4.0));
        assert_eq!(parse_cfs("-1\n", "100000\n"), None);
    }

    #[test]
    fn the_own_cgroup_is_found_wherever_it_is_mounted() {
        let mountinfo = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                         38 31 0:38 /pod7 /cg rw - cgroup2 none rw\n\
                         40 31 0:40 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let membership = "8:memory:/m\n4:cpu,cpuacct:/a/b\n0::/pod7/box\n";
        let found = find_hierarchies("cpu", mountinfo, membership);
        let pair = |own: &str, top: &str| (PathBuf::from(own), PathBuf::from(top));
        assert_eq!(
            found,
            [pair("/sys/fs/cgroup/cpu,cpuacct/a/b", "/sys/fs/cgroup/cpu,cpuacct"), pair("/cg/box", "/cg")]
        );
    }

    #[test]
    fn the_tightest_quota_on_the_way_up_binds() {
        let top = tempfile::tempdir().expect("a directory for the test");
        let own = top.path().join("outer/inner");
        std::fs::create_dir_all(&own).expect("directories");
        std::fs::write(own.join("cpu.max"), "max 100000").expect("a file");
        std::fs::write(top.path().join("outer/cpu.max"), "250000 100000").expect("a file");
        assert_eq!(quotas(&own, top.path()), [2.5]);
    }
}
