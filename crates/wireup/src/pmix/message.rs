//! The messages between the agent and its host.

use std::path::PathBuf;

use rankrun_core::{Pid, Rank, Stream};
use serde::{Deserialize, Serialize};

/// From the agent to its host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToHost {
    /// The first message.
    Setup(Box<Setup>),
    /// The leader of a local rank: the process that connects is below it.
    Leader { rank: Rank, pid: Pid },
    /// To the request of that number.
    Answer { id: u64, answer: Answer },
    /// Ranks have ended without finalizing, and the job goes on.
    Lost { ranks: Vec<Rank> },
    /// Another node asks for the data of a rank: `Found` is to follow.
    Find { number: u64, of: Rank },
    /// To be answered with `Pong`, after libpmix's thread has done something.
    Ping,
}

/// What a host must know of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub namespace: String,
    /// The directory for libpmix's files and for the ranks' session directories.
    pub directory: PathBuf,
    /// The library that the user named.
    pub library: Option<PathBuf>,
    /// Where the programs of the job are: a library may be beside them.
    pub programs: Vec<PathBuf>,
    /// By rank: node, local rank, index of the command.
    pub ranks: Vec<(u32, u16, u32)>,
    /// By index: the words of the command, and its directory.
    pub apps: Vec<(String, String)>,
    /// The names of the nodes, each different.
    pub nodes: Vec<String>,
    pub node: u32,
    pub oversubscribed: bool,
}

/// From the host to its agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromHost {
    /// Ranks can connect.
    Ready {
        library: PathBuf,
        version: String,
    },
    /// It cannot serve. It ends after this message.
    Failed {
        reason: String,
    },
    Request {
        id: u64,
        request: Request,
    },
    /// The answer to `Find`. `None`: there are no data.
    Found {
        number: u64,
        data: Option<Vec<u8>>,
    },
    Pong,
    /// The first connection did not come from a rank: the host waits for the next one.
    NoClient,
    /// After `NoClient`: a rank has connected.
    Client,
}

/// Who takes part in an operation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Participants {
    All,
    Ranks(Vec<Rank>),
}

/// What a rank asks for. It waits for the [`Answer`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// It has called `PMIx_Init`. `pid`: the process, if it could be found.
    Init {
        rank: Rank,
        pid: Option<Pid>,
    },
    Finalize {
        rank: Rank,
    },
    Abort {
        rank: Rank,
        code: i32,
        message: Option<String>,
    },
    /// All participants of this node are in the fence. `data` is theirs.
    Fence {
        who: Participants,
        data: Vec<u8>,
    },
    /// Data of a rank of another node.
    Fetch {
        of: Rank,
    },
    /// Values as libpmix packs them. `once`: each is gone with its first lookup.
    Publish {
        rank: Rank,
        entries: Vec<(String, Vec<u8>)>,
        once: bool,
    },
    /// `wait`: until all keys are there, for so many seconds at most (0: without a limit).
    Lookup {
        rank: Rank,
        keys: Vec<String>,
        wait: Option<u64>,
    },
    Unpublish {
        rank: Rank,
        keys: Vec<String>,
    },
    Spawn {
        rank: Rank,
        commands: Vec<String>,
    },
    Connect {
        who: Participants,
    },
    Disconnect {
        who: Participants,
    },
    /// Texts for the streams of the rank. `others`: how many other channels are wanted.
    Log {
        rank: Rank,
        texts: Vec<(Stream, Vec<u8>)>,
        others: usize,
    },
    /// A group of ranks is made. `data`: of those on this node.
    Group {
        who: Participants,
        wants_context: bool,
        data: Vec<u8>,
    },
}

/// What a rank gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    /// A part of what was asked for.
    Partly,
    NotFound,
    NotSupported,
    /// The name is published already.
    Exists,
    TimedOut,
    /// The data of all participants of a fence.
    Data(Vec<u8>),
    /// Publisher, key, value.
    Found(Vec<(Rank, String, Vec<u8>)>),
    Group {
        context: Option<u64>,
        who: Vec<Rank>,
        data: Vec<u8>,
    },
}
