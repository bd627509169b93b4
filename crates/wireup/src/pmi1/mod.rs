//! PMI-1.1, the protocol of MPICH, Intel MPI and MVAPICH over the socket that `PMI_FD` names.
//!
//! A client sends one line, `cmd=NAME key=value ...`, and waits for the line that answers it. Ranks `put` pairs into
//! a key-value space (KVS), enter a barrier, and after it `get` what the others put.
//!
//! **Epochs.** A rank may be a wrapper that runs several MPI programs one after the other. Each `init` of a rank opens
//! its next [`Epoch`], and ranks that are in the same epoch share a KVS and its barriers; the KVS of each epoch has a
//! name of its own. A barrier needs every rank of the group, so once any rank has left an epoch, by `finalize` or by
//! the `init` of its next program, no barrier of that epoch can complete any more. The server then sends an error
//! (`rc=-1`) at once to ranks that wait in one or enter one later, instead of letting them hang, and the driver gets
//! [`Effect::BarrierBroken`]. So ranks can be entering a barrier in one epoch only, the lowest that no rank has left,
//! and one store of committed pairs is enough.
//!
//! Whether a second program gets through is up to the client of the first: MPICH 5 leaves the socket as it is, while
//! Intel MPI 2021.18 shuts it down after `finalize`, for every process that holds it.
//!
//! **Several nodes.** Each node has a server for its own ranks. When all of them have entered a barrier, the server emits
//! one [`Collective`] with their puts and waits for the one that holds every node's. When the first rank
//! leaves an epoch, its server contributes to the next barrier of that epoch, with a payload that says that the epoch is
//! over. So every epoch ends with one collective to which each node contributes, and all ranks that wait in it get the
//! error.
//!
//! **Names.** `MPI_Publish_name` and its like are a map of the job, which the front holds ([`Effect::Ask`]). Names outlive the
//! program of the rank that published them, as under Hydra. A lookup does not wait for a name: it is there, or not.
//!
//! **Further groups.** A rank that calls `MPI_Comm_spawn` waits until the ranks of the new group have been started
//! ([`Effect::Spawn`], [`Server::spawned`]). That group has a server of its own, whose first store begins with what the request gave for it.
//!
//! **Bounds.** Of each client the server holds at most [`MAX_LINE`] bytes of an unfinished line, [`MAX_KVS_BYTES`]
//! of puts and [`MAX_SPAWN`] of a request for other ranks. Every reply is shorter than [`MAX_REPLY`]. A driver bounds what it queues by reading at most a few KiB at
//! a time, and nothing while a reply to that client is unsent; a real client never has two requests under way.

mod barrier;
mod client;
mod gone;
mod kvs;
mod mapping;
mod payload;
mod publishing;
mod request;
mod server;
mod spawning;

use std::fmt;

use bytes::Bytes;
use rankrun_core::collective::Collective;
use rankrun_core::names::Question;
use rankrun_core::spawning::SpawnRequest;
use rankrun_core::{GroupId, Rank};

pub use mapping::process_mapping;
pub use server::Server;

/// The longest request line that is taken, in bytes without its newline. The longest a client has reason to send is a
/// `put` with names and value at their limits, about 1,400 bytes, or an abort message.
pub const MAX_LINE: usize = 4096;

/// The longest line of a request for other ranks: the kernel takes no longer argument of a program (`MAX_ARG_STRLEN`).
pub const MAX_SPAWN_LINE: usize = 128 * 1024 + 16;

/// All lines of a request for other ranks, with an overhead for each. A longer one is refused.
pub const MAX_SPAWN: usize = 2 << 20;

/// Every reply is shorter than this, in bytes with its newline: it is the line buffer of clients up to MPICH 4.1.
pub const MAX_REPLY: usize = 1024;

/// The longest name of a KVS that clients must make room for, in bytes. As in Hydra.
pub const KVSNAME_MAX: usize = 256;

