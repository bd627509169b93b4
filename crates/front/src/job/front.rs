//! The front's state, and what all its event handlers share.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rankrun_agent::tidy::{Places, RuntimeDir, RuntimeDirError};
use rankrun_agent::{Clock, END_BOUND, KILLING_BOUND};
use rankrun_core::event::{JobEvent, JobFacts};
use rankrun_core::gang::{self, Effect, Gang, Moment, Outside};
use rankrun_core::names::PublishedNames;
use rankrun_core::printable::{fit, printable};
use rankrun_core::silence::Standstill;
use rankrun_core::standing::{self, Standing, Voice, standings};
use rankrun_core::text::WIDTH;
use rankrun_core::worker::{Stop, StopWhy};
use rankrun_core::{ExitCode, JobId, NodeId, NodeRank};
use rankrun_sys::poll::{Poller, Waker};
use rankrun_sys::signal::SignalFd;
use rankrun_sys::terminal;
use rankrun_wire::ToAgent;

use crate::Plan;
use crate::command::Known;
use crate::delivery::{Delivery, Directory, LastLines, LastWords, Notes};
use crate::job::alone::MpiWatch;
use crate::job::attempts::Attempts;
use crate::job::control::{Control, States};
use crate::job::event::FrontEffect;
use crate::job::hooks::HookWatch;
use crate::job::looking::{Looks, Purpose};
use crate::job::muster::Muster;
use crate::job::pause::Pause;
use crate::job::signals::Roll;
use crate::job::successors::Successors;
use crate::nodes::{Collectives, Debts, Enrolment, NodeHandle, Prover, Srun, Ssh};
use crate::starter::Starter;
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

/// Why a job cannot begin, found when guard and agent were running.
pub(crate) struct Refused {
    pub(crate) what: String,
    pub(crate) source: io::Error,
    pub(crate) hint: Option<String>,
    pub(crate) code: ExitCode,
}

/// The private directory of a job that has no agent on this machine. It goes with the front.
pub(crate) struct OwnDirectory {
    places: Places,
    directory: RuntimeDir,
}

impl OwnDirectory {
    pub(crate) fn create(job: &JobId) -> Result<OwnDirectory, RuntimeDirError> {
        let places = Places::of(job);
        let directory = places.create()?;
        Ok(OwnDirectory { places, directory })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        self.places.remove();
    }
}

/// The running front.
pub(crate) struct Front {
    /// Where the control socket is if no agent on this machine has a directory for it.
    pub(crate) own_directory: Option<OwnDirectory>,
    pub(crate) plan: Plan,
    /// The user wants to wait no longer: all our waits end.
    pub(crate) is_hurried: bool,
    pub(crate) started: Instant,
    pub(crate) clock: Clock,
    pub(crate) poller: Poller,
    pub(crate) signals: SignalFd,
    pub(crate) waker: Waker,
    /// All nodes of the job, those that are lost among them.
    pub(crate) nodes: Vec<NodeHandle>,
    /// What brings them together; `None` if this machine is the only one.
    pub(crate) muster: Option<Muster>,
    /// Where they connect, if they join by themselves.
    pub(crate) enrolment: Option<Enrolment>,
    /// Where our own loop stood still, other machines are not to blame.
    pub(crate) standstill: Standstill,
    /// Until when it waits for more nodes than it needs.
    pub(crate) last_call: Option<Duration>,
    pub(crate) collectives: Collectives,
    pub(crate) names: PublishedNames,
    pub(crate) debts: Debts,
    /// The step that starts the agents in a Slurm allocation, and others for the nodes that it has not started, if there are any.
    pub(crate) srun: Vec<Srun>,
    pub(crate) asked_again: Vec<String>,
    /// The thread that starts ssh, srun and commands.
    pub(crate) starter: Starter,
    /// Effects that are decided and not yet performed.
    pub(crate) effects: VecDeque<FrontEffect>,
    /// Signals that arrived before the loop started.
    pub(crate) early: Vec<(i32, i32)>,
    /// Children of this process that are not the job's.
    pub(crate) strangers: Vec<i32>,
    /// The hosts of commands that were started.
    pub(crate) commands: Vec<Known>,
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
    pub(crate) mpi_watch: MpiWatch,
    pub(crate) looks: Looks,
    /// The socket for `rankrun status`, `stop` and `restart`.
    pub(crate) control: Control,
    /// What the agents were asked for these.
    pub(crate) states: States,
    /// Where the ranks were when the job was ended from outside.
    pub(crate) standings: Vec<Standing>,
    pub(crate) stdin: Option<Stdin>,
    pub(crate) terminal: Option<FrontTerminal>,
    /// The front was found without its control socket, and when to look again.
    pub(crate) is_control_lost: bool,
    pub(crate) next_control_look: Duration,
    /// After this time, a destination that does not take its output is given up.
    pub(crate) drain_until: Option<Duration>,
    /// Output that no destination took is being written to files.
    pub(crate) salvage: Option<Salvage>,
    /// An agent was given up while it still had output.
    pub(crate) has_given_up_output: bool,
    pub(crate) pausing: Option<Pause>,
    /// Which ranks a signal has not ended.
    pub(crate) roll: Roll,
    /// The terminal has shown `^C` at the start of the row that we write next.
    pub(crate) key_was_pressed: bool,
    pub(crate) notices: VecDeque<String>,
    pub(crate) notes: Notes,
    /// The MPI calls that were refused: each is noted once.
    pub(crate) refused_calls: BTreeSet<String>,
    /// The nodes on which it could not be proved that nothing is left.
    pub(crate) unproven: Vec<NodeId>,
    /// The node whose guard is lost.
    pub(crate) unguarded: Option<String>,
    /// Why the job cannot begin.
    pub(crate) refused: Option<Refused>,
}

