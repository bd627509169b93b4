//! Reads /proc. Used to find processes to signal, never to prove that none is left (K-4).

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::time::ClockId;

use crate::kernel;
use crate::wait::{self, Look};

/// One process, from `/proc/PID/stat`; one in a list of all that is not below this process, from `/proc/PID/status` ([`all`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// `R`, `S`, `D`, `T`, `Z` and so on (proc(5)).
    pub state: char,
    /// Clock ticks of user and system time so far; 0 if only its status was read.
    pub cpu_ticks: u64,
    /// Clock ticks from boot to the start of the process: with the pid, a unique identity. 0 if only its status was read.
    pub started: u64,
    pub name: String,
}

impl Process {
    /// Its identity. If only its status was read, its `stat` is read now.
    pub fn id(&self) -> crate::process::ProcessId {
        let started = match self.started {
            0 => process(self.pid).filter(|now| self.is_perhaps(now)).map_or(u64::MAX, |now| now.started),
            started => started,
        };
        crate::process::ProcessId { pid: self.pid, started }
    }

    /// Whether this may be the same process, read a moment later. A process that got its pid has another parent or session.
    fn is_perhaps(&self, later: &Process) -> bool {
        (self.parent, self.session) == (later.parent, later.session)
    }

    /// CPU time of all its threads so far.
    pub fn cpu_time(&self) -> Duration {
        // USER_HZ, the unit of proc(5), is 100 on every architecture that matters.
        Duration::from_millis(self.cpu_ticks * 10)
    }
}

/// How long ago a process was started that has this time of start. It is exact to a clock tick.
pub fn age(started: u64) -> Duration {
    let now = time_on(ClockId::Boottime);
    now.saturating_sub(Duration::from_millis(started * 10))
}

/// Time on the clock that does not jump and that all processes share, also those in other languages.
pub fn monotonic() -> Duration {
    time_on(ClockId::Monotonic)
}

/// The time of day.
pub fn realtime() -> Duration {
    time_on(ClockId::Realtime)
}

fn time_on(clock: ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// One process; `None` when it is gone.
pub fn process(pid: i32) -> Option<Process> {
    parse_stat(&read(pid, "stat").ok()?)
}

/// A file of a process that is one piece: one call reads it.
fn read(pid: i32, name: &str) -> io::Result<Vec<u8>> {
    kernel::read_piece(format!("/proc/{pid}/{name}"))
}

/// Whether a process has ended: nothing has its pid, or its parent has not reaped it. False if that is not known, such as without a
/// descriptor to read it with, or for the pid 0 of a process in another namespace.
pub fn has_ended(pid: i32) -> bool {
    pid > 0 && is_of_ended(read(pid, "stat"))
}

/// Whether what was read of a process says that it has ended. ESRCH: it ended after its file was opened.
fn is_of_ended(stat: io::Result<Vec<u8>>) -> bool {
    match stat {
        Ok(stat) => parse_stat(&stat).is_some_and(|process| process.state == 'Z'),
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    }
}

/// The state of a thread of this process: a letter as of [`Process::state`].
pub fn own_thread_state(tid: i32) -> Option<char> {
    let stat = kernel::read_piece(format!("/proc/self/task/{tid}/stat")).ok()?;
    parse_stat(&stat).map(|thread| thread.state)
}

/// The status that `wait(2)` will give for a process that has ended, and that its parent has not taken note of. `None` for others, and
/// for those that may not be looked into.
pub fn exit_status(pid: i32) -> Option<i32> {
    let stat = read(pid, "stat").ok()?;
    parse_stat(&stat).filter(|process| process.state == 'Z')?;
    // The last field (52). Whoever may not see it reads 0, as of one that has succeeded.
    let last = stat.trim_ascii_end().rsplit(|&byte| byte == b' ').next()?;
    std::str::from_utf8(last).ok()?.parse().ok().filter(|status| *status != 0)
}

fn parse_stat(stat: &[u8]) -> Option<Process> {
    let open = stat.iter().position(|&b| b == b'(')?;
    let close = stat.iter().rposition(|&b| b == b')')?;
    let name = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
    let pid = std::str::from_utf8(&stat[..open]).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // fields[0] is the third of proc(5).
    let number = |field: usize| -> Option<i64> { fields.get(field - 3)?.parse().ok() };
    Some(Process {
        pid,
        parent: number(4)? as i32,
        group: number(5)? as i32,
        session: number(6)? as i32,
        state: fields.first()?.chars().next()?,
        cpu_ticks: (number(14)? + number(15)?) as u64,
        started: number(22)? as u64,
        name,
    })
}

/// All processes that can be seen.
///
/// While a process closes its files at an exec, whoever reads its `stat` waits for that (seen in Linux 6.18): for ever, where one of
/// these files is on a file system that does not answer. Nothing holds up who reads its `status`. So of strangers only that is read: none
/// of them can hold up a job.
pub fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()));
    let brief = |pid: i32| parse_status(&read(pid, "status").ok()?).or_else(|| process(pid));
    let mut processes: HashMap<i32, Process> = pids.filter_map(brief).map(|process| (process.pid, process)).collect();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in processes.values() {
        children.entry(process.parent).or_default().push(process.pid);
    }
    let mut queue = children.remove(&(std::process::id() as i32)).unwrap_or_default();
    while let Some(pid) = queue.pop() {
        // Each is taken once: the table changes while it is read, and may contain a cycle.
        queue.extend(children.remove(&pid).into_iter().flatten());
        match process(pid) {
            Some(read) => processes.insert(pid, read),
            None => processes.remove(&pid),
        };
    }
    processes.into_values().collect()
}

