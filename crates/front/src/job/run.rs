//! The loop: translates sources to events, handles them, and performs the effects.

use std::time::Duration;

use rankrun_agent::Act;
use rankrun_core::{NodeId, gang};
use rankrun_sys::poll::Ready;
use rankrun_wire::{Frame, ToAgent};

use crate::delivery::DeliveryEvent;
use crate::job::control::Ours;
use crate::job::event::{FrontEffect, FrontEvent};
use crate::job::front::{Front, Outcome, Salvage};
use crate::job::muster::Muster;
use crate::job::token::Token;
use crate::link::{LinkError, send_to_all};
use crate::nodes::Enrolment;

/// How long writing the output that a destination did not take may last, as long as output comes.
const SALVAGE_BOUND: Duration = Duration::from_secs(60);
/// Without output for so long meanwhile, the files or the agent's spool do not answer.
const SALVAGE_STEP: Duration = Duration::from_secs(3);
/// How often to look whether the control socket is where clients find it.
const CONTROL_STEP: Duration = Duration::from_secs(1);
/// How long the destinations have for output that waited for log files.
pub(crate) const RELEASE_BOUND: Duration = Duration::from_secs(3);
/// How often to check the window size while a rank has the terminal: the kernel then sends SIGWINCH only to the rank.
const WINDOW_STEP: Duration = Duration::from_millis(500);

impl Front {
    /// Runs until all agents have ended or are lost, and then ends the job.
    pub(crate) fn run_to_end(mut self) -> Outcome {
        let mut ready = Vec::new();
        self.begin_attempts();
        for (number, sender) in std::mem::take(&mut self.early) {
            self.take(FrontEvent::Signal { number, sender });
        }
        while self.is_linked() {
            self.hand_on();
            let timeout = self.timeout();
            if let Err(error) = self.poller.wait(timeout, &mut ready) {
                self.note(format!("cannot wait for events: {error}"));
                break;
            }
            let now = self.now();
            self.standstill.turn(now);
            // While output keeps coming, a silent rank may only be slow.
            let quiet = !ready.iter().any(|event| matches!(Token::decode(event.token), Some(Token::Node(_))));
            for &event in &ready {
                self.dispatch(event);
            }
            self.take(FrontEvent::Tick { quiet });
        }
        let outcome = self.finish();
        self.dismiss_joined(&outcome);
        self.await_srun();
        self.starter.end();
        outcome
    }

    fn timeout(&self) -> Option<Duration> {
        if self.clock.is_paused() {
            return None;
        }
        let now = self.now();
        let window = self.must_watch_window().then(|| now + WINDOW_STEP);
        let attempt = self.attempts.deadline().filter(|_| !self.attempts.is_between() || !self.delivery.is_logging());
        let limit = self.plan.timeout.filter(|_| self.attempts.is_between());
        let waits = [
            limit,
            self.last_words.deadline(),
            self.drain_until,
            window,
            self.notes.deadline(),
            self.roll.deadline(),
            attempt,
            self.successors.deadline(),
        ];
        let alive = self.nodes.iter().filter(|node| node.is_alive());
        let waits = waits.into_iter().chain(alive.map(|node| node.watch_deadline()));
        let waits = waits.chain([self.muster.as_ref().and_then(Muster::deadline)]);
        let waits = waits.chain([self.enrolment.as_ref().and_then(Enrolment::deadline)]);
        let waits = waits.chain([
            self.control.deadline(),
            self.control_look(),
            self.states.deadline(),
            self.starter.deadline(now),
        ]);
        let deadlines =
            waits.chain([self.gang.deadline(), self.delivery.deadline(), self.hooks.deadline(), self.looks.deadline()]);
        let deadlines = deadlines.chain([self.mpi_watch.deadline()]);
        deadlines.flatten().min().map(|deadline| deadline.saturating_sub(now))
    }

