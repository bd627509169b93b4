//! The spans of a job, made of one entry of its journal after another.

use std::collections::BTreeMap;
use std::time::Duration;

use super::happenings::{decision, happening};
use super::otlp::{Request, Resource, ResourceSpans, Scope, ScopeSpans, attribute};
use super::spans::Spans;
use crate::event::{End, Entry, JobEvent, JobFacts, NodeState, Replay, ReplayError};
use crate::evidence::MpiEvent;
use crate::gang::{Event, MpiLife};
use crate::grace::StopRecord;
use crate::ids::{Attempt, GroupId, NodeId, Rank, WorkerId};
use crate::report::Report;
use crate::restart::{self, Decision, Reason};
use crate::status::{WorkerStatus, signal_name};
use crate::testimony::Testimony;
use crate::trace::{Part, Trace};
use crate::verdict::{Fate, Verdict, verdict};
use crate::worker::Outcome;

/// The trace of a job that is being read.
#[derive(Clone, Debug)]
pub struct Export {
    replay: Replay,
    trace: Trace,
    spans: Spans,
    /// The latest time yet.
    last: u64,
    /// How long the job had been paused.
    paused: u64,
    /// How often each node has begun to take part, and whether it takes part.
    nodes: BTreeMap<NodeId, (u32, bool)>,
    missing: u64,
}

impl Export {
    /// Begins with the first entry. `started` is when the job started, since the Unix epoch, as the end of the journal has it: a journal of
    /// an older version has that nowhere else.
    ///
    /// # Errors
    ///
    /// It is not that of the job, or of another version; or nothing says when the job started.
    pub fn new(first: Entry, started: Option<Duration>) -> Result<Export, ReplayError> {
        let replay = Replay::new(first)?;
        let facts = &replay.facts;
        let of_start = || started.map(|started| Trace::new(&facts.job, started, None, None));
        let trace = facts.trace.clone().or_else(of_start).ok_or(ReplayError::NoStart)?;
        let mut export = Export {
            last: trace.started,
            trace,
            replay,
            spans: Spans::default(),
            paused: 0,
            nodes: BTreeMap::new(),
            missing: 0,
        };
        export.begin_job();
        Ok(export)
    }

    fn begin_job(&mut self) {
        let facts = &self.replay.facts;
        let at = self.trace.started;
        self.spans.open(Part::Job, None, "job", at);
        self.spans.set(Part::Job, "rankrun.job.id", &*facts.job.0);
        self.spans.set(Part::Job, "rankrun.world_size", facts.map.world_size());
        self.spans.set(Part::Job, "rankrun.nodes", facts.map.node_count());
        self.spans.set(Part::Job, "process.command_args", facts.command(Rank(0)));
        self.begin_attempt(at);
    }

    fn attempt(&self) -> Part {
        Part::Attempt(self.replay.facts.gang.attempt)
    }

    fn begin_attempt(&mut self, at: u64) {
        let Attempt(number) = self.replay.facts.gang.attempt;
        let part = self.attempt();
        self.spans.close(Part::Wait(Attempt(number)), at);
        self.spans.open(part, Some(Part::Job), "attempt", at);
        self.spans.set(part, "rankrun.attempt", number);
        self.spans.set(part, "rankrun.world_size", self.replay.facts.map.world_size());
        if let Some(before) = number.checked_sub(1) {
            self.spans.link(part, Part::Attempt(Attempt(before)), "previous attempt");
        }
    }

    /// A time of the job as a time of day.
    fn time(&self, at: Duration) -> u64 {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.trace.started.saturating_add(at).saturating_add(self.paused)
    }

