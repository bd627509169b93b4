//! The groups of the present attempt that ranks have asked for.

use std::collections::BTreeMap;

use crate::ids::{GroupId, NodeId};
use crate::spec::job::JobSpec;
use crate::spec::spawning::SpawnAsker;

/// A rank that waits for its group, and the node of that rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::job) struct Waiting {
    pub(in crate::job) node: NodeId,
    pub(in crate::job) asker: SpawnAsker,
    /// How many ranks of the group do not run yet.
    pub(in crate::job) missing: u32,
}

#[derive(Clone, Debug)]
struct Group {
    spec: JobSpec,
    /// `None` once it is answered.
    waiting: Option<Waiting>,
}

/// The groups, by number.
#[derive(Clone, Debug, Default)]
pub(in crate::job) struct Groups {
    all: BTreeMap<GroupId, Group>,
    /// The number of the last one.
    last: u32,
}

impl Groups {
    /// The number that the next one gets.
    pub(in crate::job) fn next(&mut self) -> GroupId {
        self.last += 1;
        GroupId(self.last)
    }

    pub(in crate::job) fn begin(&mut self, spec: JobSpec, waiting: Waiting) {
        self.all.insert(spec.group, Group { spec, waiting: Some(waiting) });
    }

    pub(in crate::job) fn spec(&self, group: GroupId) -> Option<&JobSpec> {
        self.all.get(&group).map(|group| &group.spec)
    }

    pub(in crate::job) fn specs(&self) -> impl Iterator<Item = &JobSpec> {
        self.all.values().map(|group| &group.spec)
    }

    /// Whether somebody waits until its ranks run.
    pub(in crate::job) fn is_coming_up(&self, group: GroupId) -> bool {
        self.all.get(&group).is_some_and(|group| group.waiting.is_some())
    }

    /// A rank of it runs. Returns who is to be answered, if it was the last.
    pub(in crate::job) fn rank_runs(&mut self, group: GroupId) -> Option<Waiting> {
        let waiting = &mut self.all.get_mut(&group)?.waiting;
        waiting.as_mut()?.missing -= 1;
        waiting.take_if(|waiting| waiting.missing == 0)
    }

    /// It is not to be. Returns who is to be answered.
    pub(in crate::job) fn withdraw(&mut self, group: GroupId) -> Option<Waiting> {
        self.all.remove(&group)?.waiting
    }
}
