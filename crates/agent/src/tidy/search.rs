//! Looking through /dev/shm for the agent, by whoever does the agent's work: guard, front, or relay (K-8).
//!
//! The agent has noted what it saw while the ranks lived. What it had no time to see is known by its name, or by who holds it when
//! the guard ends the job. What is new besides may be the job's: it is named, and stays.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rankrun_core::job::CleanShm;
use rankrun_core::segments::{Fate, Names, Traces, fate};
use rankrun_core::{Attempt, JobId};
use rankrun_sys::bounded::Bounded;
use rankrun_sys::fork::{self, Side};
use rankrun_sys::proc::Snapshot;
use rankrun_sys::process::Child;
use rankrun_sys::{shm, signal, socket, wait};
use rankrun_wire::Memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::names::{entry_of, has_own_name, own_names};
use super::runtime::parse_notes;

/// How long the processes of the job live on so that their files are known: they are about to be killed.
const HOLDERS_BOUND: Duration = Duration::from_millis(250);
/// Bytes of notes about them.
const HOLDERS_NOTES: usize = 32 * 1024;

/// How long to find out which files nobody holds any more.
const UNUSED_BOUND: Duration = Duration::from_secs(5);

/// What is known for a search.
#[derive(Clone, Debug)]
pub struct Search {
    pub clean_shm: CleanShm,
    /// When the job was started on this node.
    pub since: SystemTime,
    pub names: Names,
    /// What the job's processes were seen to hold for writing, besides what the agent has noted.
    pub held: HashMap<OsString, shm::File>,
    /// What else they were seen to use, by inode: it may be of another user, or a directory with a file of theirs.
    pub used: HashSet<u64>,
}

impl Search {
    /// For a job in all its attempts up to this one.
    pub fn new(job: &JobId, last: Attempt, since: SystemTime, clean_shm: CleanShm) -> Search {
        Search { clean_shm, since, names: own_names(job, last), held: HashMap::new(), used: HashSet::new() }
    }

    /// Looks through /dev/shm when no process of the job is left, and removes what is the job's, if it is to be removed. `noted` is what the
    /// agent has noted.
    pub(super) fn run(&self, noted: &HashMap<OsString, shm::File>) -> Memory {
        let mut new = shm::appeared_since(self.since);
        new.retain(|_, file| is_own_file(file) || self.used.contains(&file.inode));
        self.sort(new, noted, UNUSED_BOUND, shm::unused)
    }

    /// The same with the files that are new, and with what finds out which of them nobody holds. That reads all processes of the machine,
    /// and one that keeps its memory locked must not hold whoever ends the job: without an answer nothing is removed.
    fn sort(
        &self,
        new: HashMap<OsString, shm::File>,
        noted: &HashMap<OsString, shm::File>,
        bound: Duration,
        unused: impl FnOnce(HashMap<OsString, shm::File>) -> Vec<OsString> + Send + 'static,
    ) -> Memory {
        let asked = new.clone();
        let unused = Bounded::default().call(bound, move || unused(asked));
        let mut memory = Memory::default();
        if unused.is_none() && self.clean_shm != CleanShm::No {
            memory.doubtful = new.keys().cloned().collect();
            memory.doubtful.sort();
        }
        for path in unused.unwrap_or_default() {
            let file = new.get(&path).copied();
            let was_written =
                [noted, &self.held].iter().any(|known| file.is_some() && known.get(&path).copied() == file);
            let is_named = has_own_name(&self.names, &path);
            // What is not of this user, or a directory, is never removed.
            let was_held_outside = file.as_ref().is_some_and(|file| !is_own_file(file));
            let traces = Traces { is_of_user: true, is_new: true, was_written, was_held_outside, is_named };
            match (fate(traces), self.clean_shm) {
                (_, CleanShm::No) | (Fate::Ignore, _) => {}
                (Fate::Remove, CleanShm::Job) => {
                    if shm::unlink(&path) {
                        memory.created.push(path);
                    }
                }
                (Fate::Remove, CleanShm::List) => memory.created.push(path),
                (Fate::List, _) => memory.doubtful.push(path),
            }
        }
        memory
    }
}

/// The files of a job whose guard and agent are gone, by their names: those that appeared since its directory was made.
pub fn named_of_dead(job: &JobId, directory: &Path) -> HashMap<OsString, shm::File> {
    let names = Names::of_any_attempt(job, rankrun_sys::kernel::user());
    // Where the file system does not say when, nothing is known to be new.
    let made = std::fs::metadata(directory).and_then(|meta| meta.created());
    let new = made.map(shm::appeared_since).unwrap_or_default();
    new.into_iter().filter(|(path, file)| is_own_file(file) && has_own_name(&names, path)).collect()
}

/// A file of this user. A directory that nobody was seen to use may be anybody's.
fn is_own_file(file: &shm::File) -> bool {
    file.owner == rankrun_sys::kernel::user() && !file.is_directory
}

