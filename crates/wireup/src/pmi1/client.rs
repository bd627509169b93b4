//! The server's state of one rank.

use rankrun_core::Rank;

use super::payload::append_pair;
use super::publishing::Command;
use super::spawning::MultiLine;
use super::{Epoch, KEYLEN_MAX, Lifecycle, MAX_KVS_BYTES, MAX_LINE, MAX_SPAWN_LINE, VALLEN_MAX};

/// The overhead of a pair in the store.
const PAIR_OVERHEAD: usize = 96;

/// How a client broke the protocol. The texts go into the report.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Violation {
    #[error("a line is longer than {0} bytes")]
    LineTooLong(usize),
    #[error("a line is no PMI request: \"{0}\"")]
    NotARequest(String),
    #[error("\"{0}\" came before \"init\"")]
    BeforeInit(String),
    #[error("\"{0}\" came after \"finalize\"")]
    AfterFinalize(String),
    #[error("\"{0}\" came while a barrier was unanswered")]
    InBarrier(String),
    #[error("\"{0}\" came while another request was unanswered")]
    WhileAsking(String),
    #[error("\"{command}\" lacks \"{key}\"")]
    Missing { command: &'static str, key: &'static str },
    #[error("the key-value space \"{0}\" is not this program's")]
    WrongKvs(String),
    #[error("a key has {0} bytes, the limit is 1 to {KEYLEN_MAX}")]
    KeyLength(usize),
    #[error("a value has {0} bytes, the limit is {VALLEN_MAX}")]
    ValueLength(usize),
    #[error("more than {MAX_KVS_BYTES} bytes were put")]
    KvsFull,
    #[error("too many programs were started")]
    TooManyEpochs,
}

/// What a rank has asked for that others than this server answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    Name(Command),
    /// So many ranks.
    Spawn(u32),
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) rank: Rank,
    pub(super) lifecycle: Lifecycle,
    /// It has entered a barrier that is not answered yet.
    pub(super) in_barrier: bool,
    /// What it has asked for, with this number, and is not answered yet.
    pub(super) asking: Option<(u64, Asked)>,
    /// Its connection is closed, or is to be.
    pub(super) shut: bool,
    /// A line whose end has not arrived.
    pub(super) line: Vec<u8>,
    pub(super) multi_line: Option<MultiLine>,
    /// The puts since the last barrier, encoded as pairs.
    pub(super) pairs: Vec<u8>,
    /// What it has put in this epoch, with overhead.
    charged: usize,
}

impl Client {
    pub(super) fn new(rank: Rank) -> Client {
        Client {
            rank,
            lifecycle: Lifecycle::NotInited,
            in_barrier: false,
            asking: None,
            shut: false,
            line: Vec::new(),
            multi_line: None,
            pairs: Vec::new(),
            charged: 0,
        }
    }

    /// How long the next line may be. Only an argument of a program has reason to be long.
    pub(super) fn longest_line(&self) -> usize {
        if self.multi_line.is_some() { MAX_SPAWN_LINE } else { MAX_LINE }
    }

    /// The epoch of the program that is running in this rank, for a request that needs one.
    pub(super) fn epoch(&self, command: &[u8]) -> Result<Epoch, Violation> {
        match self.lifecycle {
            Lifecycle::NotInited => Err(Violation::BeforeInit(excerpt(command))),
            Lifecycle::Finalized { .. } => Err(Violation::AfterFinalize(excerpt(command))),
            Lifecycle::Inited { .. } if self.in_barrier => Err(Violation::InBarrier(excerpt(command))),
            Lifecycle::Inited { .. } if self.asking.is_some() => Err(Violation::WhileAsking(excerpt(command))),
            Lifecycle::Inited { epoch, .. } => Ok(epoch),
        }
    }

    /// Begins the next program, and returns its epoch.
    pub(super) fn init(&mut self) -> Result<Epoch, Violation> {
        let epoch = match self.lifecycle {
            Lifecycle::NotInited => Epoch::default(),
            Lifecycle::Inited { epoch, .. } | Lifecycle::Finalized { epoch, .. } => {
                Epoch(epoch.0.checked_add(1).ok_or(Violation::TooManyEpochs)?)
            }
        };
        self.lifecycle = Lifecycle::Inited { epoch, passed_barrier: false };
        self.in_barrier = false;
        self.asking = None;
        self.pairs = Vec::new();
        self.charged = 0;
        Ok(epoch)
    }

    /// Keeps a pair until the next barrier.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Violation> {
        if key.is_empty() || key.len() > KEYLEN_MAX {
            return Err(Violation::KeyLength(key.len()));
        }
        if value.len() > VALLEN_MAX {
            return Err(Violation::ValueLength(value.len()));
        }
        self.charged += key.len() + value.len() + PAIR_OVERHEAD;
        if self.charged > MAX_KVS_BYTES {
            return Err(Violation::KvsFull);
        }
        append_pair(&mut self.pairs, key, value);
        Ok(())
    }

    /// Ends the connection, and frees its memory.
    pub(super) fn shut(&mut self) {
        self.shut = true;
        self.line = Vec::new();
        self.multi_line = None;
        if !self.in_barrier {
            self.pairs = Vec::new();
        }
    }
}

/// The beginning of what a client sent, for people to read.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    const LENGTH: usize = 60;
    let mut text = bytes[..bytes.len().min(LENGTH)].escape_ascii().to_string();
    if bytes.len() > LENGTH {
        text.push_str("...");
    }
    text
}
