//! Every child of this process, with its role, and every process of the job that can be attributed to a worker.
//!
//! In the cgroup tier a process belongs to the worker in whose cgroup it is. In the fallback tier these are tried in this
//! order: it descends from the worker's leader, it was once seen to descend from it, it is in the leader's process group, it
//! has the worker's tag in its environment. A program can change the last by accident, and cannot change the first.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use rankrun_core::grace::Progress;
use rankrun_core::report::LeftProcess;
use rankrun_core::team::Activity;
use rankrun_core::testimony::Usage;
use rankrun_core::{GroupId, JobId, Pid, WorkerId, WorkerStatus};
use rankrun_sys::proc::{self, Process, Snapshot};
use rankrun_sys::process::{Child, ProcessId, ProcessRef};
use rankrun_sys::signal;
use rankrun_sys::wait::{self, Look};

use super::boundary::Boundary;
use super::lockable::Lockable;
use super::looks::{Account, activity, usage};
use super::reader::Readers;
use super::role::{ENDING_BOUND, Ended, Role, status_of};
use crate::helpers::meter::{Place, Subject};

/// The variable that carries a worker's tag.
pub(crate) const TAG: &str = "RANKRUN_WORKER";
/// A walk of the process table may take this part of the time at most (1 / n).
const DUTY: u32 = 4;
/// Walks in a row for a set of processes that must not grow while they are stopped.
const STOP_ROUNDS: usize = 16;

/// One worker, as its processes are known.
#[derive(Debug, Default)]
pub(super) struct Member {
    /// The leader, until it is reaped.
    leader: Option<Child>,
    /// The pid of the leader, also after its end: its process group has this number.
    group: Option<i32>,
    /// The name of its cgroup.
    pub(super) leaf: Option<String>,
    /// The processes that a pause has stopped.
    paused: Vec<ProcessRef>,
    /// We have frozen its cgroup.
    pub(super) is_frozen: bool,
    /// No process of it is left, or what is left was given up or released.
    is_gone: bool,
    account: Account,
}

/// The registry.
#[derive(Debug)]
pub(crate) struct Children {
    job: JobId,
    pub(super) boundary: Boundary,
    pub(super) own: i32,
    pub(super) roles: HashMap<i32, Role>,
    pub(super) members: BTreeMap<WorkerId, Member>,
    pub(super) by_leaf: HashMap<String, WorkerId>,
    by_tag: HashMap<Vec<u8>, WorkerId>,
    /// Empty cgroups, to be used again.
    pub(super) free_leaves: Vec<String>,
    pub(super) next_leaf: u32,
    /// Fallback tier: the list of children could not be read.
    is_blind: bool,
    /// Fallback tier: children that the kernel has given to us, with their workers.
    adopted: HashMap<ProcessId, Option<WorkerId>>,
    /// Fallback tier: the workers of the processes that were seen below a leader.
    kin: HashMap<ProcessId, WorkerId>,
    /// Fallback tier: processes that outlive the job, and are no worker's any more.
    released: HashSet<ProcessId>,
    pub(super) readers: Readers,
    /// Reads what processes can keep locked.
    pub(crate) lockable: Lockable,
    /// The process table, if it was read in this turn or not long ago.
    table: Option<Snapshot>,
    table_until: Option<Instant>,
    turn_has_table: bool,
    /// What the last walk cost.
    pub(super) cost: Duration,
    /// Processes that could not be killed: they are not waited for again.
    pub(super) given_up: HashMap<ProcessId, LeftProcess>,
    /// How long the ends of helpers may still be waited for.
    pub(super) end_wait: Duration,
}

impl Children {
    pub(crate) fn new(job: JobId, boundary: Boundary) -> Children {
        Children {
            job,
            boundary,
            own: std::process::id() as i32,
            roles: HashMap::new(),
            members: BTreeMap::new(),
            by_leaf: HashMap::new(),
            by_tag: HashMap::new(),
            free_leaves: Vec::new(),
            next_leaf: 0,
            is_blind: false,
            adopted: HashMap::new(),
            kin: HashMap::new(),
            released: HashSet::new(),
            readers: Readers::default(),
            lockable: Lockable::default(),
            table: None,
            table_until: None,
            turn_has_table: false,
            cost: Duration::ZERO,
            given_up: HashMap::new(),
            end_wait: ENDING_BOUND,
        }
    }

