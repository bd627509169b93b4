//! A node that joins: from the first connection to the job's exit code.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rankrun_agent::staff::FRONT_LIVES;
use rankrun_agent::{Held, Holder, Options, Terms, launch_in};
use rankrun_core::contact::{ANSWER_BOUND, Asks, Contact, Step, try_bound};
use rankrun_core::gang::SECOND_INTERRUPT;
use rankrun_core::{ExitCode, JobId, LocalRank, NodeRank, Rank, RankMap};
use rankrun_output::{Config, Names};
use rankrun_sys::fork;
use rankrun_sys::poll::{Interest, Poller, Ready, Waker};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_wire::identity::{Accepted, Admission, JoinError, MAX_ENROLMENT, Node, Purpose};
use rankrun_wire::pipe::Pipe;
use rankrun_wire::{Carrier, Tap, Transport};

use super::call::{Call, Trouble};
use super::dial::{DialError, Dialer, FIRST_WAIT, GONE_AFTER, LONGEST_WAIT};
use super::own_output::{Bounds, OwnOutput};
use super::settings::{Join, Member};
use crate::Plan;
use crate::delivery::report;
use crate::delivery::{Task, perform};
use crate::outcome::Outcome;

/// How long to try to tell the front that this node has ended.
const TELL_BOUND: Duration = Duration::from_secs(20);
/// The same if this node is to end at once.
const HURRIED_BOUND: Duration = Duration::from_secs(1);
/// The same if the front has closed the stream before the agent.
const ORPHAN_BOUND: Duration = Duration::from_secs(5);
/// Bytes of names of shared memory that are sent with it: the message has a limit ([`MAX_ENROLMENT`]), and a certificate in it.
const MEMORY_MOST: usize = MAX_ENROLMENT / 4;
/// How long our own stdout and stderr may take nothing of the last output, and how long if this node is to end at once.
const OUTPUT_BOUND: Duration = Duration::from_secs(5);
const HURRIED_OUTPUT: Duration = Duration::from_millis(200);

/// How long to wait for the file in which Kubernetes reads why a container has ended.
const TERMINATION_BOUND: Duration = Duration::from_secs(1);

const ASKING: u64 = Held::OTHERS;
const WRITTEN: u64 = Held::OTHERS + 1;
const RETURNING: u64 = Held::OTHERS + 2;

/// So long after a signal the front that decides about it may be missing.
const UNDECIDED: Duration = Duration::from_secs(5);

/// How often to look whether the front is silent.
const LOOK: Duration = Duration::from_secs(1);

