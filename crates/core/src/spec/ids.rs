//! Identities. Each is a type of its own, so that a local rank cannot be passed for a rank.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index into a vector.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A rank's position among the ranks of its node, from 0.
    LocalRank(u32)
);
number!(
    /// A node's position among the nodes of an attempt, from 0.
    NodeRank(u32)
);
number!(
    /// A node of the job, for its whole life: its position among all that the job began with. An attempt that runs without
    /// some of them numbers the others anew, as [`NodeRank`].
    NodeId(u32)
);
number!(
    /// One life of the whole gang, from 0.
    Attempt(u32)
);
number!(
    /// A group of ranks that was started together: 0 is the job itself, others come from `MPI_Comm_spawn`.
    GroupId(u32)
);
number!(
    /// The index of a command in a job of several (`a : b`), which MPI calls `appnum`.
    AppIndex(u32)
);

number!(
    /// A worker's place among those that one agent holds in one attempt, from 0.
    Slot(u32)
);
number!(
    /// A process that reports for its rank, numbered by its agent.
    SpeakerId(u32)
);

/// A rank: its group, and its position in the world of that group, from 0.
///
/// It is written as people call it: `3`, or `0 of spawn 1`. In JSON it is the number 3, or the text `spawn 1 rank 0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rank {
    group: GroupId,
    number: u32,
}

/// The rank of this number in the group with which the job began.
#[allow(non_snake_case, reason = "most ranks are of that group, and are written like the other numbers here")]
pub const fn Rank(number: u32) -> Rank {
    Rank { group: GroupId(0), number }
}

impl Rank {
    pub const fn of(group: GroupId, number: u32) -> Rank {
        Rank { group, number }
    }

    pub const fn group(self) -> GroupId {
        self.group
    }

    /// Its position in the world of its group.
    pub const fn number(self) -> u32 {
        self.number
    }

    /// Its name as a noun: `rank 3`, `spawn 1 rank 0`.
    pub fn name(self) -> String {
        match self.group {
            GroupId(0) => format!("rank {}", self.number),
            group => format!("spawn {group} rank {}", self.number),
        }
    }

    /// What [`Rank::name`] has written.
    pub fn named(name: &str) -> Option<Rank> {
        let (group, name) = match name.strip_prefix("spawn ") {
            Some(rest) => {
                let (group, rest) = rest.split_once(' ')?;
                (group.parse().ok()?, rest)
            }
            None => (0, name),
        };
        let number = name.strip_prefix("rank ")?.parse().ok()?;
        Some(Rank::of(GroupId(group), number))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)?;
        match self.group {
            GroupId(0) => Ok(()),
            group => write!(f, " of spawn {group}"),
        }
    }
}

impl Serialize for Rank {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (serializer.is_human_readable(), self.group) {
            (false, _) => (self.group, self.number).serialize(serializer),
            (true, GroupId(0)) => serializer.serialize_u32(self.number),
            (true, _) => serializer.collect_str(&self.name()),
        }
    }
}

impl<'de> Deserialize<'de> for Rank {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rank, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u32),
            Name(String),
        }
        if !deserializer.is_human_readable() {
            return <(GroupId, u32)>::deserialize(deserializer).map(|(group, number)| Rank { group, number });
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Rank(number)),
            Written::Name(name) => {
                // The key of a map is a text always.
                let number = name.parse().ok().map(Rank);
                number.or_else(|| Rank::named(&name)).ok_or_else(|| D::Error::custom(format!("\"{name}\" is no rank")))
            }
        }
    }
}

/// A process id on the node of that process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pid(pub i32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One worker: a rank in one attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct WorkerId {
    pub rank: Rank,
    pub attempt: Attempt,
}

impl WorkerId {
    pub const fn group(self) -> GroupId {
        self.rank.group
    }
}

/// One life of a group of ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct GangId {
    pub group: GroupId,
    pub attempt: Attempt,
}

/// For tests: the worker of a rank in the first life of the job's first group.
#[cfg(test)]
pub(crate) fn worker(rank: u32) -> WorkerId {
    WorkerId { rank: Rank(rank), attempt: Attempt(0) }
}

/// The job's own name: 8 hexadecimal digits, chosen at random when it starts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub String);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One of the two streams that a rank writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// Both, in the order in which they are listed everywhere.
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// 0 for stdout, 1 for stderr.
    pub fn index(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_called_by_its_group_and_read_as_it_was_written() {
        let (first, spawned) = (Rank(3), Rank::of(GroupId(1), 0));
        assert_eq!((first.to_string(), spawned.to_string()), ("3".to_owned(), "0 of spawn 1".to_owned()));
        assert_eq!((first.name(), spawned.name()), ("rank 3".to_owned(), "spawn 1 rank 0".to_owned()));
        assert!(first < spawned, "the first group comes first");
        for (rank, text) in [(first, "3"), (spawned, "\"spawn 1 rank 0\"")] {
            assert_eq!(serde_json::to_string(&rank).expect("it is written"), text);
            assert_eq!(serde_json::from_str::<Rank>(text).expect("it is read"), rank);
            assert_eq!(Rank::named(&rank.name()), Some(rank));
        }
        for text in ["\"spawn rank 0\"", "\"spawn 1 rank\"", "-1", "\"rank\""] {
            assert!(serde_json::from_str::<Rank>(text).is_err(), "{text}");
        }
    }
}
