//! What happens to workers: their agents tell it, the gang is told, and what the ranks wrote last is read.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::event::{JobEvent, last_words};
use crate::evidence::MpiEvent;
use crate::gang::{self, MpiLife, Outside};
use crate::ids::{NodeId, Rank, WorkerId};
use crate::job::decisions::stopping::is_by_signal;
use crate::job::event::{Effect, WorkerEvent};
use crate::job::machine::Job;
use crate::open_mpi::has_failed_to_init;
use crate::spec::job::MpiMode;
use crate::standing::{Standing, Voice, standings};
use crate::status::WorkerStatus;
use crate::stderr::Tail;
use crate::testimony::{SUSPECT_AFTER, Testimony};
use crate::worker::Outcome;

/// Ranks whose last words are read at the end, the first to fail: each takes milliseconds.
const RANKS_READ: usize = 1000;

impl Job {
    /// Something has happened to a worker, at a time of its node's clock.
    pub(in crate::job) fn worker_event(&mut self, node: NodeId, worker: WorkerId, at: Duration, event: WorkerEvent) {
        let rank = worker.rank;
        // What the message says of the node's clock counts for the earlier times in it too.
        self.moment(node, at);
        let moment = |job: &mut Job, at: Duration| job.moment(node, at);
        match event {
            WorkerEvent::Started { pid } => {
                self.looks.sign(self.now);
                if self.settings.verbosity > 1 {
                    self.note(format!("rank {rank} started, pid {pid}"));
                }
                self.out.push(Effect::RankStarted { worker, pid, node, is_again: worker.attempt.0 > 0 });
                self.event_at(node, at, gang::Event::Started { worker, pid });
                self.successor_runs(rank);
                self.rank_is_up();
                self.spawned_rank_runs(rank);
            }
            WorkerEvent::SpawnFailed { step, error, command, .. } if self.groups.is_coming_up(rank.group()) => {
                self.spawn_failed(rank, &step, &error, &command);
            }
            WorkerEvent::SpawnFailed { step, error, command, code } => {
                let event = gang::Event::SpawnFailed { worker, step, error, command, not_found: Some(code) };
                self.event_at(node, at, event);
            }
            WorkerEvent::Ended { status, mut stop } => {
                self.looks.sign(self.now);
                self.words.ended(rank);
                if !stop.signals.is_empty() {
                    for (_, sent) in &mut stop.signals {
                        *sent = moment(self, *sent).at;
                    }
                    self.event_at(node, at, gang::Event::Signalled { worker, record: stop });
                }
                self.rank_ended(node, worker, status, at);
                self.judge_alone(true);
            }
            WorkerEvent::Gone { outcome, is_left } => {
                self.event(gang::Event::Gone { worker, outcome });
                if outcome == Outcome::SpawnFailed {
                    self.miss(worker);
                }
                self.rank_gone(rank, outcome, is_left);
            }
            WorkerEvent::Stopped { signal } => self.rank_stopped(node, rank, signal, at),
            WorkerEvent::Continued => {
                self.looks.sign(self.now);
                self.attempts.rank_continues(rank);
            }
            WorkerEvent::Mpi(event) => {
                self.looks.sign(self.now);
                let is_begin = matches!(event, MpiEvent::Inited);
                self.event_at(node, at, gang::Event::Mpi { worker, event });
                if is_begin {
                    self.rank_inited();
                }
            }
            WorkerEvent::Testimony { pid, testimony } => {
                self.looks.sign(self.now);
                match &testimony {
                    Testimony::Uncaught(_) | Testimony::Exiting { .. } | Testimony::Leaving { .. } => {
                        self.words.settle(rank);
                    }
                    Testimony::Note { text } => self.out.push(Effect::RankNote { worker, text: text.clone() }),
                    Testimony::Progress => self.has_progressed(worker),
                    Testimony::Ready => self.rank_is_ready(worker),
                    _ => {}
                }
                self.event_at(node, at, gang::Event::Testimony { worker, pid, testimony });
            }
            WorkerEvent::Stuck { pid, place, since, is_leader } => {
                if !is_leader {
                    self.note(format!("rank {rank}: process {pid} did not end after its failure, and was killed"));
                }
                let since = moment(self, since).at;
                self.event_at(node, at, gang::Event::Stuck { worker, pid, place, since, leader: is_leader });
            }
            WorkerEvent::Reports(reports) => self.words.reports(self.now, rank, reports),
            WorkerEvent::KilledForMemory { detail } => {
                self.event_at(node, at, gang::Event::OutOfMemory { worker, detail });
            }
            WorkerEvent::CpuTime { used, limit } => {
                self.event_at(node, at, gang::Event::CpuTime { worker, used, limit });
            }
            WorkerEvent::HelperKilledForMemory { pid, name, detail } => {
                self.event_at(node, at, gang::Event::HelperOutOfMemory { worker, pid, name, detail });
            }
            WorkerEvent::Closed(stream) => self.stream_closed(worker, stream),
        }
    }