    /// When to look whether the control socket is still there. At the end the agents remove it with its directory.
    fn control_look(&self) -> Option<Duration> {
        (self.control.listens() && !self.is_over()).then_some(self.next_control_look)
    }

    /// A source is ready: reads it.
    pub(crate) fn dispatch(&mut self, ready: Ready) {
        if !self.poller.is_current(ready) {
            return;
        }
        let Some(token) = Token::decode(ready.token) else { return };
        match token {
            Token::Srun(_) => self.read_srun(),
            Token::Words(node) => self.read_words(node),
            Token::Asker(node) => self.hear_asker(node, ready),
            Token::Door => {
                let now = self.now();
                if let Some(enrolment) = &mut self.enrolment {
                    enrolment.accept(now);
                }
            }
            Token::Newcomer(peer) => self.newcomer(peer, ready),
            Token::Node(node) if self.nodes[node.index()].link.is_none() => {
                self.hear_ssh(node, ready.writable, ready.readable);
            }
            Token::Node(node) => {
                if ready.writable {
                    let flushed = self.nodes[node.index()].flush();
                    if let Err(error) = flushed {
                        self.take(FrontEvent::AgentLost { node, error });
                    }
                }
                if ready.readable {
                    self.read_node(node);
                }
            }
            Token::Signals => {
                while let Some((number, sender)) = self.signals.next() {
                    self.take(FrontEvent::Signal { number, sender });
                }
            }
            Token::Control(Ours::Listener) => {
                let now = self.now();
                self.control.accept(now);
            }
            Token::Control(Ours::Client(client)) => {
                let now = self.now();
                if let Some((by, request)) = self.control.ready(now, client, ready) {
                    self.take(FrontEvent::Request { client, by, request });
                }
            }
            Token::Waker => {
                self.waker.clear();
                let now = self.now();
                self.delivery.receive(now);
                self.take_news();
                self.hear_binary();
                self.hear_answer();
                if let Some(piece) = self.stdin.as_ref().filter(|_| self.has_started()).and_then(|stdin| stdin.next()) {
                    self.take(FrontEvent::Stdin(piece));
                }
            }
        }
    }

    /// Handles what an agent has sent: output goes to its destinations, each message is an event.
    ///
    /// One turn of the loop reads a bounded number of bytes, and a byte costs the same however many came before it: signals and
    /// deadlines wait for no longer than that.
    pub(crate) fn read_node(&mut self, node: NodeId) {
        if self.nodes[node.index()].remote().is_some() {
            self.heard(node);
        }
        let Some(mut link) = self.nodes[node.index()].link.take() else { return };
        let filled = link.fill();
        loop {
            match link.next() {
                Ok(Some(Frame::Output(head, bytes))) => {
                    let now = self.clock.now();
                    self.looks.sign(now);
                    self.last_words.write(now, head.worker.rank, head.stream, bytes);
                    self.last_lines.write(now, head.worker.rank, head.stream, bytes);
                    self.delivery.output(now, head, bytes);
                    self.debts.received(node, head.stream, bytes.len() as u64);
                }
                Ok(Some(Frame::Message(message))) => {
                    self.nodes[node.index()].link = Some(link);
                    self.has_sent(node);
                    self.take(FrontEvent::Agent { node, message });
                    match self.nodes[node.index()].link.take() {
                        Some(same) => link = same,
                        None => return,
                    }
                }
                Ok(None) => break,
                Err(error) => return self.take(FrontEvent::AgentLost { node, error }),
            }
        }
        match filled {
            Ok(()) => self.nodes[node.index()].link = Some(link),
            Err(error) => self.take(FrontEvent::AgentLost { node, error }),
        }
    }

    /// Hands what is ready to the destinations, our own notices included.
    pub(crate) fn hand_on(&mut self) {
        self.show_notices();
        let now = self.now();
        self.suit_terminal();
        self.delivery.hand_on(now);
        self.take_news();
    }

