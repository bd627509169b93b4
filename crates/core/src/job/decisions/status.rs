//! The state of the job and of each rank, for `rankrun status`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::condition::{Condition, Doing};
use crate::control::{JobState, JobStatus, Member, MemberStatus, RankStatus, RankUsage};
use crate::gang::{Outside, RankRecord};
use crate::ids::{Pid, Rank, WorkerId};
use crate::job::machine::Job;
use crate::job::parts::node::Node;
use crate::standing::{last_note, phases, short};
use crate::status::signal_name;
use crate::usage::{Measured, Usage};
use crate::worker::StopWhy;

/// What the front's process is, and when: a time of the job's clock as a time of day.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wall {
    /// The front's process.
    pub pid: Pid,
    /// The time of day, in seconds since the Unix epoch, and what the job's clock shows then.
    pub now: f64,
    pub shown: Duration,
    /// It has no terminal.
    pub is_detached: bool,
}

impl Wall {
    fn time(&self, at: Duration) -> f64 {
        self.now + (at.as_secs_f64() - self.shown.as_secs_f64())
    }
}

/// What a rank uses, with times of day.
fn usage((at, usage): Measured, wall: Wall) -> RankUsage {
    let Usage { cpu, memory, read, written, processes, threads, is_stopped, gpus } = usage;
    let (at, cpu) = (wall.time(at), cpu.as_secs_f64());
    RankUsage { at, cpu, memory, read, written, processes, threads, is_stopped, gpus }
}

impl Job {
    /// The state of the job and of each rank, and what each uses, as the agents have told it, but these nodes.
    pub fn status_of_ranks(
        &self,
        wall: Wall,
        conditions: &[(WorkerId, Condition)],
        usages: Vec<(WorkerId, Measured)>,
        silent_nodes: Vec<String>,
    ) -> JobStatus {
        let mut ranks =
            self.rank_states(&conditions.iter().map(|(worker, condition)| (worker.rank, *condition)).collect(), wall);
        let mut usages: BTreeMap<WorkerId, Measured> = usages.into_iter().collect();
        for status in &mut ranks {
            let worker = WorkerId { rank: status.rank, attempt: status.attempt };
            status.usage = usages.remove(&worker).map(|measured| usage(measured, wall));
        }
        JobStatus { silent_nodes, ranks, ..self.status(wall) }
    }

    /// The state of the job as a whole.
    pub fn status(&self, wall: Wall) -> JobStatus {
        let spec = &self.spec;
        let rules = self.gang.rules();
        let started = self.gang.ranks().iter().filter_map(|record| record.started_at).max();
        let ended = self.gang.ranks().iter().filter_map(|record| record.ended_at).max();
        let is_started = self.gang.ranks().iter().all(|record| record.pid.is_some() || record.outcome.is_some());
        let timeout = rules.timeout.filter(|_| self.gang.stop_ordered().is_none());
        let waits = self.waits();
        let (state, since, until) = match self.gang.stop_ordered() {
            _ if (self.gang.over() && !self.has_successors_to_come()) || !self.is_linked() => {
                (JobState::Ending, ended.unwrap_or_default(), None)
            }
            _ if self.is_paused => (JobState::Paused, self.now, None),
            Some(at) => (JobState::Stopping, at, self.gang.killed_at().or(self.gang.grace_until())),
            None if is_started => (JobState::Running, started.unwrap_or_default(), timeout),
            None => (JobState::Starting, self.attempt_began(), timeout),
        };
        let (state, since, until) = match &waits {
            Some((since, until, _)) => (JobState::Waiting, *since, *until),
            None => (state, since, until),
        };
        JobStatus {
            job: spec.job.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pid: wall.pid,
            front_pid: Some(wall.pid),
            detached: wall.is_detached,
            command: self.facts.command(Rank(0)),
            directory: spec.directory(Rank(0)).to_string_lossy().into_owned(),
            world_size: spec.map.world_size(),
            attempt: spec.attempt,
            started: wall.time(Duration::ZERO),
            now: wall.now,
            state,
            since: wall.time(since),
            until: until.map(|until| wall.time(until)),
            why: match waits {
                Some((_, _, why)) => Some(why),
                None => self.gang.stop_ordered().map(|_| self.why_stopped()),
            },
            restarts_left: self.attempts.policy().restarts_left(self.now),
            silent_nodes: Vec::new(),
            members: self.members(wall),
            ranks: Vec::new(),
        }
    }

