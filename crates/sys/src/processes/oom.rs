//! Finds out whether the kernel killed a process for lack of memory: from its log, which has the pid, if it is
//! readable; otherwise from the counters of the process's memory cgroup, which are only a hint.

use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::kernel;

/// What is known of an out-of-memory kill.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OomKill {
    /// The kernel's log names the process.
    Logged { line: String },
    /// The process's memory cgroup has killed since the job's start, or is not ours and has killed at all.
    Counted { cgroup: String, kills: u64 },
    /// The log was readable, and does not name it.
    No,
    /// Neither is readable here.
    Unknown,
}

/// A watch over the kernel's log and the memory cgroup of this process.
#[derive(Debug)]
pub struct OomWatch {
    /// The cgroup's counter was read.
    is_open: bool,
    log: Option<OwnedFd>,
    own: Option<(PathBuf, u64)>,
    /// Lines about kills that were read.
    seen: Vec<String>,
    /// How many of them [`OomWatch::victims`] has returned.
    returned: usize,
}

/// A process that the kernel has killed because memory ran out, by its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Victim {
    pub pid: i32,
    /// Whose it was, if the log says so.
    pub user: Option<u32>,
    pub line: String,
}

/// Lines that are kept at most: a machine short of memory kills many.
const MAX_SEEN: usize = 256;

impl OomWatch {
    /// Starts now: earlier kills are ignored. Call [`OomWatch::open`] in a moment.
    pub fn start() -> OomWatch {
        let log = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/kmsg")
            .and_then(|mut file| file.seek(SeekFrom::End(0)).map(|_| file))
            .ok();
        OomWatch { is_open: false, log: log.map(OwnedFd::from), own: None, seen: Vec::new(), returned: 0 }
    }

    /// Reads how often the kernel has killed in the memory cgroup of this process. Kills before are not told from it.
    pub fn open(&mut self) {
        if !std::mem::replace(&mut self.is_open, true) {
            self.own =
                memory_cgroup(std::process::id() as i32).and_then(|path| kills(&path).map(|count| (path, count)));
        }
    }

    /// The kernel's log, to wait for news; `None` where it cannot be read.
    pub fn log(&self) -> Option<BorrowedFd<'_>> {
        self.log.as_ref().map(AsFd::as_fd)
    }

    /// The processes whose ends were logged since the last call.
    pub fn victims(&mut self) -> Vec<Victim> {
        self.read_log();
        let fresh = &self.seen[self.returned..];
        self.returned = self.seen.len();
        let mut victims: Vec<Victim> = Vec::new();
        for line in fresh {
            // The kernel writes two lines about each.
            match victim(line) {
                Some(pid) if victims.iter().all(|known| known.pid != pid) => {
                    victims.push(Victim { pid, user: user(line), line: line.clone() });
                }
                Some(_) | None => {}
            }
        }
        victims
    }

    /// What is known of the end of a process that was killed by SIGKILL. It must not have been reaped yet: its cgroup is
    /// looked up.
    pub fn look(&mut self, pid: i32) -> OomKill {
        // What the cgroup has counted since the start is not known before its counter was read.
        let is_early = !self.is_open;
        self.open();
        self.read_log();
        let names = [format!("Killed process {pid} ("), format!(",pid={pid},")];
        if let Some(line) = self.seen.iter().find(|line| names.iter().any(|name| line.contains(name.as_str()))) {
            return OomKill::Logged { line: line.clone() };
        }
        if !is_early
            && let Some(path) = memory_cgroup(pid)
            && let Some(count) = kills(&path)
        {
            let before = self.own.as_ref().filter(|(own, _)| *own == path).map_or(0, |(_, count)| *count);
            if count > before {
                return OomKill::Counted { cgroup: path.display().to_string(), kills: count - before };
            }
        }
        match (&self.log, &self.own) {
            (None, None) => OomKill::Unknown,
            (None, Some(_)) if is_early => OomKill::Unknown,
            (Some(_), _) | (None, Some(_)) => OomKill::No,
        }
    }

    fn read_log(&mut self) {
        let Some(log) = &self.log else { return };
        let mut record = [0u8; 8192];
        loop {
            match rustix::io::read(log.as_fd(), &mut record) {
                Ok(0) => return,
                Ok(count) => {
                    let text = String::from_utf8_lossy(&record[..count]);
                    let line = text.split_once(';').map_or("", |(_, line)| line).lines().next().unwrap_or_default();
                    if victim(line).is_some() {
                        if self.seen.len() >= MAX_SEEN {
                            self.seen.remove(0);
                            self.returned = self.returned.saturating_sub(1);
                        }
                        self.seen.push(line.to_owned());
                    }
                }
                // EPIPE: records were overwritten before they were read; the next read goes on.
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The pid that a line of the kernel's log names: `Killed process 12 (name) total-vm:...` or
/// `oom-kill:...,task=name,pid=12,uid=0` (mm/oom_kill.c).
fn victim(line: &str) -> Option<i32> {
    let number = |text: &str| {
        let digits = text.len() - text.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        text[..digits].parse().ok()
    };
    let killed = line.split_once("Killed process ").and_then(|(_, rest)| number(rest));
    killed.or_else(|| line.strip_prefix("oom-kill:")?.rsplit_once(",pid=").and_then(|(_, rest)| number(rest)))
}

/// The user that such a line names.
fn user(line: &str) -> Option<u32> {
    let (_, rest) = line.rsplit_once(",uid=").or_else(|| line.rsplit_once(" UID:"))?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// The directory of a process's memory cgroup: of the v1 controller where there is one, else of v2.
fn memory_cgroup(pid: i32) -> Option<PathBuf> {
    let membership = kernel::piece_text(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = String::from_utf8_lossy(kernel::mounts());
    let v1 = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let controllers = fields.nth(1)?;
        controllers.split(',').any(|name| name == "memory").then(|| fields.next()).flatten()
    });
    let (kind, option, path) = match v1 {
        Some(path) => ("cgroup", Some("memory"), path),
        None => ("cgroup2", None, membership.lines().find_map(|line| line.strip_prefix("0::"))?),
    };
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let options = (after.next() == Some(kind)).then(|| after.nth(1)).flatten()?;
        let fits = option.is_none_or(|option| options.split(',').any(|name| name == option));
        let mut fields = before.split(' ').skip(3);
        let root = fields.next()?;
        let point = fields.next()?;
        fits.then(|| (root.to_owned(), point.to_owned()))
    })?;
    let below = Path::new(path).strip_prefix(&mount.0).or_else(|_| Path::new(path).strip_prefix("/")).ok()?;
    Some(Path::new(&mount.1).join(below))
}

/// How often the kernel has killed in a memory cgroup.
fn kills(cgroup: &Path) -> Option<u64> {
    let text =
        ["memory.events", "memory.oom_control"].iter().find_map(|name| kernel::piece_text(cgroup.join(name)).ok())?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_of_the_kernel_name_the_victim() {
        // Linux 6.18.
        let lines = [
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,pid=b,task_memcg=/a,task=python3,pid=4711,uid=0",
            "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:214480kB, anon-rss:65024kB, file-rss:9496kB",
            "Out of memory: Killed process 4711 (a) b (c) total-vm:1kB",
        ];
        assert_eq!(lines.map(victim), [Some(4711); 3]);
        assert_eq!(lines.map(user), [Some(0), None, None]);
        assert_eq!(user("Out of memory: Killed process 7 (a) total-vm:1kB, UID:1000 pgtables:9kB"), Some(1000));
        assert_eq!(victim("oom_reaper: reaped process 4711 (python3), now anon-rss:0kB"), None);
    }
}
