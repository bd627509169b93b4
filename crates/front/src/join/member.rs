//! A node that joins: from the first connection to the job's exit code.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use bytes::Bytes;
use rankrun_agent::staff::FRONT_LIVES;
use rankrun_agent::{Clock, GuardState, Keeper, LOOK_STEP, LastKnown, Options, Proof, launch_in};
use rankrun_core::contact::{ANSWER_BOUND, Asks, Contact, Step, try_bound};
use rankrun_core::{ExitCode, JobId, LocalRank, NodeRank, Rank, RankMap};
use rankrun_output::{Config, Names};
use rankrun_sys::fork;
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_wire::identity::{Accepted, Admission, MAX_ENROLMENT, Node, Purpose};
use rankrun_wire::{Memory, Tap, Transport};

use super::call::{Call, Trouble};
use super::dial::{DialError, Dialer};
use super::own_output::OwnOutput;
use super::{Join, Member};
use crate::Plan;
use crate::delivery::report;
use crate::delivery::{Task, perform};
use crate::outcome::Outcome;

/// Bytes moved at a time.
const READ: usize = 256 * 1024;
/// How long the guard may take to end after the agent.
const GUARD_BOUND: Duration = Duration::from_secs(15);
/// How long to try to tell the front that this node has ended.
const TELL_BOUND: Duration = Duration::from_secs(20);
/// The same if the front has closed the stream before the agent.
const ORPHAN_BOUND: Duration = Duration::from_secs(5);
/// Bytes of names of shared memory that are sent with it: the message has a limit ([`MAX_ENROLMENT`]), and a certificate in it.
const MEMORY_MOST: usize = MAX_ENROLMENT / 4;
/// How long our own stdout and stderr may take for the last output.
const OUTPUT_BOUND: Duration = Duration::from_secs(5);

/// How long to wait for the file in which Kubernetes reads why a container has ended.
const TERMINATION_BOUND: Duration = Duration::from_secs(1);

const FRONT: u64 = 0;
const AGENT: u64 = 1;
const SIGNALS: u64 = 2;
const CALL: u64 = 3;

/// How often to look whether the front is silent.
const LOOK: Duration = Duration::from_secs(1);

/// What a node other than the front must know.
pub(crate) struct MemberPlan {
    pub(crate) join: Join,
    pub(crate) rank: Option<NodeRank>,
    pub(crate) agent: Options,
    /// How it writes the output of its own ranks, if it does, and where they are.
    pub(crate) output: Option<(Config, RankMap)>,
    pub(crate) is_quiet: bool,
    pub(crate) color: bool,
}

/// Runs this node to the end of the job. The calling process must have one thread.
pub(crate) fn run(plan: Plan, member: Member) -> Outcome {
    let Some(join) = plan.join.clone() else { return Outcome { code: ExitCode::INTERNAL, raise: None } };
    run_as(MemberPlan {
        join,
        rank: member.rank,
        agent: plan.node.clone(),
        output: Some((plan.output.clone(), plan.spec.map.clone())),
        is_quiet: plan.verbosity < 0,
        color: plan.color,
    })
}

/// The same, of a node that is told what it must know.
pub(crate) fn run_as(plan: MemberPlan) -> Outcome {
    let color = plan.color;
    join_and_run(plan).unwrap_or_else(|error| {
        let (code, hint) = match &error {
            DialError::Signal(signal) => return Outcome { code: ExitCode::signal(*signal), raise: Some(*signal) },
            DialError::TimedOut { .. } => (
                ExitCode::NODE_LOST,
                Some("node 0 is the one that listens there; all nodes need the same secret".to_owned()),
            ),
            DialError::Denied { .. } | DialError::Gone { .. } => (ExitCode::NODE_LOST, None),
            DialError::Io(_) => (ExitCode::INTERNAL, None),
        };
        let source = match &error {
            DialError::Io(source) => Some(source),
            DialError::TimedOut { .. } | DialError::Denied { .. } | DialError::Gone { .. } | DialError::Signal(_) => {
                None
            }
        };
        report::error(color, &error.to_string(), source, hint.as_deref());
        Outcome { code, raise: None }
    })
}

