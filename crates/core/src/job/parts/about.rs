//! What a node says of itself, and of an attempt at its end.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::memory::Memory;
use crate::report::LeftProcess;

/// How an agent contains its workers (K-1).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Containment {
    Cgroup,
    /// Own sessions, a subreaper and an environment tag; and why not cgroups.
    Subreaper {
        why: String,
    },
}

/// A node's data at the end of an attempt.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// How many groups the agent had been told to start in the attempt.
    pub groups: u32,
    pub left: Vec<LeftProcess>,
    /// Processes that were released (`--descendants leave`).
    pub released: u32,
    /// What it has left in /dev/shm; `None` if nobody has looked.
    pub memory: Option<Memory>,
    /// The files that it had created there were removed.
    pub removes_memory: bool,
}

/// What a node says of itself when its agent is ready.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct About {
    pub containment: Containment,
    /// What it calls itself.
    pub host: String,
    /// Its addresses, each with the name of its interface; not those that only reach itself.
    pub addresses: Vec<(String, IpAddr)>,
    /// Equal to that of another node if both are one machine.
    pub machine: String,
    /// Its own name leads to a loopback address there, by /etc/hosts.
    pub is_loopback_name: bool,
}
