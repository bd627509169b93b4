//! The state of the job and of each rank. What the ranks are doing is known to the agents, which have a time to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_agent::Clock;
use rankrun_core::condition::{Condition, Doing};
use rankrun_core::control::{Answer, JobState, JobStatus, RankStatus};
use rankrun_core::gang::{Outside, RankRecord};
use rankrun_core::standing::{last_note, phases, short};
use rankrun_core::status::signal_name;
use rankrun_core::worker::StopWhy;
use rankrun_core::{NodeId, Pid, Rank, WorkerId};
use rankrun_wire::ToAgent;

use super::clients::{Awaits, ClientId};
use crate::job::front::Front;

/// How long the agents have for their answer. An agent answers in its next turn, which may last a while on a machine that is
/// very busy.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// A question to all agents. All clients that ask meanwhile share it.
#[derive(Debug, Default)]
pub(crate) struct States {
    /// The last question.
    number: u64,
    /// Until when the answers may come, if any is to come.
    due: Option<Duration>,
    missing: BTreeSet<NodeId>,
    /// By rank, on the front's clock.
    known: BTreeMap<Rank, Condition>,
}

impl States {
    /// When the wait for the agents is over.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.due
    }
}

impl Front {
    /// A client asks for the states of all ranks.
    pub(super) fn ask_for_states(&mut self, client: ClientId) {
        self.control.wait(client, Awaits::States);
        if self.states.due.is_some() {
            return;
        }
        let linked = self.nodes.iter().filter(|node| node.link.is_some() && node.containment.is_some());
        let missing: BTreeSet<NodeId> = linked.map(|node| node.id).collect();
        // The agents' loops stand still too.
        if missing.is_empty() || self.clock.is_paused() {
            return self.answer_states(BTreeSet::new());
        }
        let number = self.states.number + 1;
        let due = Some(self.now() + ANSWER_BOUND);
        self.states = States { number, due, missing, known: BTreeMap::new() };
        self.send(ToAgent::ReportConditions(number));
    }

    /// An agent has answered.
    pub(crate) fn conditions(&mut self, from: NodeId, number: u64, workers: Vec<(WorkerId, Condition)>, at: Duration) {
        if number != self.states.number || !self.states.missing.remove(&from) {
            return;
        }
        let now = self.now();
        // Times to come are as far from the time of the answer as those that have passed.
        let sent = self.nodes[from.index()].clock.moment(now, at).at;
        let ours = |time: Duration| match time.checked_sub(at) {
            Some(ahead) => sent + ahead,
            None => sent.saturating_sub(at - time),
        };
        for (worker, condition) in workers {
            let Condition { since, until, .. } = condition;
            let condition = Condition { since: since.map(ours), until: until.map(ours), ..condition };
            self.states.known.insert(worker.rank, condition);
        }
        if self.states.missing.is_empty() {
            self.answer_states(BTreeSet::new());
        }
    }

    /// Answers without the agents that have not answered in time, or are lost.
    pub(super) fn give_up_on_states(&mut self, now: Duration) {
        if self.states.due.is_none() {
            return;
        }
        let is_linked = |node: &NodeId| self.nodes.get(node.index()).is_some_and(|node| node.link.is_some());
        if self.states.due.is_some_and(|due| due <= now) || !self.states.missing.iter().any(is_linked) {
            let missing = std::mem::take(&mut self.states.missing);
            self.answer_states(missing);
        }
    }

    fn answer_states(&mut self, silent: BTreeSet<NodeId>) {
        self.states.due = None;
        let known = std::mem::take(&mut self.states.known);
        let clock = self.clock.clone();
        let mut status = self.job_status(&clock);
        status.silent_nodes = silent.iter().map(|node| self.nodes[node.index()].name.clone()).collect();
        status.ranks = self.rank_states(&known, &Wall::of(&clock));
        for (client, awaits) in self.control.waiting() {
            if awaits == Awaits::States {
                self.answer(client, Answer::Status(Box::new(status.clone())));
            }
        }
    }

    /// The state of the job as a whole.
    pub(super) fn job_status(&self, clock: &Clock) -> JobStatus {
        let wall = Wall::of(clock);
        let spec = &self.plan.spec;
        let rules = self.gang.rules();
        let started = self.gang.ranks().iter().filter_map(|record| record.started_at).max();
        let ended = self.gang.ranks().iter().filter_map(|record| record.ended_at).max();
        let is_started = self.gang.ranks().iter().all(|record| record.pid.is_some() || record.outcome.is_some());
        let timeout = rules.timeout.filter(|_| self.gang.stop_ordered().is_none());
        let waits = self.attempts.waits();
        let (state, since, until) = match self.gang.stop_ordered() {
            _ if (self.gang.over() && !self.successors.are_to_come()) || !self.is_linked() => {
                (JobState::Ending, ended.unwrap_or_default(), None)
            }
            _ if clock.is_paused() => (JobState::Paused, self.now(), None),
            Some(at) => (JobState::Stopping, at, self.gang.killed_at().or(self.gang.grace_until())),
            None if is_started => (JobState::Running, started.unwrap_or_default(), timeout),
            None => (JobState::Starting, self.attempts.began(), timeout),
        };
        let (state, since, until) = match &waits {
            Some((since, until, _)) => (JobState::Waiting, *since, *until),
            None => (state, since, until),
        };
        JobStatus {
            job: spec.job.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pid: Pid(std::process::id() as i32),
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
            silent_nodes: Vec::new(),
            ranks: Vec::new(),
        }
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
    fn rank_states(&self, known: &BTreeMap<Rank, Condition>, wall: &Wall) -> Vec<RankStatus> {
        let map = &self.plan.spec.map;
        let why = self.why_stopped();
        let mut ranks = Vec::new();
        for (rank, (record, (phase, phase_since))) in
            (0..).map(Rank).zip(self.gang.ranks().iter().zip(phases(&self.gang)))
        {
            let condition = known.get(&rank).copied();
            let (wrote, line) = self.last_lines.last(rank);
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
            let next = self.successors.next_of(rank);
            let condition = condition.filter(|_| next.is_none());
            let state = if next.is_some() { Doing::Waiting } else { state };
            let since = next.map_or(since, |next| Some(next.since));
            let until = next.map(|next| next.at).or(condition.and_then(|condition| condition.until));
            ranks.push(RankStatus {
                rank,
                attempt: self.successors.attempt_of(rank).unwrap_or(self.plan.spec.attempt),
                node: map.place(rank).map(|place| map.node_name(place.node).to_owned()).unwrap_or_default(),
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

/// Times of the job's clock as times of day.
struct Wall {
    now: f64,
    shown: f64,
}

impl Wall {
    fn of(clock: &Clock) -> Wall {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Wall { now: now.as_secs_f64(), shown: clock.now().as_secs_f64() }
    }

    fn time(&self, at: Duration) -> f64 {
        self.now + (at.as_secs_f64() - self.shown)
    }
}