    /// Shows our own notices, the report among them, in the order in which they came.
    pub(crate) fn show_notices(&mut self) {
        let now = self.now();
        while let Some(text) = self.notices.pop_front() {
            self.delivery.presenter.notice(now, &text);
            self.delivery.shown.notice(&text);
        }
    }

    /// Handles the events of the destinations.
    pub(crate) fn take_news(&mut self) {
        for event in self.delivery.take_events() {
            self.take(FrontEvent::Delivery(event));
        }
    }

    /// Handles an event and performs the effects, until there are none.
    pub(crate) fn take(&mut self, event: FrontEvent) {
        self.handle(event);
        self.perform_all();
    }

    /// Performs the effects that are decided, and those that follow.
    pub(crate) fn perform_all(&mut self) {
        while let Some(effect) = self.effects.pop_front() {
            for event in self.perform(effect) {
                self.handle(event);
            }
        }
    }

    /// Handles an event: decides only.
    fn handle(&mut self, event: FrontEvent) {
        match event {
            FrontEvent::Agent { node, message } => self.message(node, message),
            FrontEvent::AgentLost { node, error } => self.lose_agent(node, &error),
            FrontEvent::Signal { number, sender } => self.signal(number, sender),
            FrontEvent::Delivery(event) => self.delivered(event),
            FrontEvent::Stdin(piece) => self.send_stdin(piece),
            FrontEvent::Request { client, by, request } => self.requested(client, by, request),
            FrontEvent::Tick { quiet } => self.tick(quiet),
        }
    }

    /// Performs an effect. Failures are events.
    fn perform(&mut self, effect: FrontEffect) -> Vec<FrontEvent> {
        let lost = |(node, error)| FrontEvent::AgentLost { node, error };
        match effect {
            FrontEffect::Send(message) => {
                let links = self.nodes.iter_mut().filter_map(|node| Some((node.id, node.link.as_mut()?)));
                send_to_all(links, &message).into_iter().map(lost).collect()
            }
            FrontEffect::SendTo(node, message) => {
                let sent = self.nodes[node.index()].send(&message);
                sent.err().map(|error| lost((node, error))).into_iter().collect()
            }
            FrontEffect::Start(place, meeting) => {
                let Some(node) = self.node_at(place) else { return Vec::new() };
                if self.muster.is_some() && self.nodes[node.index()].link.is_none() {
                    let lost = &mut self.nodes[node.index()].lost;
                    let why = lost.get_or_insert_with(|| "its agent has ended".to_owned()).clone();
                    self.lose_ranks(node, why);
                    return Vec::new();
                }
                let start = ToAgent::Start(Box::new(self.node_start(node, place, meeting)));
                let sent = self.nodes[node.index()].send(&start);
                sent.err().map(|error| lost((node, error))).into_iter().collect()
            }
            FrontEffect::KeepStandings(now) => {
                self.standings = self.standings_at(now);
                Vec::new()
            }
            FrontEffect::Answer { client, answer } => {
                let now = self.now();
                self.control.answer(now, client, &answer);
                // It may have sent the next one already.
                let next = self.control.next_request(now, client);
                next.map(|(by, request)| FrontEvent::Request { client, by, request }).into_iter().collect()
            }
            FrontEffect::Act { node, act } => {
                let node = &self.nodes[node.index()];
                match act {
                    Act::GiveUpAgent if node.remote().is_some() => self.give_up_node(node.id),
                    Act::KillAgent => node.kill_agent(),
                    Act::KillGuard => node.kill_guard(),
                    Act::GiveUpAgent => return vec![lost((node.id, LinkError::Ended))],
                }
                Vec::new()
            }
        }
    }