/// What a node other than the front must know.
pub(crate) struct MemberPlan {
    pub(crate) join: Join,
    pub(crate) rank: Option<NodeRank>,
    pub(crate) agent: Options,
    /// How long its own destinations may take for the last output.
    pub(crate) drain: Duration,
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
        drain: plan.drain.max(HURRIED_OUTPUT),
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
    let MemberPlan { join, rank, agent, drain, output, is_quiet, color } = plan;
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
    let mut dialer = Dialer {
        at: &join.front,
        signals: &signals,
        poller: &poller,
        token: Held::FRONT,
        known: None,
        awaits_end: true,
        gone_after: GONE_AFTER,
        note: &mut note,
    };
    let (admission, carrier) = match dialer.dial(&mut node, Purpose::Join, join.start_timeout)? {
        (Accepted::Admitted(admission), Some(carrier)) => (admission, carrier),
        (Accepted::Admitted(_) | Accepted::Alive | Accepted::Over { .. }, _) => {
            return Err(io::Error::other("the front has answered otherwise than it was asked").into());
        }
    };
    let known = dialer.known;
    let keep = admission.keep;
    let front = stream(&admission, carrier)?;
    // Two nodes may be one machine: each has a directory and a cgroup of its own.
    let job = JobId(format!("{}-n{}", admission.job, admission.node));
    let options = Options { is_away: true, ..agent };
    let launched = launch_in(&job, admission.session, options, Terms::default())?;
    let (output, mut held) = launched.hand_over(|launched| {
        // From here on this process may have threads.
        let waker = Waker::new()?;
        poller.add(&waker, WRITTEN, Interest::Read)?;
        let output = output.map(|(config, map)| OwnOutput::new(config, names(map, &admission), waker)).transpose()?;
        io::Result::Ok((output, Held::new(launched, poller, signals, front)?))
    })?;
    let (node_timeout, mut contact) = (admission.node_timeout, Contact::default());
    contact.heard(held.clock.now());
    let tap = Tap::default();
    let mut running = Running {
        node: &mut node,
        known,
        node_timeout,
        contact,
        asking: None,
        keep,
        returning: Returning::default(),
        tap,
        output,
        signal: None,
        is_hurried: false,
    };
    let (code, memory) = held.run(&mut running)?;
    let Running { output, signal, is_hurried, .. } = running;
    let signal = signal.map(|(number, _)| number);
    let now = held.clock.now();
    let bound = match (is_hurried, held.is_orphan()) {
        (true, _) => HURRIED_BOUND,
        // The front may be at its end, as this node is.
        (false, true) => ORPHAN_BOUND,
        (false, false) => TELL_BOUND.max(keep.unwrap_or_default()),
    };
    let mut dialer = Dialer {
        at: &join.front,
        signals: &held.signals,
        poller: &held.poller,
        token: Held::FRONT,
        known,
        awaits_end: !is_hurried,
        // Another one may take its place.
        gone_after: keep.unwrap_or_default().max(GONE_AFTER),
        note: &mut |_| {},
    };
    let memory = memory.map(|memory| memory.within(MEMORY_MOST));
    let over = dialer.dial(&mut node, Purpose::Ended { code: code.0, lapse: held.keeper.lapse(), memory }, bound);
    let bounds = match is_hurried {
        true => Bounds { total: HURRIED_OUTPUT, silence: HURRIED_OUTPUT },
        false => Bounds { total: drain, silence: OUTPUT_BOUND },
    };
    let (last, late) = output.map(|output| output.finish(now, bounds, &held.signals)).unwrap_or_default();
    let outcome = match (over, signal) {
        (Ok((Accepted::Over { code: job, why }, _)), _) => {
            // Only node 0 has the report: without the line nothing in this node's log says why its ranks were ended.
            if !why.is_empty() && !is_quiet {
                report::note(&format!("the job has ended: {why}; the report is on node 0"));
            }
            // One that has come at the end ends the wait for our own output.
            let code = late.map_or(ExitCode(job), ExitCode::signal);
            let signal = signal.map(told).or(late);
            Outcome { code, raise: signal.filter(|signal| ExitCode::signal(*signal) == code) }
        }
        (_, Some(signal)) | (Err(DialError::Signal(signal)), None) => {
            Outcome { code: ExitCode::signal(signal), raise: Some(signal) }
        }
        (Err(DialError::Denied { source: JoinError::Later(why), .. }), None) => {
            report::error(color, &why, None, Some("start the command again: the node then joins again"));
            Outcome { code: ExitCode::NODE_LOST, raise: None }
        }
        (Err(error), None) => {
            let what = if held.is_orphan() { "lost node 0, and ended the ranks of this node" } else { "lost node 0" };
            report::error(color, &format!("{what}: {error}"), None, None);
            Outcome { code: ExitCode::NODE_LOST, raise: None }
        }
        (Ok((Accepted::Admitted(_) | Accepted::Alive, _)), None) => Outcome { code: ExitCode::INTERNAL, raise: None },
    };
    let why = Task::SayWhyEnded(String::from_utf8_lossy(&last).into_owned());
    // It is for people only, who have the log too.
    let _ = perform(&job, vec![why], TERMINATION_BOUND);
    let is_left = code != ExitCode::SUCCESS && outcome.code == ExitCode::SUCCESS;
    Ok(if is_left { Outcome { code, raise: None } } else { outcome })
}

/// The stream to the front, which begins over this connection.
fn stream(admission: &Admission, carrier: Carrier) -> io::Result<Transport> {
    if admission.keep.is_none() {
        return Ok(carrier.into());
    }
    let mut lasting = Transport::lasting(Pipe::new(admission.session.get()));
    lasting.connect(carrier, Vec::new())?;
    Ok(lasting)
}

/// The signal that ends the job, where this one has come to a node.
fn told(number: i32) -> i32 {
    if number == signal::SIGINT { signal::SIGINT } else { signal::SIGTERM }
}

/// The names of ranks in the tags of this node's own output.
fn names(map: RankMap, admission: &Admission) -> impl Fn(Rank) -> Names + Send + 'static {
    let own = NodeRank(admission.node.0);
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

/// The front is gone, and another one may take its place: tries to reach it.
#[derive(Default)]
struct Returning {
    /// The present try, which may take until then.
    call: Option<(Call, Duration)>,
    /// When the next one is due, and how long to wait if that fails.
    due: Duration,
    wait: Duration,
}

impl Returning {
    fn failed(&mut self, now: Duration) {
        self.call = None;
        self.due = now + self.wait;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
    }
}

/// A node while its agent runs: it asks a silent front, and writes the output of its own ranks.
struct Running<'a> {
    node: &'a mut Node,
    /// Where the front is.
    known: Option<SocketAddr>,
    /// How long it may be silent, what is known of its life, and the fresh connection over which it is asked.
    node_timeout: Duration,
    contact: Contact,
    asking: Option<Asking>,
    /// How long the ranks go on without a front.
    keep: Option<Duration>,
    returning: Returning,
    tap: Tap,
    /// `None`: the front alone has it.
    output: Option<OwnOutput>,
    /// Somebody wants this node to end, since then.
    signal: Option<(i32, Duration)>,
    /// They want it at once.
    is_hurried: bool,
}