fn join_and_run(plan: MemberPlan) -> Result<Outcome, DialError> {
    let MemberPlan { join, rank, agent, output, is_quiet, color } = plan;
    signal::ignore(signal::SIGPIPE);
    let signals = SignalFd::new(&[signal::SIGCHLD, signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGQUIT])?;
    fork::become_subreaper()?;
    let poller = Poller::new()?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut node = Node::new(&join.secret, rank, host)?;
    node.expect_nodes(join.nodes);
    let mut note = |why: &str| {
        if !is_quiet {
            report::note(&format!("cannot reach node 0 at {} yet: {why}", join.front));
        }
    };
    let mut dialer =
        Dialer { at: &join.front, signals: &signals, poller: &poller, token: FRONT, known: None, note: &mut note };
    let (admission, transport) = match dialer.dial(&mut node, Purpose::Join, join.start_timeout)? {
        (Accepted::Admitted(admission), Some(transport)) => (admission, transport),
        (Accepted::Admitted(_) | Accepted::Alive | Accepted::Over { .. }, _) => {
            return Err(io::Error::other("the front has answered otherwise than it was asked").into());
        }
    };
    let known = dialer.known;
    // Two nodes may be one machine: each has a directory and a cgroup of its own.
    let job = JobId(format!("{}-n{}", admission.job, admission.node));
    let options = rankrun_agent::Options { is_away: true, lends_terminal: false, ..agent };
    let launched = launch_in(&job, admission.session, options)?;
    // From here on this process may have threads.
    let agent = Conn::of_socket(&poller.registry(), AGENT, launched.stream.as_fd().try_clone_to_owned()?)?;
    let output = output.map(|(config, map)| OwnOutput::new(config, names(map, &admission))).transpose()?;
    poller.add(&signals, SIGNALS, Interest::Read)?;
    let (clock, mut contact) = (Clock::default(), Contact::default());
    contact.heard(clock.now());
    let running = Running {
        job,
        clock,
        poller,
        signals,
        keeper: Keeper::new(launched),
        front: Some(transport),
        known,
        node_timeout: admission.node_timeout,
        contact,
        asking: None,
        agent: Some(agent),
        tap: Tap::default(),
        output,
        is_orphan: false,
        signal: None,
    };
    running.run_to_end(&join, &mut node, color, is_quiet)
}

/// The names of ranks in the tags of this node's own output.
fn names(map: RankMap, admission: &Admission) -> impl Fn(Rank) -> Names + Send + 'static {
    let own = admission.node;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    move |rank| match map.place(rank) {
        Some(place) if place.node == own => Names { node: host.clone(), local_rank: place.local_rank, app: place.app },
        _ => Names { node: host.clone(), local_rank: LocalRank(0), app: Default::default() },
    }
}

/// A fresh connection to the front, over which it is asked whether it lives.
struct Asking {
    call: Call,
    /// An answer counts until then.
    until: Duration,
}

struct Running {
    job: JobId,
    clock: Clock,
    poller: Poller,
    signals: SignalFd,
    keeper: Keeper,
    /// `None` once it is gone.
    front: Option<Transport>,
    /// Where it is.
    known: Option<SocketAddr>,
    /// How long it may be silent, what is known of its life, and the fresh connection over which it is asked.
    node_timeout: Duration,
    contact: Contact,
    asking: Option<Asking>,
    agent: Option<Conn>,
    tap: Tap,
    /// `None`: the front alone has it.
    output: Option<OwnOutput>,
    /// The front went first: the agent still ends its workers, and the guard outlives it.
    is_orphan: bool,
    /// Somebody wants this node to end.
    signal: Option<i32>,
}