/// The longest key, in bytes. As in Hydra.
pub const KEYLEN_MAX: usize = 64;

/// The longest value, in bytes. Hydra says 1024, with which the reply to `get` does not fit into the line buffer of
/// clients; both MPICH clients lower either number to the same 674.
pub const VALLEN_MAX: usize = 960;

/// What one rank may put in one epoch, in bytes of keys and values, and an overhead for each pair. Business cards take
/// less than 1 KiB a rank.
pub const MAX_KVS_BYTES: usize = 1 << 20;

/// The count of MPI programs that a rank has started before this one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u32);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a server must know of its group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    pub group: GroupId,
    /// How many ranks the group has on all nodes.
    pub size: u32,
    /// Begins the names of the group's KVSs: random, and the same on all nodes. What is not a letter, a digit, `-` or
    /// `_` is left out, and so is what exceeds 64 bytes.
    pub kvs_prefix: String,
    /// The answer to `PMI_process_mapping`, from [`process_mapping`]. Empty: clients get the answer that there is none,
    /// and exchange host names instead.
    pub mapping: String,
    /// The index of the command that each rank runs, by rank.
    pub appnums: Vec<u32>,
    /// How many ranks could be run in all; `None` answers -1, no limit known.
    pub universe_size: Option<u32>,
    /// The answer to `PMI_hwloc_xmlfile`: a file that hwloc reads in place of `/sys`. `None`: ranks are told that there is none.
    pub topology: Option<String>,
    /// What the store of the first program has from the start, if a rank of another group has asked for this one.
    pub preput: Vec<(String, String)>,
    /// The ranks served here.
    pub local: Vec<Rank>,
}

/// How far a rank is in the life of an MPI program, for the verdict and the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifecycle {
    /// No `init` yet.
    NotInited,
    /// `init` came, and no `finalize` since.
    Inited { epoch: Epoch, passed_barrier: bool },
    /// `finalize` came, and no `init` since.
    Finalized { epoch: Epoch, passed_barrier: bool },
}

/// What the driver is to do, or to know, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send these bytes to the rank: one whole line.
    Reply { rank: Rank, bytes: Bytes },
    /// The rank has begun an MPI program. `abandoned`: its last one never sent `finalize`.
    Inited { rank: Rank, epoch: Epoch, abandoned: bool },
    /// The rank has finalized its MPI program.
    Finalized { rank: Rank, epoch: Epoch },
    /// The rank asks that the job be ended. Nothing that it sends afterwards counts.
    Abort { rank: Rank, code: i32, message: Option<String> },
    /// Local ranks wait in a barrier, or were about to, that can never complete; they have been answered with an
    /// error. `left`, of any node, has finalized or begun its next program; `None` if another node's contribution was
    /// unreadable. Comes once for each epoch.
    BarrierBroken { epoch: Epoch, left: Option<Rank> },
    /// The local part of a collective is complete: hand it to the front, which answers with the whole when
    /// each node's is there. Only in a group that spans nodes.
    Collective(Collective),
    /// These are gone, and the collective of that number waits for other nodes.
    Gone { group: GroupId, seq: u64, ranks: Vec<Rank> },
    /// A rank asks for a published name, or publishes one: ask the names of the job, and hand the answer to
    /// [`Server::answered`].
    Ask { id: u64, question: Question },
    /// A rank is about to get the path of the topology's file: make the file, before what follows. Comes once.
    Topology { path: String },
    /// The rank's end was closed. Evidence only: children of the rank may have held the socket open longer.
    Closed { rank: Rank, lifecycle: Lifecycle },
    /// The rank asks for a further group: have it started, and hand the answer to [`Server::spawned`].
    Spawn { id: u64, rank: Rank, request: Box<SpawnRequest> },
    /// The client spoke nonsense, or exceeded a bound. Its connection is to be closed, and nothing that it sends
    /// afterwards counts; the reason belongs in the report.
    Malformed { rank: Rank, reason: String },
}
