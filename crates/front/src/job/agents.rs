//! Handles the messages of agents.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use rankrun_agent::GuardState;
use rankrun_core::advice::refusal;
use rankrun_core::event::{JobEvent, last_words};
use rankrun_core::evidence::MpiEvent;
use rankrun_core::gang::{self, MpiLife, Outside};
use rankrun_core::job::{MpiMode, StdinTarget};
use rankrun_core::names::Asker;
use rankrun_core::open_mpi::has_failed_to_init;
use rankrun_core::stderr::Tail;
use rankrun_core::testimony::{SUSPECT_AFTER, Testimony};
use rankrun_core::{ExitCode, NodeId, Rank, WorkerStatus};
use rankrun_sys::{signal, terminal};
use rankrun_wire::message::{Containment, Hello};
use rankrun_wire::{ToAgent, ToFront};

use crate::delivery::Task;
use crate::job::event::FrontEffect;
use crate::job::front::{Front, Refused};
use crate::job::signals::is_by_signal;
use crate::link::LinkError;
use crate::nodes::About;

/// Ranks whose last words are read at the end, the first to fail: each takes milliseconds.
const RANKS_READ: usize = 1000;

impl Front {
    /// An agent has sent a message.
    pub(crate) fn message(&mut self, from: NodeId, message: ToFront) {
        if is_sign_of_life(&message) {
            let now = self.now();
            self.looks.sign(now);
        }
        match message {
            ToFront::Hello(hello) if hello.version != rankrun_wire::VERSION => {
                self.note(format!("the agent is rankrun {}, this is {}", hello.release, Hello::ours().release));
                self.nodes[from.index()].link = None;
            }
            ToFront::Hello(_) => {}
            ToFront::Refused { what, source } => self.refuse(from, what, source),
            ToFront::Ready { pid, containment, runtime, host, addresses, is_loopback_name, machine } => {
                self.nodes[from.index()].know_agent(pid.0);
                if self.plan.verbosity > 0 {
                    let text = match &containment {
                        Containment::Cgroup => "workers are held in cgroups".to_owned(),
                        Containment::Subreaper { why } => {
                            format!("workers are held by a subreaper, not in cgroups: {why}")
                        }
                    };
                    self.note(self.of_node(from, text));
                }
                self.nodes[from.index()].containment = Some(containment);
                if self.nodes[from.index()].keeper().is_some() {
                    self.open_control(&runtime);
                }
                self.nodes[from.index()].about.get_or_insert(About { host, addresses, is_loopback_name, machine });
                self.node_is_ready();
            }
            ToFront::Started { worker, pid, at } => {
                if [StdinTarget::Rank(worker.rank), StdinTarget::Shared].contains(&self.plan.spec.io.stdin)
                    && self.nodes[from.index()].keeper().is_some()
                    && self.plan.spec.attempt.0 == 0
                {
                    leave_stdin();
                }
                if let Some(terminal) = self.terminal.as_mut().filter(|terminal| terminal.is_lent_to(worker.rank)) {
                    terminal.started(pid);
                }
                if self.plan.verbosity > 1 {
                    self.note(format!("rank {} started, pid {pid}", worker.rank));
                }
                if worker.attempt.0 > 0 {
                    // The agent has made the job's directory again, if a rank has removed it.
                    self.restore_control();
                }
                self.node_event(from, at, gang::Event::Started { rank: worker.rank, pid });
                self.rank_is_up();
                self.successor_runs(worker.rank);
            }
            ToFront::SpawnFailed { worker, step, errno, command, at } => {
                let error = io::Error::from_raw_os_error(errno);
                let code = match error.kind() {
                    io::ErrorKind::NotFound => ExitCode::NOT_FOUND,
                    _ => ExitCode::NOT_EXECUTABLE,
                };
                let event = gang::Event::SpawnFailed {
                    rank: worker.rank,
                    step,
                    error: rankrun_sys::reason(&error),
                    command: command.to_string_lossy().into_owned(),
                    not_found: Some(code),
                };
                self.node_event(from, at, event);
            }
            ToFront::Ended { worker, status, mut stop, at } => {
                let now = self.now();
                self.delivery.presenter.ended(now, worker.rank);
                self.last_words.ended(worker.rank);
                if !stop.signals.is_empty() {
                    let now = self.now();
                    let clock = &mut self.nodes[from.index()].clock;
                    stop.signals.iter_mut().for_each(|(_, sent)| *sent = clock.moment(now, *sent).at);
                    self.node_event(from, at, gang::Event::Signalled { rank: worker.rank, record: stop });
                }
                self.rank_ended(from, worker.rank, status, at);
                self.judge_alone(true);
            }
            ToFront::Gone { worker, outcome, left } => {
                self.event(gang::Event::Gone { rank: worker.rank, outcome });
                self.rank_gone(worker.rank, outcome, !left.is_empty());
            }
            ToFront::Stopped { worker, signal, at } => self.rank_stopped(from, worker.rank, signal, at),
            ToFront::Continued { worker, .. } => drop(self.attempts.present.stopped.remove(&worker.rank)),
            ToFront::Beat { sent, at } => {
                let now = self.now();
                self.nodes[from.index()].clock.answered(now, sent, at);
            }
            ToFront::Meeting(rendezvous) => self.meeting_is_known(rendezvous),
            ToFront::Collective(part) => {
                if let Some(whole) = self.collectives.take(from, part) {
                    self.send(ToAgent::Collective(whole));
                }
            }
            ToFront::Ask { protocol, id, question } => {
                let mut replies = Vec::new();
                self.names.ask(Asker { node: from, protocol, id }, question, &mut replies);
                for (Asker { node, protocol, id }, reply) in replies {
                    self.send_to(node, ToAgent::Reply { protocol, id, reply });
                }
            }
            ToFront::Fetch { id, of } => {
                let place = self.plan.spec.map.place(of);
                let node = place.and_then(|place| self.node_at(place.node));
                match node.filter(|node| self.nodes[node.index()].lost.is_none()) {
                    Some(node) => self.send_to(node, ToAgent::Fetch { by: from, id, of }),
                    None => self.send_to(from, ToAgent::Fetched { id, data: None }),
                }
            }
            ToFront::Fetched { by, id, data } if by.index() < self.nodes.len() => {
                self.send_to(by, ToAgent::Fetched { id, data });
            }
            // There is no such node.
            ToFront::Fetched { .. } => {}
            ToFront::Mpi { worker, event, at } => {
                if let MpiEvent::Refused { call, detail } = &event
                    && self.refused_calls.insert(call.clone())
                {
                    self.note(refusal(worker.rank, call, detail.as_deref()));
                }
                self.node_event(from, at, gang::Event::Mpi { rank: worker.rank, event })
            }
            ToFront::Testimony { worker, pid, testimony, at } => {
                if let Testimony::Uncaught(_) | Testimony::Exiting { .. } | Testimony::Leaving { .. } = testimony {
                    self.last_words.settle(worker.rank);
                }
                match &testimony {
                    Testimony::Note { text } => self.show_note(worker.rank, text),
                    Testimony::Progress => self.has_progressed(worker),
                    Testimony::Ready => self.rank_is_ready(worker),
                    _ => {}
                }
                self.node_event(from, at, gang::Event::Testimony { rank: worker.rank, pid, testimony });
            }
            ToFront::Stuck { worker, pid, place, since, is_leader, at } => {
                let rank = worker.rank;
                if !is_leader {
                    self.note(format!("rank {rank}: process {pid} did not end after its failure, and was killed"));
                }
                let now = self.now();
                let since = self.nodes[from.index()].clock.moment(now, since).at;
                self.node_event(from, at, gang::Event::Stuck { rank, pid, place, since, leader: is_leader });
            }
            ToFront::Reports { worker, reports } => {
                let now = self.now();
                self.last_words.reports(now, worker.rank, reports);
            }
            ToFront::Hookless(found) => self.hookless(found),
            ToFront::MpiSeen(found) => self.mpi_seen(found),
            ToFront::KilledForMemory { worker, detail, at } => {
                self.node_event(from, at, gang::Event::OutOfMemory { rank: worker.rank, detail });
            }
            ToFront::CpuTime { worker, used, limit, at } => {
                self.node_event(from, at, gang::Event::CpuTime { rank: worker.rank, used, limit });
            }
            ToFront::HelperKilledForMemory { worker, pid, name, detail, at } => {
                let event = gang::Event::HelperOutOfMemory { rank: worker.rank, pid, name, detail };
                self.node_event(from, at, event);
            }
            ToFront::Result { worker, piece } => {
                let name = if piece.is_error { "error" } else { "result" };
                if let Some(directory) = &self.plan.results {
                    let path = directory.join(format!("{}.{name}", worker.rank));
                    let now = self.now();
                    self.delivery.files.submit(now, Task::Result { path, piece });
                }
            }
            ToFront::Closed { worker, stream } => {
                let now = self.now();
                self.delivery.closed(now, worker, stream);
                self.stream_closed(worker, stream);
            }
            ToFront::StdinTaken(_) => self.stdin_taken(from),
            ToFront::OutputLost(text) => {
                self.delivery.lose();
                self.agent_note(text);
                self.event(gang::Event::OutputFailed);
            }
            ToFront::Conditions { number, workers, at } => self.conditions(from, number, workers, at),
            ToFront::Alive { workers, at } => self.alive_known(from, &workers, at),
            ToFront::Looking { number, ranks: _, traffic, at: _ } => self.looking(from, number, traffic),
            ToFront::Looked { number, worker, stack } => self.looked(from, number, worker, *stack),
            ToFront::LookOver { number } => self.look_over(from, number),
            ToFront::Paused => self.paused(),
            ToFront::ToldToEnd { signal } => self.node_told_to_end(from, signal),
            ToFront::GuardLost => self.lose_guard(from),
            ToFront::WireUpLost { reason, at } => self.node_event(from, at, gang::Event::WireUpLost { reason }),
            ToFront::Note(text) => self.agent_note(self.of_node(from, text)),
            ToFront::Over(summary) => {
                let node = &mut self.nodes[from.index()];
                node.has_ended();
                node.summary = Some(summary);
                if self.is_over() {
                    self.begin_drain();
                }
            }
            ToFront::Drained => {
                self.nodes[from.index()].is_drained = true;
                self.attempt_drained();
            }
        }
    }

