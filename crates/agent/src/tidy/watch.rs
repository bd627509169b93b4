//! What the thread that watches /dev/shm knows, and its looks (K-8): see [`super::shm`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rankrun_core::Pid;
use rankrun_core::job::CleanShm;
use rankrun_core::segments::{Fate, Names, Traces, fate};
use rankrun_sys::proc::{self, Snapshot};
use rankrun_sys::shm::{self, File};
use rankrun_sys::watched::Watched;
use rankrun_wire::Memory;

use super::names::{MAX_DOUBTFUL, entry_of, has_own_name, is_probe, is_segment_of, leave_to_others, names_of_others};

/// New names for which no holder has been found yet. Of a job that makes more at a time (a DataLoader that makes and
/// removes thousands) the others are not looked at, unless their names are its own.
const MAX_PENDING: usize = 1024;
/// When the holders of a new name are looked up, after it appeared: at once, since its creator has it open, and again,
/// since others may map it later and the first look may come before the `open` has returned.
const LOOKS: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_secs(1),
];
/// The looks may take this part of a CPU at most (1 / n). Only CPU time counts: on a busy machine wall time would delay the
/// next look too much.
const DUTY: u32 = 10;
/// How long a noted name has been there before its holders outside the job are looked for. Libraries of MPI remove nearly all that they make
/// sooner, and a walk over all processes of the machine takes them longer than the start of a small job.
const SETTLED: Duration = Duration::from_secs(1);
/// How often to look for new names if the kernel does not notify us.
const UNHINTED: Duration = Duration::from_secs(1);
/// The pids of the leaders, the last ones last.
pub(super) type Leaders = Arc<Mutex<VecDeque<Pid>>>;
/// How many are kept: the more, the more likely is a segment of another program's taken for a leader's, of whose name 16 bits count.
pub(super) const MAX_LEADERS: usize = 1024;

/// The CPU time that this thread has used so far. Where a sandbox refuses that clock, the time that has passed bounds it.
fn worked() -> Duration {
    use rustix::time::{ClockId, DynamicClockId, clock_gettime_dynamic};
    match clock_gettime_dynamic(DynamicClockId::Known(ClockId::ThreadCPUTime)) {
        Ok(time) => Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32),
        Err(_) => rankrun_sys::proc::monotonic(),
    }
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) policy: CleanShm,
    /// The names that are the job's own, once it has begun.
    pub(super) names: Option<Names>,
    leaders: Leaders,
    user: u32,
    agent: i32,
    /// The kernel's notification of new names.
    hint: Option<Watched>,
    pub(super) has_news: bool,
    /// The files that were there before the job.
    before: HashMap<OsString, File>,
    /// The files that were there at the last look: one that was removed and made again is new.
    seen: HashMap<OsString, File>,
    /// New files of this user, with the number of looks at their holders.
    pending: BTreeMap<OsString, usize>,
    noted: HashMap<OsString, File>,
    doubtful: BTreeSet<OsString>,
    /// Doubtful files that earlier attempts have left.
    listed: HashMap<OsString, File>,
    /// The list of the noted names, once there is one.
    list: PathBuf,
    file: Option<std::fs::File>,
    next_look: Option<Instant>,
    not_before: Instant,
    no_walk_before: Instant,
    /// Noted names that have not been checked for holders outside the job. The check walks over all processes of the
    /// machine, so it has its own pace and does not delay the looks at the job's processes.
    unchecked: HashSet<OsString>,
    /// When the first of them has been there long enough to be checked.
    settled: Instant,
    no_check_before: Instant,
    /// Names that no look has found with a process of the job. The same check looks for their holders.
    unclaimed: HashSet<OsString>,
    /// The job's processes when they were about to be signalled. One that is killed in `MPI_Init` leaves a segment with its number.
    signalled: Vec<Pid>,
    /// Files that only a process outside the job was seen to hold for writing: they are not the job's.
    foreign: HashMap<OsString, File>,
}