impl Running {
    fn run_to_end(mut self, join: &Join, node: &mut Node, color: bool, is_quiet: bool) -> Result<Outcome, DialError> {
        // Bytes may have come with the admission.
        self.read_front();
        let (code, memory) = self.await_guard(node)?;
        let memory = memory.map(|memory| memory.within(MEMORY_MOST));
        let now = self.clock.now();
        // Where the front has gone first it may be at its end, as this node is.
        let bound = if self.is_orphan { ORPHAN_BOUND } else { TELL_BOUND };
        let mut dialer = Dialer {
            at: &join.front,
            signals: &self.signals,
            poller: &self.poller,
            token: FRONT,
            known: self.known,
            note: &mut |_| {},
        };
        let over = dialer.dial(node, Purpose::Ended { code: code.0, lapse: self.keeper.lapse(), memory }, bound);
        let last = self.output.map(|output| output.finish(now, OUTPUT_BOUND)).unwrap_or_default();
        let outcome = match (over, self.signal) {
            (Ok((Accepted::Over { code: job, why }, _)), _) => {
                // Only node 0 has the report: without the line nothing in this node's log says why its ranks were ended.
                if !why.is_empty() && !is_quiet {
                    report::note(&format!("the job has ended: {why}; the report is on node 0"));
                }
                Outcome { code: ExitCode(job), raise: None }
            }
            (_, Some(signal)) | (Err(DialError::Signal(signal)), None) => {
                Outcome { code: ExitCode::signal(signal), raise: Some(signal) }
            }
            (Err(error), None) => {
                let what = if self.is_orphan { "lost node 0, and ended the ranks of this node" } else { "lost node 0" };
                report::error(color, &format!("{what}: {error}"), None, None);
                Outcome { code: ExitCode::NODE_LOST, raise: None }
            }
            (Ok((Accepted::Admitted(_) | Accepted::Alive, _)), None) => {
                Outcome { code: ExitCode::INTERNAL, raise: None }
            }
        };
        let why = Task::SayWhyEnded(String::from_utf8_lossy(&last).into_owned());
        // It is for people only, who have the log too.
        let _ = perform(&self.job, vec![why], TERMINATION_BOUND);
        let is_left = code != ExitCode::SUCCESS && outcome.code == ExitCode::SUCCESS;
        Ok(if is_left { Outcome { code, raise: None } } else { outcome })
    }

    /// Moves bytes until agent and guard have ended. Returns whether nothing is left, and what the guard has found in /dev/shm.
    fn await_guard(&mut self, node: &Node) -> io::Result<(ExitCode, Option<Memory>)> {
        let mut ready: Vec<Ready> = Vec::new();
        let mut ended_at = None;
        loop {
            let now = self.clock.now();
            if self.agent.is_none() {
                self.front = None;
                let is_late = now.saturating_sub(*ended_at.get_or_insert(now)) > GUARD_BOUND && !self.is_orphan;
                if self.keeper.state != GuardState::Alive || is_late {
                    break;
                }
            }
            let output = self.output.as_ref().and_then(OwnOutput::deadline);
            let due = [self.keeper.watch.deadline(), output].into_iter().flatten().min();
            let due = due.map(|due| due.saturating_sub(now));
            let step = if self.agent.is_none() { Some(LOOK_STEP) } else { self.front.as_ref().map(|_| LOOK) };
            self.poller.wait([due, step].into_iter().flatten().min(), &mut ready)?;
            for &event in &ready {
                if self.poller.is_current(event) {
                    self.dispatch(node, event);
                }
            }
            let now = self.clock.now();
            self.ask_front(now);
            if let Some(output) = &mut self.output {
                output.tick(now);
            }
            self.look_after(now);
        }
        let Proof { is_empty, memory } = self.keeper.prove(LastKnown::unknown(), &[]);
        Ok((if is_empty { ExitCode::SUCCESS } else { ExitCode::LEFT_BEHIND }, memory))
    }

    fn dispatch(&mut self, node: &Node, event: Ready) {
        match event.token {
            CALL => self.hear_answer(node),
            FRONT => {
                if event.writable && self.front.as_mut().is_some_and(|front| front.flush().is_err()) {
                    self.lose_front();
                }
                if event.readable {
                    self.read_front();
                }
            }
            AGENT => {
                if event.writable && self.agent.as_mut().is_some_and(|agent| agent.flush().is_err()) {
                    self.agent = None;
                }
                if event.readable {
                    self.read_agent();
                }
            }
            _ => self.take_signals(),
        }
    }

