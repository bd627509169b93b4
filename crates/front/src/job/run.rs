//! The loop: turns sources into events of the job, and hands output to its destinations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_agent::LOOK_STEP;
use rankrun_core::control::Request;
use rankrun_core::gang::{self, Requester};
use rankrun_core::job::{ClientId, Event, Input, NodeEvent};
use rankrun_core::quiet::Show;
use rankrun_core::{ExitCode, NodeId};
use rankrun_output::Entry;
use rankrun_sys::poll::Ready;
use rankrun_wire::{Frame, ToAgent};

use super::{Front, other_children};
use crate::control::{Gone, Ours};
use crate::delivery::{DeliveryEvent, Stamped, Task};
use crate::ledger::Entry as LedgerEntry;
use crate::link::LinkError;
use crate::outcome::Outcome;
use crate::token::Token;

/// How often to check the window size while a rank has the terminal: the kernel then sends SIGWINCH only to the rank.
const WINDOW_STEP: Duration = Duration::from_millis(500);

impl Front {
    /// Runs until all agents have ended or are lost, and what is left is known, and then ends the job.
    pub(super) fn run_to_end(mut self: Box<Self>) -> Outcome {
        let mut ready = Vec::new();
        match self.is_successor {
            false => self.take(Event::Begin),
            true => self.go_on_for_another(),
        }
        for (number, sender) in std::mem::take(&mut self.early) {
            self.signal(number, sender);
        }
        while !self.job.is_closed() {
            self.hand_on();
            let timeout = self.timeout();
            if let Err(error) = self.poller.wait(timeout, &mut ready) {
                self.note(format!("cannot wait for events: {error}"));
                break;
            }
            self.give(Input::Turn);
            // While output keeps coming, a silent rank may only be slow.
            let quiet = !ready.iter().any(|event| matches!(Token::decode(event.token), Some(Token::Node(_))));
            for &event in &ready {
                self.dispatch(event);
            }
            self.tick(quiet);
        }
        let outcome = self.finish();
        let code = outcome.raise.map_or(outcome.code, ExitCode::signal).0;
        self.await_members();
        if let Some(parent) = self.parent.take() {
            parent.tell_end(code);
        }
        self.reach.end(code, &self.clock, &self.signals);
        self.own_directory = None;
        if let Some(heir) = self.heir.take() {
            heir.dismiss();
        }
        if self.is_alone() {
            // No process is left that somebody holds, and the kernel closes and frees faster than destructors.
            std::mem::forget(self);
        }
        outcome
    }

    /// Goes on where another front has stopped.
    fn go_on_for_another(&mut self) {
        let now = self.now();
        self.reach.recall(&self.job, now);
        self.hear_nodes();
        self.perform_all();
    }

    fn timeout(&self) -> Option<Duration> {
        if self.clock.is_paused() && self.job.is_linked() {
            return None;
        }
        let now = self.now();
        let waits = [
            self.job.deadline(),
            self.drain.deadline().filter(|_| !self.job.is_closing()),
            self.must_watch_window().then(|| now + WINDOW_STEP),
            self.notices.deadline(),
            self.reach.deadline(now),
            (self.job.is_closing() || !self.job.open_seconds().is_empty()).then(|| now + LOOK_STEP),
            self.control.deadline(),
            self.control.look_due().filter(|_| self.keeps_directory()),
            self.delivery.deadline(),
            self.quiet.deadline().filter(|_| !self.delivery.is_away() && !self.job.is_closing()),
        ];
        waits.into_iter().flatten().min().map(|deadline| deadline.saturating_sub(now))
    }

    /// A source is ready: reads it.
    pub(super) fn dispatch(&mut self, ready: Ready) {
        if !self.poller.is_current(ready) {
            return;
        }
        let Some(token) = Token::decode(ready.token) else { return };
        let now = self.now();
        match token {
            Token::Srun(_) => self.reach.hear_srun(&self.job, now),
            Token::Words(node) => self.reach.read_words(&self.job, node),
            Token::Asker(node) => self.reach.hear_asker(node, ready),
            Token::Door => {
                if let Some(enrolment) = &mut self.reach.enrolment {
                    enrolment.accept(now);
                }
            }
            Token::Newcomer(peer) => self.reach.newcomer(&self.job, now, peer, ready),
            Token::Node(node) if self.reach.nodes[node.index()].has_left() => self.reach.hear_left(node, ready),
            Token::Node(node) if !self.reach.nodes[node.index()].is_connected() => {
                self.reach.hear_ssh(&self.job, now, node, ready.writable, ready.readable);
            }
            Token::Node(node) => {
                if ready.writable {
                    self.reach.flush(&self.job, now, node);
                }
                if ready.readable {
                    self.read_node(node);
                }
            }
            Token::Signals => {
                while let Some((number, sender)) = self.signals.next() {
                    self.signal(number, sender);
                }
            }
            Token::Control(Ours::Listener) => self.control.accept(now),
            Token::Control(Ours::Client(client)) => {
                let asked = self.control.ready(now, client, ready);
                while let Some(gone) = self.control.next_gone() {
                    match gone {
                        Gone::Profiler(client) => self.take(Event::ProfileEnd { gone: Some(client) }),
                        Gone::Typist(client) => self.forget_typist(client),
                    }
                }
                self.hear_requests(asked.map(|(by, request)| (client, by, request)));
            }
            Token::Waker => {
                self.waker.clear();
                self.delivery.receive(now);
                self.take_news();
                if let Some(read) = self.delivery.binary.take() {
                    self.reach.has_read_binary(read);
                }
                self.hear_answer();
                self.hand_on_stdin();
            }
        }
        self.hear_nodes();
    }