    fn delivered(&mut self, event: DeliveryEvent) {
        match event {
            DeliveryEvent::Credit { stream, bytes } => {
                for (node, bytes) in self.debts.paid(stream, bytes) {
                    self.send_to(node, ToAgent::Credit { stream, bytes });
                }
            }
            DeliveryEvent::Note(text) => self.note(text),
            DeliveryEvent::ReaderGone if !self.is_over() || self.attempts.is_between() => {
                self.event(gang::Event::OutputGone)
            }
            DeliveryEvent::ReaderGone => {}
            DeliveryEvent::Failed => {
                self.event(gang::Event::OutputFailed);
                self.drain_until = Some(self.now());
            }
            DeliveryEvent::LogsOpened => self.logs_are_open(),
            DeliveryEvent::LogsGivenUp => self.end_without_logs(gang::Event::OutputFailed),
            DeliveryEvent::LogsFailed(reason) => self.end_without_logs(gang::Event::LogsFailed { reason }),
        }
    }

    /// The ranks have ended: their output has `--drain` to be written.
    pub(crate) fn begin_drain(&mut self) {
        let now = self.now();
        self.drain_until = Some(now + self.plan.drain);
        if self.is_last_attempt() {
            self.delivery.ranks_ended(now);
        }
    }

    fn end_without_logs(&mut self, event: gang::Event) {
        self.event(event);
        // The destinations work: they get the output that waited for the log files.
        let until = self.now() + RELEASE_BOUND;
        self.drain_until = self.drain_until.map(|drain| drain.max(until));
    }

    fn tick(&mut self, quiet: bool) {
        if self.clock.is_paused() {
            return;
        }
        let now = self.now();
        if self.starter.tick() {
            self.look_at_guards();
        }
        if self.gang.deadline().is_some_and(|deadline| deadline <= now) {
            self.event(gang::Event::Tick);
        }
        self.attempt_due(now);
        self.successors_due(now);
        self.watch_nodes(now);
        self.muster_due(now);
        self.look_for_hooks(now);
        self.look_for_mpi(now);
        self.looks_due(now);
        self.suspect(now);
        self.ask_who_is_alive(now);
        self.print_withheld_notes(Some(now));
        self.delivery.tick(now, quiet);
        self.control.tick(now);
        if self.control_look().is_some_and(|at| at <= now) {
            self.next_control_look = now + CONTROL_STEP;
            self.restore_control();
        }
        self.answer_waiting(now);
        if self.must_watch_window() {
            self.resized();
        }
        if self.drain_until.is_some_and(|until| until <= now) {
            self.give_up_on_destinations(now);
        }
    }

    /// The kernel sends SIGWINCH only to the rank that has the terminal.
    fn must_watch_window(&self) -> bool {
        self.plan.spec.map.world_size() > 1 && self.terminal.as_ref().is_some_and(|terminal| terminal.group().is_some())
    }

    /// A destination has not taken its output in time: the output is kept beside the report.
    fn give_up_on_destinations(&mut self, now: Duration) {
        if self.delivery.is_full() {
            self.event(gang::Event::OutputFailed);
        }
        if self.delivery.give_up_logs(now) {
            self.event(gang::Event::OutputFailed);
            if !self.is_hurried {
                self.drain_until = Some(now + RELEASE_BOUND);
                return;
            }
        }
        let was_salvaged = self.delivery.is_salvaged();
        if let Some(directory) = self.directory().filter(|_| !self.is_hurried) {
            self.delivery.salvage(now, directory);
        }
        if !self.is_over() {
            self.drain_until = None;
            return;
        }
        let salvage = self.salvage.get_or_insert(Salvage { until: now + SALVAGE_BOUND, received: None });
        let received = self.delivery.received();
        let is_progress = salvage.received.replace(received) != Some(received);
        let may_wait = is_progress && now < salvage.until && !self.delivery.is_lost();
        if self.delivery.is_salvaged() && !self.is_hurried && (may_wait || !was_salvaged) {
            // Writing the rest to files takes no time, unless they do not answer.
            self.drain_until = Some(now + SALVAGE_STEP);
            return;
        }
        self.event(gang::Event::OutputFailed);
        for node in self.nodes.iter_mut().filter(|node| node.link.is_some()) {
            node.link = None;
            self.has_given_up_output = true;
        }
    }
}
