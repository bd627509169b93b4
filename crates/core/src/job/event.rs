//! What the job takes, and what it orders.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::order::Order;
use super::parts::about::{About, Containment, Summary};
use super::refusals::NoRestart;
use serde::{Deserialize, Serialize};

use crate::absence::Absence;
use crate::alone::Sight;
use crate::condition::Condition;
use crate::event::JobEvent;
use crate::evidence::MpiEvent;
use crate::exit::ExitCode;
use crate::gang::{self, StopRequest};
use crate::grace::StopRecord;
use crate::ids::{Attempt, GroupId, NodeId, NodeRank, Stream, WorkerId};
use crate::memory::Memory;
use crate::planned::Notice;
use crate::ranks::RankSet;
use crate::reach::Step;
use crate::rendezvous::Rendezvous;
use crate::report::Report;
use crate::restart::{Answer, AnswerError, Decision};
use crate::spec::spawning::{SpawnAnswer, SpawnAsker, SpawnRequest};
use crate::stacks::ProcessStack;
use crate::stacks::fold::{Seen, Table};
use crate::stacks::profile::{Profile, ProfileSpec, Samples};
use crate::standing::Standing;
use crate::status::WorkerStatus;
use crate::testimony::Testimony;
use crate::topology::CpuSet;
use crate::usage::{Measured, Usage};
use crate::worker::Outcome;
use crate::{Pid, gang::Requester, hosts};

/// A connection of the control socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u32);

/// What has happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The front is ready: the first attempt begins.
    Begin,
    /// All events of the job stop (^Z), and go on.
    Paused,
    Resumed,

    /// A signal asks the job to end; `by_key`: the terminal has shown a key.
    Signal {
        number: i32,
        by_key: bool,
    },
    /// The file of `--preempt-notice` was looked at: its stamp, `None` if there is no file.
    NoticeFile {
        stamp: Option<(u64, u64)>,
    },
    /// The command of `--preempt-notice` has ended, or could not be run.
    NoticeCommand(Result<WorkerStatus, String>),
    /// A client asks for the end. The answer is a [`Effect::StopAnswer`].
    StopRequest {
        client: ClientId,
        request: StopRequest,
    },
    /// A user asks for another attempt. The answer is a [`Effect::RestartAnswer`].
    RestartRequest {
        client: ClientId,
        by: Requester,
    },
    /// A client asks what the ranks are doing, and perhaps what they use.
    StatesRequest {
        measure: bool,
    },
    /// A client asks where the ranks are.
    StacksRequest {
        client: ClientId,
        ranks: Option<RankSet>,
        native: bool,
        each: bool,
    },
    /// A client asks for a profile.
    ProfileRequest {
        client: ClientId,
        ranks: Option<RankSet>,
        spec: ProfileSpec,
    },
    /// A client wants the profile as it is; or the client has gone that it is for.
    ProfileEnd {
        gone: Option<ClientId>,
    },
    /// The user asks for the state of the ranks (SIGQUIT).
    StandingsRequest {
        by_key: bool,
    },

    /// What the front's devices have found out about output: it is a gang's event as it is.
    Front(gang::Event),
    /// The output that agents still have is given up, after the end of their ranks: nothing more is expected of them.
    OutputGivenUp,
    /// The destinations have what was kept for the end of the attempt.
    Shown,
    /// Log files of the last attempt are still being written, or no more.
    Logging(bool),
    /// The log files of an attempt are there.
    LogsOpened,
    /// The file that shows progress was looked at during an attempt: its stamp, `None` if there is no file.
    Stamped {
        attempt: Attempt,
        stamp: Option<(u64, u64)>,
    },
    /// `--on-failure` has answered, or could not be asked.
    Answered(Result<Answer, AnswerError>),
    NotAsked {
        why: String,
    },

    /// Of one node.
    Node {
        node: NodeId,
        event: NodeEvent,
    },
    /// A step of Slurm has ended.
    StepEnded {
        step: usize,
        code: i32,
        words: String,
        not_started: Option<String>,
    },
    /// A step of Slurm could not be asked for.
    StepFailed {
        step: usize,
        why: String,
    },

    /// While [`super::Job::is_closing`]: what holds these nodes, by which they say what is left there, has not ended.
    Held(Vec<NodeId>),
    /// On these it could not be proved that nothing is left.
    Unproven(Vec<NodeId>),
}

