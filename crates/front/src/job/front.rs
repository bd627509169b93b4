//! The front's state, and what all its event handlers share.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use rankrun_agent::Clock;
use rankrun_core::event::{JobEvent, JobFacts};
use rankrun_core::gang::{self, Effect, Gang, Moment, Outside};
use rankrun_core::printable::{fit, printable};
use rankrun_core::standing::{self, Standing, Voice, standings};
use rankrun_core::text::WIDTH;
use rankrun_core::worker::{Stop, StopWhy};
use rankrun_core::{ExitCode, NodeRank};
use rankrun_sys::poll::{Poller, Waker};
use rankrun_sys::signal::SignalFd;
use rankrun_sys::terminal;
use rankrun_wire::ToAgent;

use crate::Plan;
use crate::delivery::{Delivery, Directory, LastLines, LastWords, Notes};
use crate::job::attempts::Attempts;
use crate::job::control::{Control, States};
use crate::job::event::FrontEffect;
use crate::job::hooks::HookWatch;
use crate::job::pause::Pause;
use crate::job::successors::Successors;
use crate::nodes::{END_BOUND, KILLING_BOUND, NodeHandle};
use crate::terminal::{FrontTerminal, Stdin};

/// How the job ended.
pub(crate) struct Outcome {
    pub(crate) code: ExitCode,
    /// The signal to end this process by.
    pub(crate) raise: Option<i32>,
}

/// The progress of writing the output that no destination took.
#[derive(Debug)]
pub(crate) struct Salvage {
    pub(crate) until: Duration,
    /// Bytes received at the last check.
    pub(crate) received: Option<u64>,
}

/// The running front.
pub(crate) struct Front {
    pub(crate) plan: Plan,
    /// The user wants to wait no longer: all our waits end.
    pub(crate) is_hurried: bool,
    pub(crate) started: Instant,
    pub(crate) clock: Clock,
    pub(crate) poller: Poller,
    pub(crate) signals: SignalFd,
    pub(crate) waker: Waker,
    /// The nodes, by rank.
    pub(crate) nodes: Vec<NodeHandle>,
    /// Effects that are decided and not yet performed.
    pub(crate) effects: VecDeque<FrontEffect>,
    /// Signals that arrived before the loop started.
    pub(crate) early: Vec<(i32, i32)>,
    /// Children of this process that are not the job's.
    pub(crate) foreign: Vec<i32>,
    /// The report's data about the job itself.
    pub(crate) facts: JobFacts,
    /// Of the present attempt.
    pub(crate) gang: Gang,
    pub(crate) attempts: Attempts,
    /// Of single ranks.
    pub(crate) successors: Successors,
    pub(crate) delivery: Delivery,
    pub(crate) last_words: LastWords,
    pub(crate) last_lines: LastLines,
    pub(crate) hooks: HookWatch,
    /// The socket for `rankrun status`, `stop` and `restart`.
    pub(crate) control: Control,
    /// What the agents were asked for these.
    pub(crate) states: States,
    /// Where the ranks were when the job was ended from outside.
    pub(crate) standings: Vec<Standing>,
    pub(crate) stdin: Option<Stdin>,
    pub(crate) terminal: Option<FrontTerminal>,
    /// After this time, a destination that does not take its output is given up.
    pub(crate) drain_until: Option<Duration>,
    /// Output that no destination took is being written to files.
    pub(crate) salvage: Option<Salvage>,
    /// An agent was given up while it still had output.
    pub(crate) has_given_up_output: bool,
    pub(crate) pausing: Option<Pause>,
    /// When to ask for the ranks that a signal has not ended.
    pub(crate) alive_due: Option<Duration>,
    /// The terminal has shown `^C` at the start of the row that we write next.
    pub(crate) key_was_pressed: bool,
    pub(crate) notices: VecDeque<String>,
    pub(crate) notes: Notes,
    /// The MPI calls that were refused: each is noted once.
    pub(crate) refused_calls: BTreeSet<String>,
    /// Why the agent cannot start.
    pub(crate) refused: Option<(String, io::Error)>,
}

impl Front {
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether every agent has reported the end.
    pub(crate) fn is_over(&self) -> bool {
        self.nodes.iter().all(|node| node.summary.is_some())
    }

    /// Whether any agent is connected.
    pub(crate) fn is_linked(&self) -> bool {
        self.nodes.iter().any(|node| node.link.is_some())
    }

    /// An event that is the front's own.
    pub(crate) fn event(&mut self, event: gang::Event) {
        let now = self.now();
        self.event_of(Moment { now, at: now }, event);
    }