    /// Takes the next entry.
    ///
    /// # Errors
    ///
    /// It is of another version.
    pub fn take(&mut self, entry: Entry) -> Result<(), ReplayError> {
        let now = self.trace.started.saturating_add(entry.at).saturating_add(entry.paused);
        self.paused = self.paused.max(entry.paused);
        self.last = self.last.max(now);
        match &entry.event {
            JobEvent::Job(facts) => {
                let is_other = facts.gang.attempt != self.replay.facts.gang.attempt;
                if is_other && self.spans.is_open(self.attempt()) {
                    self.end_attempt(now);
                }
                self.replay.take(entry)?;
                self.begin_attempt(now);
                return Ok(());
            }
            JobEvent::Group(facts) => {
                let attributes = vec![
                    attribute("rankrun.group", facts.group.0),
                    attribute("rankrun.rank", facts.by.number()),
                    attribute("rankrun.world_size", facts.map.world_size()),
                ];
                self.spans.event(self.attempt(), now, "rankrun.spawn", attributes);
            }
            JobEvent::Gang { happened, event, .. } => self.gang(self.time(*happened), event),
            JobEvent::Bound(workers) => {
                // It comes before the ranks start: `rank_started` reads it from the gang.
                for (worker, cpus) in workers {
                    self.spans.set(Part::Rank(*worker), "rankrun.cpus", cpus.to_string());
                }
            }
            JobEvent::Decision(effect) => {
                let (name, attributes) = decision(*effect);
                self.spans.event(self.attempt(), now, name, attributes);
            }
            JobEvent::Note(text) => {
                let attributes = vec![attribute("rankrun.message", &**text)];
                self.spans.event(Part::Job, now, "rankrun.message", attributes);
            }
            JobEvent::Attempt { rank: None, event: restart::Event::Up } => {
                self.spans.event(self.attempt(), now, "rankrun.up", Vec::new());
            }
            JobEvent::Attempt { rank: None, event: restart::Event::Ended(_) } => self.end_attempt(now),
            JobEvent::Attempt { rank: Some(rank), event: restart::Event::Ended(outcome) } => {
                let worker = self.replay.gang.worker(*rank);
                if let Some(class) = outcome.class {
                    self.fail_rank(worker, class.word(), outcome.cause.clone().unwrap_or_default());
                }
            }
            JobEvent::Attempt { .. } => {}
            JobEvent::Restart { rank, decision } => self.restart(now, *rank, decision),
            JobEvent::Node { node, name, state, why, .. } => self.node(now, *node, name, *state, why.as_deref()),
            JobEvent::Gap { events } => self.missing += events,
            JobEvent::GroupWithdrawn(_) | JobEvent::Stderr { .. } | JobEvent::Policy { .. } | JobEvent::End(_) => {}
        }
        self.replay.take(entry)
    }

    /// An event of the gang. It has not taken that yet.
    fn gang(&mut self, at: u64, event: &Event) {
        self.last = self.last.max(at);
        match event {
            Event::Started { worker, pid } => {
                self.begin_rank(at, *worker);
                self.spans.set(Part::Rank(*worker), "process.pid", pid.0);
            }
            Event::SpawnFailed { worker, step, error, command, .. } => {
                self.begin_rank(at, *worker);
                self.spans.fail(Part::Rank(*worker), format!("cannot {step} \"{command}\": {error}"));
            }
            Event::Signalled { worker, record } => self.signalled(*worker, record),
            Event::Ended { worker, status } => self.rank_ended(at, *worker, *status),
            Event::Gone { worker, outcome } => {
                if *outcome == Outcome::Unkillable {
                    self.spans.event(Part::Rank(*worker), at, "rankrun.unkillable", Vec::new());
                }
                self.spans.close(Part::Rank(*worker), at);
            }
            Event::Again { worker } => self.spans.close(Part::RankWait(*worker), at),
            Event::Mpi { worker, event: MpiEvent::Inited } => {
                // A second program of the rank may do so too.
                self.spans.open(Part::Mpi(*worker), Some(Part::Rank(*worker)), "mpi", at);
            }
            Event::Mpi { worker, event: MpiEvent::Finalized } => self.spans.close(Part::Mpi(*worker), at),
            Event::Testimony { worker, testimony: Testimony::Ready, .. } => self.ready(at, *worker),
            _ => {}
        }
        if let Some(it) = happening(event) {
            let of_rank = it.of.map(Part::Rank).filter(|part| self.spans.has(*part));
            self.spans.event(of_rank.unwrap_or(self.attempt()), at, it.name, it.attributes);
        }
    }

    fn begin_rank(&mut self, at: u64, worker: WorkerId) {
        let facts = &self.replay.facts;
        let part = Part::Rank(worker);
        self.spans.open(part, Some(self.attempt()), "rank", at);
        self.spans.set(part, "rankrun.rank", worker.rank.number());
        self.spans.set(part, "rankrun.attempt", worker.attempt.0);
        if let Some(place) = facts.place(worker.rank) {
            self.spans.set(part, "rankrun.local_rank", place.local_rank.0);
            self.spans.set(part, "rankrun.node", place.node.0);
            self.spans.set(part, "host.name", facts.map.node_name(place.node));
        }
        self.spans.set(part, "process.command_args", facts.command(worker.rank));
        let record = self.replay.gang.ranks().get(worker.rank);
        if let Some(cpus) = record.and_then(|record| record.cpus.as_ref()) {
            self.spans.set(part, "rankrun.cpus", cpus.to_string());
        }
        if worker.rank.group() != GroupId(0) {
            self.spans.set(part, "rankrun.group", worker.rank.group().0);
            if let Some(group) = facts.groups.iter().find(|group| group.group == worker.rank.group()) {
                self.spans.link(part, Part::Rank(self.replay.gang.worker(group.by)), "spawned by");
            }
        }
        if self.replay.facts.gang.attempt != worker.attempt
            && let Some(before) = worker.attempt.0.checked_sub(1)
        {
            // Of this rank alone.
            let before = WorkerId { attempt: Attempt(before), ..worker };
            self.spans.link(part, Part::Rank(before), "previous attempt");
        }
    }

