//! The front: one job, its loop and its devices, around the machine that decides ([`rankrun_core::job::Job`]).
//!
//! Each source (`run`, `signals`) is turned into events of the job; what the job orders is done in `effects`. `agents` has the messages of
//! agents, `ending` the end. Nobody else has a hand in the front: its fields are private.

mod agents;
mod console;
mod effects;
mod ending;
pub(crate) mod prepared;
pub(crate) mod refusal;
pub(crate) mod replay;
mod requeue;
mod run;
mod signals;
pub(crate) mod start;
mod stdin;
pub(crate) mod succession;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rankrun_agent::Clock;
use rankrun_agent::tidy::{Places, RuntimeDir, RuntimeDirError};
use rankrun_core::debts::Debts;
use rankrun_core::drain::{self, Drain};
use rankrun_core::gang;
use rankrun_core::job::{Effect, Event, Input, Job, Node, NodeEvent, Origin, Wall};
use rankrun_core::names::PublishedNames;
use rankrun_core::quiet::QuietClock;
use rankrun_core::{JobId, NodeId, Pid};
use rankrun_sys::poll::{Poller, Waker};
use rankrun_sys::process::ProcessId;
use rankrun_sys::signal::SignalFd;
use rankrun_wire::ToAgent;
use rankrun_wire::collectives::Collectives;

use self::succession::{Deed, Estate};
use crate::Plan;
use crate::command::Commands;
use crate::control::Control;
use crate::delivery::{Delivery, Directory, Notices};
use crate::heir::Heir;
use crate::ledger::{Entry, LEDGER, Ledger};
use crate::link::Link;
use crate::nodes::{Kept, Reach};
use crate::parent::Parent;
use crate::terminal::{JobControl, Stdin};

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
        // Without it the heir removes the rest, if this process is killed here. There may be none.
        let _ = std::fs::remove_file(self.path().join(LEDGER));
        self.places.remove();
    }
}

/// The running front.
pub(crate) struct Front {
    /// Everything that is decided.
    job: Job,
    /// For a front that takes the place of this one.
    ledger: Option<Ledger>,
    /// It has taken the place of another one, which had begun the job; and which had told how it ended.
    is_successor: bool,
    is_reported: bool,
    /// It starts another front if this one is killed.
    heir: Option<Heir>,
    /// What it has ordered, and what is not done yet.
    effects: VecDeque<Effect>,
    /// An effect is being done: those that follow from it wait.
    is_at_work: bool,
    plan: Plan,
    /// Where the control socket is if no agent on this machine has a directory for it.
    own_directory: Option<OwnDirectory>,
    started: Instant,
    clock: Clock,
    poller: Poller,
    signals: SignalFd,
    waker: Waker,
    /// The devices of the nodes.
    reach: Reach,
    collectives: Collectives,
    names: PublishedNames,
    debts: Debts,
    /// Signals that arrived before the loop started.
    early: Vec<(i32, i32)>,
    /// Children of this process that are not the job's.
    strangers: Vec<i32>,
    commands: Commands,
    delivery: Delivery,
    /// Where in the transcript the output begins that the console has not had.
    left_at: u64,
    /// Where the transcript of those who have looked before ends.
    looked_until: u64,
    /// Whoever waits for all ranks to run (`--detach`).
    parent: Option<Parent>,
    /// There was a transcript: who has looked at the job may want to look at it after its end.
    was_looked_at: bool,
    /// The place of the report has been looked at.
    is_place_probed: bool,
    /// What was kept for the end of an attempt is being shown.
    is_showing: bool,
    /// Log files were being written when the job was last told.
    was_logging: bool,
    /// The socket for `rankrun status`, `stop` and `restart`.
    control: Control,
    stdin: Option<Stdin>,
    /// The clock on a terminal to which nothing is written.
    quiet: QuietClock,
    /// The terminal, and ^Z.
    job_control: JobControl,
    /// Which output is given up, and when.
    drain: Drain,
    /// Our own lines.
    notices: Notices,
}

/// Whether this machine is the only node of a job.
fn is_alone(plan: &Plan) -> bool {
    matches!(&plan.hosts.targets[..], [only] if plan.hosts.is_here(only))
}

/// The children of this process that are neither the job's nor hold its nodes, as of now.
fn other_children<'a>(
    strangers: &'a [i32],
    commands: &'a Commands,
    files: &'a crate::delivery::Files,
    heir: Option<&'a Heir>,
) -> impl Fn() -> Vec<i32> + 'a {
    move || strangers.iter().copied().chain(commands.pids()).chain(files.pids()).chain(heir.map(Heir::pid)).collect()
}

impl Front {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The job takes an event, and what it orders is done.
    fn take(&mut self, event: Event) {
        self.handle(event);
        if !self.is_at_work {
            self.hear_nodes();
        }
    }

