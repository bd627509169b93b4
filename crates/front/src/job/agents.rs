//! Handles the messages of agents.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use rankrun_core::advice::refusal;
use rankrun_core::event::{JobEvent, last_words};
use rankrun_core::evidence::MpiEvent;
use rankrun_core::gang::{self, MpiLife, Outside};
use rankrun_core::job::{MpiMode, StdinTarget};
use rankrun_core::open_mpi::has_failed_to_init;
use rankrun_core::stderr::Tail;
use rankrun_core::testimony::Testimony;
use rankrun_core::{ExitCode, NodeRank, Rank, WorkerStatus};
use rankrun_sys::process::ProcessRef;
use rankrun_sys::{signal, terminal};
use rankrun_wire::ToFront;
use rankrun_wire::message::{Containment, Hello};

use crate::job::event::FrontEffect;
use crate::job::front::Front;
use crate::job::signals::is_by_signal;
use crate::link::LinkError;
use crate::nodes::Guard;

/// Ranks whose last words are read at the end, the first to fail: each takes milliseconds.
const RANKS_READ: usize = 1000;

impl Front {
    /// An agent has sent a message.
    pub(crate) fn message(&mut self, from: NodeRank, message: ToFront) {
        match message {
            ToFront::Hello(hello) if hello.version != rankrun_wire::VERSION => {
                self.note(format!("the agent is rankrun {}, this is {}", hello.release, Hello::ours().release));
                self.nodes[from.index()].link = None;
            }
            ToFront::Hello(_) => {}
            ToFront::Refused { what, source } => {
                self.refused = Some((what, io::Error::other(source)));
                self.nodes[from.index()].link = None;
            }
            ToFront::Ready { pid, containment, runtime } => {
                self.nodes[from.index()].agent = ProcessRef::open(pid.0);
                if self.plan.verbosity > 0 {
                    self.note(match &containment {
                        Containment::Cgroup => "workers are held in cgroups".to_owned(),
                        Containment::Subreaper { why } => {
                            format!("workers are held by a subreaper, not in cgroups: {why}")
                        }
                    });
                }
                self.nodes[from.index()].containment = Some(containment);
                self.open_control(&runtime);
            }
            ToFront::Started { worker, pid, at } => {
                if [StdinTarget::Rank(worker.rank), StdinTarget::Shared].contains(&self.plan.spec.io.stdin)
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
            }
            ToFront::Gone { worker, outcome, left } => {
                self.event(gang::Event::Gone { rank: worker.rank, outcome });
                self.rank_gone(worker.rank, outcome, !left.is_empty());
            }
            ToFront::Stopped { worker, signal, at } => self.rank_stopped(from, worker.rank, signal, at),
            ToFront::Continued { worker, .. } => drop(self.attempts.stopped.remove(&worker.rank)),
            ToFront::Collective(_) => {}
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
                    Testimony::Progress => self.has_progressed(worker.rank),
                    Testimony::Ready => self.rank_is_ready(worker.rank),
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
            ToFront::KilledForMemory { worker, detail, at } => {
                self.node_event(from, at, gang::Event::OutOfMemory { rank: worker.rank, detail });
            }
            ToFront::HelperKilledForMemory { worker, pid, name, detail, at } => {
                let event = gang::Event::HelperOutOfMemory { rank: worker.rank, pid, name, detail };
                self.node_event(from, at, event);
            }
            ToFront::Closed { worker, stream } => {
                let now = self.now();
                self.delivery.closed(now, worker, stream);
                self.stream_closed(worker, stream);
            }
            ToFront::StdinTaken(_) => {
                if let Some(stdin) = &self.stdin {
                    stdin.want_more();
                }
            }
            ToFront::OutputLost(text) => {
                self.delivery.lose();
                self.agent_note(text);
                self.event(gang::Event::OutputFailed);
            }
            ToFront::Conditions { number, workers, at } => self.conditions(from, number, workers, at),
            ToFront::Alive { workers, at } => self.alive_known(from, &workers, at),
            ToFront::Paused => self.paused(),
            ToFront::GuardLost => self.lose_guard(from),
            ToFront::WireUpLost { reason, at } => self.node_event(from, at, gang::Event::WireUpLost { reason }),
            ToFront::Note(text) => self.agent_note(text),
            ToFront::Over(summary) => {
                let node = &mut self.nodes[from.index()];
                node.watch.is_over();
                node.summary = Some(summary);
                if self.is_over() {
                    self.drain_until = Some(self.now() + self.plan.drain);
                }
            }
            ToFront::Drained => {
                self.nodes[from.index()].is_drained = true;
                self.attempt_drained();
            }
        }
    }

