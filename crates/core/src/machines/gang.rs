//! The state machine of the job, on the front's side: decides when the gang is stopped, and collects the evidence for
//! the verdict.
//!
//! The first failing event orders the stop; evidence is collected until every worker is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::absence::Absence;
use crate::alone::Alone;
use crate::evidence::{Evidence, Fact, LeftOut, MpiEvent, Source};
use crate::exit::ExitCode;
use crate::grace::StopRecord;
use crate::ids::{NodeRank, Pid, Rank};
use crate::open_mpi;
use crate::stacks::odd::Hang;
use crate::status::WorkerStatus;
use crate::stderr::Words;
use crate::testimony::{Exception, StuckIn, Testimony};
use crate::worker::{Outcome, Stop};

/// How long a sibling must still be in MPI after a rank's exit without finalize, before that exit is a failure.
pub const FINALIZE_PATIENCE: Duration = Duration::from_secs(1);
/// The time of an end may be early by this much: agents use the time at the start of their loop's turn.
const END_MARGIN: Duration = Duration::from_millis(50);

/// The rules for stopping a gang.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rules {
    pub grace_failure: Duration,
    pub grace_outside: Duration,
    pub timeout: Option<Duration>,
    pub keep_going: bool,
    /// The rank that the terminal is lent to: the keys go to it alone.
    #[serde(default)]
    pub terminal: Option<Rank>,
}

/// An event of a gang.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    Started {
        rank: Rank,
        pid: Pid,
    },
    SpawnFailed {
        rank: Rank,
        step: String,
        error: String,
        command: String,
        not_found: Option<ExitCode>,
    },
    /// What was done to end a rank until its leader ended; the end follows.
    Signalled {
        rank: Rank,
        record: StopRecord,
    },
    /// A leader has ended.
    Ended {
        rank: Rank,
        status: WorkerStatus,
    },
    /// No process of the worker is left, or what is left is given up.
    Gone {
        rank: Rank,
        outcome: Outcome,
    },
    Mpi {
        rank: Rank,
        event: MpiEvent,
    },
    Stopped {
        rank: Rank,
        signal: i32,
    },
    /// A rank has not said in this time that it is ready (`--ready-timeout`).
    NotReady {
        rank: Rank,
        after: Duration,
    },
    /// A rank that had ended is started again, and the others run on: what it did before decides nothing.
    Again {
        rank: Rank,
    },
    /// A process of a rank has sent testimony about itself.
    Testimony {
        rank: Rank,
        pid: Pid,
        testimony: Testimony,
    },
    /// A process that had failed did not end.
    Stuck {
        rank: Rank,
        pid: Pid,
        place: StuckIn,
        since: Duration,
        leader: bool,
    },
    /// The kernel killed a rank because memory ran out.
    OutOfMemory {
        rank: Rank,
        detail: String,
    },
    /// A rank was killed by a SIGKILL that was not ours, had used so much CPU time, and has this hard limit.
    CpuTime {
        rank: Rank,
        used: Duration,
        limit: Duration,
    },
    /// The kernel killed another process of a rank than its leader because memory ran out.
    HelperOutOfMemory {
        rank: Rank,
        pid: Pid,
        name: String,
        detail: String,
    },
    /// A rank has failed in `MPI_Init` of Open MPI. Found out after its end.
    OpenMpi {
        rank: Rank,
    },
    /// A rank is still running after a traceback on stderr; `end`: end it for that.
    Suspect {
        rank: Rank,
        exception: Exception,
        end: bool,
        /// How long it has been silent.
        #[serde(default = "crate::testimony::suspect_after")]
        silent: Duration,
    },
    /// A rank runs Python without the interpreter hook.
    Hookless(Rank, Absence),
    /// Ranks run MPI, and have not connected; `end`: end the job for that.
    Alone {
        alone: Vec<Alone>,
        end: bool,
    },
    /// The last lines of a rank's output, read after its end.
    LastWords {
        rank: Rank,
        words: Words,
    },
    /// rankrun itself received a signal that asks it to end.
    Signal(i32),
    /// Another process asks for the end (`rankrun stop`).
    StopRequest(StopRequest),
    /// A user asks for a new attempt: this one is to end.
    RestartRequest,
    /// No rank has done anything for so long, and their stacks do not change (`--stall`).
    Hang(Hang),
    /// The reader of our output is gone: end as SIGPIPE would.
    OutputGone,
    /// Output could not be written for longer than `--drain`.
    OutputFailed,
    /// The log files of an attempt could not be made, or the results of ranks could not be written.
    LogsFailed {
        reason: String,
    },
    /// The agent is gone, and has not reported the end.
    AgentLost,
    /// The guard is gone.
    GuardLost,
    /// One of several nodes is lost, with the ranks that had not ended on it.
    NodeLost {
        node: NodeRank,
        name: String,
        why: String,
        ranks: Vec<Rank>,
    },
    /// Why a node was lost is known better now.
    LossKnown {
        node: NodeRank,
        why: String,
    },
    /// rankrun itself stood still for so long, and the nodes that are lost gave it up.
    StoodStill {
        time: Duration,
    },
    /// What connects the ranks of Open MPI is gone.
    WireUpLost {
        reason: String,
    },
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// All workers are to stop.
    Stop(Stop),
    /// All workers are to be killed at once.
    Kill,
}