    /// A leader has ended.
    fn rank_ended(&mut self, node: NodeId, worker: WorkerId, status: WorkerStatus, at: Duration) {
        let rank = worker.rank;
        self.attempts.rank_continues(rank);
        self.out.push(Effect::RankEnded { worker, status });
        self.event_at(node, at, gang::Event::Ended { worker, status });
        self.miss(worker);
        if self.gang.outside() == Some(Outside::Interrupted(rank)) && is_by_signal(status) {
            self.out.push(Effect::WasInterrupted);
        }
    }

    /// The state of each rank.
    pub fn standings(&self) -> Vec<Standing> {
        standings(&self.gang, self.now, |rank| {
            let (at, line) = self.lines.last(rank);
            let traceback = self.words.suspicious(rank);
            Voice { at, line, traceback: traceback.map(|exception| exception.headline()) }
        })
    }

    /// Handles ranks that are alive and silent after a traceback on stderr.
    pub(in crate::job) fn suspect(&mut self) {
        if self.words.deadline().is_none_or(|due| due > self.now) {
            return;
        }
        let end = self.settings.end_suspects;
        for (rank, exception) in self.words.due(self.now, end) {
            if self.gang.ranks().get(rank).is_none() {
                // Of a group that was withdrawn.
                continue;
            }
            if !end {
                let headline = exception.headline();
                let why = self.gang.ranks().get(rank).and_then(|record| record.hookless.as_ref());
                let why = why.map(|why| format!(", where Python has no hook: {why}")).unwrap_or_default();
                self.note(format!(
                    "rank {rank} wrote a traceback ({headline}) and is still running{why}; --on-suspect kill would end the job"
                ));
            }
            self.event(gang::Event::Suspect { worker: self.gang.worker(rank), exception, end, silent: SUSPECT_AFTER });
        }
    }

    /// Before the verdict: reads the last lines of output of the ranks that failed first, or printed that they abort.
    pub fn read_last_words(&mut self, effects: &mut Vec<Effect>) {
        self.read_words();
        effects.append(&mut self.out);
    }

    pub(in crate::job) fn read_words(&mut self) {
        let mut first = BTreeSet::new();
        for evidence in self.gang.evidence() {
            if first.len() < RANKS_READ {
                first.insert(evidence.rank);
            }
        }
        let is_to_be_read = |rank: &Rank| first.contains(rank) || self.words.has_aborted(*rank);
        let failed: Vec<Rank> = self.gang.ranks().iter().map(|record| record.rank).filter(is_to_be_read).collect();
        failed.into_iter().for_each(|rank| self.read_words_of(rank));
    }

    /// Reads the last lines of output of a rank.
    pub(in crate::job) fn read_words_of(&mut self, rank: Rank) {
        if !self.attempts.is_to_be_read(rank) {
            return;
        }
        let worker = self.gang.worker(rank);
        let Some((stderr, _)) = self.words.both(rank) else { return };
        if self.is_refused_by_open_mpi(rank, stderr) {
            self.event(gang::Event::OpenMpi { worker });
        }
        let Some((stderr, stdout)) = self.words.both(rank) else { return };
        let event = last_words(&self.gang, worker, stderr, stdout);
        let (tail, stdout) = (stderr.clone(), stdout.clone());
        self.record(|| JobEvent::Stderr { worker, tail, stdout });
        // It follows from the event that has just been recorded, and has no effects.
        self.gang.handle(self.now, event, &mut Vec::new());
    }

    /// Whether a rank has failed because we refused Open MPI as a singleton.
    fn is_refused_by_open_mpi(&self, rank: Rank, tail: &Tail) -> bool {
        let is_guarded = self.spec.mpi == MpiMode::Pmi1 && self.spec.map.world_size() > 1;
        let is_inited = self.gang.ranks().get(rank).is_some_and(|record| record.mpi != MpiLife::NotInited);
        is_guarded && !is_inited && has_failed_to_init(&tail.lines())
    }
}
