//! Who belongs to a worker: its cgroup or, in the fallback tier, its session, its descendants, and the orphans that
//! carry its tag (K-1, K-4).

use std::collections::HashSet;

use rankrun_core::{JobId, Rank};
use rankrun_sys::cgroup::{JobCgroup, Unavailable};
use rankrun_sys::proc::{self, Process};
use rankrun_sys::signal;
use rankrun_wire::message::Containment;

/// How the workers of this node are held.
#[derive(Debug)]
pub(crate) enum Boundary {
    Cgroup(JobCgroup),
    Subreaper { why: String },
}

/// What a boundary must know of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) job: &'a JobId,
    pub(crate) rank: Rank,
    /// The leader's pid, also after its end: its session and process group bear this number.
    pub(crate) leader: Option<i32>,
    pub(crate) leader_alive: bool,
}

/// The environment variable that forces a tier, so that both can be tested on one machine.
const FORCE: &str = "RANKRUN_CONTAINMENT";

impl Boundary {
    /// The best tier that there is here. That a cgroup can be made is found out by making it.
    pub(crate) fn choose(job: &JobId, forced: Option<&str>) -> Boundary {
        if forced == Some("subreaper") {
            return Boundary::Subreaper { why: format!("{FORCE}=subreaper") };
        }
        match JobCgroup::create(&job.0) {
            Ok(cgroup) => Boundary::Cgroup(cgroup),
            Err(error) => Boundary::Subreaper { why: explain(&error) },
        }
    }

    pub(crate) fn containment(&self) -> Containment {
        match self {
            Boundary::Cgroup(_) => Containment::Cgroup,
            Boundary::Subreaper { why } => Containment::Subreaper { why: why.clone() },
        }
    }

    pub(crate) fn cgroup(&self) -> Option<&JobCgroup> {
        match self {
            Boundary::Cgroup(cgroup) => Some(cgroup),
            Boundary::Subreaper { .. } => None,
        }
    }

    /// The name of a worker's cgroup.
    pub(crate) fn leaf(rank: Rank) -> String {
        format!("r{rank}")
    }

    /// Whether nothing of a worker whose leader has been reaped is alive. In the cgroup tier this also removes its
    /// directory, which is the cheapest proof there is.
    pub(crate) fn is_empty(&self, member: Member<'_>) -> bool {
        match self {
            Boundary::Cgroup(cgroup) => cgroup.remove_leaf(&Self::leaf(member.rank)).unwrap_or(false),
            Boundary::Subreaper { .. } => !proc::adopted_children().into_iter().any(|pid| is_of(member, pid)),
        }
    }

    /// The processes of a worker without its leader, for signals.
    pub(crate) fn others(&self, member: Member<'_>) -> Vec<i32> {
        let mut pids = match self {
            Boundary::Cgroup(cgroup) => cgroup.members(&Self::leaf(member.rank)),
            Boundary::Subreaper { .. } => {
                let mut roots: Vec<i32> =
                    proc::adopted_children().into_iter().filter(|&pid| is_of(member, pid)).collect();
                let own: HashSet<i32> = roots.iter().copied().collect();
                roots.extend(member.leader.filter(|_| member.leader_alive));
                let below = proc::descendants_among(proc::all(), &roots).into_iter().map(|process| process.pid);
                own.into_iter().chain(below).collect()
            }
        };
        pids.retain(|&pid| Some(pid) != member.leader && pid > 1);
        pids
    }

    /// SIGSTOP to everything of a worker. Returns whom it has stopped: not those that stood still before.
    pub(crate) fn stop(&self, member: Member<'_>) -> Vec<i32> {
        let mut seen = HashSet::new();
        let mut stopped = Vec::new();
        loop {
            let leader = member.leader.filter(|_| member.leader_alive);
            let fresh: Vec<i32> =
                leader.into_iter().chain(self.others(member)).filter(|pid| seen.insert(*pid)).collect();
            // A process that has been sent the signal forks no more, so that what is new is the child of one that had not.
            if fresh.is_empty() {
                return stopped;
            }
            for pid in fresh {
                let is_still = proc::process(pid).is_none_or(|process| matches!(process.state, 'T' | 't' | 'Z'));
                if !is_still && signal::send(pid, signal::SIGSTOP).is_ok() {
                    stopped.push(pid);
                }
            }
        }
    }

    /// SIGKILL to everything of a worker.
    pub(crate) fn kill(&self, member: Member<'_>) {
        if let Boundary::Cgroup(cgroup) = self
            && cgroup.kill_leaf(&Self::leaf(member.rank)).is_ok()
        {
            return;
        }
        if let Some(leader) = member.leader.filter(|_| member.leader_alive) {
            let _ = signal::send(leader, signal::SIGKILL);
        }
        for pid in self.others(member) {
            let _ = signal::send(pid, signal::SIGKILL);
        }
    }
}

/// Whether an orphan, a child of ours now, was left by this worker: by its session or group, else by its environment.
fn is_of(member: Member<'_>, pid: i32) -> bool {
    let Some(process) = proc::process(pid) else { return false };
    if process.state == 'Z' || Some(pid) == member.leader {
        return false;
    }
    if member.leader.is_some_and(|leader| process.session == leader || process.group == leader) {
        return true;
    }
    let tag = |name| proc::environment_variable(pid, name);
    tag("RANKRUN_RANK").is_some_and(|rank| rank == member.rank.to_string().into_bytes())
        && tag("RANKRUN_JOB_ID").is_some_and(|job| job == member.job.0.as_bytes())
}

fn explain(error: &Unavailable) -> String {
    match error {
        Unavailable::NotWritable { source, .. } => format!("{error}: {}", rankrun_sys::reason(source)),
        Unavailable::NotMounted | Unavailable::NotAMember => error.to_string(),
    }
}

/// What a set of processes did so far, and whether none of them is about to do more: asleep, stopped or dead.
pub(crate) fn activity(pids: &[i32]) -> (u64, bool) {
    let mut sum = pids.len() as u64;
    let mut quiet = true;
    for &pid in pids {
        let Some(Process { state, .. }) = proc::process(pid) else { continue };
        quiet &= matches!(state, 'S' | 'I' | 'T' | 't' | 'Z');
        sum = sum.wrapping_add(proc::run_time(pid).unwrap_or(0)).wrapping_add(proc::written_bytes(pid));
    }
    (sum, quiet)
}