/// What proc_pid_status(5) says of a process.
fn parse_status(status: &[u8]) -> Option<Process> {
    let text = String::from_utf8_lossy(status);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    // In each of the namespaces of pids that it is in, from ours on.
    let number = |name: &str| field(name)?.split_ascii_whitespace().next()?.parse().ok();
    Some(Process {
        pid: number("Pid")?,
        parent: number("PPid")?,
        group: number("NSpgid")?,
        session: number("NSsid")?,
        state: field("State")?.chars().next()?,
        cpu_ticks: 0,
        started: 0,
        name: field("Name")?.to_owned(),
    })
}

/// The processes below `root`, without `root` itself, parents before children. Zombies are included.
pub fn descendants(root: i32) -> Vec<Process> {
    Snapshot::take().below(root).into_iter().cloned().collect()
}

/// A snapshot of the process table: one walk of /proc for several queries.
#[derive(Debug, Default)]
pub struct Snapshot {
    processes: HashMap<i32, Process>,
    children: HashMap<i32, Vec<i32>>,
}

impl Snapshot {
    pub fn take() -> Snapshot {
        Snapshot::of(all())
    }

    fn of(all: Vec<Process>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for process in all {
            snapshot.children.entry(process.parent).or_default().push(process.pid);
            snapshot.processes.insert(process.pid, process);
        }
        snapshot
    }