    fn ready(&mut self, at: u64, worker: WorkerId) {
        let began = self.replay.gang.ranks().get(worker.rank).and_then(|record| record.started_at);
        if let Some(began) = began {
            self.spans.open(Part::Startup(worker), Some(Part::Rank(worker)), "startup", self.time(began));
            self.spans.close(Part::Startup(worker), at);
        }
    }

    /// What was done to end a rank.
    fn signalled(&mut self, worker: WorkerId, record: &StopRecord) {
        let Some((_, first)) = record.signals.first() else { return };
        let part = Part::Stop(worker);
        self.spans.open(part, Some(Part::Rank(worker)), "stop", self.time(*first));
        for (signal, at) in &record.signals {
            let attributes = vec![attribute("rankrun.signal", signal_name(*signal))];
            self.spans.event(part, self.time(*at), "rankrun.signal_sent", attributes);
        }
    }

    /// The leader of a rank has ended. The span of the rank ends with its last process.
    fn rank_ended(&mut self, at: u64, worker: WorkerId, status: WorkerStatus) {
        let part = Part::Rank(worker);
        match status {
            WorkerStatus::Exited { code } => self.spans.set(part, "process.exit.code", code),
            WorkerStatus::Signaled { signal, core_dumped } => {
                self.spans.set(part, "rankrun.exit.signal", signal_name(signal));
                self.spans.set(part, "rankrun.exit.core_dumped", core_dumped);
            }
        }
        self.spans.event(part, at, "rankrun.leader_ended", Vec::new());
        let is_of_mpi =
            self.replay.gang.ranks().get(worker.rank).is_some_and(|record| record.mpi != MpiLife::NotInited);
        if is_of_mpi {
            self.spans.close(Part::Mpi(worker), at);
        }
        self.spans.close(Part::Stop(worker), at);
    }

    fn restart(&mut self, at: u64, rank: Option<Rank>, decision: &Decision) {
        match (rank, decision) {
            (_, Decision::Restart { after, attempt, reason, because }) => {
                let (part, parent) = match rank {
                    None => (Part::Wait(*attempt), Part::Job),
                    Some(rank) => (Part::RankWait(WorkerId { rank, attempt: *attempt }), self.attempt()),
                };
                self.spans.open(part, Some(parent), "restart", at);
                let reason = match reason {
                    Reason::Failure => "failure",
                    Reason::NotStarted => "not-started",
                    Reason::Planned => "planned",
                    Reason::NodeLost => "node-lost",
                };
                self.spans.set(part, "rankrun.attempt", attempt.0);
                self.spans.set(part, "rankrun.restart.reason", reason);
                self.spans.set(part, "rankrun.restart.because", &**because);
                self.spans.set(part, "rankrun.restart.wait", *after);
                if let Some(rank) = rank {
                    self.spans.set(part, "rankrun.rank", rank.number());
                }
            }
            (_, Decision::GiveUp { why }) => {
                let mut attributes = vec![attribute("rankrun.why", why.to_string())];
                attributes.extend(rank.map(|rank| attribute("rankrun.rank", rank.number())));
                self.spans.event(Part::Job, at, "rankrun.given_up", attributes);
            }
            (_, Decision::Done) => {}
        }
    }

    /// A node comes to another state. Its span is the time until it takes part.
    fn node(&mut self, at: u64, node: NodeId, name: &str, state: NodeState, why: Option<&str>) {
        let (times, takes_part) = self.nodes.get(&node).copied().unwrap_or_default();
        let part = Part::Node(node, times);
        match state {
            NodeState::Asked | NodeState::Reached => {
                if !takes_part {
                    self.spans.open(part, Some(Part::Job), "node start", at);
                    self.spans.set(part, "host.name", name);
                    self.spans.set(part, "rankrun.node.id", node.0);
                }
            }
            NodeState::Ready | NodeState::Running => {
                self.spans.close(part, at);
                self.nodes.insert(node, (times, true));
            }
            NodeState::Suspect => {
                let attributes = vec![attribute("host.name", name)];
                self.spans.event(Part::Job, at, "rankrun.node_suspect", attributes);
            }
            NodeState::Lost | NodeState::Proved | NodeState::Left | NodeState::Fenced | NodeState::Dismissed => {
                if self.spans.is_open(part) && state != NodeState::Dismissed {
                    self.spans.fail(part, why.unwrap_or("lost"));
                }
                self.spans.close(part, at);
                let next = if self.spans.has(part) { times + 1 } else { times };
                self.nodes.insert(node, (next, false));
            }
        }
    }