/// What has happened to a node, or on it. Times in it are of the node's clock.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum NodeEvent {
    /// It was lost, and another one asks to come after it.
    Followed,
    // The way to it.
    /// An ssh could not be asked for, or has failed at this step.
    CallFailed {
        step: Step,
        why: String,
    },
    /// An ssh has failed at this step, and may still say why.
    CallFailing {
        step: Step,
    },
    /// ssh has logged in.
    LoggedIn,
    /// The node lacks rankrun, and waits for it.
    LacksProgram,
    /// It is being sent so many bytes.
    Copying {
        bytes: usize,
    },
    /// What is known of an ssh that has not led to an agent in time.
    CallSeen {
        unsent: usize,
        has_logged_in: bool,
        noise: Option<String>,
    },
    /// ssh has ended before it led to an agent.
    CallEnded {
        code: i32,
        words: String,
        noise: Option<String>,
    },
    /// The agent is connected: over ssh, or since the node has joined. `host`: what the node calls itself.
    Reached {
        host: Option<String>,
        client: Option<IpAddr>,
        server: Option<IpAddr>,
        noise: Option<String>,
    },

    // The connection.
    /// Something has come over the connection.
    Heard,
    /// The first message of the agent was read.
    HasSent,
    /// It has answered over a fresh connection.
    Confirmed,
    /// An ssh over a fresh connection may answer until then; there can be none now.
    Asking {
        until: Duration,
    },
    CannotAsk,
    /// The connection has ended (`is_end`), or cannot be decoded; and why, as far as that is known.
    Broke {
        is_end: bool,
        why: String,
    },
    /// Why it was lost is known.
    LossKnown {
        why: String,
    },
    /// The ssh that had led to the agent has ended.
    SshEnded {
        code: i32,
    },
    /// The guard of a node that had joined has ended.
    GuardEnded {
        code: u8,
        memory: Option<Memory>,
    },
    /// A command about it has ended: with what it has written, or why it has failed.
    CommandEnded {
        command: NodeCommand,
        answer: Result<String, String>,
    },
    /// A second connection has said whether nothing is left there.
    SecondAnswered {
        is_empty: bool,
    },
    /// The guard is lost.
    GuardLost,

    // Messages of its agent.
    Ready(About),
    Agent(AgentEvent),
}

/// What an agent tells of its node and of the workers there. It goes to the job as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AgentEvent {
    /// The agent cannot start, and ends.
    Refused { what: String, source: String },
    /// Its workers are contained in another way than it has said: the first one could not be placed in a cgroup.
    Contained(Containment),
    /// The CPUs of its ranks in this attempt, which they are bound to. For each a picture, where the user wants to see it.
    Bound { ranks: Vec<(WorkerId, CpuSet)>, pictures: Vec<String> },
    /// Its ranks are not bound in this attempt, and why; and whether the user wants it otherwise.
    Unbound { why: String, is_asked_for: bool },
    /// Where the ranks meet, on this node. Sent by the agent of the first node if there are others; `None` where there is no network.
    Meeting(Option<Rendezvous>),
    /// The answer to a beat, with the time that came with it.
    Beat { sent: Duration, at: Duration },
    /// Somebody on this node wants it to end, by this signal: its batch system, or whoever shuts it down.
    ToldToEnd { signal: i32 },
    /// Something has happened to a worker.
    Worker { worker: WorkerId, at: Duration, event: WorkerEvent },
    /// What connects the ranks of Open MPI there is gone, or cannot be started.
    WireUpLost { reason: String, at: Duration },
    /// Ranks that run Python without the interpreter hook, and why.
    Hookless(Vec<(WorkerId, Absence)>),
    /// Ranks that have an MPI library loaded.
    MpiSeen(Vec<(WorkerId, Sight)>),
    /// What every worker is doing: the answer to [`Order::ReportConditions`].
    Conditions { number: u64, workers: Vec<(WorkerId, Condition)>, at: Duration },
    /// The workers whose leaders have not ended, and whether each is seen to write files.
    Alive { workers: Vec<(WorkerId, bool)>, at: Duration },
    /// Ranks of this node are being looked into; and when ranks of it last used what connects them.
    Looking { number: u64, traffic: Option<Duration> },
    /// Where the process of a rank is, or why that cannot be seen.
    Looked { number: u64, worker: WorkerId, stack: Box<ProcessStack> },
    /// All answers to the [`Order::Look`] of that number have been sent.
    LookOver { number: u64 },
    /// A rank asks for a group: it waits for [`Effect::AnswerSpawn`].
    Spawn { asker: SpawnAsker, request: Box<SpawnRequest> },
    /// Every worker is gone, and nothing of the attempt is left there but what is listed.
    Over(Summary),
    /// After that: all output has been sent.
    Drained,
    /// What workers use: the first answer to [`Order::Measure`]. A worker that could not be measured in time is missing.
    Measured { number: u64, workers: Vec<(WorkerId, Usage)>, at: Duration },
    /// What was seen of a rank since this was last sent, for the [`Order::Profile`] of that number.
    Profiled { number: u64, worker: WorkerId, samples: Box<Samples> },
    /// All of that has been sent; or why it could not be begun, or not be made to its end.
    ProfileOver { number: u64, why: Option<String> },
}

