//! Looking at processes through /proc.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Pid, Signal};

/// One process, as /proc shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// `R`, `S`, `D`, `T`, `Z` ...
    pub state: char,
    pub name: String,
}

/// All processes that can be seen.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(process).collect()
}

/// One process; `None` if there is none of that id.
pub fn process(pid: i32) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    // The name stands in parentheses and may itself contain any character.
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let mut fields = stat[close + 1..].split_whitespace();
    Some(Process {
        pid,
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        name: stat[open + 1..close].to_owned(),
    })
}

/// The processes below one, nearest first.
pub fn descendants(root: i32) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            next.push(process.pid);
            found.push(process);
        }
    }
    found
}

/// The children of a process.
pub fn children(pid: i32) -> Vec<Process> {
    all().into_iter().filter(|process| process.parent == pid).collect()
}

/// Whether a process exists and is not merely waiting to be reaped.
pub fn is_alive(pid: i32) -> bool {
    process(pid).is_some_and(|process| process.state != 'Z')
}

/// The bytes that a process has written so far, to wherever.
pub fn written(pid: i32) -> u64 {
    let counts = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = counts.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Sends a signal; a process that is gone already is no error.
pub fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // ESRCH is what a test may hope for, and EPERM shows as a survivor.
        #[expect(clippy::disallowed_methods, reason = "a process that this program has just found below itself")]
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// The proportional set size of a process in bytes; 0 for one that is gone.
pub fn proportional_memory(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