    /// A message that a node sent, with the name of the node if it is another one.
    fn of_node(&self, node: NodeId, text: String) -> String {
        let node = &self.nodes[node.index()];
        if node.remote().is_some() { format!("node {}: {text}", node.name) } else { text }
    }

    /// A rank sent a progress note: for the status region, or with `-v` a line.
    fn show_note(&mut self, rank: Rank, text: &str) {
        let now = self.now();
        if self.plan.verbosity >= 0 && !self.delivery.presenter.note(now, rank, text) && self.plan.verbosity > 0 {
            self.agent_note(format!("rank {rank}: {text}"));
        }
    }

    /// The stream to an agent has ended, or cannot be decoded.
    pub(crate) fn lose_agent(&mut self, node_rank: NodeId, error: &LinkError) {
        let node = &mut self.nodes[node_rank.index()];
        let had_said_all = node.is_drained;
        node.link = None;
        if self.muster.is_some() {
            node.is_stream_lost = matches!(error, LinkError::Ended) && node.lost.is_none();
            let why = self.why_lost(node_rank, error);
            return self.lose_node(node_rank, why);
        }
        if node.lost.is_some() || (had_said_all && !self.attempts.may_follow()) {
            return;
        }
        let is_over = self.is_over() && !self.attempts.may_follow();
        if !matches!(error, LinkError::Ended) {
            self.note(format!("{error}"));
        }
        if !is_over {
            self.event(gang::Event::AgentLost);
        }
    }

