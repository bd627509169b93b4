//! The machine: what a job holds, and which event leads where.

use std::time::Duration;

use crate::event::{JobEvent, JobFacts, NodeState};
use crate::exit::ExitCode;
use crate::gang::{self, Gang, Moment, Outside, Rules};
use crate::ids::{GroupId, NodeId, Rank, Stream};
use crate::job::event::{AgentEvent, Effect, Event, NodeEvent};
use crate::job::order::Order;
use crate::job::parts::alone::MpiWatch;
use crate::job::parts::attempts::Attempts;
use crate::job::parts::closing::Closing;
use crate::job::parts::groups::Groups;
use crate::job::parts::hooks::HookWatch;
use crate::job::parts::joining::Joining;
use crate::job::parts::lines::LastLines;
use crate::job::parts::looks::Looks;
use crate::job::parts::members::Members;
use crate::job::parts::missing::Missing;
use crate::job::parts::muster::Muster;
use crate::job::parts::node::Node;
use crate::job::parts::nodes::Nodes;
use crate::job::parts::planned::Planned;
use crate::job::parts::profiling::Profiling;
use crate::job::parts::roll::Roll;
use crate::job::parts::states::States;
use crate::job::parts::successors::Successors;
use crate::job::parts::words::LastWords;
use crate::job::settings::Settings;
use crate::silence::Standstill;
use crate::spec::job::JobSpec;
use crate::standing::Standing;
use crate::worker::{Stop, StopWhy};

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
    pub(in crate::job) settings: Settings,
    pub(in crate::job) spec: JobSpec,
    pub(in crate::job) facts: JobFacts,
    /// What ranks have asked for.
    pub(in crate::job) groups: Groups,
    /// The time of the present event, and what is to be done after it.
    pub(in crate::job) now: Duration,
    pub(in crate::job) out: Vec<Effect>,
    pub(in crate::job) nodes: Nodes,
    /// How the nodes come together; `None` if this machine is the only one.
    pub(in crate::job) muster: Option<Muster>,
    pub(in crate::job) joining: Joining,
    pub(in crate::job) members: Members,
    /// Of the present attempt.
    pub(in crate::job) gang: Gang,
    pub(in crate::job) attempts: Attempts,
    /// Of single ranks.
    pub(in crate::job) successors: Successors,
    pub(in crate::job) planned: Planned,
    pub(in crate::job) words: LastWords,
    pub(in crate::job) lines: LastLines,
    pub(in crate::job) hooks: HookWatch,
    pub(in crate::job) mpi_watch: MpiWatch,
    pub(in crate::job) looks: Looks,
    pub(in crate::job) profiling: Profiling,
    pub(in crate::job) states: States,
    /// Which ranks a stop has not ended.
    pub(in crate::job) roll: Roll,
    /// Where the ranks were when the job was ended from outside.
    pub(in crate::job) standings: Vec<Standing>,
    /// Where our own loop stood still, other machines are not to blame.
    pub(in crate::job) standstill: Standstill,
    /// Who is gone while the others run on.
    pub(in crate::job) missing: Missing,
    /// The node whose guard is lost.
    pub(in crate::job) unguarded: Option<String>,
    pub(in crate::job) refused: Option<Refused>,
    /// The states of the nodes that the journal has.
    pub(in crate::job) recorded: Vec<NodeState>,
    pub(in crate::job) closing: Closing,
    pub(in crate::job) is_paused: bool,
    pub(in crate::job) is_logging: bool,
}