    /// The same, but for what the devices of the nodes find out by it.
    fn handle(&mut self, event: Event) {
        self.give(Input::Event(Cow::Owned(event)));
        self.perform_all();
    }

    /// The job is given something. What it orders waits.
    fn give(&mut self, input: Input<'_>) {
        let now = self.now();
        let mut effects = Vec::new();
        match &mut self.ledger {
            Some(ledger) => {
                let entry = Entry::Given(now, input);
                ledger.add(&entry);
                if let Entry::Given(now, input) = entry {
                    self.job.give(now, input, &mut effects);
                }
            }
            None => self.job.give(now, input, &mut effects),
        }
        self.effects.extend(effects);
    }

    /// From now on what this front is given is written down for another one.
    fn begin_ledger(&mut self, directory: &Path, origin: Origin, calls: Kept) -> std::io::Result<()> {
        let deed = Deed {
            build: rankrun_sys::build::id()?,
            plan: Cow::Borrowed(&self.plan),
            origin: Cow::Owned(origin),
            calls,
            door: self.reach.enrolment.as_ref().map(|enrolment| enrolment.kept().clone()),
            cwd: std::env::current_dir()?,
            began: self.clock.started(),
        };
        // A directory without a ledger is removed by whoever comes to go on.
        deed.save(directory)?;
        let ledger = Ledger::create(directory)?;
        self.delivery.keep_for_ledger();
        self.control.hold(0);
        self.ledger = Some(ledger);
        Ok(())
    }

    /// This front takes the place of another one.
    fn take_over(&mut self, estate: Estate) {
        let Estate { directory, places, ledger, deed, job, collectives, names, debts, streams, open, .. } = estate;
        for (node, added) in estate.added {
            self.add_node(node, added);
        }
        self.control.hold(estate.next_client);
        self.clock = Clock::of(deed.began, estate.paused);
        self.job = job;
        (self.collectives, self.names, self.debts) = (collectives, names, debts);
        let (typed, stdin_owed) = (estate.typed, estate.stdin_owed);
        self.ledger = Some(ledger);
        self.was_logging = estate.was_logging;
        if let Some(enrolment) = &mut self.reach.enrolment {
            enrolment.restore(estate.enrolled);
            if let Some(why) = estate.closed {
                enrolment.close(why);
            }
        }
        self.delivery.keep_for_ledger();
        self.delivery.again(estate.unpaid);
        let path = directory.path().to_owned();
        succession::forget_failure(&path);
        self.effects = self.still_wanted(open, &estate.sruns, &path);
        self.own_directory = Some(OwnDirectory { places, directory });
        // The socket of the front that is gone. If it is not there, it is made.
        let _ = std::fs::remove_file(path.join(rankrun_core::control::SOCKET));
        self.listen_for_control(&path);
        for (node, stream) in streams {
            let handle = self.reach.node(node);
            handle.entered = Some(stream.place);
            let link = Link::standing(stream.place, stream.sent);
            match stream.is_left {
                true => handle.leave(link),
                false => handle.link = Some(link),
            }
        }
        self.resume_stdin(typed, stdin_owed);
        // What cannot be read has been shown to nobody.
        for entry in rankrun_output::entries(&estate.recorded).unwrap_or_default() {
            self.delivery.shown.follow(&entry);
            match entry {
                rankrun_output::Entry::Output { rank, stream, bytes, .. } => {
                    self.delivery.shown.output(rank, stream, bytes);
                }
                rankrun_output::Entry::Notice(text) => self.delivery.shown.notice(text),
                _ => {}
            }
        }
        self.is_successor = estate.is_begun;
        self.is_reported = estate.is_reported;
        if let Some(client) = estate.profiled {
            // Who has asked for it has no connection any more.
            self.give(Input::Event(Cow::Owned(Event::ProfileEnd { gone: Some(client) })));
        }
    }

    /// What of the orders that have no answer is to be done again. A step of Slurm may run.
    fn still_wanted(&mut self, open: Vec<Effect>, sruns: &[(usize, ProcessId)], directory: &Path) -> VecDeque<Effect> {
        let mut wanted = VecDeque::new();
        for effect in open {
            let Effect::StartStep { step, mut nodes } = effect else {
                wanted.push_back(effect);
                continue;
            };
            let srun = sruns.iter().rfind(|(of, _)| *of == step).map(|(_, id)| *id);
            if srun.is_none_or(|id| !self.reach.follow_step(step, &nodes, id, directory)) {
                nodes.retain(|node| self.job.nodes().get(*node).is_some_and(Node::is_awaited));
                if !nodes.is_empty() {
                    wanted.push_back(Effect::StartStep { step, nodes });
                }
            }
        }
        wanted
    }

