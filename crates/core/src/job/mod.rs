//! The job: what it is made of, and everything that the front decides about it, as one machine.
//!
//! [`Job::handle`] takes an [`Event`] and appends [`Effect`]s. It has no clock, no connection and no file: the front turns bytes into
//! events and effects into bytes (`front/src/job/`). Each part of the job has a file here, with its own data:
//!
//! | part | decides |
//! |---|---|
//! | [`Nodes`], `node` | how far each node has come, and what is left on one that is lost |
//! | `muster`, `joining`, `meeting` | how nodes are reached or join, when ranks are started, and where they meet |
//! | `losses` | which node is silent, suspect, lost; and what follows |
//! | `attempts`, `clearing`, `successors` | whether and when all ranks, or one, are started again |
//! | `stopping` | what a signal or a request to stop does, and who has not ended after it |
//! | `inquiry`, `states`, `looking`, `hooks`, `alone` | what is asked of the agents, and what their answers mean |
//! | `words`, `lines` | what the ranks wrote last |
//! | `end` | what is known when the job has ended |
//!
//! Invariants, which properties test:
//!
//! * **J-1** At most one attempt has ranks that may live: the next begins when those of the last are proved gone or fenced.
//! * **J-2** Every wait has an end (K-5): while the job is not over, [`Job::deadline`] is set, or an answer is due that has a bound elsewhere.
//! * **J-3** The end of a rank counts once in an attempt.
//! * **J-4** Nothing is said to be gone from a node without a proof of that node.

mod alone;
mod attempts;
mod clearing;
mod end;
mod event;
mod hooks;
mod inquiry;
mod joining;
mod lines;
mod looking;
mod losses;
mod meeting;
mod muster;
mod node;
mod nodes;
mod settings;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod states;
mod stopping;
mod successors;
mod words;

use std::collections::BTreeSet;
use std::time::Duration;

pub use attempts::NoRestart;
pub use end::Ended;
pub use event::{ClientId, Effect, Enrolment, Event, Meeting, NodeEvent, Order, WorkerEvent};
pub use lines::LastLines;
pub use losses::BEAT;
pub use node::{About, Containment, Lost, Node, NodeState, Summary};
pub use nodes::Nodes;
pub use settings::{Host, Settings, Way, report_of};
pub use stopping::is_by_signal;
pub use successors::Next;
pub use words::LastWords;

pub use crate::spec::job::*;

use crate::advice::refusal;
use crate::event::{JobEvent, JobFacts, last_words};
use crate::evidence::MpiEvent;
use crate::exit::ExitCode;
use crate::gang::{self, Gang, Moment, MpiLife, Outside, Rules};
use crate::ids::{NodeId, Rank, Stream, WorkerId};
use crate::open_mpi::has_failed_to_init;
use crate::silence::Standstill;
use crate::standing::{Standing, Voice, standings};
use crate::stderr::Tail;
use crate::testimony::{SUSPECT_AFTER, Testimony};
use crate::worker::{Stop, StopWhy};
use alone::MpiWatch;
use attempts::Attempts;
use hooks::HookWatch;
use joining::Joining;
use looking::Looks;
use muster::Muster;
use states::States;
use stopping::Roll;
use successors::Successors;

/// Ranks whose last words are read at the end, the first to fail: each takes milliseconds.
const RANKS_READ: usize = 1000;
/// How long an agent may take beyond the grace of a stop: 60 s for a process that dumps core, 30 s for one that still saves, and the
/// time to kill and to check.
pub const END_BOUND: Duration = Duration::from_secs(120);
/// How long it may take to kill all workers, and to find that some cannot be killed.
pub const KILLING_BOUND: Duration = Duration::from_secs(30);

/// Why the job does not begin, found when guard and agent were running.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub what: String,
    pub why: String,
    pub hint: Option<String>,
    pub code: ExitCode,
}

