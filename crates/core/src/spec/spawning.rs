//! What a rank asks for by `MPI_Comm_spawn`, and what it is answered. A spawned group is a world of its own within the job.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, WorkerId};
use crate::names::Protocol;
use crate::rankmap::RankMap;
use crate::spec::job::EnvEdit;
pub use crate::spec::job::Spawned;

/// A group that a rank asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SpawnRequest {
    /// Its commands, each with its ranks: one for `MPI_Comm_spawn`, several for `MPI_Comm_spawn_multiple`.
    pub apps: Vec<SpawnApp>,
    /// What the key-value store of the new group has from the start (PMI-1).
    pub preput: Vec<(String, String)>,
}

/// One command of a group that is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SpawnApp {
    /// The program and its arguments. Never empty.
    pub command: Vec<OsString>,
    /// How many ranks run it (`maxprocs`).
    pub size: u32,
    /// Changes to the environment beside those of the group that asks.
    pub env: Vec<EnvEdit>,
    /// What the caller wants of it, as `MPI_Info` has it: `wdir`, `path`, `host`, `soft` and others.
    pub info: Vec<(String, String)>,
}

impl SpawnRequest {
    /// How many ranks it asks for.
    pub fn size(&self) -> u32 {
        self.apps.iter().fold(0, |size, app| size.saturating_add(app.size))
    }
}

impl SpawnApp {
    /// The variables of the key `env`: one `NAME=VALUE` a line, as Open MPI has it.
    pub fn variables(&self) -> impl Iterator<Item = EnvEdit> {
        let variable = |line: &str| {
            let (name, value) = line.split_once('=').filter(|(name, _)| !name.is_empty())?;
            Some(EnvEdit::Set { name: name.into(), value: value.into() })
        };
        self.word("env").unwrap_or_default().lines().filter_map(variable)
    }

    /// What the caller wants by this name.
    pub fn word(&self, key: &str) -> Option<&str> {
        self.info
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.trim())
            .filter(|value| !value.is_empty())
    }
}

/// What the rank is answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SpawnAnswer {
    /// All ranks of this group have been started.
    Started(GroupId),
    /// None of them runs; and why, for the user.
    Refused(String),
}

/// Who asked for a group, and how it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnAsker {
    pub worker: WorkerId,
    pub protocol: Protocol,
    /// Numbers what is asked on one node in this protocol.
    pub id: u64,
}

/// A group, as every node knows it that has none of its ranks. The nodes are numbered as in the world of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupMap {
    pub group: GroupId,
    pub map: RankMap,
    pub by: WorkerId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_key_env_is_a_variable() {
        let set = |name: &str, value: &str| EnvEdit::Set { name: name.into(), value: value.into() };
        let info = vec![("env".to_owned(), "A=1\nB=x=y\n=z\nnone\nC=".to_owned())];
        let app = SpawnApp { info, ..SpawnApp::default() };
        assert_eq!(app.variables().collect::<Vec<_>>(), [set("A", "1"), set("B", "x=y"), set("C", "")]);
        assert_eq!(SpawnApp::default().variables().count(), 0);
    }
}