    /// An event that happened on a node, at a time of its clock.
    pub(crate) fn node_event(&mut self, node: NodeRank, at: Duration, event: gang::Event) {
        let moment = self.nodes[node.index()].clock.moment(self.clock.now(), at);
        self.event_of(moment, event);
    }

    fn event_of(&mut self, moment: Moment, event: gang::Event) {
        let mut effects = Vec::new();
        let now = moment.now;
        let journal = &mut self.delivery.journal;
        journal.record(now, || JobEvent::Gang { happened: moment.at, event: Box::new(event.clone()) });
        let before = self.gang.outside();
        self.gang.handle_of(moment, event, &mut effects);
        let is_interrupt = before.is_none() && matches!(self.gang.outside(), Some(Outside::Interrupted(_)));
        for effect in effects {
            self.delivery.journal.record(now, || JobEvent::Decision(effect));
            let message = match effect {
                Effect::Stop(stop) => {
                    if let StopWhy::Signal(_) | StopWhy::Timeout = stop.why {
                        // Most signals do not end a rank that is stuck at once.
                        self.ask_for_hooks(false);
                    }
                    self.expect_end(now + stop.longest(&self.plan.spec.stop) + END_BOUND);
                    self.await_ends(now, stop);
                    ToAgent::Stop(stop)
                }
                Effect::Kill => {
                    self.expect_end(now + KILLING_BOUND);
                    ToAgent::Kill
                }
            };
            let ends_from_outside =
                matches!(message, ToAgent::Stop(Stop { why: StopWhy::Signal(_) | StopWhy::Timeout, .. }))
                    && !self.alive().is_empty();
            self.send(message);
            if ends_from_outside {
                // This reads what the ranks have written: the stop is sent before.
                self.effects.push_back(FrontEffect::KeepStandings(now));
            }
        }
        if is_interrupt {
            self.note_interrupt();
        }
    }

    /// The state of each rank.
    pub(crate) fn standings_at(&self, now: Duration) -> Vec<Standing> {
        standings(&self.gang, now, |rank| {
            let (at, line) = self.last_lines.last(rank);
            let traceback = self.last_words.suspicious(rank);
            Voice { at, line, traceback: traceback.map(|exception| exception.headline()) }
        })
    }

    /// Prints the state of the ranks (SIGQUIT). The job goes on.
    pub(crate) fn print_standings(&mut self, by_key: bool) {
        let now = self.now();
        let mut text = format!("rankrun: after {:.1} s:", self.started.elapsed().as_secs_f64());
        for line in standing::lines(&self.standings_at(now)) {
            text.push_str("\n  ");
            text.push_str(&fit(&printable(&line), WIDTH));
        }
        self.delivery.journal.record(now, || JobEvent::Note(text.clone()));
        // The terminal has shown `^\`.
        let over_key = if by_key && terminal::is_terminal(rustix::stdio::stderr()) { "\r" } else { "" };
        self.notices.push_back(format!("{over_key}{text}"));
        self.ask_for_hooks(true);
    }

    /// The agents must report the end by then.
    pub(crate) fn expect_end(&mut self, by: Duration) {
        for node in self.nodes.iter_mut().filter(|node| node.summary.is_none()) {
            node.watch.expect_end(by);
        }
    }

    /// Sends a message to all nodes.
    pub(crate) fn send(&mut self, message: ToAgent) {
        self.effects.push_back(FrontEffect::Send(message));
    }

    /// The directory for the report and for output that no destination took.
    pub(crate) fn directory(&self) -> Option<Directory> {
        let place = &self.plan.report;
        let path = place.directory.clone()?;
        let below = place.home.clone().filter(|home| path.starts_with(home));
        Some(Directory { path, below, is_chosen: place.is_asked_for })
    }

    /// Prints a note of an agent, within limits: a rank may cause thousands.
    pub(crate) fn agent_note(&mut self, text: String) {
        let now = self.now();
        if self.plan.verbosity >= 0 && self.notes.take(now, &text) {
            self.note(text);
        }
    }

    /// Prints how many notes were not printed: those of periods that are over, or all.
    pub(crate) fn print_withheld_notes(&mut self, now: Option<Duration>) {
        for text in self.notes.withheld(now) {
            self.note(text);
        }
    }

    pub(crate) fn note(&mut self, text: String) {
        if self.plan.verbosity >= 0 {
            let now = self.now();
            // Parts of it may be a program's words.
            let text = printable(&text);
            self.delivery.journal.record(now, || JobEvent::Note(text.to_string()));
            self.notices.push_back(format!("rankrun: {text}"));
        }
    }
}