/// The job.
#[derive(Debug)]
pub struct Job {
    settings: Settings,
    spec: JobSpec,
    facts: JobFacts,
    /// The time of the present event, and what is to be done after it.
    now: Duration,
    out: Vec<Effect>,
    nodes: Nodes,
    /// How the nodes come together; `None` if this machine is the only one.
    muster: Option<Muster>,
    joining: Joining,
    /// Of the present attempt.
    gang: Gang,
    attempts: Attempts,
    /// Of single ranks.
    successors: Successors,
    words: LastWords,
    lines: LastLines,
    hooks: HookWatch,
    mpi_watch: MpiWatch,
    looks: Looks,
    states: States,
    /// Which ranks a stop has not ended.
    roll: Roll,
    /// Where the ranks were when the job was ended from outside.
    standings: Vec<Standing>,
    /// Where our own loop stood still, other machines are not to blame.
    standstill: Standstill,
    /// The MPI calls that were refused: each is noted once.
    refused_calls: BTreeSet<String>,
    /// The node whose guard is lost.
    unguarded: Option<String>,
    refused: Option<Refused>,
    is_paused: bool,
    is_logging: bool,
}

impl Job {
    /// A job whose own node, if it has one here, is connected.
    pub fn new(spec: JobSpec, rules: Rules, settings: Settings) -> Job {
        let nodes = Nodes::new(&settings.hosts, settings.start_timeout, settings.least);
        let is_alone = nodes.iter().all(Node::is_here);
        Job {
            facts: JobFacts::of(&spec, rules.clone()),
            now: Duration::ZERO,
            out: Vec::new(),
            muster: (!is_alone).then(|| Muster::new(settings.at_a_time)),
            joining: Joining::default(),
            gang: Gang::new(spec.map.world_size(), rules),
            attempts: Attempts::new(&spec, &settings),
            successors: Successors::new(&spec.restart, settings.seed),
            words: LastWords::default(),
            lines: LastLines::default(),
            hooks: HookWatch::new(settings.verbosity > 0, None),
            mpi_watch: MpiWatch::new(Duration::ZERO, &settings, spec.map.world_size()),
            looks: Looks::default(),
            states: States::default(),
            roll: Roll::default(),
            standings: Vec::new(),
            standstill: Standstill::default(),
            refused_calls: BTreeSet::new(),
            unguarded: None,
            refused: None,
            is_paused: false,
            is_logging: false,
            nodes,
            settings,
            spec,
        }
        .with_watches()
    }

    fn with_watches(mut self) -> Job {
        let timeout = self.facts.rules.timeout;
        self.hooks = HookWatch::new(self.settings.verbosity > 0, timeout);
        self.looks = Looks::new(&self.settings, timeout);
        self
    }

    // What it is.

    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    pub fn spec_mut(&mut self) -> &mut JobSpec {
        &mut self.spec
    }

    pub fn facts(&self) -> &JobFacts {
        &self.facts
    }

    pub fn gang(&self) -> &Gang {
        &self.gang
    }

    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub fn words(&self) -> &LastWords {
        &self.words
    }

    pub fn lines(&self) -> &LastLines {
        &self.lines
    }

    /// Why the job does not begin, if it does not.
    pub fn refused(&self) -> Option<&Refused> {
        self.refused.as_ref()
    }

    /// Whether any agent is connected, or about to be.
    pub fn is_linked(&self) -> bool {
        self.nodes.is_linked()
    }

    /// Whether every agent has reported the end of the attempt, or is lost.
    pub fn is_over(&self) -> bool {
        self.nodes.is_over()
    }