    /// The processes that read the user's files.
    pub(crate) fn readers(&self) -> Readers {
        self.readers.clone()
    }

    pub(crate) fn boundary(&self) -> &Boundary {
        &self.boundary
    }

    /// Switches to the fallback tier: this machine lets no process into a cgroup. Called only before the first worker.
    pub(crate) fn fall_back(&mut self, why: String) {
        self.boundary = Boundary::Subreaper { why };
    }

    /// A worker is about to be started, with this tag.
    pub(crate) fn begin(&mut self, worker: WorkerId, tag: &str) {
        self.members.insert(worker, Member::default());
        self.by_tag.insert(tag.as_bytes().to_vec(), worker);
    }

    /// These workers are over: forgets what was known of their processes.
    pub(crate) fn forget(&mut self, is_over: impl Fn(WorkerId) -> bool) {
        self.members.retain(|worker, _| !is_over(*worker));
        self.by_tag.retain(|_, worker| !is_over(*worker));
        self.by_leaf.retain(|_, worker| !is_over(*worker));
        self.kin.retain(|_, worker| !is_over(*worker));
        for worker in self.adopted.values_mut() {
            worker.take_if(|worker| is_over(*worker));
        }
    }

    /// No process of a worker is left, or what is left was given up or released.
    pub(crate) fn gone(&mut self, worker: WorkerId) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.is_gone = true;
        }
    }

    /// Whether workers of other groups may have processes.
    pub(super) fn has_others(&self, group: GroupId) -> bool {
        self.members.iter().any(|(worker, member)| worker.group() != group && !member.is_gone)
    }

    /// A new turn of the loop: the next use of the process table reads it again.
    pub(crate) fn turn(&mut self) {
        self.turn_has_table = false;
    }

    /// The pause between two looks, according to their cost.
    pub(crate) fn pace(&self) -> Duration {
        self.cost * (2 * DUTY)
    }

    pub(crate) fn add_leader(&mut self, worker: WorkerId, pid: i32) {
        let leader = Child::unreaped(pid);
        self.roles.insert(pid, Role::Leader(worker));
        let member = self.members.entry(worker).or_default();
        member.leader = Some(leader);
        member.group = Some(pid);
    }

    /// The leader of a worker, until it is reaped.
    pub(crate) fn leader(&self, worker: WorkerId) -> Option<Child> {
        self.members.get(&worker)?.leader
    }

    /// The pid that the leader of a worker has or had.
    pub(crate) fn leader_pid(&self, worker: WorkerId) -> Option<Pid> {
        self.members.get(&worker)?.group.map(Pid)
    }

    /// The worker whose leader this is, while it is not reaped.
    pub(crate) fn worker_of_leader(&self, pid: i32) -> Option<WorkerId> {
        match self.roles.get(&pid) {
            Some(Role::Leader(worker)) => Some(*worker),
            Some(Role::Helper(_) | Role::Killed(_)) | None => None,
        }
    }

    /// A child that has ended and is not reaped. After this call, read in this order: the spawners' children under way, the
    /// spawners' results, then call [`Children::handle_end`]. In this order, a child that has ended is either still under
    /// way, or its result has been read, or the spawner did not start it.
    pub(crate) fn peek_end() -> Option<(Child, WorkerStatus)> {
        let Look::Found(child) = wait::peek() else { return None };
        Some((Child::unreaped(child.pid), status_of(child.change)?))
    }

    /// Handles the end of a child by its role, and reaps it unless it is a leader. `None`: its spawn is under way, and the
    /// spawner will send its result.
    pub(crate) fn handle_end(&mut self, child: Child, status: WorkerStatus, under_way: &[Child]) -> Option<Ended> {
        match self.roles.get(&child.pid()) {
            Some(Role::Leader(worker)) => return Some(Ended::Leader(*worker, child, status)),
            Some(&Role::Helper(helper)) => {
                self.roles.remove(&child.pid());
                wait::reap(child.pid());
                return Some(Ended::Helper(helper, status));
            }
            Some(Role::Killed(_)) => {
                self.roles.remove(&child.pid());
            }
            None if under_way.contains(&child) => return None,
            None if self.readers.ended(child.pid()) => {}
            None => {
                if let Some(id) = ProcessId::of(child.pid()) {
                    self.adopted.remove(&id);
                }
            }
        }
        wait::reap(child.pid());
        Some(Ended::Orphan)
    }

    /// Reaps a leader that has ended.
    pub(crate) fn reap(&mut self, worker: WorkerId, leader: Child) {
        self.roles.remove(&leader.pid());
        if let Some(member) = self.members.get_mut(&worker) {
            member.leader = None;
        }
        wait::reap(leader.pid());
    }

    /// Whether no process of a worker is alive. Its leader has been reaped. `reuse`: another worker will need its cgroup; otherwise that is
    /// removed, which proves as much.
    pub(crate) fn is_empty(&mut self, worker: WorkerId, reuse: bool) -> bool {
        match (&self.boundary, self.leaf(worker)) {
            (Boundary::Cgroup(cgroup), Some(leaf)) => {
                let removed = if reuse { None } else { cgroup.remove_leaf(leaf).ok() };
                let is_empty = removed.unwrap_or_else(|| cgroup.is_leaf_empty(leaf).unwrap_or(false));
                if removed == Some(true) {
                    self.drop_leaf(worker);
                }
                is_empty
            }
            (Boundary::Cgroup(_), None) => true,
            (Boundary::Subreaper { .. }, _) => {
                self.adopt();
                !self.is_blind && !self.adopted.values().any(|of| *of == Some(worker))
            }
        }
    }

    /// Whether a child is a leader or a process of rankrun's own.
    pub(super) fn is_known(&self, pid: i32) -> bool {
        self.roles.contains_key(&pid) || self.readers.has(pid)
    }

    /// Attributes the children that the kernel has given to us since the last look to their workers.
    fn adopt(&mut self) {
        // A list that cannot be read proves nothing: what was known stays, and something unknown may be there.
        let Ok(adopted) = proc::adopted_children() else {
            self.is_blind = true;
            return;
        };
        self.is_blind = false;
        let mut gone: HashSet<ProcessId> = self.adopted.keys().copied().collect();
        for pid in adopted {
            if self.is_known(pid) {
                continue;
            }
            let Some(process) = proc::process(pid).filter(|process| process.state != 'Z') else { continue };
            if self.released.contains(&process.id()) {
                continue;
            }
            gone.remove(&process.id());
            // During an exec a process has no environment: try again at the next look.
            if self.adopted.get(&process.id()).copied().flatten().is_none() {
                let worker = self.attribute(&process);
                self.adopted.insert(process.id(), worker);
            }
        }
        self.adopted.retain(|id, _| !gone.contains(id));
    }

    /// Where the processes of workers are, for the meter.
    pub(crate) fn subjects(&mut self, workers: &[WorkerId]) -> Vec<Subject> {
        let mut orphans: HashMap<WorkerId, Vec<i32>> = HashMap::new();
        if self.boundary.cgroup().is_none() {
            self.adopt();
            for (id, worker) in &self.adopted {
                worker.iter().for_each(|worker| orphans.entry(*worker).or_default().push(id.pid));
            }
        }
        let mut place = |worker: WorkerId| match (&self.boundary, self.leaf(worker)) {
            (Boundary::Cgroup(cgroup), Some(leaf)) => Some(Place::Cgroup(cgroup.path().join(leaf))),
            (Boundary::Cgroup(_), None) => None,
            (Boundary::Subreaper { .. }, _) => {
                let mut roots = orphans.remove(&worker).unwrap_or_default();
                roots.extend(self.leader(worker).map(Child::pid));
                (!roots.is_empty()).then_some(Place::Trees(roots))
            }
        };
        workers.iter().filter_map(|worker| Some(Subject { worker: *worker, place: place(*worker)? })).collect()
    }

    /// The worker of an orphan.
    fn attribute(&self, process: &Process) -> Option<WorkerId> {
        if let Some(worker) = self.kin.get(&process.id()) {
            return Some(*worker);
        }
        self.of_group(process.group).or_else(|| self.of_tag(process.id()))
    }

    /// The worker of this process group. A group keeps its number as long as a process is in it.
    fn of_group(&self, group: i32) -> Option<WorkerId> {
        if let Some(worker) = self.worker_of_leader(group) {
            return Some(worker);
        }
        self.members.iter().find(|(_, member)| member.group == Some(group)).map(|(worker, _)| *worker)
    }

    /// The worker that is named in the environment of a process.
    fn of_tag(&self, process: ProcessId) -> Option<WorkerId> {
        let tag = self.lockable.read(process, move || proc::environment_variable(process.pid, TAG))??;
        self.by_tag.get(&tag).copied()
    }

    /// The worker that a client names by its tag.
    pub(crate) fn worker_of_tag(&self, tag: &str) -> Option<WorkerId> {
        self.by_tag.get(tag.as_bytes()).copied()
    }

    /// The worker that a process belongs to.
    pub(crate) fn worker_of(&self, process: &Process) -> Option<WorkerId> {
        if let Some(worker) = self.worker_of_leader(process.pid) {
            return Some(worker);
        }
        if self.boundary.cgroup().is_some() {
            let leaf = proc::cgroup_leaf(process.pid, &format!("rankrun-{}", self.job))?;
            return self.by_leaf.get(&leaf).copied();
        }
        if let Some(worker) = self.kin.get(&process.id()) {
            return Some(*worker);
        }
        if self.released.contains(&process.id()) {
            return None;
        }
        let mut next = process.parent;
        // Long enough for any tree; a table that changes under our eyes may show a circle.
        for _ in 0..256 {
            if let Some(worker) = self.worker_of_leader(next) {
                return Some(worker);
            }
            match proc::process(next) {
                Some(parent) if parent.pid > 1 && parent.pid != self.own => {
                    if let Some(worker) = self.adopted.get(&parent.id()).copied().flatten() {
                        return Some(worker);
                    }
                    next = parent.parent;
                }
                Some(_) | None => break,
            }
        }
        self.of_group(process.group).or_else(|| self.of_tag(process.id()))
    }

    /// The process table: read at most once a turn, and no more often than its size allows.
    pub(super) fn table(&mut self) -> &Snapshot {
        let is_fresh = self.turn_has_table || self.table_until.is_some_and(|until| Instant::now() < until);
        if !is_fresh || self.table.is_none() {
            self.read_table();
        }
        self.table.get_or_insert_default()
    }

    pub(super) fn read_table(&mut self) {
        let begun = Instant::now();
        let table = Snapshot::take();
        self.cost = begun.elapsed();
        self.table_until = Some(begun + self.cost * DUTY);
        self.turn_has_table = true;
        if self.boundary.cgroup().is_none() {
            self.learn_kin(&table);
        }
        self.table = Some(table);
    }

    fn learn_kin(&mut self, table: &Snapshot) {
        self.kin.retain(|id, _| table.get(id.pid).is_some_and(|process| process.id() == *id));
        for (worker, member) in &self.members {
            let Some(leader) = member.leader else { continue };
            for process in table.below(leader.pid()) {
                self.kin.insert(process.id(), *worker);
            }
        }
    }

    /// The processes of a worker without its leader.
    fn others(&mut self, worker: WorkerId) -> Vec<ProcessId> {
        let Some(member) = self.members.get(&worker) else { return Vec::new() };
        let group = member.group;
        if let Boundary::Cgroup(cgroup) = &self.boundary {
            let Some(leaf) = &member.leaf else { return Vec::new() };
            let members = cgroup.members(leaf).into_iter().filter(|pid| Some(*pid) != group);
            return members.filter_map(ProcessId::of).collect();
        }
        let leader = member.leader;
        self.adopt();
        let orphans = self.adopted.iter().filter(|(_, of)| **of == Some(worker)).map(|(id, _)| *id);
        let mut found: Vec<ProcessId> = orphans.collect();
        let roots: Vec<i32> = found.iter().map(|id| id.pid).chain(leader.map(Child::pid)).collect();
        let table = self.table();
        for root in roots {
            found.extend(table.below(root).into_iter().map(Process::id));
        }
        found.retain(|id| Some(id.pid) != group);
        found
    }

    /// A worker's process, held by a pidfd: a signal cannot reach another process that got its pid.
    fn hold(&self, worker: WorkerId, id: ProcessId) -> Option<ProcessRef> {
        let process = ProcessRef::of(id)?;
        match &self.boundary {
            // Another process may have got this pid since it was read: check its worker again.
            Boundary::Cgroup(_) => {
                let leaf = proc::cgroup_leaf(id.pid, &format!("rankrun-{}", self.job))?;
                (self.leaf(worker) == Some(leaf.as_str())).then_some(process)
            }
            Boundary::Subreaper { .. } => Some(process),
        }
    }

    /// Sends signals to all processes of a worker except its leader.
    pub(crate) fn signal_others(&mut self, worker: WorkerId, signals: &[i32]) {
        for id in self.others(worker) {
            let Some(process) = self.hold(worker, id) else { continue };
            for signal in signals {
                // It has ended meanwhile, or is another user's and will be reported.
                let _ = process.signal(*signal);
            }
        }
    }

    /// Sends SIGKILL to all processes of a worker.
    pub(crate) fn kill(&mut self, worker: WorkerId) {
        if let (Boundary::Cgroup(cgroup), Some(leaf)) = (&self.boundary, self.leaf(worker))
            && cgroup.kill_leaf(leaf).is_ok()
        {
            return;
        }
        if let Some(leader) = self.leader(worker) {
            // What cannot be killed is still there at the time limit, and is reported.
            let _ = leader.signal(signal::SIGKILL);
        }
        self.signal_others(worker, &[signal::SIGKILL]);
    }

    /// The work that the processes of a worker have done so far.
    pub(crate) fn activity(&mut self, worker: WorkerId) -> Activity {
        let others = self.others(worker);
        activity(&others, &self.lockable)
    }

    /// The work that all processes of a worker have done so far, ended ones included.
    pub(crate) fn progress(&mut self, worker: WorkerId) -> Progress {
        let ids = self.processes(worker);
        let member = self.members.get_mut(&worker);
        member.map(|member| member.account.look(&ids, &self.lockable)).unwrap_or_default()
    }

    /// What a process on its way out has written and waited for since its start.
    pub(crate) fn usage(&self, process: ProcessId) -> Usage {
        usage(process, &self.lockable)
    }

    /// All processes of a worker.
    pub(crate) fn processes(&mut self, worker: WorkerId) -> Vec<ProcessId> {
        let mut ids = self.others(worker);
        ids.extend(self.leader(worker).and_then(|leader| ProcessId::of(leader.pid())));
        ids
    }

    /// Stops all of these workers, or lets them go on.
    pub(crate) fn freeze(&mut self, workers: &[WorkerId], frozen: bool) {
        let mut rest = Vec::new();
        for &worker in workers {
            let Some(member) = self.members.get_mut(&worker) else { continue };
            match (&self.boundary, &member.leaf) {
                (Boundary::Cgroup(cgroup), Some(leaf)) if cgroup.freeze_leaf(leaf, frozen).is_ok() => {
                    member.is_frozen = frozen;
                }
                (Boundary::Cgroup(_) | Boundary::Subreaper { .. }, _) => rest.push(worker),
            }
        }
        if frozen {
            self.stop(&rest);
            return;
        }
        for worker in rest {
            let Some(member) = self.members.get_mut(&worker) else { continue };
            for process in std::mem::take(&mut member.paused) {
                // It has ended meanwhile.
                let _ = process.signal(signal::SIGCONT);
            }
        }
    }

    /// Sends SIGSTOP to all processes of these workers that are not stopped already.
    fn stop(&mut self, workers: &[WorkerId]) {
        let mut seen: HashSet<ProcessId> = HashSet::new();
        for _ in 0..STOP_ROUNDS {
            self.read_table();
            let mut is_complete = true;
            for &worker in workers {
                let leader = self.leader(worker).and_then(|leader| ProcessId::of(leader.pid()));
                let fresh: Vec<ProcessId> =
                    leader.into_iter().chain(self.others(worker)).filter(|id| seen.insert(*id)).collect();
                is_complete &= fresh.is_empty();
                let held: Vec<ProcessRef> = fresh.into_iter().filter_map(|id| self.hold(worker, id)).collect();
                for process in held {
                    let is_still =
                        proc::process(process.pid()).is_none_or(|process| matches!(process.state, 'T' | 't' | 'Z'));
                    if !is_still
                        && process.signal(signal::SIGSTOP).is_ok()
                        && let Some(member) = self.members.get_mut(&worker)
                    {
                        member.paused.push(process);
                    }
                }
            }
            // A process that has the signal pending cannot fork. A new process is therefore the child of one that had not
            // got it yet.
            if is_complete {
                break;
            }
        }
    }

    /// Releases what is left of a worker: it outlives the job. Returns the number of processes.
    pub(crate) fn release(&mut self, worker: WorkerId) -> u32 {
        let others = self.others(worker);
        if self.boundary.cgroup().is_none() {
            self.kin.retain(|_, of| *of != worker);
            self.adopted.retain(|_, of| *of != Some(worker));
            self.released.retain(|id| proc::process(id.pid).is_some_and(|process| process.id() == *id));
            self.released.extend(others.iter().copied());
        }
        if let (Boundary::Cgroup(cgroup), Some(leaf)) = (&self.boundary, self.leaf(worker)) {
            // What cannot be moved stays where it is, and keeps the directory.
            cgroup.release_leaf(leaf);
        }
        self.free_leaf(worker, false);
        others.len() as u32
    }

    /// The report's text about a worker's processes that could not be killed, including a child that did not reach its
    /// exec. They are not waited for again.
    pub(crate) fn give_up(&mut self, worker: WorkerId, spawning: Option<Child>) -> Vec<LeftProcess> {
        let mut ids = self.others(worker);
        let children = self.leader(worker).into_iter().chain(spawning);
        ids.extend(children.filter_map(|child| ProcessId::of(child.pid())));
        self.note_given_up(&ids)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rankrun_core::{Attempt, Rank};

    use super::*;
    use crate::children::Helper;

    const fn worker(group: u32, rank: u32) -> WorkerId {
        WorkerId { rank: Rank::of(GroupId(group), rank), attempt: Attempt(0) }
    }

    const GROUP: GroupId = GroupId(0);
    const HOST: Helper = Helper::PmixHost;

    fn registry() -> Children {
        let boundary = Boundary::Subreaper { why: "a test".to_owned() };
        let mut children = Children::new(JobId("0a1b2c3d".to_owned()), boundary);
        children.begin(worker(0, 0), "tag-0");
        children.begin(worker(0, 1), "tag-1");
        children
    }

    /// Whether this process runs no other test. Else the test runs in one of its own, and has passed there: it looks at all
    /// children of its process, and reaps them, also those of tests that run beside it.
    fn is_alone(test: &str) -> bool {
        const ALONE: &str = "RANKRUN_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return true;
        }
        let mut command = Command::new(std::env::current_exe().expect("the tests are a file"));
        let name = format!("{}::{test}", module_path!().split_once("::").expect("a module of the crate").1);
        let output = command.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").output().expect("it starts again");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        false
    }

    #[test]
    fn a_helper_is_neither_signalled_nor_in_the_way_of_the_proof() {
        if !is_alone("a_helper_is_neither_signalled_nor_in_the_way_of_the_proof") {
            return;
        }
        let mut children = registry();
        let mut helper = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        children.roles.insert(helper.id() as i32, Role::Helper(HOST));
        assert_eq!(children.orphans_left(GROUP, false), None);
        let mut orphan = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        assert!(children.orphans_left(GROUP, false).is_some());
        children.signal_orphans(GROUP, &[signal::SIGKILL]);
        while children.orphans_left(GROUP, false).is_some() {
            std::thread::yield_now();
        }
        assert!(matches!(helper.try_wait(), Ok(None)), "it lives");
        helper.kill().expect("it can be killed");
        // The registry has reaped the first. Who reaps the second does not matter here.
        let _ = (orphan.wait(), helper.wait());
    }

    #[test]
    fn a_helper_that_is_killed_is_not_waited_for_and_its_end_is_no_news() {
        if !is_alone("a_helper_that_is_killed_is_not_waited_for_and_its_end_is_no_news") {
            return;
        }
        let mut children = registry();
        for (kind, is_job) in [(HOST, true), (Helper::Looker, false)] {
            let mut helper = Command::new("sleep").arg("60").spawn().expect("sleep starts");
            let pid = helper.id() as i32;
            children.add_helper(kind, pid);
            children.end_helpers(kind);
            // No wait is needed for that: if it has not been reaped, it is known as one that ends.
            assert_eq!(children.helper(pid), None);
            while let Some((child, status)) = Children::peek_end() {
                assert_eq!(children.handle_end(child, status, &[]), Some(Ended::Orphan));
            }
            while children.orphans_left(GROUP, false).is_some() || ProcessRef::open(pid).is_some() {
                std::thread::yield_now();
            }
            assert!(children.roles.is_empty(), "{:?}", children.roles);
            // The registry has reaped it.
            let _ = helper.wait();
            // One that does not die of its kill.
            let mut helper = Command::new("sleep").arg("60").spawn().expect("sleep starts");
            let pid = helper.id() as i32;
            match kind {
                Helper::PmixHost | Helper::ForkServer(_) => {
                    children.roles.insert(pid, Role::Killed(Instant::now()));
                }
                Helper::Looker | Helper::Meter | Helper::Sampler => children.readers.add(pid),
            }
            assert_eq!(children.orphans_left(GROUP, false), None, "{kind:?}");
            if is_job {
                let long_ago = Instant::now().checked_sub(Duration::from_secs(1)).expect("the machine runs");
                children.roles.insert(pid, Role::Killed(long_ago));
                assert!(children.orphans_left(GROUP, false).is_some(), "it is a process that is left");
            }
            helper.kill().expect("it can be killed");
            helper.wait().expect("it ends");
            children.roles.clear();
            children.readers = Readers::default();
        }
    }

    #[test]
    fn the_end_of_a_helper_is_waited_for_once_however_many_ask() {
        let mut children = registry();
        // It runs, and so it is never waited for.
        children.add_helper(HOST, std::process::id() as i32);
        assert_eq!(children.ended_helper(HOST, None), None);
        let whole = children.end_wait;
        assert!(whole > Duration::ZERO);
        let wait = |children: &mut Children, waited: Duration| {
            children.wait_for_end(|bound| {
                assert!(bound >= waited);
                waited
            });
            children.end_wait
        };
        assert_eq!(wait(&mut children, whole / 4), whole / 4 * 3);
        assert_eq!(wait(&mut children, whole / 4 * 3), Duration::ZERO);
        children.wait_for_end(|_| panic!("the time is over"));
        children.add_helper(HOST, std::process::id() as i32);
        assert_eq!(children.end_wait, whole, "another one has its own");
    }

    #[test]
    fn an_orphan_is_told_by_the_tag_that_it_was_started_with_not_by_the_rank_that_it_claims() {
        let children = registry();
        let start = |tag: &str| {
            let mut command = Command::new("sleep");
            command.arg("60").env(TAG, tag).env("RANKRUN_RANK", "1").spawn().expect("sleep starts")
        };
        for (tag, expected) in [("tag-0", Some(worker(0, 0))), ("of another job", None)] {
            let mut child = start(tag);
            // The exec is over when it has its environment.
            while proc::environment_variable(child.id() as i32, TAG).is_none() {
                std::thread::yield_now();
            }
            let process = proc::process(child.id() as i32).expect("it lives");
            assert_eq!(children.attribute(&process), expected);
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    /// The process `sleep` below a leader, once it is there.
    fn daemon_of(children: &mut Children, leader: &std::process::Child) -> Process {
        loop {
            children.read_table();
            let below = children.table().below(leader.id() as i32);
            if let Some(daemon) = below.into_iter().find(|process| process.name == "sleep") {
                return daemon.clone();
            }
        }
    }

    #[test]
    fn a_process_that_a_worker_has_released_is_not_of_the_successor() {
        let mut children = registry();
        let mut leader = Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().expect("sh starts");
        children.add_leader(worker(0, 1), leader.id() as i32);
        let daemon = daemon_of(&mut children, &leader);
        assert_eq!(children.worker_of(&daemon), Some(worker(0, 1)));
        assert_eq!(children.release(worker(0, 1)), 1);
        children.roles.clear();
        let next = WorkerId { attempt: Attempt(1), ..worker(0, 1) };
        children.forget(|over| over == worker(0, 1));
        children.begin(next, "tag-2");
        assert_eq!((children.worker_of(&daemon), children.others(next)), (None, vec![]));
        for pid in [daemon.pid, leader.id() as i32] {
            ProcessRef::open(pid).expect("it lives").signal(signal::SIGKILL).expect("it can be killed");
        }
        leader.wait().expect("it ends");
    }

    #[test]
    fn an_orphan_that_was_seen_below_a_leader_is_its_whatever_it_says() {
        let mut children = registry();
        let mut leader =
            Command::new("sh").args(["-c", "RANKRUN_WORKER=tag-0 setsid sleep 60 & wait"]).spawn().expect("sh starts");
        children.add_leader(worker(0, 1), leader.id() as i32);
        let daemon = daemon_of(&mut children, &leader);
        assert_eq!(children.attribute(&daemon), Some(worker(0, 1)));
        for pid in [daemon.pid, leader.id() as i32] {
            ProcessRef::open(pid).expect("it lives").signal(signal::SIGKILL).expect("it can be killed");
        }
        leader.wait().expect("it ends");
    }

    #[test]
    fn the_end_of_a_groups_attempt_leaves_the_other_groups_processes_and_entries() {
        let mut children = registry();
        children.begin(worker(1, 0), "tag-of-another-group");
        let start = || Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().expect("sh starts");
        let mut leaders = [start(), start()];
        let daemons: Vec<Process> = [worker(0, 0), worker(1, 0)]
            .into_iter()
            .zip(&leaders)
            .map(|(id, leader)| {
                children.add_leader(id, leader.id() as i32);
                daemon_of(&mut children, leader)
            })
            .collect();
        let of = |children: &Children| [0, 1].map(|group: usize| children.worker_of(&daemons[group]));
        assert_eq!(of(&children), [Some(worker(0, 0)), Some(worker(1, 0))]);

        children.kill(worker(0, 0));
        leaders[0].wait().expect("it ends");
        children.roles.remove(&(leaders[0].id() as i32));
        children.gone(worker(0, 0));
        children.forget(|over| over.group() == GROUP);

        assert_eq!(of(&children), [None, Some(worker(1, 0))]);
        assert_eq!((children.worker_of_tag("tag-1"), children.leader(worker(0, 1))), (None, None));
        assert_eq!(children.worker_of_tag("tag-of-another-group"), Some(worker(1, 0)));
        assert_eq!(children.leader(worker(1, 0)).map(|leader| leader.pid()), Some(leaders[1].id() as i32));
        assert!(matches!(leaders[1].try_wait(), Ok(None)) && proc::process(daemons[1].pid).is_some(), "it lives");
        children.kill(worker(1, 0));
        leaders[1].wait().expect("it ends");
    }

    #[test]
    fn orphans_end_with_the_last_group_that_has_workers() {
        if !is_alone("orphans_end_with_the_last_group_that_has_workers") {
            return;
        }
        let mut children = registry();
        children.begin(worker(1, 0), "tag-of-another-group");
        let mut orphan = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        [0, 1].into_iter().for_each(|rank| children.gone(worker(0, rank)));
        children.signal_orphans(GROUP, &[signal::SIGKILL]);
        assert_eq!((children.orphans_left(GROUP, false), children.give_up_orphans(GROUP)), (None, vec![]));
        assert!(matches!(orphan.try_wait(), Ok(None)), "it lives: it may be of the other group");

        children.gone(worker(1, 0));
        assert!(children.orphans_left(GroupId(1), false).is_some());
        children.signal_orphans(GroupId(1), &[signal::SIGKILL]);
        while children.orphans_left(GroupId(1), false).is_some() {
            std::thread::yield_now();
        }
        // The registry has reaped it.
        let _ = orphan.wait();
    }
}