impl Watch {
    /// `before` tells which files are not new. It is called when the kernel's notifications have begun.
    pub(super) fn begin(list: PathBuf, leaders: Leaders, before: impl FnOnce() -> HashMap<OsString, File>) -> Watch {
        let now = Instant::now();
        // Without it the directory is read once a second. What appears from here on is new.
        let hint = Watched::new(Path::new(shm::DIRECTORY)).ok();
        let before = before();
        let mut watch = Watch {
            // Until the job begins.
            policy: CleanShm::No,
            names: None,
            leaders,
            user: rankrun_sys::kernel::user(),
            agent: std::process::id() as i32,
            hint,
            has_news: false,
            seen: before.clone(),
            before,
            pending: BTreeMap::new(),
            noted: HashMap::new(),
            doubtful: BTreeSet::new(),
            listed: HashMap::new(),
            list,
            file: None,
            next_look: None,
            not_before: now,
            no_walk_before: now,
            unchecked: HashSet::new(),
            settled: now,
            no_check_before: now,
            unclaimed: HashSet::new(),
            signalled: Vec::new(),
            foreign: HashMap::new(),
        };
        watch.next_look = watch.hint.is_none().then_some(now + UNHINTED);
        watch
    }

    /// The same in another attempt: what was noted and listed stays so.
    pub(super) fn begin_again(self) -> Watch {
        let Watch { listed, noted, list, leaders, .. } = self;
        Watch { listed, noted, ..Watch::begin(list, leaders, shm::files) }
    }

    pub(super) fn due_in(&self) -> Option<Duration> {
        let due = [self.look_due(), self.check_due()].into_iter().flatten().min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn is_check_wanted(&self) -> bool {
        !self.unchecked.is_empty() || !self.unclaimed.is_empty()
    }

    /// When to look for holders outside the job. Names that nobody claims have been looked at for a second by then, the noted ones wait for
    /// [`SETTLED`].
    fn check_due(&self) -> Option<Instant> {
        let unchecked = (!self.unchecked.is_empty()).then_some(self.settled);
        let unclaimed = (!self.unclaimed.is_empty()).then_some(self.no_check_before);
        Some([unchecked, unclaimed].into_iter().flatten().min()?.max(self.no_check_before))
    }

    fn look_due(&self) -> Option<Instant> {
        let news = self.has_news.then_some(self.not_before);
        [news, self.next_look].into_iter().flatten().min()
    }

    pub(super) fn look_if_due(&mut self) {
        if self.look_due().is_some_and(|due| due <= Instant::now()) {
            self.look(false);
        } else if self.check_due().is_some_and(|due| due <= Instant::now()) {
            // Only when no look at the job's processes is due: they may end soon.
            self.check_outside();
        }
    }

    /// Takes the names that are new.
    fn scan(&mut self) {
        if !std::mem::take(&mut self.has_news) && self.hint.is_some() {
            return;
        }
        let files = shm::files();
        self.pending.retain(|path, _| files.contains_key(path));
        self.doubtful.retain(|path| files.contains_key(path));
        for (path, file) in &files {
            let is_new = self.seen.get(path) != Some(file) && self.noted.get(path) != Some(file);
            // A rank of root may become another user.
            let is_possible = file.owner == self.user || self.user == 0;
            if is_new && is_possible && (self.pending.len() < MAX_PENDING || self.is_named(path)) {
                self.pending.insert(path.clone(), 0);
            }
        }
        self.seen = files;
    }

    /// Finds new names and their holders. It checks the agent's children first: mostly these create shared memory, and a quick
    /// look can find them before they end. `thorough` checks all processes at once.
    pub(super) fn look(&mut self, thorough: bool) {
        if self.policy == CleanShm::No {
            (self.has_news, self.next_look) = (false, None);
            return;
        }
        let begun = worked();
        if let Some(names) =
            self.names.as_mut().filter(|_| self.has_news || self.hint.is_none() || !self.pending.is_empty())
        {
            let leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner);
            names.set_processes(leaders.iter().chain(&self.signalled).copied().collect());
        }
        self.scan();
        // A name says it at once, whoever holds the file, and so does another name that the file has had.
        let known: HashSet<u64> = self.noted.values().map(|file| file.inode).collect();
        let is_known = |path: &OsString| self.seen.get(path).is_some_and(|file| known.contains(&file.inode));
        let is_ours = |path: &&OsString| self.is_named(path) || is_known(path);
        let mut created: HashSet<OsString> = self.pending.keys().filter(is_ours).cloned().collect();
        if created.len() < self.pending.len() {
            created.extend(self.held_for_writing(proc::own_children()));
        }
        let looked = worked();
        let is_open = |(path, looks): (&OsString, &usize)| *looks > 0 && !created.contains(path);
        let is_wanted = Instant::now() >= self.no_walk_before && self.pending.iter().any(is_open);
        if is_wanted || thorough {
            let below: Vec<i32> = proc::own_descendants(|_| false).iter().map(|process| process.pid).collect();
            if thorough {
                self.signalled = below.iter().map(|pid| Pid(*pid)).take(MAX_LEADERS).collect();
            }
            created.extend(self.held_for_writing(below));
            self.no_walk_before = Instant::now() + (worked() - looked) * DUTY;
        }
        if !created.is_empty() {
            self.note(created);
        }
        let unclaimed = &mut self.unclaimed;
        self.pending.retain(|path, looks| {
            *looks += 1;
            if *looks == LOOKS.len() {
                unclaimed.insert(path.clone());
            }
            *looks < LOOKS.len()
        });
        let now = Instant::now();
        // Limit the CPU time of the looks, however much is new. The walk over all processes has its own pace, so that it does
        // not delay the looks at the leaders: they are few, and mostly the creators.
        let pause = (looked - begun) * DUTY;
        let next = self.pending.values().copied().min().map(|looks| LOOKS[looks] - LOOKS[looks - 1]);
        let unhinted = self.hint.is_none().then_some(UNHINTED);
        self.next_look = next.or(unhinted).map(|step| now + step.max(pause));
        self.not_before = now + pause;
    }