    /// There is always somebody who takes the place of this front.
    fn keep_heir(&mut self) {
        let Some(heir) = &mut self.heir else { return };
        if let Err(error) = heir.renew(self.parent.as_ref()) {
            self.heir = None;
            let why = rankrun_sys::reason(&error);
            self.note(format!("no front takes the place of this one by itself any more (\"rankrun resume\"): {why}"));
        }
    }

    /// Writes the turn to the ledger, if there is one. Only then does what was sent leave.
    fn commit(&mut self) {
        if self.plan.hosts.outlasts_front.is_none() || self.is_at_work {
            // There is none, or what was ordered is not done yet.
            return;
        }
        if let Some(ledger) = &mut self.ledger {
            self.reach.enter(ledger);
            self.delivery.enter(ledger);
        }
        if let Some(Err(error)) = self.ledger.as_mut().map(Ledger::write) {
            // Nobody could go on from what is there, and there may be no room. It is locked until it is gone.
            if let Some(own) = &self.own_directory {
                let _ = std::fs::remove_file(own.path().join(succession::DEED));
                let _ = std::fs::remove_file(own.path().join(LEDGER));
            }
            self.ledger = None;
            self.delivery.end_keeping();
            if let Some(heir) = self.heir.take() {
                heir.dismiss();
            }
            let why = rankrun_sys::reason(&error);
            self.note(format!("no front can take the place of this one any more: its ledger cannot be written: {why}"));
        }
        let now = self.now();
        self.reach.release(&self.job, now);
        self.control.release();
    }

    /// The job takes an event of a node.
    fn take_from(&mut self, node: NodeId, event: NodeEvent) {
        self.take(Event::Node { node, event });
    }

    /// The job takes an event that concerns the output, or the front itself.
    fn event(&mut self, event: gang::Event) {
        self.take(Event::Front(event));
    }

    /// Sends a message to all nodes.
    fn send(&mut self, message: &ToAgent) {
        let now = self.now();
        self.reach.send(&self.job, now, message);
    }

    /// Sends a message to one node.
    fn send_to(&mut self, node: NodeId, message: &ToAgent) {
        let now = self.now();
        self.reach.send_to(&self.job, now, node, message);
    }

    /// Whether this machine is the only node.
    fn is_alone(&self) -> bool {
        is_alone(&self.plan)
    }

    /// This process, and the time of day.
    fn wall(&self) -> Wall {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Wall {
            pid: Pid(std::process::id() as i32),
            now: now.as_secs_f64(),
            shown: self.clock.now(),
            is_detached: self.delivery.is_away(),
        }
    }

    /// The job has a directory here: listens there for requests.
    fn listen_for_control(&mut self, directory: &Path) {
        let now = self.now();
        if let Err(error) = self.control.listen(now, directory)
            && self.plan.verbosity > 0
        {
            let why = rankrun_sys::reason(&error);
            self.note(format!("rankrun status, stop and restart cannot reach this job: {why}"));
        }
    }

    /// Whether the job's directory is there to stay: its agent, or the guard of one that is lost, removes it at the end.
    fn keeps_directory(&self) -> bool {
        !self.job.is_over() && !self.job.nodes().lost().any(Node::is_here)
    }

    /// A rank is started again, or time has passed: a process may have removed the control socket.
    fn restore_control(&mut self) {
        if let Some(text) = self.control.restore(self.now()) {
            self.note(text);
        }
    }

    /// The directory for the report and for output that no destination took.
    fn directory(&self) -> Option<Directory> {
        Directory::of_report(&self.plan.report)
    }

    /// What the destinations are like.
    fn output(&self) -> drain::Output {
        drain::Output {
            is_full: self.delivery.is_full(),
            is_logging: self.delivery.is_logging(),
            is_kept: self.delivery.is_salvaged(),
            can_be_kept: self.plan.report.directory.is_some(),
            is_lost: self.delivery.is_lost(),
            received: self.delivery.received(),
        }
    }

    /// Does what is ordered about output.
    fn give_up(&mut self, acts: Vec<drain::Act>) {
        let now = self.now();
        for act in acts {
            match act {
                drain::Act::Fail => self.event(gang::Event::OutputFailed),
                drain::Act::GiveUpLogs => drop(self.delivery.give_up_logs(now)),
                drain::Act::GiveUpResults => drop(self.delivery.results.give_up(now, &mut self.delivery.files)),
                drain::Act::Keep => {
                    if let Some(directory) = self.directory() {
                        self.delivery.salvage(now, directory);
                    }
                }
                drain::Act::GiveUpAgents => self.take(Event::OutputGivenUp),
            }
        }
    }

    /// Prints a note of an agent, within limits: a rank may cause thousands.
    fn agent_note(&mut self, text: String) {
        let now = self.now();
        self.notices.note_often(now, &text, &mut self.delivery.journal);
    }

    fn note(&mut self, text: String) {
        let now = self.now();
        self.notices.note(now, &text, &mut self.delivery.journal);
    }
}
