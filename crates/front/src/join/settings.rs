//! How the nodes of a job find each other.

use std::net::IpAddr;
use std::time::Duration;

use rankrun_core::NodeRank;
use rankrun_sys::errand;
use rankrun_wire::identity::Secret;
use serde::{Deserialize, Serialize};

/// How long the resolver may take to say whether an address is this machine's: one packet may be lost.
const LOOKUP_BOUND: Duration = Duration::from_secs(6);

/// Once enough nodes have joined, how long the job waits for more by default.
pub const LAST_CALL: Duration = Duration::from_secs(30);

/// The settings of a node that finds the others by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Join {
    /// How many nodes there are, the front's included.
    pub nodes: u32,
    /// How many more may join, and wait to replace others.
    pub spares: u32,
    pub part: Part,
    pub front: FrontAddress,
    #[serde(with = "rankrun_wire::identity::kept")]
    pub secret: Secret,
    /// How long to wait for the other nodes.
    pub start_timeout: Duration,
    /// Once enough nodes have joined, how long to wait for more.
    pub last_call: Duration,
}

/// What this node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Part {
    /// Node 0.
    Front,
    /// Another one. `None`: any that is free.
    Member(Option<NodeRank>),
}

/// A node other than the front.
pub(crate) struct Member {
    pub(crate) rank: Option<NodeRank>,
}

impl Join {
    pub(crate) fn as_member(&self) -> Option<Member> {
        match self.part {
            Part::Front => None,
            Part::Member(rank) => Some(Member { rank }),
        }
    }
}

/// Where the front listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrontAddress {
    pub host: String,
    pub port: u16,
}

impl std::fmt::Display for FrontAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FrontAddress {
    /// Whether it is an address of this machine: the node that nobody has numbered is then the front. `own` are the addresses of
    /// the machine's interfaces. The calling process must have one thread.
    pub fn is_here(&self, own: &[IpAddr]) -> bool {
        let is_own = |address: IpAddr| address.is_loopback() || own.contains(&address);
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return is_own(address);
        }
        let found = errand::addresses_of(&self.host, self.port, LOOKUP_BOUND).ok().flatten();
        found.and_then(Result::ok).is_some_and(|found| found.iter().any(|it| is_own(it.ip())))
    }
}