    /// The pending files that one of these processes of the job can write to. What is only listed is doubtful: what it can only read, what
    /// belongs to another user, and a directory in which it has a file.
    fn held_for_writing(&mut self, pids: Vec<i32>) -> HashSet<OsString> {
        let mut created = HashSet::new();
        if self.pending.is_empty() {
            return created;
        }
        let names = self.names_by_inode(self.pending.keys());
        for held in pids.into_iter().filter_map(shm::held_by).flatten() {
            let itself = names.get(&held.inode).cloned();
            let above = || entry_of(&held.path).filter(|path| self.pending.contains_key(path));
            let is_itself = itself.is_some();
            let Some(path) = itself.or_else(above) else { continue };
            let is_own = self.seen.get(&path).is_some_and(|file| file.owner == self.user);
            if held.writable && is_own && is_itself {
                created.insert(path);
            } else {
                self.doubtful.insert(path);
            }
        }
        created
    }

    /// The names of files by their inodes: a process may have opened one by another name.
    fn names_by_inode<'a>(&self, paths: impl Iterator<Item = &'a OsString>) -> HashMap<u64, OsString> {
        paths.filter_map(|path| Some((self.file_of(path)?.inode, path.clone()))).collect()
    }

    fn file_of(&self, path: &OsString) -> Option<File> {
        self.noted.get(path).or_else(|| self.seen.get(path)).copied()
    }

    /// Whether the file that was seen under this name still has it.
    fn is_there(&self, path: &OsString) -> bool {
        let file = self.file_of(path);
        file.is_some() && shm::file_at(path) == file
    }

    /// Notes the files at once: the search for other holders takes time, and we may be killed meanwhile.
    fn note(&mut self, created: HashSet<OsString>) {
        for path in &created {
            self.pending.remove(path);
            self.doubtful.remove(path);
            let Some(file) = self.seen.get(path).copied().or_else(|| shm::file_at(path)) else { continue };
            self.noted.insert(path.clone(), file);
        }
        self.list("", &created);
        if self.unchecked.is_empty() {
            self.settled = Instant::now() + SETTLED;
        }
        self.unchecked.extend(created);
    }

    /// Takes back the noted files that a process outside the job holds too: they are doubtful. Those that nobody in the job holds are
    /// of the process outside that writes to them. Returns the inodes that anybody holds, if there was anything to be checked.
    fn check_outside(&mut self) -> Option<HashSet<u64>> {
        if !self.is_check_wanted() {
            return None;
        }
        let begun = worked();
        let mut created = std::mem::take(&mut self.unchecked);
        let mut unclaimed = std::mem::take(&mut self.unclaimed);
        unclaimed.retain(|path| !self.noted.contains_key(path) && self.is_there(path));
        created.retain(|path| self.is_there(path));
        if created.is_empty() && unclaimed.is_empty() {
            return None;
        }
        let table = Snapshot::take();
        let job: HashSet<i32> = table.below(self.agent).iter().map(|process| process.pid).chain([self.agent]).collect();
        let mut shared: HashSet<OsString> = HashSet::new();
        let mut used = HashSet::new();
        let names = self.names_by_inode(created.iter().chain(&unclaimed));
        for process in table.iter() {
            let held = shm::held_by(process.pid).unwrap_or_default();
            used.extend(held.iter().map(|held| held.inode));
            if job.contains(&process.pid) {
                continue;
            }
            let named = held.into_iter().filter_map(|held| Some((names.get(&held.inode)?, held.writable)));
            let held: Vec<&OsString> =
                named.filter(|(path, writable)| *writable || created.contains(*path)).map(|(path, _)| path).collect();
            // The table changed while it was read: a process that has just lost its parent seems to be outside.
            if held.is_empty() || self.is_below_agent(process.pid) {
                continue;
            }
            let (common, foreign): (Vec<&OsString>, Vec<&OsString>) =
                held.into_iter().partition(|path| created.contains(*path));
            shared.extend(common.into_iter().cloned());
            let file = |path: &OsString| Some((path.clone(), self.seen.get(path).copied()?));
            self.foreign.extend(foreign.into_iter().filter_map(file));
        }
        self.list("-", &shared);
        for path in shared {
            self.noted.remove(&path);
            self.doubtful.insert(path);
        }
        self.no_check_before = Instant::now() + (worked() - begun) * DUTY;
        Some(used)
    }

    /// Whether a process descends from the agent now. `false` for one that is gone.
    fn is_below_agent(&self, pid: i32) -> bool {
        let mut next = pid;
        for _ in 0..256 {
            match proc::process(next) {
                None => return true,
                Some(process) if process.parent == self.agent => return true,
                Some(process) if process.parent <= 1 => return false,
                Some(process) => next = process.parent,
            }
        }
        false
    }

    /// Adds lines to the list. If the agent is killed, guard, front and `rankrun clean` remove what is on it.
    fn list(&mut self, mark: &str, paths: &HashSet<OsString>) {
        if self.policy != CleanShm::Job || paths.is_empty() {
            return;
        }
        if self.file.is_none() {
            self.file = std::fs::OpenOptions::new().create(true).append(true).open(&self.list).ok();
        }
        let mut lines = Vec::new();
        for path in paths {
            let Some(file) = self.noted.get(path) else { continue };
            lines.extend_from_slice(format!("{mark}{} ", file.inode).as_bytes());
            lines.extend_from_slice(path.as_bytes());
            lines.push(b'\n');
        }
        if let Some(file) = &mut self.file {
            // On a full disk the agent still knows the file; it is left only if the agent is killed.
            let _ = file.write_all(&lines);
        }
    }

    /// After the job: removes what it created and nobody holds, or only lists it.
    pub(super) fn finish(&mut self) -> Memory {
        // What has appeared since the last look has its name at least.
        self.has_news = true;
        self.look(false);
        // One walk over all processes is for all that is still there.
        let noted: Vec<OsString> = self.noted.keys().cloned().collect();
        self.unchecked.extend(noted);
        let used = self.check_outside();
        let mut noted = std::mem::take(&mut self.noted);
        // Somebody may have written to a file of that name after it was seen empty.
        noted.retain(|path, _| !is_probe(path) || shm::is_empty(path));
        let doubtful = self.in_doubt(&noted);
        // What is only listed is the job's in the next attempt, too. What somebody else still holds is theirs from now on.
        self.noted = if self.policy == CleanShm::List { noted.clone() } else { HashMap::new() };
        let unused = |files: &HashMap<OsString, File>| match &used {
            Some(used) => shm::without(shm::still_there(files.clone()), used),
            None => shm::unused(files.clone()),
        };
        let created = match self.policy {
            CleanShm::Job => unused(&noted).into_iter().filter(|path| shm::unlink(path)).collect(),
            CleanShm::List => unused(&noted),
            CleanShm::No => Vec::new(),
        };
        self.noted.retain(|path, file| shm::file_at(path) == Some(*file));
        let mut left = unused(&doubtful);
        if !left.is_empty()
            && let Some(directory) = self.list.parent()
        {
            let others = names_of_others(directory);
            left.retain(|path| !is_segment_of(&others, path));
        }
        leave_to_others(&mut left, &doubtful);
        let kept: HashSet<&OsString> = left.iter().collect();
        self.listed = doubtful.into_iter().filter(|(path, _)| kept.contains(path)).collect();
        let mut memory = Memory { created, doubtful: left, ..Memory::default() };
        memory.name_doubtful(MAX_DOUBTFUL);
        memory
    }

    /// Whether a file is the job's by its name.
    fn is_named(&self, path: &OsStr) -> bool {
        self.names.as_ref().is_some_and(|names| has_own_name(names, path))
    }

    /// What the job may have created: what it held and others too, or only for reading, what has appeared during the
    /// attempt and was never seen to be held, and what earlier attempts have left of this kind.
    fn in_doubt(&self, noted: &HashMap<OsString, File>) -> HashMap<OsString, File> {
        if self.policy == CleanShm::No {
            return HashMap::new();
        }
        let traces = |path: &OsString, file: &File| Traces {
            is_of_user: file.owner == self.user || self.doubtful.contains(path),
            is_new: self.before.get(path) != Some(file) || self.listed.get(path) == Some(file),
            was_written: false,
            was_held_outside: self.doubtful.contains(path),
            is_named: self.is_named(path),
        };
        let is_others = |path: &OsString, file: &File| {
            noted.get(path) == Some(file) || (self.foreign.get(path) == Some(file) && !self.doubtful.contains(path))
        };
        // A directory that nobody was seen to use may be anybody's.
        let is_unused_directory = |path: &OsString, file: &File| file.is_directory && !self.doubtful.contains(path);
        // As the last look has found them: the walk that tells who holds them came after it.
        let files = self.seen.iter();
        let files = files.filter(|(path, file)| !is_others(path, file) && !is_unused_directory(path, file));
        let doubtful = files.filter(|(path, file)| fate(traces(path, file)) != Fate::Ignore);
        doubtful.map(|(path, file)| (path.clone(), *file)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holders_of_a_name_that_is_gone_are_not_looked_for() {
        // The kernel notifies this thread of new names.
        rankrun_sys::signal::block_all();
        let path = Path::new(shm::DIRECTORY).join(format!("rankrun-test-gone-{}", std::process::id()));
        let mut watch = Watch::begin(PathBuf::new(), Leaders::default(), HashMap::new);
        let note = |watch: &mut Watch| {
            std::fs::write(&path, "x").expect("the file is made");
            watch.note(HashSet::from([path.clone().into_os_string()]));
            assert!(watch.is_check_wanted());
        };
        note(&mut watch);
        assert!(watch.check_due() > Some(Instant::now()), "at once");
        let walked = watch.no_check_before;
        std::fs::remove_file(&path).expect("it is there");
        watch.check_outside();
        assert_eq!((watch.is_check_wanted(), watch.no_check_before), (false, walked));
        note(&mut watch);
        watch.check_outside();
        std::fs::remove_file(&path).expect("it is there");
        assert_ne!(watch.no_check_before, walked, "nobody has looked");
    }
}