    /// The nodes without ranks that may get some.
    fn members(&self, wall: Wall) -> Vec<MemberStatus> {
        let left_out = |node: &Node| self.members.exclusions.until(node.identity(), self.now);
        let member = |node: &Node, state: Member| match left_out(node) {
            Some(until) => {
                MemberStatus { node: node.name().to_owned(), state: Member::LeftOut, until: Some(wall.time(until)) }
            }
            None => MemberStatus { node: node.name().to_owned(), state, until: None },
        };
        let spares = self.nodes.spares().map(|node| member(node, Member::Spare));
        let away = self.members.returns.names().filter_map(|identity| self.nodes.last_of(identity));
        let away = away.map(|node| member(node, Member::Away));
        spares.chain(away).collect()
    }

    /// Why the job is being stopped.
    fn why_stopped(&self) -> String {
        match (self.gang.outside(), self.gang.requested()) {
            (_, Some(request)) => format!("rankrun stop, {}", request.by),
            (Some(outside), None) => match outside {
                Outside::Signal(number) => format!("rankrun received {}", signal_name(number)),
                Outside::Interrupted(rank) => format!("rank {rank}, which has the terminal, was interrupted"),
                Outside::Restart => "rankrun restart".to_owned(),
                Outside::Timeout => "--timeout passed".to_owned(),
                Outside::Planned(stop) => stop.headline(),
                Outside::Hang => "no rank did anything (--stall)".to_owned(),
                Outside::Alone => "its ranks run MPI without being connected (--strict)".to_owned(),
                Outside::OutputGone => "nobody reads the output".to_owned(),
                Outside::OutputFailed => "output could not be written".to_owned(),
                Outside::AgentLost => "the agent is lost".to_owned(),
                Outside::GuardLost => "the guard is lost".to_owned(),
                Outside::NodeLost => "a node is lost".to_owned(),
                Outside::WireUpLost => "the ranks cannot be connected".to_owned(),
            },
            (None, None) => match self.gang.evidence().first() {
                Some(evidence) => format!("rank {} failed", evidence.rank),
                None => "a rank failed".to_owned(),
            },
        }
    }

    /// The state of each rank, by what the agents have answered and by what the front knows.
    fn rank_states(&self, known: &BTreeMap<Rank, Condition>, wall: Wall) -> Vec<RankStatus> {
        let why = self.why_stopped();
        let mut ranks = Vec::new();
        for (record, (phase, phase_since)) in self.gang.ranks().iter().zip(phases(&self.gang)) {
            let rank = record.rank;
            let condition = known.get(&rank).copied();
            let (wrote, line) = self.lines.last(rank);
            let ended = record.status.or(condition.and_then(|condition| condition.status));
            let state = condition.map_or_else(|| self.doing(record), |condition| condition.doing);
            let since = match state {
                Doing::Ended => record.ended_at,
                Doing::Running => record.started_at.or(condition.and_then(|condition| condition.since)),
                _ => condition.and_then(|condition| condition.since),
            };
            let because = match condition.and_then(|condition| condition.why) {
                Some(StopWhy::FrontLost | StopWhy::Over) | None => None,
                Some(StopWhy::GuardLost) => Some("the guard is lost".to_owned()),
                Some(_) => Some(why.clone()),
            };
            let next = self.next_of(rank);
            let condition = condition.filter(|_| next.is_none());
            let state = if next.is_some() { Doing::Waiting } else { state };
            let since = next.map_or(since, |next| Some(next.since));
            let until = next.map(|next| next.at).or(condition.and_then(|condition| condition.until));
            ranks.push(RankStatus {
                rank,
                attempt: self.attempt_of(rank),
                node: self.facts.node_name(rank).unwrap_or_default().to_owned(),
                cpus: record.cpus.as_ref().map(ToString::to_string),
                pid: condition.map_or(record.pid.filter(|_| record.status.is_none()), |condition| condition.pid),
                state,
                since: since.map(|since| wall.time(since)),
                until: until.map(|until| wall.time(until)),
                why: because.filter(|_| state != Doing::Ended).or(ended.map(|status| status.to_string())),
                is_saving: condition.is_some_and(|condition| condition.is_saving),
                phase,
                phase_since: phase_since.map(|since| wall.time(since)),
                wrote: wrote.map(|at| wall.time(at)),
                last_line: line.as_deref().map(short),
                note: last_note(record),
                usage: None,
            });
        }
        ranks
    }

    /// What a rank is doing as far as the front knows.
    fn doing(&self, record: &RankRecord) -> Doing {
        match (record.outcome, record.status, record.pid) {
            (Some(_), _, _) => Doing::Ended,
            (None, Some(_), _) => Doing::Lingering,
            (None, None, Some(_)) if self.gang.killed_at().is_some() => Doing::Killing,
            (None, None, Some(_)) if self.gang.stop_ordered().is_some() => Doing::Stopping,
            (None, None, Some(_)) => Doing::Running,
            (None, None, None) => Doing::NotStarted,
        }
    }
}