    pub fn get(&self, pid: i32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// How many processes there were.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// The processes below `root`, without itself, parents before children. Zombies are included.
    pub fn below(&self, root: i32) -> Vec<&Process> {
        let mut found: Vec<&Process> = Vec::new();
        let mut queue = vec![root];
        while let Some(parent) = queue.pop() {
            for pid in self.children.get(&parent).into_iter().flatten() {
                // The table changes while it is read, and may contain a cycle.
                if let Some(process) = self.processes.get(pid).filter(|_| *pid != root && found.len() < self.len()) {
                    queue.push(*pid);
                    found.push(process);
                }
            }
        }
        found
    }
}

/// The children of this process: read from the kernel's list where it has one, else by a walk.
pub fn try_own_children() -> io::Result<Vec<i32>> {
    let mut children = Vec::new();
    if wait::peek() == Look::NoChildren {
        return Ok(children);
    }
    let me = std::process::id() as i32;
    for task in std::fs::read_dir("/proc/self/task")? {
        match list_of_children(me, &task?) {
            Ok(list) => children.extend(list),
            // The thread has ended, and its children are another's.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            // The kernel has no such list (CONFIG_PROC_CHILDREN).
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(all()
                    .into_iter()
                    .filter(|process| process.parent == me)
                    .map(|process| process.pid)
                    .collect());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(children)
}

/// The processes below this one, parents before children, without those that are `left_out` and what is below them. Zombies are
/// included. It costs as much as there are threads of these processes, whatever else runs on the machine; where the kernel has no lists of
/// children, it is a walk of the whole table.
pub fn own_descendants(left_out: impl Fn(i32) -> bool) -> Vec<Process> {
    let me = std::process::id();
    // A child that is missing is seen by the next look: the lists change while they are read, and so does the table.
    let Ok(own) = try_own_children() else { return Vec::new() };
    let table = (!std::path::Path::new(&format!("/proc/self/task/{me}/children")).exists()).then(Snapshot::take);
    let (mut found, mut seen, mut queue) = (Vec::new(), HashSet::new(), VecDeque::from(own));
    while let Some(pid) = queue.pop_front() {
        if left_out(pid) || !seen.insert(pid) {
            continue;
        }
        match &table {
            Some(table) => queue.extend(table.children.get(&pid).into_iter().flatten()),
            None => queue.extend(children_of(pid)),
        }
        found.extend(process(pid));
    }
    found
}

/// The children of any process, where the kernel has a list of them.
pub fn children_of(pid: i32) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks.flatten().filter_map(|task| list_of_children(pid, &task).ok()).flatten().collect()
}

/// The children that a thread of a process has started, or was given.
fn list_of_children(pid: i32, task: &std::fs::DirEntry) -> io::Result<Vec<i32>> {
    read_children(&format!("/proc/{pid}/task/{}/children", task.file_name().display()))
}

/// A list of children. Of a long one, several pieces, each may lack children while others end (`get_children_pid` in the kernel's
/// fs/proc/array.c): that is read twice.
fn read_children(path: &str) -> io::Result<Vec<i32>> {
    let list = || kernel::read(path).map(|list| pids(&String::from_utf8_lossy(&list)).collect::<Vec<i32>>());
    let mut children = list()?;
    // A page has room for more.
    if children.len() > 340 {
        let seen: HashSet<i32> = children.iter().copied().collect();
        children.extend(list()?.into_iter().filter(|pid| !seen.contains(pid)));
    }
    Ok(children)
}

/// The same for callers that try again: none if they cannot be read.
pub fn own_children() -> Vec<i32> {
    try_own_children().unwrap_or_default()
}

/// The children that the kernel has given to this process's main thread: those whose own parent has died. Children that
/// another thread has started are not among them.
pub fn adopted_children() -> io::Result<Vec<i32>> {
    let me = std::process::id();
    match read_children(&format!("/proc/{me}/task/{me}/children")) {
        Ok(children) => Ok(children),
        Err(error) if error.kind() == io::ErrorKind::NotFound => try_own_children(),
        Err(error) => Err(error),
    }
}

fn pids(list: &str) -> impl Iterator<Item = i32> {
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok())
}

/// A list of children read into memory of the caller, without allocation: for the guard.
#[derive(Debug)]
pub struct ChildList {
    file: Option<OwnedFd>,
}

impl ChildList {
    /// Opens the list of children of the calling process, which must have one thread.
    pub fn open() -> ChildList {
        let me = std::process::id();
        let file = std::fs::File::open(format!("/proc/self/task/{me}/children"));
        ChildList { file: file.ok().map(OwnedFd::from) }
    }