/// The gang.
#[derive(Clone, Debug)]
pub struct Gang {
    rules: Rules,
    ranks: Vec<RankRecord>,
    /// How many ranks have no process yet.
    unstarted: usize,
    /// A rank has been in MPI, and one has ended well that never was.
    is_of_mpi: bool,
    has_left_before_init: bool,
    evidence: Vec<Evidence>,
    /// The number of testimonies of each rank in the evidence, and the bytes of text in all.
    words: Vec<u32>,
    bytes: usize,
    left_out: LeftOut,
    /// The exit code for a failed spawn (126, 127).
    spawn_code: Option<ExitCode>,
    outside: Option<(Outside, Duration)>,
    /// A node was lost first: what ended the job from outside besides.
    after_loss: Option<Outside>,
    /// The first request to stop, if it was what ended the job.
    requested: Option<StopRequest>,
    hang: Option<Hang>,
    /// Why the ranks cannot be connected.
    why_wire_up_lost: String,
    /// Why there are no log files, if that ended the job.
    why_no_logs: Option<String>,
    lost_nodes: Vec<LostNode>,
    /// How long rankrun itself stood still before they were lost.
    stood_still: Option<Duration>,
    alone: Vec<Alone>,
    stop_at: Option<Duration>,
    /// When the shortest grace of all orders to stop is over.
    grace_until: Option<Duration>,
    killed_at: Option<Duration>,
    /// Ranks that exited without finalize, by the time when to judge that.
    to_judge: BTreeMap<Duration, Vec<Rank>>,
    /// Since the first failure: until when the stop may wait for its cause.
    wait_until: Option<Duration>,
}

impl Gang {
    pub fn new(size: u32, rules: Rules) -> Gang {
        Gang {
            rules,
            ranks: vec![RankRecord::default(); size as usize],
            unstarted: size as usize,
            is_of_mpi: false,
            has_left_before_init: false,
            evidence: Vec::new(),
            words: vec![0; size as usize],
            bytes: 0,
            left_out: LeftOut::default(),
            spawn_code: None,
            outside: None,
            after_loss: None,
            requested: None,
            hang: None,
            why_wire_up_lost: String::new(),
            why_no_logs: None,
            lost_nodes: Vec::new(),
            stood_still: None,
            alone: Vec::new(),
            stop_at: None,
            grace_until: None,
            killed_at: None,
            to_judge: BTreeMap::new(),
            wait_until: None,
        }
    }

    pub fn ranks(&self) -> &[RankRecord] {
        &self.ranks
    }