    /// The time of the next event that nobody else causes.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadlines().into_iter().filter_map(|(_, at)| at).min()
    }

    /// All that the job waits for, with the part that does.
    pub(crate) fn deadlines(&self) -> [(&'static str, Option<Duration>); 13] {
        let attempt = self.attempts.deadline().filter(|_| !self.attempts.is_between() || !self.is_logging);
        let limit = self.facts.rules.timeout.filter(|_| self.attempts.heeds_limit());
        [
            ("gang", self.gang.deadline()),
            ("attempt", attempt),
            ("time limit", limit),
            ("successors", self.successors.deadline()),
            ("nodes", self.nodes.iter().filter(|node| node.is_alive()).filter_map(Node::deadline).min()),
            ("call", self.next_call().filter(|_| !self.is_ending())),
            ("muster", self.muster.as_ref().and_then(Muster::deadline)),
            ("words", self.words.deadline()),
            ("hooks", self.hooks.deadline()),
            ("mpi", self.mpi_watch.deadline()),
            ("looks", self.looks.deadline()),
            ("states", self.states.deadline()),
            ("roll", self.roll.deadline()),
        ]
    }

    // What happens.

    /// A rank has written these bytes.
    pub fn write(&mut self, now: Duration, rank: Rank, stream: Stream, bytes: &[u8]) {
        self.looks.sign(now);
        self.words.write(now, rank, stream, bytes);
        self.lines.write(now, rank, stream, bytes);
    }

    /// The ranks may wait for rankrun: that is no silence.
    pub fn sign_of_life(&mut self, now: Duration) {
        self.looks.sign(now);
    }

    /// The loop of the front turns.
    pub fn turn(&mut self, now: Duration) {
        self.standstill.turn(now);
    }

    /// Takes an event; appends what is to be done.
    pub fn handle(&mut self, now: Duration, event: Event, effects: &mut Vec<Effect>) {
        self.now = now;
        self.take(event);
        effects.append(&mut self.out);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::Begin => self.begin(),
            Event::Paused => self.is_paused = true,
            Event::Resumed => {
                self.is_paused = false;
                self.nodes.iter_mut().for_each(|node| node.clock_mut().forget());
            }
            Event::Signal { number, by_key } => self.signal(number, by_key),
            Event::StopRequest(request) => self.stop_requested(request),
            Event::RestartRequest { client, by } => {
                let answer = self.planned_restart(by);
                self.out.push(Effect::RestartAnswer { client, answer });
            }
            Event::StatesRequest => self.ask_for_states(),
            Event::StacksRequest { client, ranks, native, each } => self.stacks_requested(client, ranks, native, each),
            Event::StandingsRequest { by_key } => self.print_standings(by_key),
            Event::Front(event) => self.event(event),
            Event::Shown => self.has_shown_rest(),
            Event::Logging(is_logging) => self.is_logging = is_logging,
            Event::LogsOpened => self.logs_are_open(),
            Event::Stamped { attempt, stamp } => self.stamped(attempt, stamp),
            Event::Answered(answer) => self.policy_answered(answer),
            Event::NotAsked { why } => self.policy_not_asked(&why),
            Event::Node { node, event } if node.index() < self.nodes.len() => self.node_event(node, event),
            // There is no such node.
            Event::Node { .. } => {}
            Event::StepEnded { step, code, words, not_started } => self.step_ended(step, code, &words, not_started),
            Event::StepFailed { why } => self.step_failed(why),
        }
    }

    fn tick(&mut self) {
        if self.is_paused {
            return;
        }
        if self.gang.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.event(gang::Event::Tick);
        }
        self.attempt_due();
        self.successors_due();
        self.give_up_late_agents();
        self.muster_due();
        self.look_for_hooks();
        self.look_for_mpi();
        self.looks_due();
        self.suspect();
        self.ask_who_is_alive();
        self.give_up_on_states();
    }

    fn node_event(&mut self, node: NodeId, event: NodeEvent) {
        match event {
            NodeEvent::CallFailed { step, why } => self.cannot_reach(node, step, &why),
            NodeEvent::CallFailing { step } => self.call_failing(node, step),
            NodeEvent::LoggedIn => self.logged_in(node),
            NodeEvent::LacksProgram => self.lacks_program(node),
            NodeEvent::Copying { bytes } => self.copying(node, bytes),
            NodeEvent::CallSeen { unsent, has_logged_in, noise } => self.call_seen(node, unsent, has_logged_in, noise),
            NodeEvent::CallEnded { code, words, noise } => self.call_ended(node, code, &words, noise),
            NodeEvent::Reached { host, client, server, noise } => self.reached(node, host, (client, server), noise),
            NodeEvent::Heard => self.heard(node),
            NodeEvent::HasSent => self.has_sent(node),
            NodeEvent::Confirmed => self.confirmed(node),
            NodeEvent::Asking { until } => self.asking(node, until),
            NodeEvent::CannotAsk => self.cannot_ask(node),
            NodeEvent::Broke { is_end, why } => self.broke(node, is_end, why),
            NodeEvent::LossKnown { why } => self.loss_is_known(node, &why),
            NodeEvent::SshEnded { code } => self.on(node, |node| node.ssh_ended(code)),
            NodeEvent::GuardEnded { code, memory } => self.guard_ended(node, code, memory),
            NodeEvent::SecondAnswered { is_empty } => self.on(node, |node| node.second_answered(is_empty)),
            NodeEvent::GuardLost => self.lose_guard(node),
            NodeEvent::Refused { what, source } => self.agent_refused(node, what, source),
            NodeEvent::Ready(about) => self.agent_is_ready(node, about),
            NodeEvent::Meeting(rendezvous) => self.meeting_is_known(rendezvous),
            NodeEvent::Beat { sent, at } => {
                let now = self.now;
                self.on(node, |node| node.clock_mut().answered(now, sent, at));
            }
            NodeEvent::ToldToEnd { signal } => self.node_told_to_end(node, signal),
            NodeEvent::Worker { worker, at, event } => self.worker_event(node, worker, at, event),
            NodeEvent::WireUpLost { reason, at } => self.event_at(node, at, gang::Event::WireUpLost { reason }),
            NodeEvent::Hookless(found) => self.hookless(found),
            NodeEvent::MpiSeen(found) => self.mpi_seen(found),
            NodeEvent::Conditions { number, workers, at } => self.conditions(node, number, workers, at),
            NodeEvent::Alive { workers, at } => self.alive_known(node, &workers, at),
            NodeEvent::Looking { number, traffic } => self.looking(node, number, traffic),
            NodeEvent::Looked { number, worker, stack } => self.looked(node, number, worker, *stack),
            NodeEvent::LookOver { number } => self.look_over(node, number),
            NodeEvent::Over(summary) => self.node_over(node, summary),
            NodeEvent::Drained => {
                self.on(node, Node::drained);
                self.attempt_drained();
            }
        }
    }

    /// Something has happened to a worker, at a time of its node's clock.
    fn worker_event(&mut self, node: NodeId, worker: WorkerId, at: Duration, event: WorkerEvent) {
        let rank = worker.rank;
        if !self.successors.are_on() && worker.attempt != self.spec.attempt {
            // What it was is over (J-3).
            return;
        }
        let moment = |job: &mut Job, at: Duration| job.moment(node, at);
        match event {
            WorkerEvent::Started { pid } => {
                self.looks.sign(self.now);
                if self.settings.verbosity > 1 {
                    self.note(format!("rank {rank} started, pid {pid}"));
                }
                self.out.push(Effect::RankStarted { rank, pid, node, is_again: worker.attempt.0 > 0 });
                self.event_at(node, at, gang::Event::Started { rank, pid });
                self.rank_is_up();
                self.successor_runs(rank);
            }
            WorkerEvent::SpawnFailed { step, error, command, code } => {
                let event = gang::Event::SpawnFailed { rank, step, error, command, not_found: Some(code) };
                self.event_at(node, at, event);
            }
            WorkerEvent::Ended { status, mut stop } => {
                self.looks.sign(self.now);
                self.words.ended(rank);
                if !stop.signals.is_empty() {
                    for (_, sent) in &mut stop.signals {
                        *sent = moment(self, *sent).at;
                    }
                    self.event_at(node, at, gang::Event::Signalled { rank, record: stop });
                }
                self.rank_ended(node, rank, status, at);
                self.judge_alone(true);
            }
            WorkerEvent::Gone { outcome, is_left } => {
                self.event(gang::Event::Gone { rank, outcome });
                self.rank_gone(rank, outcome, is_left);
            }
            WorkerEvent::Stopped { signal } => self.rank_stopped(node, rank, signal, at),
            WorkerEvent::Continued => {
                self.looks.sign(self.now);
                self.attempts.rank_continues(rank);
            }
            WorkerEvent::Mpi(event) => {
                self.looks.sign(self.now);
                if let MpiEvent::Refused { call, detail } = &event
                    && self.refused_calls.insert(call.clone())
                {
                    self.note(refusal(rank, call, detail.as_deref()));
                }
                self.event_at(node, at, gang::Event::Mpi { rank, event });
            }
            WorkerEvent::Testimony { pid, testimony } => {
                self.looks.sign(self.now);
                match &testimony {
                    Testimony::Uncaught(_) | Testimony::Exiting { .. } | Testimony::Leaving { .. } => {
                        self.words.settle(rank);
                    }
                    Testimony::Note { text } => self.out.push(Effect::RankNote { rank, text: text.clone() }),
                    Testimony::Progress => self.has_progressed(worker),
                    Testimony::Ready => self.rank_is_ready(worker),
                    _ => {}
                }
                self.event_at(node, at, gang::Event::Testimony { rank, pid, testimony });
            }
            WorkerEvent::Stuck { pid, place, since, is_leader } => {
                if !is_leader {
                    self.note(format!("rank {rank}: process {pid} did not end after its failure, and was killed"));
                }
                let since = moment(self, since).at;
                self.event_at(node, at, gang::Event::Stuck { rank, pid, place, since, leader: is_leader });
            }
            WorkerEvent::Reports(reports) => self.words.reports(self.now, rank, reports),
            WorkerEvent::KilledForMemory { detail } => {
                self.event_at(node, at, gang::Event::OutOfMemory { rank, detail });
            }
            WorkerEvent::CpuTime { used, limit } => {
                self.event_at(node, at, gang::Event::CpuTime { rank, used, limit });
            }
            WorkerEvent::HelperKilledForMemory { pid, name, detail } => {
                self.event_at(node, at, gang::Event::HelperOutOfMemory { rank, pid, name, detail });
            }
            WorkerEvent::Closed(stream) => self.stream_closed(worker, stream),
        }
    }

    /// A leader has ended.
    fn rank_ended(&mut self, node: NodeId, rank: Rank, status: crate::WorkerStatus, at: Duration) {
        self.attempts.rank_continues(rank);
        self.out.push(Effect::RankEnded { rank, status });
        let before = self.gang.outside();
        self.event_at(node, at, gang::Event::Ended { rank, status });
        if before.is_none() && self.gang.outside() == Some(Outside::Interrupted(rank)) && stopping::is_by_signal(status)
        {
            self.out.push(Effect::WasInterrupted);
        }
    }

    // The gang.

    fn moment(&mut self, node: NodeId, at: Duration) -> Moment {
        let now = self.now;
        match self.nodes.get_mut(node) {
            Some(node) => node.clock_mut().moment(now, at),
            None => Moment::of_front(now),
        }
    }

    /// An event that is the front's own.
    fn event(&mut self, event: gang::Event) {
        self.event_of(Moment::of_front(self.now), event);
    }

    /// An event that happened on a node, at a time of its clock.
    fn event_at(&mut self, node: NodeId, at: Duration, event: gang::Event) {
        let moment = self.moment(node, at);
        self.event_of(moment, event);
    }

    fn event_of(&mut self, moment: Moment, event: gang::Event) {
        let mut effects = Vec::new();
        self.record(|| JobEvent::Gang { happened: moment.at, clock: moment.clock, event: Box::new(event.clone()) });
        let before = self.gang.outside();
        self.gang.handle_of(moment, event, &mut effects);
        let is_interrupt = before.is_none() && matches!(self.gang.outside(), Some(Outside::Interrupted(_)));
        for effect in effects {
            self.record(|| JobEvent::Decision(effect));
            match effect {
                gang::Effect::Stop(stop) => self.stop(stop),
                gang::Effect::Kill => {
                    self.expect_end(self.now + KILLING_BOUND);
                    self.send(Order::Kill);
                }
            }
        }
        if is_interrupt {
            self.note_interrupt();
        }
    }

    /// The gang orders a stop.
    fn stop(&mut self, stop: Stop) {
        let is_from_outside = matches!(stop.why, StopWhy::Signal(_) | StopWhy::Timeout | StopWhy::Hang);
        if is_from_outside {
            // Most signals do not end a rank that is stuck at once.
            self.ask_for_hooks(false);
        }
        self.expect_end(self.now + stop.longest(&self.spec.stop) + END_BOUND);
        self.await_ends(stop);
        self.send(Order::Stop(stop));
        if is_from_outside && !self.alive().is_empty() {
            // This reads what the ranks have written: the stop is sent before.
            self.standings = self.standings();
        }
    }

    /// The agents must report the end by then.
    fn expect_end(&mut self, by: Duration) {
        for id in self.nodes.ids() {
            let Some(node) = self.nodes.get_mut(id).filter(|node| node.summary().is_none()) else { continue };
            if node.is_here() {
                self.out.push(Effect::ExpectEnd(id, by));
            } else {
                node.expect_end(by);
            }
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
    fn suspect(&mut self) {
        if self.words.deadline().is_none_or(|due| due > self.now) {
            return;
        }
        let end = self.settings.end_suspects;
        for (rank, exception) in self.words.due(self.now, end) {
            if !end {
                let headline = exception.headline();
                let why = self.gang.ranks().get(rank.index()).and_then(|record| record.hookless.as_ref());
                let why = why.map(|why| format!(", where Python has no hook: {why}")).unwrap_or_default();
                self.note(format!(
                    "rank {rank} wrote a traceback ({headline}) and is still running{why}; --on-suspect kill would end the job"
                ));
            }
            self.event(gang::Event::Suspect { rank, exception, end, silent: SUSPECT_AFTER });
        }
    }

    /// Before the verdict: reads the last lines of output of the ranks that failed first, or printed that they abort.
    pub fn read_last_words(&mut self, effects: &mut Vec<Effect>) {
        self.read_words();
        effects.append(&mut self.out);
    }

    fn read_words(&mut self) {
        let mut first = BTreeSet::new();
        for evidence in self.gang.evidence() {
            if first.len() < RANKS_READ {
                first.insert(evidence.rank);
            }
        }
        let failed: Vec<Rank> = (0..self.spec.map.world_size())
            .map(Rank)
            .filter(|rank| first.contains(rank) || self.words.has_aborted(*rank))
            .collect();
        failed.into_iter().for_each(|rank| self.read_words_of(rank));
    }

    /// Reads the last lines of output of a rank.
    fn read_words_of(&mut self, rank: Rank) {
        if !self.attempts.is_to_be_read(rank) {
            return;
        }
        let Some((stderr, _)) = self.words.both(rank) else { return };
        if self.is_refused_by_open_mpi(rank, stderr) {
            self.event(gang::Event::OpenMpi { rank });
        }
        let Some((stderr, stdout)) = self.words.both(rank) else { return };
        let event = last_words(&self.gang, rank, stderr, stdout);
        let (tail, stdout) = (stderr.clone(), stdout.clone());
        self.record(|| JobEvent::Stderr { rank, tail, stdout });
        // It follows from the event that has just been recorded, and has no effects.
        self.gang.handle(self.now, event, &mut Vec::new());
    }

    /// Whether a rank has failed because we refused Open MPI as a singleton.
    fn is_refused_by_open_mpi(&self, rank: Rank, tail: &Tail) -> bool {
        let is_guarded = self.spec.mpi == MpiMode::Pmi1 && self.spec.map.world_size() > 1;
        is_guarded && self.gang.ranks()[rank.index()].mpi == MpiLife::NotInited && has_failed_to_init(&tail.lines())
    }

    // What is said.

    fn send(&mut self, order: Order) {
        self.out.push(Effect::Send(order));
    }

    fn note(&mut self, text: String) {
        self.out.push(Effect::Note(text));
    }

    fn record(&mut self, event: impl FnOnce() -> JobEvent) {
        if self.settings.is_recorded {
            self.out.push(Effect::Record(Box::new(event())));
        }
    }

    /// Changes what is known of a node.
    fn on(&mut self, node: NodeId, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(node) {
            change(node);
        }
    }

    /// A message about a node, with its name if it is another one.
    fn of_node(&self, node: NodeId, text: &str) -> String {
        match self.nodes.get(node).filter(|node| !node.is_here()) {
            Some(node) => format!("node {}: {text}", node.name()),
            None => text.to_owned(),
        }
    }
}
