//! The messages.

use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::collective::Collective;
use rankrun_core::names::{Protocol, Question, Reply};
use rankrun_core::relay::Parcel;
use rankrun_core::result::ResultPiece;
use rankrun_core::spawning::{GroupMap, SpawnAnswer, SpawnAsker};
use rankrun_core::travel::Resource;
use rankrun_core::{GroupId, JobSpec, NodeId, NodeRank, Pid, Rank, Stream, WorkerId};
use serde::{Deserialize, Serialize};

pub use rankrun_core::job::{About, AgentEvent, Containment, Meeting, Order, Summary, WorkerEvent};

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
    /// This node may get ranks of the job later, as those of this start: what takes long is done now.
    Prepare(Box<NodeStart>),
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
    /// Bytes of the front's stdin for the ranks of a group that share it. `None`: its end.
    Stdin {
        group: GroupId,
        bytes: Option<Vec<u8>>,
    },
    /// The front's terminal has a new window (rows, columns).
    Window(u16, u16),
    /// The contributions of all nodes to a collective.
    Collective(Collective),
    /// The answer to the group's `Ask` of that number.
    Reply {
        group: GroupId,
        protocol: Protocol,
        id: u64,
        reply: Reply,
    },
    /// Another node asks for the PMIx data of a worker of this one. `Fetched` is to follow.
    Fetch {
        by: NodeId,
        id: u64,
        of: WorkerId,
    },
    /// The answer to the group's `Fetch` of that number. `None`: the worker is gone.
    Fetched {
        group: GroupId,
        id: u64,
        data: Option<Vec<u8>>,
    },
    /// What a rank is answered that has asked for a group.
    Spawned {
        asker: SpawnAsker,
        answer: SpawnAnswer,
    },
    /// A group begins that has no ranks on this node.
    Group(Box<GroupMap>),
    /// From the clients of another node, for torch's store on this one.
    ToStore {
        from: NodeId,
        parcel: Parcel,
    },
    /// From torch's store on another node, for clients of this one.
    FromStore(Parcel),
    /// End at once: the front does not understand this agent.
    End,
    /// The job goes on without its terminal: hold none of the front's streams.
    LeaveStreams,
}

/// From an agent to the front.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToFront {
    Hello(Hello),
    /// The agent is ready.
    Ready {
        pid: Pid,
        /// The job's private directory.
        runtime: PathBuf,
        about: About,
    },
    /// What it tells of the node and of the workers there. The end of a stream follows all that was written to it; after
    /// [`AgentEvent::Drained`] nothing follows.
    Event(AgentEvent),
    /// A piece of what a rank returns to `rankrun.launch`.
    Result {
        worker: WorkerId,
        piece: ResultPiece,
    },
    /// The ranks' output from here on is lost on the node: its spool cannot be read.
    OutputLost(String),
    /// No rank of the group has more to read of what was sent of stdin. `is_read`: one has, and they have not all closed it.
    StdinTaken {
        group: GroupId,
        is_read: bool,
    },
    /// `Pause` has been carried out: the workers and the agent's timers are stopped.
    Paused,
    /// The local part of a collective.
    Collective(Collective),
    /// Ranks are gone that take part in a collective to which this node has contributed.
    Gone {
        group: GroupId,
        seq: u64,
        ranks: Vec<Rank>,
    },
    /// A rank publishes a name, or asks for one: `Reply` is to follow.
    Ask {
        group: GroupId,
        protocol: Protocol,
        id: u64,
        question: Question,
    },
    /// The PMIx data of a worker of another node are asked for: `Fetched` is to follow.
    Fetch {
        id: u64,
        of: WorkerId,
    },
    /// The answer to the `Fetch` of a node.
    Fetched {
        by: NodeId,
        group: GroupId,
        id: u64,
        data: Option<Vec<u8>>,
    },
    /// From clients of this node, for torch's store on that of the first rank.
    ToStore(Parcel),
    /// From torch's store on this node, for the clients of another one.
    FromStore {
        to: NodeId,
        parcel: Parcel,
    },
    /// The guard of this node is gone.
    GuardLost,
    /// A message for the user that is not a failure.
    Note(String),
}
