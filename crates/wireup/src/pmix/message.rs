//! The messages between the agent and its host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rankrun_core::spawning::SpawnRequest;
use rankrun_core::{GroupId, Pid, Rank, Stream};
use serde::{Deserialize, Serialize};

/// From the agent to its host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToHost {
    /// The first message.
    Setup(Box<Setup>),
    /// A group begins. It comes before any of its ranks is started.
    Begin(Box<Namespace>),
    /// No rank of the group is left on this node, and none will be.
    Over { group: GroupId },
    /// The leader of a local rank: the process that connects is below it.
    Leader { of: Rank, pid: Pid },
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
    /// The namespace of the attempt ([`rankrun_core::pmix::namespace`]).
    pub namespace: String,
    /// The directory for libpmix's files and for the ranks' session directories.
    pub directory: PathBuf,
    /// The library that the user named.
    pub library: Option<PathBuf>,
    /// Where the programs of the job are: a library may be beside them.
    pub programs: Vec<PathBuf>,
    /// The names of the nodes, each different.
    pub nodes: Vec<String>,
    pub node: u32,
    /// The groups that have begun already.
    pub groups: Vec<Namespace>,
    /// The number of the first request: those of an earlier host of this attempt are below it.
    pub first: u64,
}

/// A group, as its ranks and those of other groups are told of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Namespace {
    pub group: GroupId,
    /// By rank: node, local rank, index of the command.
    pub ranks: Vec<(u32, u16, u32)>,
    /// By index: the words of the command, and its directory. Both are empty on nodes that have no ranks of the group.
    pub apps: Vec<(String, String)>,
    pub oversubscribed: bool,
    /// How many ranks all groups may have.
    pub universe: u32,
    /// The rank that has asked for the group.
    pub parent: Option<Rank>,
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

/// Who takes part in an operation: the groups in ascending order, each once.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Participants(pub Vec<(GroupId, Ranks)>);

/// Who of a group takes part.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Ranks {
    All,
    /// In ascending order, each once.
    Some(Vec<Rank>),
}

impl Participants {
    /// Those that libpmix names. `None` as a rank: all of the group.
    pub fn of(procs: impl IntoIterator<Item = (GroupId, Option<u32>)>) -> Participants {
        let mut groups: BTreeMap<GroupId, Option<BTreeSet<Rank>>> = BTreeMap::new();
        for (group, number) in procs {
            let ranks = groups.entry(group).or_insert_with(|| Some(BTreeSet::new()));
            match (number, &mut *ranks) {
                (None, _) => *ranks = None,
                (Some(number), Some(ranks)) => drop(ranks.insert(Rank::of(group, number))),
                (Some(_), None) => {}
            }
        }
        let ranks = |ranks: Option<BTreeSet<Rank>>| match ranks {
            None => Ranks::All,
            Some(ranks) => Ranks::Some(ranks.into_iter().collect()),
        };
        Participants(groups.into_iter().map(|(group, some)| (group, ranks(some))).collect())
    }

    pub fn all_of(group: GroupId) -> Participants {
        Participants(vec![(group, Ranks::All)])
    }

    /// Whether a rank takes part.
    pub(super) fn has_rank(&self, rank: Rank) -> bool {
        let of_group = self.0.iter().find(|(group, _)| *group == rank.group());
        of_group.is_some_and(|(_, ranks)| match ranks {
            Ranks::All => true,
            Ranks::Some(ranks) => ranks.binary_search(&rank).is_ok(),
        })
    }

    /// The first of the groups: that by which the operation is known.
    pub(super) fn first(&self) -> GroupId {
        self.0.first().map(|(group, _)| *group).unwrap_or_default()
    }

    /// Whether a group has a part in it.
    pub(super) fn has(&self, group: GroupId) -> bool {
        self.0.iter().any(|(of, _)| *of == group)
    }
}

/// What a rank asks for. It waits for the [`Answer`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// It has called `PMIx_Init`. `pid`: the process, if it could be found.
    Init {
        of: Rank,
        pid: Option<Pid>,
    },
    Finalize {
        of: Rank,
    },
    Abort {
        of: Rank,
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
        of: Rank,
        entries: Vec<(String, Vec<u8>)>,
        once: bool,
    },
    /// `wait`: until all keys are there, for so many seconds at most (0: without a limit).
    Lookup {
        of: Rank,
        keys: Vec<String>,
        wait: Option<u64>,
    },
    Unpublish {
        of: Rank,
        keys: Vec<String>,
    },
    /// It asks for a further group.
    Spawn {
        of: Rank,
        request: Box<SpawnRequest>,
    },
    Connect {
        who: Participants,
    },
    Disconnect {
        who: Participants,
    },
    /// Texts for the streams of the rank. `others`: how many other channels are wanted.
    Log {
        of: Rank,
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
    /// All ranks of this group have been started.
    Spawned(GroupId),
    /// The ranks that were asked for have not been started.
    NotSpawned,
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
