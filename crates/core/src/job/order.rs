//! What the agents are told to do.

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, NodeId, WorkerId};
use crate::stacks::profile::ProfileSpec;
use crate::worker::Stop;

/// What an agent is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// A worker that is gone is to be started again, as this attempt of its rank (`--restart-scope rank`).
    Again(WorkerId),
    /// It is not.
    Settled(WorkerId),
    Stop(Stop),
    /// Kill every worker at once.
    Kill,
    /// Kill every worker of a group: it did not come up.
    KillGroup(GroupId),
    /// These workers have left without `MPI_Finalize`, or are lost with their node, and the others run on: the libraries of ranks that run
    /// MPI are told, and nothing that ranks do together waits for them.
    Lost(Vec<WorkerId>),
    /// A node is lost, and the ranks of the others run on. `is_first`: torch's store was there, if an agent serves it.
    Without {
        node: NodeId,
        is_first: bool,
    },
    /// Look for ranks that run Python without the hook; [`crate::job::AgentEvent::Hookless`] follows if there are any.
    LookForHooks,
    /// Look for MPI libraries in the ranks, or in the leaders of a few; [`crate::job::AgentEvent::MpiSeen`] follows if there are any.
    LookForMpi {
        is_brief: bool,
    },
    /// [`crate::job::AgentEvent::Alive`] is to follow.
    WhoIsAlive,
    /// [`crate::job::AgentEvent::Conditions`] is to follow, with this number.
    ReportConditions(u64),
    /// Say where these workers are, or all: [`crate::job::AgentEvent::Looking`], [`crate::job::AgentEvent::Looked`] for each of them and [`crate::job::AgentEvent::LookOver`] are to
    /// follow, with this number. `native` frames of all threads are wanted, also of those that have Python frames.
    Look {
        number: u64,
        workers: Option<Vec<WorkerId>>,
        native: bool,
    },
    /// Measure what the workers use: [`crate::job::AgentEvent::Measured`] and then [`crate::job::AgentEvent::Conditions`] are to follow, with
    /// this number.
    Measure(u64),
    /// Sample the stacks of these workers, or of all: [`crate::job::AgentEvent::Profiled`] is to follow for each of them about once a
    /// second, and [`crate::job::AgentEvent::ProfileOver`] at the end, with this number.
    Profile {
        number: u64,
        workers: Option<Vec<WorkerId>>,
        spec: ProfileSpec,
    },
    /// That is to end now.
    EndProfile {
        number: u64,
    },
}