impl NodeEvent {
    /// Whether it comes over the connection of the node: from one that has none it means nothing.
    pub(super) fn is_of_connection(&self) -> bool {
        match self {
            NodeEvent::Heard
            | NodeEvent::HasSent
            | NodeEvent::Broke { .. }
            | NodeEvent::Ready(_)
            | NodeEvent::Agent(_) => true,
            NodeEvent::Followed
            | NodeEvent::CallFailed { .. }
            | NodeEvent::CallFailing { .. }
            | NodeEvent::LoggedIn
            | NodeEvent::LacksProgram
            | NodeEvent::Copying { .. }
            | NodeEvent::CallSeen { .. }
            | NodeEvent::CallEnded { .. }
            | NodeEvent::Reached { .. }
            | NodeEvent::Confirmed
            | NodeEvent::Asking { .. }
            | NodeEvent::CannotAsk
            | NodeEvent::LossKnown { .. }
            | NodeEvent::SshEnded { .. }
            | NodeEvent::GuardEnded { .. }
            | NodeEvent::SecondAnswered { .. }
            | NodeEvent::CommandEnded { .. }
            | NodeEvent::GuardLost => false,
        }
    }
}

/// What has happened to a worker, as its agent tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WorkerEvent {
    Started {
        pid: Pid,
    },
    SpawnFailed {
        step: String,
        error: String,
        command: String,
        code: ExitCode,
    },
    /// Its leader has ended. `stop` is what was done to end it before.
    Ended {
        status: WorkerStatus,
        stop: StopRecord,
    },
    /// No process of it is left, but what could not be killed.
    Gone {
        outcome: Outcome,
        is_left: bool,
    },
    /// Somebody has stopped it.
    Stopped {
        signal: i32,
    },
    Continued,
    Mpi(MpiEvent),
    Testimony {
        pid: Pid,
        testimony: Testimony,
    },
    /// A process that had failed did not end.
    Stuck {
        pid: Pid,
        place: crate::testimony::StuckIn,
        since: Duration,
        is_leader: bool,
    },
    /// Whether its process reports its own failures.
    Reports(bool),
    KilledForMemory {
        detail: String,
    },
    CpuTime {
        used: Duration,
        limit: Duration,
    },
    HelperKilledForMemory {
        pid: Pid,
        name: String,
        detail: String,
    },
    /// A stream of it has ended.
    Closed(Stream),
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Tell all nodes that are connected.
    Send(Order),
    /// Ask a node for a sign of life, over its connection.
    Beat(NodeId),
    /// Start the ranks of a group on a node.
    Start {
        node: NodeId,
        place: NodeRank,
        group: GroupId,
        meeting: Meeting,
    },
    /// A spare is to prepare what the ranks of the job need.
    Prepare(NodeId),
    /// A group begins without ranks on this node.
    Introduce {
        node: NodeId,
        group: GroupId,
    },
    /// A further group begins: its ranks have names, and files.
    BeginGroup(GroupId),
    /// The agent of this machine is to report the end by then; it has.
    ExpectEnd(NodeId, Duration),
    HasEnded(NodeId),
    /// The guard of this machine was lost: watch the agent.
    WatchAgent(NodeId),
    /// Nothing more is for this agent: it is told to end, and its connection is closed.
    End(NodeId),
    /// End the connection to a node, and the ssh that holds it.
    GiveUp(NodeId),
    /// The connection of a node is gone.
    Disconnect(NodeId),

    /// A node is there that is to be called.
    AddNode(NodeId, Added),
    /// Run a command of the user's for a node that was lost.
    RunFor(NodeId, NodeCommand),
    /// Look whether the notice of a preemption has come.
    LookForNotice(Notice),
    /// Start an ssh to a node; say how far the present one has come.
    Call(NodeId),
    LookAtCall(NodeId),
    /// Ask a silent node over a fresh connection; no answer is wanted any more.
    Ask(NodeId),
    StopAsking(NodeId),
    /// Ask a node that was lost what is left there.
    AskSecond(NodeId),
    /// What becomes of the place of a node that joins.
    Enrolled(NodeId, Enrolment),
    /// No node begins any more.
    CloseDoor {
        why: &'static str,
    },
    /// Start a step of Slurm for these nodes.
    StartStep {
        step: usize,
        nodes: Vec<NodeId>,
    },

    /// The attempts to come have another world: see [`super::Job::spec`].
    World,
    /// Another attempt begins: what was kept of the last one is forgotten.
    BeginAttempt,
    /// Have the log files of the attempt made.
    OpenLogs,
    /// The ranks of the attempt are started: stdin and terminal are theirs.
    BeginRanks,
    /// All nodes have been told to start: what was read of stdin goes to them.
    HaveStarted,
    /// A rank is started again, as this attempt of it.
    BeginRank(WorkerId),
    /// All ranks have ended. `is_last`: no other attempt of them can follow.
    Drain {
        is_last: bool,
    },
    /// Show what was kept for the end of the attempt.
    ShowRest,
    /// Nothing of the attempt is to be written any more.
    IsShown,
    /// No agent is connected any more: nothing more comes of the ranks.
    Closing,
    /// Look at the file that shows progress.
    Stamp(Attempt),
    /// Ask `--on-failure` about this end; `own` is what happens without an answer.
    AskPolicy {
        report: Arc<Report>,
        own: Decision,
    },
    /// Keep the report of an attempt that another follows.
    SaveReport {
        report: Arc<Report>,
        attempt: Attempt,
    },

    /// The terminal: a rank has started, or the last of its streams.
    RankStarted {
        worker: WorkerId,
        pid: Pid,
        node: NodeId,
        is_again: bool,
    },
    RankEnded {
        worker: WorkerId,
        status: WorkerStatus,
    },
    /// A rank was ended by ^C that went to it alone.
    WasInterrupted,

    /// A line for the user.
    Note(String),
    /// A progress note of a rank.
    RankNote {
        worker: WorkerId,
        text: String,
    },
    /// The terminal has shown a key at the start of the row that is written next.
    KeyWasPressed,
    /// What happens now after something has asked for the end. `by_key`: the terminal has shown a key.
    Stopping {
        text: String,
        by_key: bool,
    },
    /// Where the ranks are.
    Table {
        title: String,
        table: Box<Table>,
    },
    Standings {
        standings: Vec<Standing>,
        by_key: bool,
    },
    /// All waits of the front end.
    Hurry,
    /// For the journal. `at` is the time at which the job took what caused it: the replay decides by it.
    Record {
        at: Duration,
        event: Box<JobEvent>,
    },

    /// What the ranks are doing, and the nodes that have not said so.
    States {
        conditions: Vec<(WorkerId, Condition)>,
        /// What they use, and when that was measured, if it was asked for.
        usages: Vec<(WorkerId, Measured)>,
        silent: Vec<String>,
    },
    Stacks {
        client: ClientId,
        table: Box<Table>,
        ranks: Vec<Seen>,
    },
    RefuseStacks {
        client: ClientId,
    },
    Profile {
        client: ClientId,
        profile: Box<Profile>,
    },
    RefuseProfile {
        client: ClientId,
        why: String,
    },
    RestartAnswer {
        client: ClientId,
        answer: Result<Attempt, NoRestart>,
    },
    /// A rank that has asked for a group is answered.
    AnswerSpawn {
        node: NodeId,
        asker: SpawnAsker,
        answer: SpawnAnswer,
    },
    /// The job is being stopped: how many ranks live, and when they are killed. `already`: it was before.
    StopAnswer {
        client: ClientId,
        ranks: u32,
        left: Duration,
        already: bool,
    },
}

/// Which machine a node is that was not there when the job began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Added {
    /// That of a node that was lost.
    Again(NodeId),
    Host(hosts::Host),
}

/// A command of the user's about a node that was lost. Its last word is the name of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeCommand {
    /// `--fence`: it makes sure that nothing runs there.
    Fence,
    /// `--replace`: it finds another node.
    Replace,
}

/// What becomes of the place of a node that joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enrolment {
    Heard,
    Lost,
    Free,
    /// The node that asked to come after this one is admitted: it is the one of the effect.
    After(NodeId),
    /// No node comes after the one of the effect now.
    Refused,
}

/// Where the ranks of a node meet the others (`MASTER_ADDR` and the like).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Meeting {
    /// At an address of this node, which is open to these.
    Here { address: IpAddr, open_to: Vec<IpAddr> },
    /// Where the first node has said, if there is a network.
    There(Option<Rendezvous>),
}