impl Holder for Running<'_> {
    fn signal(&mut self, held: &mut Held, number: i32) {
        let now = held.clock.now();
        match self.signal {
            None => {
                // The agent tells the front, which ends the job or goes on without this node.
                self.signal = Some((number, now));
                if !held.keeper.signal_agent(told(number)) {
                    held.lose_front();
                }
            }
            // A terminal may send two for one key.
            Some((_, first)) if now < first + SECOND_INTERRUPT => {}
            Some(_) => {
                self.is_hurried = true;
                // The guard kills what the agent held.
                if !held.keeper.signal_agent(signal::SIGKILL) {
                    held.keeper.kill_agent();
                }
            }
        }
    }

    fn heard(&mut self, now: Duration) {
        self.contact.heard(now);
    }

    fn waits_for_front(&self) -> Duration {
        self.keep.unwrap_or_default()
    }

    /// Writes the output of the ranks.
    fn passed(&mut self, now: Duration, bytes: &[u8]) {
        if let Some(output) = &mut self.output {
            self.tap.pass(bytes, |head, bytes| output.output(now, head, bytes));
        }
    }

    /// The fresh connection to the front is ready, or output was written.
    fn ready(&mut self, held: &mut Held, event: Ready) {
        let now = held.clock.now();
        if let Some(output) = self.output.as_mut().filter(|_| event.token == WRITTEN) {
            return output.ready(now);
        }
        if event.token == RETURNING {
            return self.hear_return(held, now);
        }
        let Some(mut asking) = self.asking.take_if(|asking| now < asking.until) else { return };
        match asking.call.ready(self.node) {
            Ok(None) => {
                if asking.call.has_claimed() {
                    asking.until = asking.until.min(now + ANSWER_BOUND);
                }
                self.asking = Some(asking);
            }
            Ok(Some(Accepted::Alive)) => {
                self.contact.answered(now, self.node_timeout);
                held.keeper.signal_agent(FRONT_LIVES);
            }
            // It has given up this node, and closed the other connection.
            Err(Trouble::Denied(_)) => held.lose_front(),
            Ok(Some(Accepted::Admitted(_) | Accepted::Over { .. })) | Err(Trouble::Failed(_)) => {}
        }
    }

    fn deadline(&self, now: Duration) -> Option<Duration> {
        let output = self.output.as_ref().and_then(OwnOutput::deadline);
        let returning = self.returning.call.as_ref().map_or(self.returning.due, |(_, until)| *until);
        let returning = Some(returning).filter(|due| *due > now);
        [output, returning].into_iter().flatten().chain([now + LOOK]).min()
    }

    fn tick(&mut self, held: &mut Held, now: Duration) {
        if held.misses_front() && self.signal.is_some_and(|(_, at)| at + UNDECIDED <= now) {
            held.lose_front();
        }
        self.ask_front(held, now);
        self.return_to_front(held, now);
        if let Some(output) = &mut self.output {
            output.tick(now);
        }
    }
}

impl Running<'_> {
    /// Tries to reach the front that takes the place of one that is gone.
    fn return_to_front(&mut self, held: &mut Held, now: Duration) {
        let Some(address) = self.known.filter(|_| held.misses_front()) else {
            self.returning = Returning { wait: FIRST_WAIT, ..Returning::default() };
            return;
        };
        let returning = &mut self.returning;
        if returning.call.take_if(|(_, until)| *until <= now).is_some() {
            returning.failed(now);
        }
        if returning.call.is_none() && returning.due <= now {
            match Call::begin(held.poller.registry(), RETURNING, Purpose::Return, address) {
                Ok(call) => returning.call = Some((call, now + try_bound(self.node_timeout))),
                Err(_) => returning.failed(now),
            }
        }
    }

    /// The connection to the next front is ready.
    fn hear_return(&mut self, held: &mut Held, now: Duration) {
        let Some((mut call, until)) = self.returning.call.take() else { return };
        match call.ready(self.node) {
            Ok(None) => self.returning.call = Some((call, until)),
            Ok(Some(Accepted::Admitted(admission))) => {
                let carrier = call.admitted(self.node, &admission, &held.poller.registry(), Held::FRONT);
                match carrier.map(|carrier| held.take_back(carrier)) {
                    Ok(Ok(())) => self.contact.heard(now),
                    Ok(Err(_)) | Err(_) => self.returning.failed(now),
                }
            }
            // It has given up this node.
            Err(Trouble::Denied(_)) => held.lose_front(),
            Ok(Some(Accepted::Alive | Accepted::Over { .. })) | Err(Trouble::Failed(_)) => self.returning.failed(now),
        }
    }

    /// Asks the front over a fresh connection, if it has been silent for long. Whether it is lost, the agent decides.
    fn ask_front(&mut self, held: &Held, now: Duration) {
        let Some(address) = self.known.filter(|_| held.has_front() && !held.misses_front()) else { return };
        self.asking.take_if(|asking| asking.until <= now);
        let asks = Asks::Us { is_open: self.asking.is_some() };
        if self.contact.look(now, self.node_timeout, asks) == Step::Ask {
            let call = Call::begin(held.poller.registry(), ASKING, Purpose::Alive, address);
            // One that cannot be begun is tried again after a step.
            self.asking = call.ok().map(|call| Asking { call, until: now + try_bound(self.node_timeout) });
        }
    }
}
