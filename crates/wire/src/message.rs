//! The messages.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::absence::Absence;
use rankrun_core::alone::Sight;
use rankrun_core::condition::Condition;
use rankrun_core::names::{Protocol, Question, Reply};
use rankrun_core::rendezvous::Rendezvous;
use rankrun_core::result::ResultPiece;
use rankrun_core::stacks::ProcessStack;
use rankrun_core::travel::Resource;
use rankrun_core::{GroupId, JobSpec, NodeId, NodeRank, Pid, Rank, Stream, WorkerId};
use serde::{Deserialize, Serialize};

pub use rankrun_core::job::{Containment, Meeting, Order, Summary, WorkerEvent};

/// The first message of each side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::VERSION`] of the sender.
    pub version: u32,
    /// The version of the sender's rankrun, for the message when the two do not fit.
    pub release: String,
}

impl Hello {
    /// Ours.
    pub fn ours() -> Hello {
        Hello { version: crate::VERSION, release: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// What an agent needs to start an attempt on its node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStart {
    pub node: NodeRank,
    pub spec: JobSpec,
    pub meeting: Meeting,
    /// What the nodes call themselves, by node rank.
    pub hosts: Vec<String>,
    /// The front sends its stdin in messages to the rank that reads it, or to all. Otherwise the agent has it.
    pub sends_stdin: bool,
    /// Without a word from the front for so long, it is lost. `None` on the front's own machine.
    pub patience: Option<Duration>,
    /// The mask of new files' modes, where the agent does not have the front's.
    pub umask: Option<u32>,
    /// The front's soft limits, where the agent does not have them.
    pub limits: Vec<(Resource, Option<u64>)>,
}

/// From the front to an agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToAgent {
    Hello(Hello),
    /// Start the ranks of this node.
    Start(Box<NodeStart>),
    /// The front is alive: answered at once, with the same time.
    Beat {
        sent: Duration,
    },
    /// What the job orders, and asks.
    Order(Order),
    /// Send a signal to the speaking process of each rank.
    Signal(i32),
    /// Stop all workers and all timers (SIGTSTP), until `Resume`.
    Pause,
    Resume,
    /// So many more bytes of this stream's output may be sent.
    Credit {
        stream: Stream,
        bytes: u64,
    },
    /// Pieces of results are written, or dropped, that cost so much: as many more may be sent.
    ResultsTaken(u64),
    /// Bytes of the front's stdin for the ranks that share it.
    Stdin(Vec<u8>),
    StdinEnd,
    /// The front's terminal has a new window (rows, columns).
    Window(u16, u16),
    /// The contributions of all nodes to a collective.
    Collective(Collective),
    /// The answer to the `Ask` of that number.
    Reply {
        protocol: Protocol,
        id: u64,
        reply: Reply,
    },
    /// Another node asks for the PMIx data of a rank of this one. `Fetched` is to follow.
    Fetch {
        by: NodeId,
        id: u64,
        of: Rank,
    },
    /// The answer to the `Fetch` of that number. `None`: the rank is gone.
    Fetched {
        id: u64,
        data: Option<Vec<u8>>,
    },
    /// End at once: the front does not understand this agent.
    End,
}

/// From an agent to the front.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToFront {
    Hello(Hello),
    /// The agent cannot start, and ends.
    Refused {
        what: String,
        source: String,
    },
    /// The agent is ready; how it contains its workers.
    Ready {
        pid: Pid,
        containment: Containment,
        /// The job's private directory.
        runtime: PathBuf,
        /// What the node calls itself, and the addresses of its network interfaces with
        /// their names, without those that only reach itself.
        host: String,
        addresses: Vec<(String, IpAddr)>,
        /// /etc/hosts gives that name a loopback address.
        is_loopback_name: bool,
        /// Equal on two nodes if they are one machine with one network.
        machine: String,
    },
    /// The agent is alive: the answer to `Beat`, with the time that came with it and that of its own clock.
    Beat {
        sent: Duration,
        at: Duration,
    },
    /// Where the ranks meet, on this node. Sent by the agent of the first node if there are others; `None` where there is no
    /// network.
    Meeting(Option<Rendezvous>),
    /// Something has happened to a worker, at a time of the agent's clock. The end of a stream follows all that was written to it.
    Worker {
        worker: WorkerId,
        at: Duration,
        event: WorkerEvent,
    },
    /// Ranks that run Python without the interpreter hook, and why.
    Hookless(Vec<(WorkerId, Absence)>),
    /// Ranks that have an MPI library loaded.
    MpiSeen(Vec<(WorkerId, Sight)>),
    /// A piece of what a rank returns to `rankrun.launch`.
    Result {
        worker: WorkerId,
        piece: ResultPiece,
    },
    /// The ranks' output from here on is lost on the node: its spool cannot be read.
    OutputLost(String),
    /// Every rank that shares stdin has read so many bytes of it.
    StdinTaken(u64),
    /// The workers whose leaders have not ended, and whether each is seen to write files.
    Alive {
        workers: Vec<(WorkerId, bool)>,
        at: Duration,
    },
    /// What every worker is doing: the answer to `ReportConditions`.
    Conditions {
        number: u64,
        workers: Vec<(WorkerId, Condition)>,
        at: Duration,
    },
    /// So many ranks of this node are being looked into; and when ranks of it last used what connects them.
    Looking {
        number: u64,
        ranks: u32,
        traffic: Option<Duration>,
        at: Duration,
    },
    /// Where the process of a rank is, or why that cannot be seen.
    Looked {
        number: u64,
        worker: WorkerId,
        stack: Box<ProcessStack>,
    },
    /// All answers to the `Look` of that number have been sent.
    LookOver {
        number: u64,
    },
    /// `Pause` has been carried out: the workers and the agent's timers are stopped.
    Paused,
    /// The local part of a collective.
    Collective(Collective),
    /// A rank publishes a name, or asks for one: `Reply` is to follow.
    Ask {
        protocol: Protocol,
        id: u64,
        question: Question,
    },
    /// The PMIx data of a rank of another node are asked for: `Fetched` is to follow.
    Fetch {
        id: u64,
        of: Rank,
    },
    /// The answer to the `Fetch` of a node.
    Fetched {
        by: NodeId,
        id: u64,
        data: Option<Vec<u8>>,
    },
    /// Somebody on this node wants it to end, by this signal: its batch system, or whoever shuts it down.
    ToldToEnd {
        signal: i32,
    },
    /// The guard of this node is gone.
    GuardLost,
    /// What connects the ranks of Open MPI on this node is gone, or cannot be started.
    WireUpLost {
        reason: String,
        at: Duration,
    },
    /// A message for the user that is not a failure.
    Note(String),
    /// Every worker is gone and nothing of the attempt is left but what is listed.
    Over(Summary),
    /// After `Over`: all output has been sent. The agent's last message.
    Drained,
}

/// A collective operation of the wire-up: a PMI barrier, a PMIx fence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Collective {
    pub group: GroupId,
    pub seq: u64,
    /// How many ranks the payloads stand for, and how many take part on all nodes together.
    pub members: u32,
    pub of: u32,
    pub payloads: Vec<Vec<u8>>,
}