impl Job {
    /// A job whose own node, if it has one here, is connected.
    pub fn new(spec: JobSpec, rules: Rules, settings: Settings) -> Job {
        let nodes = Nodes::new(&settings.hosts, settings.start_timeout, settings.least, &spec.map);
        let is_alone = nodes.iter().all(Node::is_here);
        Job {
            facts: JobFacts::of(&spec, rules.clone()),
            groups: Groups::default(),
            now: Duration::ZERO,
            out: Vec::new(),
            muster: (!is_alone).then(|| Muster::new(settings.at_a_time)),
            joining: Joining::default(),
            members: Members::default(),
            gang: Gang::new(spec.gang(), spec.map.world_size(), rules),
            attempts: Attempts::new(&spec, &settings),
            successors: Successors::new(&spec.restart, settings.seed),
            planned: Planned::new(&settings.planned),
            words: LastWords::default(),
            lines: LastLines::default(),
            hooks: HookWatch::new(settings.verbosity > 0, None),
            mpi_watch: MpiWatch::new(Duration::ZERO, &settings, spec.map.world_size()),
            looks: Looks::default(),
            profiling: Profiling::default(),
            states: States::default(),
            roll: Roll::default(),
            standings: Vec::new(),
            standstill: Standstill::default(),
            missing: Missing::default(),
            unguarded: None,
            refused: None,
            recorded: Vec::new(),
            closing: Closing::default(),
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

    /// A group's part of it; `None` for a group that is not there.
    pub fn spec_of(&self, group: GroupId) -> Option<&JobSpec> {
        if group == self.spec.group { Some(&self.spec) } else { self.groups.spec(group) }
    }

    /// Those of the groups that its ranks have asked for.
    pub fn specs_of_groups(&self) -> impl Iterator<Item = &JobSpec> {
        self.groups.specs()
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
        if self.closing.has_begun() {
            return self.closing.deadline();
        }
        if !self.is_linked() {
            // The end begins with the next tick.
            return Some(self.now);
        }
        self.deadlines().into_iter().filter_map(|(_, at)| at).min()
    }

    /// All that the job waits for, with the part that does.
    pub(crate) fn deadlines(&self) -> [(&'static str, Option<Duration>); 18] {
        let waits_for_others = self.is_logging || self.members.awaited_until.is_some();
        let attempt = self.attempts.deadline().filter(|_| !self.attempts.is_between() || !waits_for_others);
        let limit = self.facts.rules.timeout.filter(|_| self.attempts.heeds_limit());
        [
            ("gang", self.gang.deadline()),
            ("attempt", attempt),
            ("time limit", limit),
            ("planned stop", self.planned.deadline()),
            ("successors", self.successors.deadline()),
            ("nodes", self.nodes.iter().filter(|node| node.is_alive()).filter_map(Node::deadline).min()),
            ("call", self.next_call().filter(|_| self.calls_nodes())),
            ("muster", self.muster.as_ref().and_then(Muster::deadline)),
            ("words", self.words.deadline()),
            ("hooks", self.hooks.deadline()),
            ("mpi", self.mpi_watch.deadline()),
            ("looks", self.looks.deadline()),
            ("profile", self.profiling.deadline()),
            ("states", self.states.deadline()),
            ("roll", self.roll.deadline()),
            ("returns", self.members.returns.deadline().filter(|_| self.calls_nodes())),
            ("grow", self.grow_deadline()),
            ("more nodes", self.members.awaited_until),
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
        self.record_nodes();
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
            Event::StopRequest { client, request } => self.stop_requested(client, request),
            Event::NoticeFile { stamp } => self.notice_file_seen(stamp),
            Event::NoticeCommand(result) => self.notice_command_ended(result),
            Event::RestartRequest { client, by } => {
                let answer = self.planned_restart(by);
                self.out.push(Effect::RestartAnswer { client, answer });
            }
            Event::StatesRequest { measure } => self.ask_for_states(measure),
            Event::StacksRequest { client, ranks, native, each } => self.stacks_requested(client, ranks, native, each),
            Event::ProfileRequest { client, ranks, spec } => self.profile_requested(client, ranks, spec),
            Event::ProfileEnd { gone } => self.profile_ends(gone),
            Event::StandingsRequest { by_key } => self.print_standings(by_key),
            Event::Front(event) => self.event(event),
            Event::OutputGivenUp => self.give_up_agents(),
            Event::Shown => self.has_shown_rest(),
            Event::Logging(is_logging) => self.is_logging = is_logging,
            Event::LogsOpened => self.logs_are_open(),
            Event::Stamped { attempt, stamp } => self.stamped(attempt, stamp),
            Event::Answered(answer) => self.policy_answered(answer),
            Event::NotAsked { why } => self.policy_not_asked(&why),
            Event::Node { node, event } => self.node_event(node, event),
            Event::StepEnded { step, code, words, not_started } => self.step_ended(step, code, &words, not_started),
            Event::StepFailed { why, .. } => self.step_failed(why),
            Event::Held(nodes) => self.held(&nodes),
            Event::Unproven(nodes) => self.note_unproven(&nodes),
        }
    }

    fn tick(&mut self) {
        if self.is_paused {
            return;
        }
        if self.closing.has_begun() {
            return self.closing_due();
        }
        if self.gang.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.event(gang::Event::Tick);
        }
        self.planned_due();
        self.attempt_due();
        self.successors_due();
        self.give_up_late_agents();
        self.returns_due();
        self.grow_due();
        self.muster_due();
        self.look_for_hooks();
        self.look_for_mpi();
        self.looks_due();
        self.profile_due();
        self.suspect();
        self.ask_who_is_alive();
        self.give_up_on_states();
        self.closing_due();
    }

    /// Removes the workers of other groups and of earlier attempts (J-3) from an agent's event; `None` if the event is about such a worker.
    fn of_gang(&self, mut event: AgentEvent) -> Option<AgentEvent> {
        match &mut event {
            AgentEvent::Worker { worker, .. } | AgentEvent::Looked { worker, .. } => {
                return self.gang.has(*worker).then_some(event);
            }
            AgentEvent::Spawn { asker, .. } => return self.gang.has(asker.worker).then_some(event),
            AgentEvent::Bound { ranks, .. } => ranks.retain(|(worker, _)| self.gang.has(*worker)),
            AgentEvent::Hookless(found) => found.retain(|(worker, _)| self.gang.has(*worker)),
            AgentEvent::MpiSeen(found) => found.retain(|(worker, _)| self.gang.has(*worker)),
            AgentEvent::Conditions { workers, .. } => workers.retain(|(worker, _)| self.gang.has(*worker)),
            AgentEvent::Alive { workers, .. } => workers.retain(|(worker, _)| self.gang.has(*worker)),
            AgentEvent::Measured { workers, .. } => workers.retain(|(worker, _)| self.gang.has(*worker)),
            // They are of the node.
            AgentEvent::Refused { .. }
            | AgentEvent::Contained(_)
            | AgentEvent::Unbound { .. }
            | AgentEvent::Meeting(_)
            | AgentEvent::Beat { .. }
            | AgentEvent::ToldToEnd { .. }
            | AgentEvent::WireUpLost { .. }
            | AgentEvent::Looking { .. }
            | AgentEvent::LookOver { .. }
            | AgentEvent::Profiled { .. }
            | AgentEvent::ProfileOver { .. }
            | AgentEvent::Over(_)
            | AgentEvent::Drained => {}
        }
        Some(event)
    }

    fn node_event(&mut self, node: NodeId, event: NodeEvent) {
        let is_connected = self.nodes.get(node).map(Node::is_connected);
        if is_connected.is_none_or(|is_connected| event.is_of_connection() && !is_connected) {
            // There is no such node, or it was given up.
            return;
        }
        match event {
            NodeEvent::Followed => self.followed(node),
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
            NodeEvent::SshEnded { code } => self.on(node, |node| node.route_mut().ssh_ended(code)),
            NodeEvent::GuardEnded { code, memory } => self.guard_ended(node, code, memory),
            NodeEvent::SecondAnswered { is_empty } => self.on(node, |node| node.route_mut().second_answered(is_empty)),
            NodeEvent::CommandEnded { command, answer } => self.command_ended(node, command, answer),
            NodeEvent::GuardLost => self.lose_guard(node),
            NodeEvent::Ready(about) => self.agent_is_ready(node, about),
            NodeEvent::Agent(event) => {
                if let Some(event) = self.of_gang(event) {
                    self.agent_event(node, event);
                }
            }
        }
    }

    fn agent_event(&mut self, node: NodeId, event: AgentEvent) {
        match event {
            AgentEvent::Refused { what, source } => self.agent_refused(node, what, source),
            AgentEvent::Contained(containment) => self.node_contains(node, containment),
            AgentEvent::Bound { ranks, pictures, .. } => self.bound(node, ranks, &pictures),
            AgentEvent::Unbound { why, is_asked_for, .. } => self.unbound(node, &why, is_asked_for),
            AgentEvent::Meeting(rendezvous) => self.meeting_is_known(rendezvous),
            AgentEvent::Beat { sent, at } => {
                let now = self.now;
                self.on(node, |node| node.clock_mut().answered(now, sent, at));
            }
            AgentEvent::ToldToEnd { signal } => self.node_told_to_end(node, signal),
            AgentEvent::Worker { worker, at, event } => self.worker_event(node, worker, at, event),
            AgentEvent::WireUpLost { reason, at } => self.event_at(node, at, gang::Event::WireUpLost { reason }),
            AgentEvent::Hookless(found) => self.hookless(found),
            AgentEvent::MpiSeen(found) => self.mpi_seen(found),
            AgentEvent::Conditions { number, workers, at } => self.conditions(node, number, workers, at),
            AgentEvent::Alive { workers, at } => self.alive_known(node, &workers, at),
            AgentEvent::Looking { number, traffic } => self.looking(node, number, traffic),
            AgentEvent::Looked { number, worker, stack } => self.looked(node, number, worker, *stack),
            AgentEvent::LookOver { number } => self.look_over(node, number),
            AgentEvent::Profiled { number, worker, samples } => self.profiled(node, number, worker, &samples),
            AgentEvent::ProfileOver { number, why } => self.profile_over(node, number, why),
            AgentEvent::Spawn { asker, request } => self.spawn_requested(node, asker, *request),
            AgentEvent::Over(summary) => self.node_over(node, summary),
            AgentEvent::Drained => {
                self.on(node, Node::drained);
                self.attempt_drained();
            }
            AgentEvent::Measured { number, workers, at } => self.measured(node, number, workers, at),
        }
    }

    // The gang.

    pub(in crate::job) fn moment(&mut self, node: NodeId, at: Duration) -> Moment {
        let now = self.now;
        match self.nodes.get_mut(node) {
            Some(node) => node.clock_mut().moment(now, at),
            None => Moment::of_front(now),
        }
    }

    /// An event that is the front's own.
    pub(in crate::job) fn event(&mut self, event: gang::Event) {
        self.event_of(Moment::of_front(self.now), event);
    }

    /// An event that happened on a node, at a time of its clock.
    pub(in crate::job) fn event_at(&mut self, node: NodeId, at: Duration, event: gang::Event) {
        let moment = self.moment(node, at);
        self.event_of(moment, event);
    }

    pub(in crate::job) fn event_of(&mut self, moment: Moment, event: gang::Event) {
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
    pub(in crate::job) fn stop(&mut self, stop: Stop) {
        let is_from_outside =
            matches!(stop.why, StopWhy::Signal(_) | StopWhy::Timeout | StopWhy::Planned | StopWhy::Hang);
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
    pub(in crate::job) fn expect_end(&mut self, by: Duration) {
        for id in self.nodes.ids() {
            let Some(node) = self.nodes.get_mut(id).filter(|node| node.summary().is_none()) else { continue };
            if node.is_here() {
                self.out.push(Effect::ExpectEnd(id, by));
            } else {
                node.expect_end(by);
            }
        }
    }

    // What is said.

    pub(in crate::job) fn send(&mut self, order: Order) {
        self.out.push(Effect::Send(order));
    }

    pub(in crate::job) fn note(&mut self, text: String) {
        self.out.push(Effect::Note(text));
    }

    pub(in crate::job) fn record(&mut self, event: impl FnOnce() -> JobEvent) {
        if self.settings.is_recorded {
            self.out.push(Effect::Record { at: self.now, event: Box::new(event()) });
        }
    }

    /// The journal has each state that a node comes to.
    fn record_nodes(&mut self) {
        if !self.settings.is_recorded {
            return;
        }
        let states: Vec<NodeState> = self.nodes.iter().map(|node| node.state(self.now)).collect();
        for (node, state) in self.nodes.iter().zip(&states) {
            let before = self.recorded.get(node.id().index());
            if before != Some(state) {
                let place = node.place();
                let name = place.map_or(node.name(), |place| self.facts.map.node_name(place)).to_owned();
                let why = node.lost().map(|lost| lost.why.clone());
                let event = JobEvent::Node { node: node.id(), place, name, state: *state, why };
                self.out.push(Effect::Record { at: self.now, event: Box::new(event) });
            }
        }
        self.recorded = states;
    }

    /// Changes what is known of a node.
    pub(in crate::job) fn on(&mut self, node: NodeId, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(node) {
            change(node);
        }
    }

    /// A message about a node, with its name if it is another one.
    pub(in crate::job) fn of_node(&self, node: NodeId, text: &str) -> String {
        match self.nodes.get(node).filter(|node| !node.is_here()) {
            Some(node) => format!("node {}: {text}", node.name()),
            None => text.to_owned(),
        }
    }
}