    fn fail_rank(&mut self, worker: WorkerId, class: &'static str, message: String) {
        self.spans.set(Part::Rank(worker), "error.type", class);
        self.spans.fail(Part::Rank(worker), message);
    }

    /// The present attempt is over.
    fn end_attempt(&mut self, at: u64) {
        let part = self.attempt();
        if !self.spans.is_open(part) {
            return;
        }
        let verdict = verdict(&self.replay.gang);
        self.conclude_ranks(&verdict);
        if let Some(class) = verdict.class {
            self.spans.set(part, "error.type", class.word());
            let message = match &verdict.culprit {
                Some(culprit) => format!("{} failed: {}", culprit.rank.name(), culprit.cause),
                None => class.word().to_owned(),
            };
            self.spans.fail(part, message);
        }
        self.spans.set(part, "process.exit.code", verdict.code.0);
        self.spans.close(part, at);
    }

    /// What became of each rank, and the cause of the failure as the verdict has it.
    fn conclude_ranks(&mut self, verdict: &Verdict) {
        let ranks = self.replay.gang.ranks().iter();
        let workers = ranks.map(|record| WorkerId { rank: record.rank, attempt: record.attempt });
        for ((worker, fate), ending) in workers.zip(&verdict.fates).zip(&verdict.endings) {
            let part = Part::Rank(worker);
            let (word, is_failed) = match fate {
                Fate::Culprit => ("culprit", true),
                Fate::Interrupted => ("interrupted", false),
                Fate::Succeeded => ("succeeded", false),
                Fate::Victim => ("victim", true),
                Fate::EndedByRankrun => ("ended-by-rankrun", false),
                Fate::FailedToo => ("failed-too", true),
                Fate::NeverStarted => ("never-started", false),
                Fate::Lost => ("lost", true),
                Fate::Unknown => ("unknown", false),
            };
            self.spans.set(part, "rankrun.fate", word);
            if is_failed {
                let message = ending.cause.as_ref().or(ending.how.as_ref());
                self.spans.fail(part, message.map_or(word, |message| message));
            }
        }
        let Some(culprit) = &verdict.culprit else { return };
        let worker = self.replay.gang.worker(culprit.rank);
        let part = if self.spans.has(Part::Rank(worker)) { Part::Rank(worker) } else { self.attempt() };
        self.spans.set(part, "error.type", culprit.class.word());
        let attributes = vec![
            attribute("rankrun.class", culprit.class.word()),
            attribute("rankrun.rank", culprit.rank.number()),
            attribute("rankrun.message", &*culprit.cause),
        ];
        let at = self.time(culprit.at);
        self.spans.event(self.attempt(), at, "rankrun.failure", attributes);
    }

    /// The trace as it is sent.
    pub fn finish(mut self) -> Request {
        let end = self.replay.end.take();
        if let Some(end) = &end {
            self.end_job(end);
        }
        if self.paused > 0 {
            self.spans.set(Part::Job, "rankrun.paused", Duration::from_nanos(self.paused));
        }
        if self.missing > 0 {
            let missing = i32::try_from(self.missing).unwrap_or(i32::MAX);
            self.spans.set(Part::Job, "rankrun.journal.missing_events", missing);
        }
        let JobFacts { release, job, .. } = &self.replay.facts;
        let attributes = vec![
            attribute("service.name", "rankrun"),
            attribute("service.version", &**release),
            attribute("service.instance.id", &*job.0),
        ];
        let scope = Scope { name: "rankrun".to_owned(), version: release.clone() };
        let spans = self.spans.finish(&self.trace, self.last, end.is_none());
        let of_job =
            ResourceSpans { resource: Resource { attributes }, scope_spans: vec![ScopeSpans { scope, spans }] };
        Request { resource_spans: vec![of_job] }
    }

    fn end_job(&mut self, end: &End) {
        self.end_attempt(self.last);
        let replay = &self.replay;
        let tail = |rank| replay.tails.iter().find(|(of, _)| *of == rank).map(|(_, tail)| tail);
        let report = Report::of(&replay.facts, &replay.gang, &verdict(&replay.gang), end, tail);
        self.spans.set(Part::Job, "process.exit.code", report.exit_code.0);
        self.spans.set(Part::Job, "rankrun.containment", &*end.containment);
        self.spans.set(Part::Job, "rankrun.left.proven", end.left.proven);
        if let Some(given_up) = &end.given_up {
            self.spans.set(Part::Job, "rankrun.given_up", &**given_up);
        }
        if let Some(class) = report.class {
            self.spans.set(Part::Job, "error.type", class.word());
        }
        if report.exit_code.0 != 0 {
            self.spans.fail(Part::Job, report.summary);
        }
        self.spans.close(Part::Job, self.last);
    }
}