    /// An agent cannot start: the job does not begin.
    fn refuse(&mut self, from: NodeId, what: String, source: String) {
        self.nodes[from.index()].link = None;
        let what = if self.muster.is_some() { format!("node {}: {what}", self.nodes[from.index()].name) } else { what };
        let source = io::Error::other(source);
        self.refused.get_or_insert(Refused { what, source, hint: None, code: ExitCode::INTERNAL });
        if self.muster.is_some() {
            self.dismiss_nodes();
        }
    }

    fn lose_guard(&mut self, node: NodeId) {
        let now = self.now();
        let node = &mut self.nodes[node.index()];
        // The loss counts until the job ends: an attempt may follow.
        let has_ended = node.summary.is_some() && !self.attempts.may_follow();
        if let Some(keeper) = node.keeper_mut() {
            if let GuardState::Ended(_) = keeper.state {
                return;
            }
            // The agent's message and the reaped guard are the same loss: count it once.
            if std::mem::replace(&mut keeper.is_lost, true) || has_ended {
                return;
            }
            keeper.watch.begin(now);
        }
        if !has_ended {
            self.unguarded = Some(node.name.clone());
            self.event(gang::Event::GuardLost);
        }
    }

    /// SIGCHLD: a guard or an ssh has ended, or a guard was stopped, or was continued.
    pub(crate) fn look_at_guards(&mut self) {
        let now = self.now();
        let ended = self.srun.iter_mut().filter_map(|srun| srun.reap(now).then_some(())).count();
        if ended > 0 {
            self.srun_ended();
        }
        for node in (0..self.nodes.len() as u32).map(NodeId) {
            let handle = &mut self.nodes[node.index()];
            let was_held = handle.is_held();
            if handle.reap() {
                self.lose_guard(node);
            } else if handle.remote().is_some() {
                if was_held && !handle.is_held() {
                    self.ssh_ended(node);
                }
            } else if let Some(keeper) = handle.keeper_mut().filter(|keeper| keeper.is_guard_stopped()) {
                keeper.watch.begin(now);
            }
        }
    }

