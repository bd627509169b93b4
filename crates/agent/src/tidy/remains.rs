//! Ends all that is left of the job below this process, and proves that nothing is (K-4, K-5).
//!
//! Used by the guard when its agent is gone, and by the front when both are. [`Remains::end`] allocates no memory in a guard, where the
//! kernel has a list of children: there may be none until the processes are dead. A front has children of its own, which its threads start
//! at any time, and reads more.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::poll::pause;
use rankrun_sys::proc::{self, ChildList};
use rankrun_sys::process::Child;
use rankrun_sys::signal;
use rankrun_sys::wait::{self, Look};
use rankrun_wire::Memory;

use super::names::{MAX_DOUBTFUL, is_segment_of, leave_to_others, names_of_others};
use super::runtime::Places;
use super::search::Search;

/// How long killed processes may take to end before they count as left behind.
const BOUND_STEPS: u32 = 5000;
/// The same for processes for which the agent has waited in vain already.
const GIVEN_UP_STEPS: u32 = 100;
/// How long an agent that is exiting may take.
const PATIENCE_STEPS: u32 = 1000;
/// After so long in state D a killed reader is left behind: it waits for its file system.
const STUCK_STEPS: u32 = 1000;
/// The readers that a guard is told: more than an agent lets block.
const MOST_READERS: usize = 8;
/// One step of waiting.
const STEP: Duration = Duration::from_millis(1);

/// Tells the children of this process that are not the job's, as of now.
pub type Known<'a> = dyn Fn() -> Vec<i32> + 'a;

/// Which children of this process are the job's.
pub enum Children<'a> {
    /// All of them, in a process with one thread that starts no other.
    All,
    AllBut(&'a Known<'a>),
}

impl fmt::Debug for Children<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Children::All => f.write_str("All"),
            Children::AllBut(known) => f.debug_tuple("AllBut").field(&known()).finish(),
        }
    }
}

/// What remains to be done when the agent is gone.
#[derive(Debug)]
pub struct Remains {
    /// The job's cgroup, if it has one.
    pub cgroup: Option<GuardedCgroup>,
    pub children: ChildList,
    /// Where the directory of the job may be, with the list of its shared memory.
    pub places: Places,
    /// How to look through /dev/shm, where the agent has not.
    pub search: Option<Search>,
    pub readers: Readers,
}

/// The children that read the user's files for the agent: readers and lookers. One in state D is not left of the job, and not waited for (ADR 32).
#[derive(Clone, Copy, Default, Debug)]
pub struct Readers([i32; MOST_READERS]);

impl Readers {
    /// Beyond the limit they count as left of the job.
    pub(crate) fn add(&mut self, pid: i32) {
        if let Some(free) = self.0.iter_mut().find(|known| **known == 0) {
            *free = pid;
        }
    }

    fn has(&self, pid: i32) -> bool {
        pid != 0 && self.0.contains(&pid)
    }
}

impl Remains {
    /// Kills everything of the job that is below this process, and waits until it is gone. Returns whether nothing is left.
    pub fn end(&self, children: &Children<'_>) -> bool {
        self.end_within(BOUND_STEPS, children)
    }

    /// The same, if the agent has already waited for processes that could not be killed.
    pub fn end_given_up(&self) -> bool {
        self.end_within(GIVEN_UP_STEPS, &Children::All)
    }

    fn end_within(&self, steps: u32, children: &Children<'_>) -> bool {
        let mut stuck = 0;
        for step in 0..steps {
            // Repeat SIGKILL: orphans arrive one generation after the other.
            if let Some(cgroup) = &self.cgroup
                && step % 16 == 0
                && !cgroup.empty()
            {
                cgroup.kill();
            }
            let killed = self.kill_children(children);
            let is_reaped = reap(children);
            stuck = if !is_reaped && self.only_readers_wait() { stuck + 1 } else { 0 };
            if (is_reaped || stuck >= STUCK_STEPS) && self.cgroup.as_ref().is_none_or(GuardedCgroup::empty) {
                return true;
            }
            if !killed || step > 0 {
                pause(STEP);
            }
        }
        false
    }

    /// Waits for an agent that has reported the end and is cleaning up.
    pub fn let_end(&self, children: &Children<'_>) {
        for _ in 0..PATIENCE_STEPS {
            if reap(children) {
                return;
            }
            pause(STEP);
        }
    }

    /// Sends SIGKILL to the children that belong to the job. Returns whether there was one. They are our children and not
    /// reaped; one that cannot be killed is still there at the end, and is reported.
    fn kill_children(&self, children: &Children<'_>) -> bool {
        let mut room = [0i32; 512];
        let ours;
        let pids = match children {
            Children::All => {
                let count = self.children.read(&mut room);
                &room[..count]
            }
            Children::AllBut(known) => {
                // The next step tries again.
                ours = unknown(known).unwrap_or_default();
                &ours[..]
            }
        };
        for &pid in pids {
            // If it cannot be killed, it does not end, and is reported.
            let _ = Child::unreaped(pid).signal(signal::SIGKILL);
        }
        !pids.is_empty()
    }

    /// Whether all children are readers that wait for a file system. Nothing else of the job lives then: memory may be allocated.
    fn only_readers_wait(&self) -> bool {
        let mut pids = [0i32; MOST_READERS + 1];
        let count = self.children.read(&mut pids);
        let pids = &pids[..count.min(MOST_READERS + 1)];
        // The first thread of one that has several has ended, and waits for the others.
        let waits = |pid: &i32| proc::process(*pid).is_some_and(|process| matches!(process.state, 'D' | 'Z'));
        !pids.is_empty() && pids.iter().all(|pid| self.readers.has(*pid)) && pids.iter().all(waits)
    }

