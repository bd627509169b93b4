//! The front: what it holds, and what is common to all that it handles.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use rankrun_agent::Clock;
use rankrun_core::event::{JobEvent, JobFacts};
use rankrun_core::gang::{self, Effect, Gang, Moment};
use rankrun_core::printable::{fit, printable};
use rankrun_core::standing::{self, Standing, Voice, standings};
use rankrun_core::stderr::Tail;
use rankrun_core::text::WIDTH;
use rankrun_core::worker::StopWhy;
use rankrun_core::{ExitCode, NodeRank};
use rankrun_sys::poll::{Poller, Waker};
use rankrun_sys::signal::SignalFd;
use rankrun_sys::terminal;
use rankrun_wire::ToAgent;

use crate::Plan;
use crate::delivery::{Delivery, Directory, LastWords, Notes, Voices};
use crate::job::event::FrontEffect;
use crate::job::pause::Pause;
use crate::nodes::{END_BOUND, KILLING_BOUND, NodeHandle};
use crate::terminal::{FrontTerminal, Stdin};

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) code: ExitCode,
    /// The signal to end this process by.
    pub(crate) raise: Option<i32>,
}

/// How far files have come with output that no destination took.
#[derive(Debug)]
pub(crate) struct Salvage {
    pub(crate) until: Duration,
    /// Bytes that had come when it was last looked.
    pub(crate) received: Option<u64>,
}

/// The running front.
pub(crate) struct Front {
    pub(crate) plan: Plan,
    /// Whoever waits for the end does not want to wait any more: every wait of ours is over.
    pub(crate) is_hurried: bool,
    pub(crate) started: Instant,
    pub(crate) clock: Clock,
    pub(crate) poller: Poller,
    pub(crate) signals: SignalFd,
    pub(crate) waker: Waker,
    /// The nodes, by rank.
    pub(crate) nodes: Vec<NodeHandle>,
    /// What has been decided and not yet done.
    pub(crate) effects: VecDeque<FrontEffect>,
    /// Signals that arrived before the loop did.
    pub(crate) early: Vec<(i32, i32)>,
    /// Children of this process that are not the job's.
    pub(crate) foreign: Vec<i32>,
    /// What the report says of the job itself.
    pub(crate) facts: JobFacts,
    pub(crate) gang: Gang,
    pub(crate) delivery: Delivery,
    pub(crate) last_words: LastWords,
    pub(crate) voices: Voices,
    /// Where the ranks were when the job was ended from outside.
    pub(crate) standings: Vec<Standing>,
    pub(crate) stdin: Option<Stdin>,
    pub(crate) terminal: Option<FrontTerminal>,
    /// After this, a destination that takes nothing is given up.
    pub(crate) drain_until: Option<Duration>,
    /// Output is being taken in that no destination took.
    pub(crate) salvage: Option<Salvage>,
    /// An agent was left that still had output.
    pub(crate) has_given_up_output: bool,
    pub(crate) pausing: Option<Pause>,
    /// When the ranks that a signal has not ended are to be named.
    pub(crate) alive_due: Option<Duration>,
    /// The terminal has shown `^C` at the start of the row in which we write next.
    pub(crate) key_was_pressed: bool,
    pub(crate) notices: VecDeque<String>,
    pub(crate) notes: Notes,
    /// The calls of MPI that were refused, of which each is named once.
    pub(crate) refused_calls: BTreeSet<String>,
    /// Why the agent cannot serve.
    pub(crate) refused: Option<(String, io::Error)>,
}

impl Front {
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether every agent has said that all is over.
    pub(crate) fn is_over(&self) -> bool {
        self.nodes.iter().all(|node| node.summary.is_some())
    }

    /// Whether any agent can be heard.
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
        self.gang.handle_of(moment, event, &mut effects);
        for effect in effects {
            self.delivery.journal.record(now, || JobEvent::Decision(effect));
            let message = match effect {
                Effect::Stop(stop) => {
                    if let StopWhy::Signal(_) | StopWhy::Timeout = stop.why {
                        self.standings = self.standings_at(now);
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
            self.say(message);
        }
    }

    /// Where the ranks are.
    fn standings_at(&self, now: Duration) -> Vec<Standing> {
        standings(&self.gang, now, |rank| {
            let (at, line) = self.voices.last(rank);
            let traceback = self.last_words.of(rank).and_then(Tail::last_traceback);
            Voice { at, line, traceback: traceback.map(|exception| exception.headline()) }
        })
    }

    /// Somebody wants to know where the ranks are (SIGQUIT). The job goes on.
    pub(crate) fn tell_standings(&mut self, by_key: bool) {
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
    }

    /// The agents have until then to say that all is over.
    pub(crate) fn expect_end(&mut self, by: Duration) {
        for node in self.nodes.iter_mut().filter(|node| node.summary.is_none()) {
            node.watch.expect_end(by);
        }
    }

    /// Sends a message to all nodes.
    pub(crate) fn say(&mut self, message: ToAgent) {
        self.effects.push_back(FrontEffect::Send { to: None, message });
    }

    /// Where report and salvaged output go.
    pub(crate) fn directory(&self) -> Option<Directory> {
        let place = &self.plan.report;
        let path = place.directory.clone()?;
        let below = place.home.clone().filter(|home| path.starts_with(home));
        Some(Directory { path, below, is_chosen: place.is_asked_for })
    }

    /// A note of an agent: it may come from what a rank does thousands of times.
    pub(crate) fn agent_note(&mut self, text: String) {
        let now = self.now();
        if self.plan.verbosity >= 0 && self.notes.take(now, &text) {
            self.note(text);
        }
    }

    /// Says how many notes were not printed: those whose time is over, or all.
    pub(crate) fn tell_withheld_notes(&mut self, now: Option<Duration>) {
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