impl Front {
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The nodes of the present attempt, by rank.
    pub(crate) fn seated(&self) -> impl Iterator<Item = &NodeHandle> {
        self.nodes.iter().filter(|node| node.place.is_some())
    }

    /// The node at a place of the present attempt.
    pub(crate) fn node_at(&self, place: NodeRank) -> Option<NodeId> {
        // Those that are left out have moved it towards the front only.
        let from = self.nodes.get(place.index()..)?;
        from.iter().find(|node| node.place == Some(place)).map(|node| node.id)
    }

    /// Whether every agent has reported the end, or is lost.
    pub(crate) fn is_over(&self) -> bool {
        self.nodes.iter().all(|node| node.summary.is_some() || node.lost.is_some())
    }

    /// Children of this process that neither are guards and agents nor come from them.
    pub(crate) fn foreign(&self) -> Vec<i32> {
        let remotes = || self.nodes.iter().filter_map(NodeHandle::remote);
        let ssh = remotes().filter_map(|it| it.ssh.as_ref()).filter_map(Ssh::pid);
        let provers = remotes().filter_map(|it| it.prover.as_ref()).filter_map(Prover::pid);
        let askers = remotes().flat_map(|it| it.asker.pids());
        let own = self
            .srun
            .iter()
            .filter_map(Srun::pid)
            .chain(ssh)
            .chain(provers)
            .chain(askers)
            .chain(self.commands.iter().filter_map(Known::pid))
            .chain(self.starter.under_way())
            .chain(self.delivery.files.pids());
        self.strangers.iter().copied().chain(own).collect()
    }

    /// Whether any agent is connected, or about to be.
    pub(crate) fn is_linked(&self) -> bool {
        self.nodes.iter().any(NodeHandle::is_alive)
    }

    /// An event that is the front's own.
    pub(crate) fn event(&mut self, event: gang::Event) {
        let now = self.now();
        self.event_of(Moment::of_front(now), event);
    }

    /// An event that happened on a node, at a time of its clock.
    pub(crate) fn node_event(&mut self, node: NodeId, at: Duration, event: gang::Event) {
        let moment = self.nodes[node.index()].clock.moment(self.clock.now(), at);
        self.event_of(moment, event);
    }

    fn event_of(&mut self, moment: Moment, event: gang::Event) {
        let mut effects = Vec::new();
        let now = moment.now;
        let journal = &mut self.delivery.journal;
        journal.record(now, || JobEvent::Gang {
            happened: moment.at,
            clock: moment.clock,
            event: Box::new(event.clone()),
        });
        let before = self.gang.outside();
        self.gang.handle_of(moment, event, &mut effects);
        let is_interrupt = before.is_none() && matches!(self.gang.outside(), Some(Outside::Interrupted(_)));
        for effect in effects {
            self.delivery.journal.record(now, || JobEvent::Decision(effect));
            let message = match effect {
                Effect::Stop(stop) => {
                    if let StopWhy::Signal(_) | StopWhy::Timeout | StopWhy::Hang = stop.why {
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
            let ends_from_outside = matches!(
                message,
                ToAgent::Stop(Stop { why: StopWhy::Signal(_) | StopWhy::Timeout | StopWhy::Hang, .. })
            ) && !self.alive().is_empty();
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
        for line in standing::lines(&self.standings_at(now), standing::GROUPS) {
            text.push_str("\n  ");
            text.push_str(&fit(&printable(&line), WIDTH));
        }
        self.delivery.journal.record(now, || JobEvent::Note(text.clone()));
        // The terminal has shown `^\`.
        let over_key = if by_key && terminal::is_terminal(rustix::stdio::stderr()) { "\r" } else { "" };
        self.notices.push_back(format!("{over_key}{text}"));
        self.ask_for_hooks(true);
        if !self.alive().is_empty() {
            self.look(Purpose::Asked, None, false);
        }
    }

    /// The agents must report the end by then.
    pub(crate) fn expect_end(&mut self, by: Duration) {
        for node in self.nodes.iter_mut().filter(|node| node.summary.is_none()) {
            node.expect_end(by);
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