    /// Removes the shared memory that the job has left, and its directories. Only after [`Remains::end`]. Where the cgroup
    /// stays because a process in it could not be killed, the job's directory stays too: `rankrun clean` needs it to find the
    /// cgroup later. Returns what was found in /dev/shm, if that was to be done.
    pub fn tidy(&self) -> Option<Memory> {
        let mut found = self.search.as_ref().map(|search| search.run(&self.places.noted_shared_memory()));
        if let Some(memory) = found.as_mut().filter(|memory| !memory.doubtful.is_empty()) {
            // Another of the user's jobs is beside this one, and has made a segment that nobody held just then.
            let others: Vec<_> = self.places.in_bases().flat_map(|directory| names_of_others(&directory)).collect();
            memory.doubtful.retain(|path| !is_segment_of(&others, path));
            leave_to_others(&mut memory.doubtful, &rankrun_sys::shm::files());
            memory.name_doubtful(MAX_DOUBTFUL);
        }
        if self.cgroup.as_ref().is_none_or(GuardedCgroup::remove) {
            self.places.remove();
        }
        found
    }
}

/// Removes a job's cgroup and its directory, where nothing of it lives.
pub fn remove(cgroup: Option<&Path>, places: &Places) {
    // If it cannot be opened, there is none to remove.
    let cgroup = cgroup.and_then(|path| GuardedCgroup::open(path).ok());
    // Shared memory has been looked for, or there is none.
    let places = places.clone();
    Remains { cgroup, children: ChildList::open(), places, search: None, readers: Readers::default() }.tidy();
}

/// Ends what an agent without guard or front still has of its own when no rank is left: the PMIx host, lookers, readers. They are in the job's cgroup,
/// which could not be removed, and hold files in its directory.
pub(crate) fn end_helpers(cgroup: Option<&Path>, places: &Places) {
    let cgroup = cgroup.and_then(|path| GuardedCgroup::open(path).ok());
    let places = places.clone();
    let rest = Remains { cgroup, children: ChildList::open(), places, search: None, readers: Readers::default() };
    rest.end_within(PATIENCE_STEPS, &Children::All);
}

/// Kills every child of this process that is the job's, and every orphan that it gets from them, until there is none. Returns whether
/// nothing is left.
pub fn end_children(known: &Known<'_>) -> bool {
    let children = Children::AllBut(known);
    for _ in 0..BOUND_STEPS {
        for pid in unknown(known).unwrap_or_default() {
            // If it cannot be killed, it does not end, and the caller is told.
            let _ = Child::unreaped(pid).signal(signal::SIGKILL);
        }
        if reap(&children) {
            return true;
        }
        pause(STEP);
    }
    false
}

/// Reaps what has ended. Returns whether no child of the job is left.
fn reap(children: &Children<'_>) -> bool {
    match children {
        Children::All => loop {
            match wait::peek() {
                Look::Found(child) => {
                    wait::reap(child.pid);
                }
                Look::Nothing => return false,
                Look::NoChildren => return true,
            }
        },
        Children::AllBut(known) => {
            for pid in unknown(known).unwrap_or_default() {
                wait::reap(pid);
            }
            let is_empty = unknown(known).is_ok_and(|unknown| unknown.is_empty());
            is_empty && (!known().is_empty() || wait::peek() == Look::NoChildren)
        }
    }
}

/// The children of this process's main thread that nobody knows: the kernel gives orphans to that one, while other threads may start
/// children of rankrun's own at any time. Where the kernel has no list for each thread, those count as known from their clone on, and are
/// asked for after the children.
fn unknown(known: &Known<'_>) -> io::Result<Vec<i32>> {
    let mut children = proc::adopted_children()?;
    if !children.is_empty() {
        let known = known();
        children.retain(|pid| !known.contains(pid));
    }
    Ok(children)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    /// The runner has a process for each test: it has no other children.
    #[test]
    fn what_another_thread_starts_meanwhile_is_left_alone_and_what_nobody_knows_is_ended() {
        let sleep = || Command::new("sleep").arg("600").spawn().expect("sleep");
        let (known, started) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let told = || known.lock().expect("nobody has panicked").clone();
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for _ in 0..50 {
                    let child = sleep();
                    // It has been there for a while.
                    known.lock().expect("nobody has panicked").push(child.id() as i32);
                    started.lock().expect("nobody has panicked").push(child);
                }
            });
            while !thread.is_finished() {
                assert!(end_children(&told));
            }
        });
        // An orphan comes to this process.
        rankrun_sys::fork::become_subreaper().expect("it is possible");
        let mut shell =
            Command::new("sh").args(["-c", "sleep 600 & echo $!"]).stdout(Stdio::piped()).spawn().expect("sh");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("piped")).read_line(&mut line).expect("sh writes");
        shell.wait().expect("it is ours");
        let orphan: i32 = line.trim().parse().expect("a pid");
        assert!(proc::process(orphan).is_some());
        assert!(end_children(&told));
        assert!(proc::process(orphan).is_none());
        for child in started.lock().expect("nobody has panicked").iter_mut() {
            assert!(child.try_wait().expect("it is ours").is_none(), "{child:?}");
            child.kill().and_then(|()| child.wait()).expect("it is ours");
        }
        assert!(reap(&Children::All));
    }
}