    /// Handles what the devices of the nodes have found out.
    pub(super) fn hear_nodes(&mut self) {
        while let Some(found) = self.reach.found() {
            found.notes.into_iter().for_each(|text| self.note(text));
            found.words.into_iter().for_each(|text| self.agent_note(text));
            if found.lacks_program {
                let now = self.now();
                self.delivery.files.submit(now, Task::ReadBinary);
            }
            // What follows from them comes after all of them.
            found.events.into_iter().for_each(|event| self.handle(event));
            found.greeted.into_iter().for_each(|node| self.read_node(node));
        }
        self.look_at_stdin();
    }

    /// Another process asks this, and may have sent more; so may those that have had an answer.
    fn hear_requests(&mut self, first: Option<(ClientId, Requester, Request)>) {
        let mut next = first.or_else(|| self.control.next(self.clock.now()));
        while let Some(request) = next {
            let (now, wall) = (self.now(), self.wall());
            if self.console_request(request.0, &request.2) {
                // Done: the job has no part in it.
            } else if let Some(event) = self.control.requested(now, wall, &self.job, request) {
                self.take(event);
            }
            next = self.control.next(self.clock.now());
        }
    }

    /// Handles what an agent has sent: output goes to its destinations, each message is an event.
    ///
    /// One turn of the loop reads a bounded number of bytes, and a byte costs the same however many came before it: signals and
    /// deadlines wait for no longer than that.
    pub(super) fn read_node(&mut self, node: NodeId) {
        if self.reach.nodes[node.index()].remote().is_some() {
            self.take_from(node, NodeEvent::Heard);
        }
        let Some(mut link) = self.reach.nodes[node.index()].link.take() else { return };
        let filled = link.fill();
        loop {
            match link.next() {
                Ok(Some(Frame::Output(head, bytes))) => {
                    let now = self.clock.now();
                    if let Some(ledger) = &mut self.ledger {
                        let (worker, stream, length) = (head.worker, head.stream, bytes.len() as u64);
                        ledger.add(&LedgerEntry::Written { at: now, node, worker, stream, length });
                    }
                    let input = Input::Write { rank: head.worker.rank, stream: head.stream, bytes: bytes.into() };
                    self.job.give(now, input, &mut Vec::new());
                    self.delivery.output(now, head, bytes);
                    self.debts.received(node, head.stream, bytes.len() as u64);
                }
                Ok(Some(Frame::Message(message))) => {
                    self.reach.nodes[node.index()].link = Some(link);
                    self.take_from(node, NodeEvent::HasSent);
                    self.message(node, message);
                    match self.reach.nodes[node.index()].link.take() {
                        Some(same) => link = same,
                        None => return,
                    }
                }
                Ok(None) => break,
                Err(error) => return self.broke(node, &error),
            }
        }
        match filled {
            Ok(()) => self.reach.nodes[node.index()].link = Some(link),
            Err(error) => self.broke(node, &error),
        }
    }

    fn broke(&mut self, node: NodeId, error: &LinkError) {
        let now = self.now();
        self.reach.broke(&self.job, now, node, error);
        self.hear_nodes();
    }

    /// Hands what is ready to the destinations, our own notices included.
    pub(super) fn hand_on(&mut self) {
        self.show_notices();
        self.commit();
        let now = self.now();
        self.job_control.suit(&mut self.delivery.presenter, self.plan.output.same_destination);
        self.delivery.hand_on(now);
        self.take_news();
        self.commit();
    }

    /// Shows our own notices, the report among them, in the order in which they came.
    pub(super) fn show_notices(&mut self) {
        let now = self.now();
        while let Some(text) = self.notices.next() {
            self.delivery.show(now, &Entry::Notice(&text));
            self.delivery.shown.notice(&text);
        }
    }

    /// Handles the events of the destinations.
    pub(super) fn take_news(&mut self) {
        for event in self.delivery.take_events() {
            self.delivered(event);
        }
    }