    /// Puts the pids of the children into `pids` and returns how many there are (at most its length).
    pub fn read(&self, pids: &mut [i32]) -> usize {
        let Some(file) = &self.file else {
            let children = own_children();
            let count = children.len().min(pids.len());
            pids[..count].copy_from_slice(&children[..count]);
            return count;
        };
        let mut bytes = [0u8; 4096];
        let Ok(length) = rustix::io::pread(file, &mut bytes, 0) else {
            return 0;
        };
        let (mut count, mut number) = (0, 0i32);
        for &byte in &bytes[..length] {
            if byte.is_ascii_digit() {
                number = number * 10 + i32::from(byte - b'0');
            } else if number > 0 {
                // A number that the end of the buffer cuts is left out: the next call reads it.
                if count < pids.len() {
                    pids[count] = number;
                    count += 1;
                }
                number = 0;
            }
        }
        count
    }
}

/// The value of a variable in an environment, as `/proc/PID/environ` has it.
pub fn variable_of(environ: &[u8], name: &str) -> Option<Vec<u8>> {
    let prefix = [name.as_bytes(), b"="].concat();
    environ.split(|&b| b == 0).find_map(|entry| entry.strip_prefix(prefix.as_slice()).map(<[u8]>::to_vec))
}

/// The value of a variable in the environment that a process was started with.
pub fn environment_variable(pid: i32, name: &str) -> Option<Vec<u8>> {
    variable_of(&kernel::read(format!("/proc/{pid}/environ")).ok()?, name)
}

/// The environment that a process was started with: at most `limit` bytes.
///
/// # Errors
///
/// EACCES: it is another user's, or has changed its user.
pub fn environment(pid: i32, limit: u64) -> io::Result<Vec<u8>> {
    read_bounded(&format!("/proc/{pid}/environ"), limit)
}

/// The words of a process's command: at most `limit` bytes of it.
pub fn arguments(pid: i32, limit: u64) -> Vec<Vec<u8>> {
    let line = read_bounded(&format!("/proc/{pid}/cmdline"), limit).unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    if line.is_empty() { Vec::new() } else { line.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect() }
}

fn read_bounded(path: &str, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The user of a process. Root where it has changed its user, or may not be read by others for another reason.
pub fn owner(pid: i32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|meta| meta.uid())
}

/// Bytes of a process's list of mappings that are read: programs of machine learning have a thousand of them.
const MAPPINGS: u64 = 4 << 20;

/// The name of the first file that a process has mapped and whose name begins with `prefix`, without its directory.
pub fn mapped_file(pid: i32, prefix: &str) -> Option<String> {
    let maps = read_bounded(&format!("/proc/{pid}/maps"), MAPPINGS).ok()?;
    let mut names = maps.split(|&byte| byte == b'\n').filter_map(|line| {
        let slash = line.iter().rposition(|&byte| byte == b'/')?;
        line.get(slash + 1..)
    });
    let name = names.find(|name| name.starts_with(prefix.as_bytes()))?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// The file that a process executes.
pub fn executable(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Whether a process was forked from another and has executed nothing since: both have the same program at the same place,
/// and their stacks begin at the same address, which the kernel chooses anew for each exec. False if that cannot be read.
/// Nothing is read from the memory of either: it could be locked.
pub fn is_forked_from(pid: i32, parent: i32) -> bool {
    let image = |pid: i32| image_of(&read(pid, "stat").ok()?);
    let has_image = image(pid).is_some_and(|own| image(parent) == Some(own));
    has_image && executable(pid).is_some_and(|own| executable(parent) == Some(own))
}

/// The addresses of the program's code and of the bottom of the stack: fields 26 and 28 of proc(5). Those of processes that
/// may not be looked at are given as 0 or 1.
fn image_of(stat: &[u8]) -> Option<(u64, u64)> {
    let close = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let code = fields.nth(26 - 3)?.parse().ok()?;
    let stack = fields.nth(1)?.parse().ok()?;
    (code > 1 && stack > 1).then_some((code, stack))
}

/// The name of the cgroup v2 directory just below `job` that a process is in, if it is below it.
pub fn cgroup_leaf(pid: i32, job: &str) -> Option<String> {
    let membership = kernel::piece_text(format!("/proc/{pid}/cgroup")).ok()?;
    let path = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut parts = path.split('/').skip_while(|part| *part != job);
    parts.nth(1).map(str::to_owned)
}

/// Nanoseconds that the main thread of a process has run, and in which it was ready to run and had no CPU. A kernel without
/// CONFIG_SCHED_INFO, which does not count them, gives zeros.
fn schedstat(pid: i32) -> Option<[u64; 2]> {
    let text = kernel::piece_text(format!("/proc/{pid}/schedstat")).ok()?;
    let mut numbers = text.split_ascii_whitespace().map_while(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?]).filter(|[ran, _]| *ran > 0)
}

/// Nanoseconds that a process has run so far, by the scheduler's own account; ticks where there is none.
pub fn run_time(pid: i32) -> Option<u64> {
    let ran = schedstat(pid).map(|[ran, _]| ran);
    ran.or_else(|| process(pid).map(|process| process.cpu_ticks * 10_000_000))
}

/// How long the main thread of a process was ready to run and had no CPU; zero where the kernel does not count it. The kernel adds a
/// wait when it ends.
pub fn run_delay(pid: i32) -> Duration {
    Duration::from_nanos(schedstat(pid).map_or(0, |[_, waited]| waited))
}

/// What the scheduler says of the main thread of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scheduling {
    /// How long it has run; where the kernel does not count that, the CPU time of all threads.
    pub ran: Duration,
    /// As of [`run_delay`].
    pub waited: Duration,
    /// It runs or is ready to run.
    pub is_runnable: bool,
}

/// What the scheduler says of the main thread of a process; nothing of one that is gone.
pub fn scheduling(pid: i32) -> Scheduling {
    let process = process(pid);
    let is_runnable = process.as_ref().is_some_and(|process| process.state == 'R');
    let counted = schedstat(pid).map(|times| times.map(Duration::from_nanos));
    let [ran, waited] =
        counted.unwrap_or_else(|| [process.map_or(Duration::ZERO, |process| process.cpu_time()), Duration::ZERO]);
    Scheduling { ran, waited, is_runnable }
}

/// Bytes that a process has caused to be written so far; 0 where that cannot be read.
pub fn written_bytes(pid: i32) -> u64 {
    let text = kernel::piece_text(format!("/proc/{pid}/io")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok()).unwrap_or(0)
}

/// Whether a process has ended, or is past the point of its end from which on it runs no code: its descriptors are closed
/// before it can be reaped.
pub fn is_ending(pid: i32) -> bool {
    read(pid, "stat").is_ok_and(|stat| is_ending_in(&stat))
}

fn is_ending_in(stat: &[u8]) -> bool {
    /// In the flags of a process, the ninth field of proc(5) (`include/linux/sched.h`).
    const PF_EXITING: u64 = 0x4;
    let Some(close) = stat.iter().rposition(|&byte| byte == b')') else { return false };
    let rest = String::from_utf8_lossy(&stat[close + 1..]);
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let flags = fields.get(9 - 3).and_then(|flags| flags.parse::<u64>().ok());
    fields.first() == Some(&"Z") || flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

/// Whether the kernel is writing a core dump of this process.
pub fn dumping_core(pid: i32) -> bool {
    let text = kernel::piece_text(format!("/proc/{pid}/status")).unwrap_or_default();
    text.lines().any(|line| line.strip_prefix("CoreDumping:").is_some_and(|value| value.trim() == "1"))
}

/// What a process can do with a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// It has ended, and is not reaped.
    Ended,
    /// Nothing: it ignores the signal, or leaves it to the kernel.
    Unnoticed,
    /// It catches the signal, or blocks it, and may wait for it (`sigwait`, `signalfd`).
    Noticed,
}

/// What a process can do with a signal that it is sent now; `None` if that is unknown.
pub fn reaction(pid: i32, signal: i32) -> Option<Reaction> {
    reaction_of(&kernel::piece_text(format!("/proc/{pid}/status")).ok()?, signal)
}

/// proc_pid_status(5). A process that has ended has no handlers any more.
fn reaction_of(status: &str, signal: i32) -> Option<Reaction> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("State:")?.starts_with(['Z', 'X']) {
        return Some(Reaction::Ended);
    }
    let bit = 1u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
    let has = |name: &str| Some(u64::from_str_radix(field(name)?, 16).ok()? & bit != 0);
    let is_noticed = has("SigCgt:")? || has("SigBlk:")?;
    Some(if is_noticed { Reaction::Noticed } else { Reaction::Unnoticed })
}