    /// Moves what the front has sent.
    fn read_front(&mut self) {
        loop {
            let Some(front) = &mut self.front else { return };
            let mut room = vec![0; READ];
            match front.read(&mut room) {
                Ok(Incoming::Bytes(count)) => {
                    self.contact.heard(self.clock.now());
                    let has_more = front.has_more();
                    room.truncate(count);
                    if let Some(agent) = &mut self.agent {
                        // If it is gone, its own end says so.
                        let _ = agent.send([Bytes::from(room)]);
                    }
                    if !has_more {
                        return;
                    }
                }
                Ok(Incoming::Nothing) => return,
                Ok(Incoming::End) | Err(_) => return self.lose_front(),
            }
        }
    }

    /// Asks the front over a fresh connection, if it has been silent for long. Whether it is lost, the agent decides.
    fn ask_front(&mut self, now: Duration) {
        let (Some(_), Some(address)) = (&self.front, self.known) else { return };
        self.asking.take_if(|asking| asking.until <= now);
        let asks = Asks::Us { is_open: self.asking.is_some() };
        if self.contact.look(now, self.node_timeout, asks) == Step::Ask {
            let call = Call::begin(self.poller.registry(), CALL, Purpose::Alive, address);
            // One that cannot be begun is tried again after a step.
            self.asking = call.ok().map(|call| Asking { call, until: now + try_bound(self.node_timeout) });
        }
    }

    /// The fresh connection is ready.
    fn hear_answer(&mut self, node: &Node) {
        let now = self.clock.now();
        let Some(mut asking) = self.asking.take_if(|asking| now < asking.until) else { return };
        match asking.call.ready(node) {
            Ok(None) => {
                if asking.call.has_claimed() {
                    asking.until = asking.until.min(now + ANSWER_BOUND);
                }
                self.asking = Some(asking);
            }
            Ok(Some(Accepted::Alive)) => {
                self.contact.answered(now, self.node_timeout);
                self.keeper.signal_agent(FRONT_LIVES);
            }
            // It has given up this node, and closed the other connection.
            Err(Trouble::Denied(_)) => self.lose_front(),
            Ok(Some(Accepted::Admitted(_) | Accepted::Over { .. })) | Err(Trouble::Failed(_)) => {}
        }
    }

    /// Moves what the agent has sent, and writes the output in it.
    fn read_agent(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let mut room = vec![0; READ];
        match agent.read(&mut room) {
            Ok(Incoming::Bytes(count)) => {
                room.truncate(count);
                if let Some(output) = &mut self.output {
                    let now = self.clock.now();
                    self.tap.pass(&room, |head, bytes| output.output(now, head, bytes));
                }
                if self.front.as_mut().is_some_and(|front| front.send([Bytes::from(room)]).is_err()) {
                    self.lose_front();
                }
            }
            Ok(Incoming::Nothing) => {}
            Ok(Incoming::End) | Err(_) => self.agent = None,
        }
    }

    /// The agent sees the end of the stream, and ends its workers.
    fn lose_front(&mut self) {
        self.is_orphan |= self.agent.is_some();
        (self.front, self.agent) = (None, None);
    }

    fn take_signals(&mut self) {
        while let Some((number, _)) = self.signals.next() {
            if number == signal::SIGCHLD {
                continue;
            }
            // The agent tells the front, which ends the job or goes on without this node.
            let told = if number == signal::SIGINT { signal::SIGINT } else { signal::SIGTERM };
            let is_told = self.signal.is_none() && self.keeper.signal_agent(told);
            self.signal.get_or_insert(number);
            if !is_told {
                // It is the second one, or there is nobody to tell.
                self.lose_front();
            }
        }
        let now = self.clock.now();
        self.keeper.children_changed(now, self.agent.is_some());
    }

    /// Gives up guard and agent if they hang.
    fn look_after(&mut self, now: Duration) {
        if self.keeper.end_what_hangs(now, self.agent.is_some()) {
            self.agent = None;
        }
    }
}