    /// A rank sent a progress note: for the status region, or with `-v` a line.
    fn show_note(&mut self, rank: Rank, text: &str) {
        let now = self.now();
        if self.plan.verbosity >= 0 && !self.delivery.presenter.note(now, rank, text) && self.plan.verbosity > 0 {
            self.agent_note(format!("rank {rank}: {text}"));
        }
    }

    /// The stream to an agent has ended, or cannot be decoded.
    pub(crate) fn lose_agent(&mut self, node: NodeRank, error: &LinkError) {
        let node = &mut self.nodes[node.index()];
        let had_said_all = node.is_drained;
        node.link = None;
        if had_said_all && !self.attempts.is_between() {
            return;
        }
        let is_over = node.summary.is_some() && !self.attempts.is_between();
        if !matches!(error, LinkError::Ended) {
            self.note(format!("{error}"));
        }
        if !is_over {
            self.event(gang::Event::AgentLost);
        }
    }

    fn lose_guard(&mut self, node: NodeRank) {
        let now = self.now();
        let node = &mut self.nodes[node.index()];
        if let Guard::Ended(_) = node.guard {
            return;
        }
        // The agent's message and the reaped guard are the same loss: count it once.
        let was_lost = std::mem::replace(&mut node.is_guard_lost, true);
        if !was_lost && node.summary.is_none() {
            node.watch.begin(now);
            self.event(gang::Event::GuardLost);
        }
    }

    /// SIGCHLD: a guard has ended, was stopped, or was continued.
    pub(crate) fn look_at_guards(&mut self) {
        let now = self.now();
        for node in (0..self.nodes.len() as u32).map(NodeRank) {
            let handle = &mut self.nodes[node.index()];
            if handle.reap_guard() {
                self.lose_guard(node);
            } else if handle.is_guard_stopped() {
                handle.watch.begin(now);
            }
        }
    }

    /// Gives up agents and guards that hang.
    pub(crate) fn watch_nodes(&mut self, now: Duration) {
        for node in self.nodes.iter_mut().filter(|node| node.link.is_some()) {
            if let Some(act) = node.watch(now, &self.foreign) {
                self.effects.push_back(FrontEffect::Act { node: node.rank, act });
            }
        }
    }

    /// A leader has ended.
    fn rank_ended(&mut self, from: NodeRank, rank: Rank, status: WorkerStatus, at: Duration) {
        let lent = self.terminal.as_mut().filter(|terminal| terminal.is_lent_to(rank));
        let was_lent = lent.is_some_and(|terminal| terminal.ended(status.success()));
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
        for (rank, exception) in self.last_words.due(now) {
            let end = self.plan.end_suspects;
            if !end {
                let headline = exception.headline();
                let why = self.gang.ranks().get(rank.index()).and_then(|record| record.hookless.as_ref());
                let why = why.map(|why| format!(", where Python has no hook: {why}")).unwrap_or_default();
                self.note(format!(
                    "rank {rank} wrote a traceback ({headline}) and is still running{why}; --on-suspect kill would end the job"
                ));
            }
            self.event(gang::Event::Suspect { rank, exception, end });
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
        if !self.attempts.are_read.insert(rank) {
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