    /// Whether every rank has been started. It costs the same however many there are.
    pub fn are_all_started(&self) -> bool {
        self.unstarted == 0
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What speaks for a failure, in the order in which it became known.
    pub fn evidence(&self) -> &[Evidence] {
        &self.evidence
    }

    /// That no rank had made progress for a time, if the job was ended for that.
    pub fn hang(&self) -> Option<&Hang> {
        self.hang.as_ref()
    }

    pub fn outside(&self) -> Option<Outside> {
        self.outside.map(|(outside, _)| outside)
    }

    /// What ended the job, not only this attempt of it: the loss of a node does not by itself, nor does a hang.
    pub fn ended_by(&self) -> Option<Outside> {
        self.outside()
            .filter(|outside| !matches!(outside, Outside::Restart | Outside::NodeLost | Outside::Hang))
            .or(self.after_loss)
    }

    /// The request that ended the job, if one did.
    pub fn requested(&self) -> Option<StopRequest> {
        self.requested
    }

    pub fn why_wire_up_lost(&self) -> &str {
        &self.why_wire_up_lost
    }

    /// The ranks that run MPI, and have not connected.
    pub fn alone(&self) -> &[Alone] {
        &self.alone
    }

    /// Why the log files could not be made, or results not be written, if that is why output could not be written.
    pub fn why_no_logs(&self) -> Option<&str> {
        self.why_no_logs.as_deref()
    }

    pub fn spawn_code(&self) -> Option<ExitCode> {
        self.spawn_code
    }

    /// When the stop was ordered, if it was.
    pub fn stop_ordered(&self) -> Option<Duration> {
        self.stop_at
    }

    /// Until when the ranks have time to end, once the stop was ordered; one that is saving may have more.
    pub fn grace_until(&self) -> Option<Duration> {
        self.grace_until
    }

    /// When the kill was ordered, if it was.
    pub fn killed_at(&self) -> Option<Duration> {
        self.killed_at
    }

    /// Whether every worker is gone.
    pub fn over(&self) -> bool {
        self.ranks.iter().all(|rank| rank.outcome.is_some() || rank.is_lost)
    }

    /// When `Tick` is due.
    pub fn deadline(&self) -> Option<Duration> {
        let timeout = self.rules.timeout.filter(|_| self.stop_at.is_none());
        let judge = self.to_judge.keys().next().copied();
        let wait = self.wait_until.filter(|_| self.stop_at.is_none());
        [timeout, judge, wait].into_iter().flatten().min()
    }

    /// Handles one event of the front itself; appends to `effects`.
    pub fn handle(&mut self, now: Duration, event: Event, effects: &mut Vec<Effect>) {
        self.handle_of(Moment::of_front(now), event, effects);
    }

    /// Handles one event of a node, which happened before it was received.
    pub fn handle_of(&mut self, mut moment: Moment, event: Event, effects: &mut Vec<Effect>) {
        if let (Some(Outside::GuardLost | Outside::AgentLost | Outside::WireUpLost), Some(stop)) =
            (self.outside(), self.stop_at)
        {
            // The agent stops its workers before the front knows of the loss: what is received after it is an effect of
            // it.
            moment.at = moment.at.max(stop + Duration::from_nanos(1));
        }
        let now = moment.now;
        match event {
            Event::Started { rank, pid } => {
                if let Some(record) = self.ranks.get_mut(rank.index()) {
                    self.unstarted -= usize::from(record.pid.replace(pid).is_none());
                    record.started_at = Some(moment.at);
                }
            }
            Event::SpawnFailed { rank, step, error, command, not_found } => {
                self.spawn_code = self.spawn_code.or(not_found);
                self.fact(moment, rank, Fact::SpawnFailed { step, error, command }, effects);
            }
            Event::Signalled { rank, record } => {
                if let Some(rank) = self.ranks.get_mut(rank.index()) {
                    rank.stop = record;
                }
            }
            Event::Ended { rank, status } => self.ended(moment, rank, status, effects),
            Event::Gone { rank, outcome } => {
                if let Some(record) = self.ranks.get_mut(rank.index()) {
                    record.outcome = Some(outcome);
                }
            }
            Event::Mpi { rank, event } => self.mpi(moment, rank, event, effects),
            Event::Stopped { rank, signal } => self.fact(moment, rank, Fact::Stopped { signal }, effects),
            Event::Again { rank } => self.again(rank),
            Event::NotReady { rank, after } => self.fact(moment, rank, Fact::NotReady { after }, effects),
            Event::Testimony { rank, pid, testimony } => self.testimony(moment, rank, pid, testimony, effects),
            Event::Stuck { rank, pid, place, since, leader } => {
                self.fact_of(moment, rank, Some(pid), Fact::Stuck { place, since, leader }, effects);
            }
            Event::OutOfMemory { rank, detail } => self.fact(moment, rank, Fact::OutOfMemory { detail }, effects),
            Event::CpuTime { rank, used, limit } => self.fact(moment, rank, Fact::CpuTime { used, limit }, effects),
            Event::HelperOutOfMemory { rank, pid, name, detail } => {
                self.fact_of(moment, rank, Some(pid), Fact::HelperOutOfMemory { name, detail }, effects);
            }
            Event::OpenMpi { rank } => {
                let exception = Exception { message: open_mpi::CAUSE.to_owned(), ..Exception::default() };
                self.fact(moment, rank, Fact::Exception { source: Source::Program, exception }, effects);
            }
            Event::Suspect { rank, exception, end, silent } => {
                self.fact(moment, rank, Fact::Suspect { exception, ended: end, silent }, effects);
            }
            Event::Hookless(rank, why) => {
                if let Some(record) = self.ranks.get_mut(rank.index()) {
                    record.hookless = Some(why);
                }
            }
            Event::Alone { alone, end } => {
                self.alone = alone;
                if end {
                    self.end_from_outside(now, Outside::Alone, self.rules.grace_failure, effects);
                }
            }
            Event::LastWords { rank, words } => self.last_words(moment, rank, words, effects),
            Event::Signal(signal) => self.signal(now, signal, effects),
            Event::StopRequest(request) => self.stop_request(now, request, effects),
            Event::RestartRequest => self.end_from_outside(now, Outside::Restart, self.rules.grace_outside, effects),
            Event::Hang(hang) => {
                self.hang.get_or_insert(hang);
                self.end_from_outside(now, Outside::Hang, self.rules.grace_failure, effects);
            }
            Event::OutputGone => self.end_from_outside(now, Outside::OutputGone, self.rules.grace_failure, effects),
            Event::OutputFailed => self.end_from_outside(now, Outside::OutputFailed, self.rules.grace_failure, effects),
            Event::LogsFailed { reason } => {
                self.why_no_logs.get_or_insert(reason);
                self.end_from_outside(now, Outside::OutputFailed, self.rules.grace_failure, effects);
            }
            Event::AgentLost => self.end_from_outside(now, Outside::AgentLost, self.rules.grace_failure, effects),
            Event::GuardLost => self.end_from_outside(now, Outside::GuardLost, self.rules.grace_failure, effects),
            Event::NodeLost { node, name, why, ranks } => {
                self.lose_node(LostNode { node, name, why, at: moment.at }, &ranks);
                self.end_from_outside(now, Outside::NodeLost, self.rules.grace_failure, effects);
            }
            Event::LossKnown { node, why } => self.know_loss(node, why),
            Event::StoodStill { time } => self.stood_still = Some(time),
            Event::WireUpLost { reason } => {
                self.why_wire_up_lost = reason;
                self.end_from_outside(now, Outside::WireUpLost, self.rules.grace_failure, effects);
            }
            Event::Tick => self.tick(now, effects),
        }
    }

    fn ended(&mut self, moment: Moment, rank: Rank, status: WorkerStatus, effects: &mut Vec<Effect>) {
        // It ended before the stop was ordered.
        let stopping = self.stop_at.is_some_and(|stop| stop <= moment.latest() + END_MARGIN);
        let Some(record) = self.ranks.get_mut(rank.index()) else {
            return;
        };
        record.status = Some(status);
        record.ended_at = Some(moment.at);
        record.stop_ordered_before_end = stopping;
        let mpi = record.mpi;
        if !status.success() {
            if !record.is_ended_by_our_signals() {
                self.fact(moment, rank, Fact::Ended { status }, effects);
            }
            return;
        }
        self.heard_of(moment.now, rank, effects);
        if stopping {
            return;
        }
        match mpi {
            MpiLife::Inited => self.to_judge.entry(moment.now + FINALIZE_PATIENCE).or_default().push(rank),
            MpiLife::NotInited => {
                self.has_left_before_init = true;
                self.judge_exits_before_init(moment.now, effects);
            }
            MpiLife::Finalized => {}
        }
    }

    fn mpi(&mut self, moment: Moment, rank: Rank, event: MpiEvent, effects: &mut Vec<Effect>) {
        let Some(record) = self.ranks.get_mut(rank.index()) else {
            return;
        };
        match event {
            MpiEvent::Inited => {
                record.mpi = MpiLife::Inited;
                record.mpi_since = Some(moment.at);
                record.passed_barrier = false;
                record.finalizing_since = None;
                self.is_of_mpi = true;
                self.judge_exits_before_init(moment.now, effects);
            }
            MpiEvent::PassedBarrier => {
                if !record.passed_barrier {
                    record.mpi_since = Some(moment.at);
                }
                record.passed_barrier = true;
            }
            MpiEvent::Finalizing => record.finalizing_since = Some(moment.at),
            MpiEvent::Finalized => (record.mpi, record.mpi_since) = (MpiLife::Finalized, Some(moment.at)),
            MpiEvent::Aborted { code, message } => self.fact(moment, rank, Fact::Aborted { code, message }, effects),
            MpiEvent::Refused { call, detail } => self.refused(moment, rank, call, detail),
            MpiEvent::Malformed { reason } => self.fact(moment, rank, Fact::Malformed { reason }, effects),
        }
    }

    /// A rank that has exited without ever being in MPI is missed by a sibling that is in `MPI_Init`.
    fn judge_exits_before_init(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        // All ranks are looked at, and this is asked for each: most jobs have only the one kind or the other.
        if self.stop_at.is_some() || !self.is_of_mpi || !self.has_left_before_init {
            return;
        }
        let waiting =
            self.ranks.iter().any(|rank| rank.mpi == MpiLife::Inited && rank.status.is_none() && !rank.passed_barrier);
        if !waiting {
            return;
        }
        let missing = self
            .ranks
            .iter()
            .zip(0..)
            .find(|(rank, _)| rank.mpi == MpiLife::NotInited && rank.status.is_some_and(WorkerStatus::success));
        if let Some((_, rank)) = missing {
            self.fact(Moment::of_front(now), Rank(rank), Fact::ExitBeforeInit, effects);
        }
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.stop_after_wait(now, effects);
        if self.rules.timeout.is_some_and(|timeout| now >= timeout) && self.stop_at.is_none() {
            self.end_from_outside(now, Outside::Timeout, self.rules.grace_failure, effects);
        }
        while let Some(entry) = self.to_judge.first_entry() {
            if *entry.key() > now {
                break;
            }
            for rank in entry.remove() {
                let in_mpi = self.ranks.iter().any(|rank| rank.mpi == MpiLife::Inited && rank.status.is_none());
                if in_mpi && self.stop_at.is_none() {
                    self.fact(Moment::of_front(now), rank, Fact::ExitWithoutFinalize, effects);
                }
            }
        }
    }

    fn fact(&mut self, moment: Moment, rank: Rank, fact: Fact, effects: &mut Vec<Effect>) {
        self.fact_of(moment, rank, None, fact, effects);
    }

    /// A fact about a rank, with the process that it is about: the leader, if none is given.
    fn fact_of(&mut self, moment: Moment, rank: Rank, pid: Option<Pid>, fact: Fact, effects: &mut Vec<Effect>) {
        let ends = fact.ends_the_gang();
        if let Some(record) = self.ranks.get_mut(rank.index()).filter(|_| ends) {
            record.clock = record.clock.or(moment.clock);
        }
        let pid = pid.or_else(|| self.ranks.get(rank.index()).and_then(|record| record.pid));
        // Further ranks that could not be started for the same reason add nothing.
        let repeated = matches!(fact, Fact::SpawnFailed { .. })
            && self.evidence.iter().any(|known| matches!(known.fact, Fact::SpawnFailed { .. }));
        if !repeated {
            self.record(Evidence { rank, at: moment.at, pid, fact });
        }
        if ends && self.stop_at.is_none() {
            if interrupts::is_interrupted(self, rank) {
                self.end_from_outside(moment.now, Outside::Interrupted(rank), self.rules.grace_outside, effects);
            } else if !self.rules.keep_going {
                self.wait_until.get_or_insert(moment.now + CAUSE_PATIENCE.min(self.rules.grace_failure));
            }
        }
        self.heard_of(moment.now, rank, effects);
    }

    fn stop(&mut self, now: Duration, stop: Stop, effects: &mut Vec<Effect>) {
        self.stop_at.get_or_insert(now);
        let end = now + stop.grace;
        self.grace_until = Some(self.grace_until.map_or(end, |until| until.min(end)));
        effects.push(Effect::Stop(stop));
    }
}

mod cause;
pub(crate) mod interrupts;
mod nodes;
mod record;
mod room;
mod words;

pub use cause::CAUSE_PATIENCE;
pub use interrupts::{Outside, Requester, SECOND_INTERRUPT, StopRequest};
pub use nodes::LostNode;
pub use record::{MpiLife, RankRecord};
pub use room::Passing;

pub use crate::node_clock::Moment;

#[cfg(test)]
#[path = "gang_tests.rs"]
mod tests;