    fn delivered(&mut self, event: DeliveryEvent) {
        match event {
            DeliveryEvent::Credit { stream, bytes } => {
                if let Some(ledger) = &mut self.ledger {
                    ledger.add(&LedgerEntry::Paid(stream, bytes));
                }
                for (node, bytes) in self.debts.paid(stream, bytes) {
                    self.send_to(node, &ToAgent::Credit { stream, bytes });
                }
            }
            DeliveryEvent::ResultsTaken { node, cost } => self.send_to(node, &ToAgent::ResultsTaken(cost)),
            DeliveryEvent::ResultsFailed(reason) => {
                // Otherwise it is the cause, and the report's first line.
                if self.job.gang().stop_ordered().is_some() {
                    self.note(reason.clone());
                }
                self.event(gang::Event::LogsFailed { reason });
            }
            DeliveryEvent::Note(text) => self.note(text),
            DeliveryEvent::ReaderGone | DeliveryEvent::Failed
                if self.delivery.is_away() || self.goes_on_without_console() => {}
            DeliveryEvent::ReaderGone if !self.job.is_over() || self.job.is_between_attempts() => {
                self.event(gang::Event::OutputGone)
            }
            DeliveryEvent::ReaderGone => {}
            DeliveryEvent::Failed => {
                self.event(gang::Event::OutputFailed);
                self.drain.failed(self.clock.now());
            }
            DeliveryEvent::TranscriptOpened => self.transcript_is_there(),
            DeliveryEvent::TranscriptFailed(why) => self.lose_transcript(&why),
            DeliveryEvent::TranscriptIsFull(reason) => self.event(gang::Event::LogsFailed { reason }),
            DeliveryEvent::TranscriptHasNoWriter => self.lose_writer(),
            DeliveryEvent::LogsOpened => self.take(Event::LogsOpened),
            DeliveryEvent::LogsGivenUp => self.end_without_logs(gang::Event::OutputFailed),
            DeliveryEvent::LogsFailed(reason) => self.end_without_logs(gang::Event::LogsFailed { reason }),
        }
    }

    fn end_without_logs(&mut self, event: gang::Event) {
        self.event(event);
        // The destinations work: they get the output that waited for the log files.
        self.drain.released(self.clock.now());
    }

    fn tick(&mut self, quiet: bool) {
        if self.clock.is_paused() {
            if self.job.is_linked() {
                return;
            }
            // No agent can answer the pause any more.
            self.end_pause();
        }
        let now = self.now();
        if self.reach.starter.tick() || self.job.is_closing() {
            self.reach.look_at_children(&self.job, now);
            self.hear_nodes();
        }
        self.tell_of_files();
        self.hear_answer();
        self.show_rest();
        self.reach.try_seconds(&self.job, now);
        self.reach.call_due(&self.job, now);
        self.reach.give_up_missing(&self.job, now);
        let files = &self.delivery.files;
        self.reach.watch_guards(
            &self.job,
            now,
            &other_children(&self.strangers, &self.commands, files, self.heir.as_ref()),
        );
        self.hear_nodes();
        if let Some(enrolment) = &mut self.reach.enrolment {
            enrolment.tick(now);
        }
        self.take(Event::Tick);
        if self.job.is_closing() {
            self.reach.look_at_holders();
            self.hear_nodes();
        }
        self.notices.note_withheld(now, false, &mut self.delivery.journal);
        self.show_clock(now);
        self.delivery.tick(now, quiet);
        self.control.tick(now);
        self.end_recording();
        if self.control.look_due().is_some_and(|at| at <= now && self.keeps_directory()) {
            self.restore_control();
        }
        self.control.answer_up(now, self.job.last_up());
        self.have_begun();
        self.hear_requests(None);
        if self.must_watch_window() {
            self.resized();
        }
        if self.drain.deadline().is_some_and(|until| until <= now) && !self.job.is_closing() {
            let acts = self.drain.due(now, self.output(), self.job.is_over());
            self.give_up(acts);
        }
    }

    /// A job that prints nothing shows on its terminal that it runs.
    fn show_clock(&mut self, now: Duration) {
        if self.delivery.is_away() {
            return;
        }
        let ranks = || if self.job.is_over() { 0 } else { self.job.alive().len() };
        match self.quiet.tick(now, self.delivery.received(), ranks) {
            Some(Show::Text(text)) => self.delivery.presenter.footer(now, Some(&text)),
            Some(Show::Nothing) => self.delivery.presenter.footer(now, None),
            None => {}
        }
    }

    /// What has become of files that the job waits for.
    fn tell_of_files(&mut self) {
        for (of, stamp) in std::mem::take(&mut self.delivery.stamps) {
            let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
            let stamp = stamp.map(|(time, size)| (nanos(time), size));
            self.take(match of {
                Stamped::Progress(attempt) => Event::Stamped { attempt, stamp },
                Stamped::Notice => Event::NoticeFile { stamp },
            });
        }
        let is_logging = self.delivery.is_logging();
        if std::mem::replace(&mut self.was_logging, is_logging) != is_logging {
            self.take(Event::Logging(is_logging));
        }
    }

    /// The kernel sends SIGWINCH only to the rank that has the terminal.
    fn must_watch_window(&self) -> bool {
        self.job.spec().map.world_size() > 1 && self.job_control.has_group()
    }

    /// Commands of the user's may have ended.
    fn hear_answer(&mut self) {
        if let Some(result) = self.commands.notice() {
            self.take(Event::NoticeCommand(result));
        }
        if let Some(answer) = self.commands.answer(self.job.awaits_policy()) {
            self.take(Event::Answered(answer));
        }
        while let Some((node, command, answer)) = self.commands.next_of_node() {
            self.take(Event::Node { node, event: NodeEvent::CommandEnded { command, answer } });
        }
    }
}
