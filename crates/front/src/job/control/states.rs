//! The state of the job and of each rank, for `rankrun status`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_agent::Clock;
use rankrun_core::condition::{Condition, Doing};
use rankrun_core::control::{Answer, JobState, JobStatus, RankStatus};
use rankrun_core::gang::{Outside, RankRecord};
use rankrun_core::standing::{last_note, phases, short};
use rankrun_core::status::signal_name;
use rankrun_core::worker::StopWhy;
use rankrun_core::{Pid, Rank};

use super::clients::Awaits;
use crate::job::front::Front;

impl Front {
    /// The agents have said what the ranks are doing, but these nodes: answers those who have asked.
    pub(crate) fn answer_states(&mut self, conditions: &[(Rank, Condition)], silent: Vec<String>) {
        let clock = self.clock.clone();
        let mut status = self.job_status(&clock);
        status.silent_nodes = silent;
        status.ranks = self.rank_states(&conditions.iter().copied().collect(), &Wall::of(&clock));
        for (client, awaits) in self.control.waiting() {
            if awaits == Awaits::States {
                self.answer(client, &Answer::Status(Box::new(status.clone())));
            }
        }
    }

    /// The state of the job as a whole.
    pub(super) fn job_status(&self, clock: &Clock) -> JobStatus {
        let wall = Wall::of(clock);
        let spec = self.job.spec();
        let rules = self.job.gang().rules();
        let started = self.job.gang().ranks().iter().filter_map(|record| record.started_at).max();
        let ended = self.job.gang().ranks().iter().filter_map(|record| record.ended_at).max();
        let is_started = self.job.gang().ranks().iter().all(|record| record.pid.is_some() || record.outcome.is_some());
        let timeout = rules.timeout.filter(|_| self.job.gang().stop_ordered().is_none());
        let waits = self.job.waits();
        let (state, since, until) = match self.job.gang().stop_ordered() {
            _ if (self.job.gang().over() && !self.job.has_successors_to_come()) || !self.job.is_linked() => {
                (JobState::Ending, ended.unwrap_or_default(), None)
            }
            _ if clock.is_paused() => (JobState::Paused, self.now(), None),
            Some(at) => (JobState::Stopping, at, self.job.gang().killed_at().or(self.job.gang().grace_until())),
            None if is_started => (JobState::Running, started.unwrap_or_default(), timeout),
            None => (JobState::Starting, self.job.attempt_began(), timeout),
        };
        let (state, since, until) = match &waits {
            Some((since, until, _)) => (JobState::Waiting, *since, *until),
            None => (state, since, until),
        };
        JobStatus {
            job: spec.job.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pid: Pid(std::process::id() as i32),
            command: self.job.facts().command(Rank(0)),
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
                None => self.job.gang().stop_ordered().map(|_| self.why_stopped()),
            },
            silent_nodes: Vec::new(),
            ranks: Vec::new(),
        }
    }

    /// Why the job is being stopped.
    fn why_stopped(&self) -> String {
        match (self.job.gang().outside(), self.job.gang().requested()) {
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
            (None, None) => match self.job.gang().evidence().first() {
                Some(evidence) => format!("rank {} failed", evidence.rank),
                None => "a rank failed".to_owned(),
            },
        }
    }

    /// The state of each rank, by what the agents have answered and by what the front knows.
    fn rank_states(&self, known: &BTreeMap<Rank, Condition>, wall: &Wall) -> Vec<RankStatus> {
        let map = &self.job.spec().map;
        let why = self.why_stopped();
        let mut ranks = Vec::new();
        for (rank, (record, (phase, phase_since))) in
            (0..).map(Rank).zip(self.job.gang().ranks().iter().zip(phases(self.job.gang())))
        {
            let condition = known.get(&rank).copied();
            let (wrote, line) = self.job.lines().last(rank);
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
            let next = self.job.next_of(rank);
            let condition = condition.filter(|_| next.is_none());
            let state = if next.is_some() { Doing::Waiting } else { state };
            let since = next.map_or(since, |next| Some(next.since));
            let until = next.map(|next| next.at).or(condition.and_then(|condition| condition.until));
            ranks.push(RankStatus {
                rank,
                attempt: self.job.attempt_of(rank),
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
            (None, None, Some(_)) if self.job.gang().killed_at().is_some() => Doing::Killing,
            (None, None, Some(_)) if self.job.gang().stop_ordered().is_some() => Doing::Stopping,
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