/// The files of /dev/shm that processes below this one hold: read by a child, since the reader of a
/// process may wait for it, and since a guard allocates no memory itself before it has killed the job. What the child has not read in time is
/// not known. `except` is the agent, which is not killed yet.
pub(crate) fn holders(except: i32) -> Holders {
    let mut notes = Holders { count: 0 };
    let Ok((reader, writer)) = socket::pipe() else { return notes };
    let guard = std::process::id() as i32;
    match fork::fork() {
        Err(_) => {}
        Ok(Side::Child) => {
            drop(reader);
            // Nobody reads what has no place any more.
            let _ = write_held(guard, except, writer);
            fork::exit_now(0)
        }
        Ok(Side::Parent { child }) => {
            drop(writer);
            notes.read(&reader);
            // It is our child, and not reaped.
            let _ = Child::unreaped(child).signal(signal::SIGKILL);
            // If it is not gone yet, it ends with what is left of the job.
            wait::reap(child);
        }
    }
    notes
}

/// The notes of [`holders`]: no memory of the process before they are written.
static NOTES: Mutex<[u8; HOLDERS_NOTES]> = Mutex::new([0; HOLDERS_NOTES]);

fn notes() -> MutexGuard<'static, [u8; HOLDERS_NOTES]> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`holders`] has found, not read yet: the first bytes of the notes.
pub(crate) struct Holders {
    count: usize,
}

impl Holders {
    /// Reads until the end, or until the time has passed.
    fn read(&mut self, pipe: &OwnedFd) {
        let until = Instant::now() + HOLDERS_BOUND;
        while let Some(rest) = until.checked_duration_since(Instant::now())
            && self.count < HOLDERS_NOTES
        {
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(rest.subsec_nanos()) };
            match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => continue,
            }
            match rustix::io::read(pipe, &mut notes()[self.count..]) {
                Ok(0) | Err(_) => return,
                Ok(count) => self.count += count,
            }
        }
    }

    /// The files that they hold for writing, and nobody else.
    pub(crate) fn files(&self) -> HashMap<OsString, shm::File> {
        parse_notes(self.whole_lines(&notes()[..]))
    }

    /// What else they use, by inode.
    pub(crate) fn used(&self) -> HashSet<u64> {
        let notes = notes();
        let lines = self.whole_lines(&notes[..]).split(|&byte| byte == b'\n');
        let inode = |line: &[u8]| std::str::from_utf8(line.strip_prefix(USED)?).ok()?.parse().ok();
        lines.filter_map(inode).collect()
    }

    /// A last line that was cut is not one.
    fn whole_lines<'a>(&self, notes: &'a [u8]) -> &'a [u8] {
        let bytes = &notes[..self.count];
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        &bytes[..whole]
    }
}

/// Before the inode of what is used, but not for writing by the job alone.
const USED: &[u8] = b"?";

/// Writes a line for each of the files: those held for writing by the job alone, as in the agent's list, and then the others.
fn write_held(guard: i32, except: i32, pipe: OwnedFd) -> io::Result<()> {
    let own = std::process::id() as i32;
    let table = Snapshot::take();
    let job: HashSet<i32> =
        table.below(guard).iter().map(|process| process.pid).filter(|pid| ![own, except].contains(pid)).collect();
    let mut held: HashMap<u64, (OsString, shm::File)> = HashMap::new();
    let files: HashMap<u64, _> = shm::files().into_iter().map(|(path, file)| (file.inode, (path, file))).collect();
    let entries: HashMap<&OsString, u64> = files.values().map(|(path, file)| (path, file.inode)).collect();
    let mut used: HashSet<u64> = HashSet::new();
    for pid in &job {
        for held_file in shm::held_by(*pid).unwrap_or_default() {
            match files.get(&held_file.inode) {
                Some(file) if held_file.writable && is_own_file(&file.1) => {
                    drop(held.insert(held_file.inode, file.clone()))
                }
                Some((_, file)) => drop(used.insert(file.inode)),
                None => used.extend(entry_of(&held_file.path).and_then(|entry| entries.get(&entry).copied())),
            }
        }
    }
    used.retain(|inode| !held.contains_key(inode));
    let outside = |pid: i32| !job.contains(&pid) && ![own, except].contains(&pid);
    for process in table.iter().filter(|process| outside(process.pid)) {
        if held.is_empty() {
            break;
        }
        for held_file in shm::held_by(process.pid).unwrap_or_default() {
            held.remove(&held_file.inode);
        }
    }
    let mut pipe = std::fs::File::from(pipe);
    for (path, file) in held.into_values() {
        let mut line = format!("{} ", file.inode).into_bytes();
        line.extend_from_slice(path.as_bytes());
        line.push(b'\n');
        pipe.write_all(&line)?;
    }
    for inode in used {
        pipe.write_all(&[USED, format!("{inode}\n").as_bytes()].concat())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_found_out_in_time_is_named_and_stays() {
        let job = JobId("e939867a".to_owned());
        let search = Search::new(&job, Attempt(0), SystemTime::now(), CleanShm::Job);
        let path = OsString::from("/dev/shm/mpich_shm_d3b4d99a_0");
        let new = HashMap::from([(path.clone(), shm::File { inode: 1, owner: 0, is_directory: false })]);
        let (release, locked) = std::sync::mpsc::sync_channel::<()>(1);
        let unused = move |_| {
            let _ = locked.recv();
            Vec::new()
        };
        let found = search.sort(new, &HashMap::new(), Duration::from_millis(20), unused);
        assert_eq!(found, Memory { doubtful: vec![path], ..Memory::default() });
        drop(release);
    }
}