    /// Gives up agents and guards that hang.
    pub(crate) fn watch_nodes(&mut self, now: Duration) {
        let foreign = self.foreign();
        for node in self.nodes.iter_mut().filter(|node| node.link.is_some()) {
            if let Some(act) = node.watch(now, &foreign) {
                self.effects.push_back(FrontEffect::Act { node: node.id, act });
            }
        }
    }

    /// A leader has ended.
    fn rank_ended(&mut self, from: NodeId, rank: Rank, status: WorkerStatus, at: Duration) {
        let lent = self.terminal.as_mut().filter(|terminal| terminal.is_lent_to(rank));
        let was_lent = lent.is_some_and(|terminal| terminal.ended(status.success()));
        self.attempts.present.stopped.remove(&rank);
        self.node_event(from, at, gang::Event::Ended { rank, status });
        if was_lent && self.gang.outside() == Some(Outside::Interrupted(rank)) && is_by_signal(status) {
            // ^C went to the rank only: a script that runs us goes on unless it gets the signal too.
            terminal::signal_own_group(signal::SIGINT);
        }
    }

    /// Handles ranks that are alive and silent after a traceback on stderr.
    pub(crate) fn suspect(&mut self, now: Duration) {
        if self.last_words.deadline().is_none_or(|due| due > now) {
            return;
        }
        let end = self.plan.end_suspects;
        for (rank, exception) in self.last_words.due(now, end) {
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
    pub(crate) fn read_last_words(&mut self) {
        let mut first = BTreeSet::new();
        for evidence in self.gang.evidence() {
            if first.len() < RANKS_READ {
                first.insert(evidence.rank);
            }
        }
        let failed: Vec<Rank> = (0..self.plan.spec.map.world_size())
            .map(Rank)
            .filter(|rank| first.contains(rank) || self.last_words.has_aborted(*rank))
            .collect();
        for rank in failed {
            self.read_last_words_of(rank);
        }
    }

    /// Reads the last lines of output of a rank.
    pub(crate) fn read_last_words_of(&mut self, rank: Rank) {
        if !self.attempts.present.are_read.insert(rank) {
            return;
        }
        let Some((stderr, _)) = self.last_words.both(rank) else { return };
        if self.is_refused_by_open_mpi(rank, stderr) {
            self.event(gang::Event::OpenMpi { rank });
        }
        let Some((stderr, stdout)) = self.last_words.both(rank) else { return };
        let (now, event) = (self.clock.now(), last_words(&self.gang, rank, stderr, stdout));
        self.delivery.journal.record(now, || JobEvent::Stderr { rank, tail: stderr.clone(), stdout: stdout.clone() });
        // It follows from the event that has just been recorded, and has no effects.
        self.gang.handle(now, event, &mut Vec::new());
    }

    /// Whether a rank has failed because we refused Open MPI as a singleton.
    fn is_refused_by_open_mpi(&self, rank: Rank, tail: &Tail) -> bool {
        let spec = &self.plan.spec;
        let is_guarded = spec.mpi == MpiMode::Pmi1 && spec.map.world_size() > 1;
        is_guarded && self.gang.ranks()[rank.index()].mpi == MpiLife::NotInited && has_failed_to_init(&tail.lines())
    }
}

/// From now on only the rank holds the front's stdin.
fn leave_stdin() {
    if let Ok(null) = std::fs::File::open("/dev/null") {
        // If that fails, the rank and we share the descriptor, and we do not read it.
        let _ = rustix::stdio::dup2_stdin(&null);
    }
}
/// Whether it tells of something that a rank has done.
fn is_sign_of_life(message: &ToFront) -> bool {
    matches!(
        message,
        ToFront::Started { .. }
            | ToFront::Ended { .. }
            | ToFront::Mpi { .. }
            | ToFront::Testimony { .. }
            | ToFront::Result { .. }
            | ToFront::Continued { .. }
            | ToFront::StdinTaken(_)
    )
}