/// The kernel function in which a process waits, if that can be read.
pub fn wait_channel(pid: i32) -> Option<String> {
    let text = kernel::piece_text(format!("/proc/{pid}/wchan")).ok()?;
    (!text.is_empty() && text != "0").then_some(text)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn a_status_says_the_same_as_a_stat() {
        let own = std::process::id() as i32;
        let status = std::fs::read(format!("/proc/{own}/status")).expect("it can be read");
        let read = process(own).expect("it is there");
        let unread = Process {
            state: read.state,
            cpu_ticks: read.cpu_ticks,
            started: read.started,
            ..parse_status(&status).expect("whole")
        };
        assert_eq!(unread, read);
        let waiting = b"Name:\ta b\nUmask:\t0022\nState:\tD (disk sleep)\nTgid:\t7\nPid:\t7\nPPid:\t3\nNSpgid:\t6\t1\nNSsid:\t5\t1\n";
        let waiting = parse_status(waiting).expect("whole");
        assert_eq!((waiting.pid, waiting.parent, waiting.group, waiting.session, waiting.state), (7, 3, 6, 5, 'D'));
        assert_eq!((waiting.name.as_str(), waiting.started), ("a b", 0));
    }

    /// The kernel gives out a list of children a page at a time.
    #[test]
    fn a_thousand_children_are_listed() {
        let script = "exec 3<&0; i=0; while [ $i -lt 1000 ]; do read line <&3 & i=$((i + 1)); done; echo; wait";
        let mut shell =
            Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
        let mut line = [0];
        shell.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("it has started them");
        let children = children_of(shell.id() as i32);
        assert_eq!(children.iter().collect::<HashSet<_>>().len(), 1000);
        assert_eq!(children.len(), 1000);
        drop(shell.stdin.take());
        assert!(shell.wait().expect("it ends").success());
    }

    #[test]
    fn what_is_left_out_of_the_descendants_leaves_out_what_is_below_it() {
        let mut shell =
            Command::new("sh").args(["-c", "sleep 600 & echo; wait"]).stdout(Stdio::piped()).spawn().expect("sh");
        let mut line = [0];
        shell.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("it has started the other one");
        let pid = shell.id() as i32;
        let below = |left_out: i32| {
            let found = own_descendants(|pid| pid == left_out);
            let ours = found.into_iter().filter(|process| process.pid == pid || process.parent == pid);
            ours.map(|process| (process.pid == pid, process.name)).collect::<Vec<_>>()
        };
        let names = [(true, "sh".to_owned()), (false, "sleep".to_owned())];
        let until = monotonic() + Duration::from_secs(60);
        // Until its exec it has the name of the shell.
        while below(0) != names {
            assert!(monotonic() < until, "{:?}", below(0));
        }
        assert_eq!(below(pid), []);
        for process in own_descendants(|_| false).into_iter().filter(|process| process.parent == pid) {
            let held = crate::process::ProcessRef::of(process.id()).expect("it lives");
            held.signal(libc::SIGKILL).expect("it can be killed");
        }
        shell.wait().expect("it ends");
    }

    #[test]
    fn a_process_is_ending_as_soon_as_it_runs_no_code_any_more() {
        for (stat, is_ending) in [
            (&b"7 (a) b) S 1 7 7 0 -1 4194560 9"[..], false),
            (b"7 (a) b) R 1 7 7 0 -1 4194564 9", true),
            (b"7 (a) b) Z 1 7 7 0 -1 4227084 9", true),
            (b"7 (a", false),
            (b"7 (a) R 1", false),
        ] {
            assert_eq!(is_ending_in(stat), is_ending, "{}", stat.escape_ascii());
        }
        assert!(!is_ending(std::process::id() as i32));
    }

    #[test]
    fn a_thread_that_runs_is_runnable_and_one_that_sleeps_is_not() {
        let start = |program: &str, words: &[&str]| Command::new(program).args(words).stdout(Stdio::null()).spawn();
        let mut spins = start("yes", &[]).expect("yes starts");
        let mut sleeps = start("sleep", &["600"]).expect("sleep starts");
        let looks = |child: &Child| scheduling(child.id() as i32);
        let long = Duration::from_millis(20);
        let bound = monotonic() + Duration::from_secs(60);
        while (looks(&spins).ran < long || looks(&sleeps).is_runnable) && monotonic() < bound {
            std::thread::yield_now();
        }
        let (spinning, sleeping) = (looks(&spins), looks(&sleeps));
        for child in [&mut spins, &mut sleeps] {
            child.kill().expect("it is killed");
            child.wait().expect("it ends");
        }
        assert!(spinning.is_runnable && spinning.ran >= long, "{spinning:?}");
        assert!(!sleeping.is_runnable, "{sleeping:?}");
        assert_eq!(scheduling(i32::MAX), Scheduling::default());
    }

    #[test]
    fn what_cannot_be_read_of_a_process_does_not_say_that_it_has_ended() {
        let failed = |errno: i32| is_of_ended(Err(io::Error::from_raw_os_error(errno)));
        assert_eq!([libc::ENOENT, libc::ESRCH].map(failed), [true; 2]);
        assert_eq!([libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EACCES].map(failed), [false; 4]);
        let of_state = |state: &str| {
            is_of_ended(Ok(format!("42 (a) {state} 1 42 40 0 -1 4194560 1 0 0 0 7 5 0 0 20 0 1 0 12345").into_bytes()))
        };
        assert_eq!((of_state("Z"), of_state("S"), is_of_ended(Ok(Vec::new()))), (true, false, false));
        assert_eq!([0, i32::MAX, std::process::id() as i32].map(has_ended), [false, true, false]);
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read() {
        let stat = b"42 (a) b (c) S 1 42 40 0 -1 4194560 1 0 0 0 7 5 0 0 20 0 1 0 12345 1 1";
        let process = parse_stat(stat).expect("a process");
        assert_eq!((process.pid, process.parent, process.group, process.session), (42, 1, 42, 40));
        assert_eq!(
            (process.name.as_str(), process.state, process.cpu_ticks, process.started),
            ("a) b (c", 'S', 12, 12345)
        );
    }

    #[test]
    fn what_a_process_was_started_with_is_read_within_its_limit() {
        let me = std::process::id() as i32;
        let words: Vec<Vec<u8>> = std::env::args().map(String::into_bytes).collect();
        assert_eq!(arguments(me, 1 << 20), words);
        assert_eq!(arguments(me, 1), [&words[0][..1]]);
        assert!(environment(me, 10).is_ok_and(|bytes| bytes.len() == 10));
        assert_eq!(owner(me), Some(rustix::process::geteuid().as_raw()));
        assert!(age(process(me).expect("ourselves").started) < Duration::from_secs(3600));
        assert!(mapped_file(me, "libc").is_some_and(|name| name.starts_with("libc")), "{:?}", mapped_file(me, "lib"));
        assert_eq!(mapped_file(me, "libpython"), None);
    }

    #[test]
    fn what_a_process_can_do_with_a_signal_is_read_from_its_status() {
        // Linux 6.1: Python (catches SIGINT, ignores SIGPIPE and SIGXFSZ), bash with `trap : TERM`, and one that has ended.
        let python = "Name:\tpython3\nState:\tS (sleeping)\nSigBlk:\t0000000000000000\nSigIgn:\t0000000001001000\n\
            SigCgt:\t0000000000000002\n";
        let bash = "Name:\tbash\nState:\tS (sleeping)\nSigBlk:\t0000000000010000\nSigIgn:\t0000000000000000\n\
            SigCgt:\t0000000000014002\n";
        let ended = "Name:\tpython3\nState:\tZ (zombie)\nSigBlk:\t0000000000000000\n";
        for (status, signal, expected) in [
            (python, libc::SIGINT, Some(Reaction::Noticed)),
            (python, libc::SIGTERM, Some(Reaction::Unnoticed)),
            (python, libc::SIGPIPE, Some(Reaction::Unnoticed)),
            (bash, libc::SIGTERM, Some(Reaction::Noticed)),
            (bash, libc::SIGCHLD, Some(Reaction::Noticed)),
            (ended, libc::SIGTERM, Some(Reaction::Ended)),
            ("", libc::SIGTERM, None),
        ] {
            assert_eq!(reaction_of(status, signal), expected, "{signal}: {status}");
        }
        // The C library blocks all signals for a moment in a thread that starts another, as the first thread here has just done.
        let me = std::process::id() as i32;
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while reaction(me, libc::SIGUSR1) != Some(Reaction::Unnoticed) {
            assert!(std::time::Instant::now() < until, "{:?}", reaction(me, libc::SIGUSR1));
            std::thread::yield_now();
        }
    }

    #[test]
    fn we_see_ourselves() {
        let me = process(std::process::id() as i32).expect("ourselves");
        assert!(run_time(me.pid).is_some_and(|ran| ran > 0));
        assert!(run_delay(me.pid) < age(me.started) + Duration::from_secs(1), "{:?}", run_delay(me.pid));
        assert_eq!(run_delay(-1), Duration::ZERO);
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!((own_thread_state(own), own_thread_state(i32::MAX)), (Some('R'), None));
        assert!(
            all().iter().any(|it| it.pid == me.parent && it.id() == process(me.parent).expect("it is there").id())
                || me.parent == 0
        );
    }
}
