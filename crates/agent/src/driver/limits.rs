//! The front's soft limits, which go along to other nodes.

use rankrun_core::travel::{Resource, less_locked_memory, limit_there};
use rankrun_sys::limits::{self, Limits};

/// The soft limits of this process, to be sent to the agents of other nodes.
pub fn soft_limits() -> Vec<(Resource, Option<u64>)> {
    Resource::ALL.into_iter().map(|resource| (resource, here(resource).limit().0)).collect()
}

/// Gives the ranks the front's soft limits as far as this node allows, and returns a warning if they lack something.
pub(super) fn adopt(front: &[(Resource, Option<u64>)], ranks: &mut Limits) -> Option<String> {
    let mut warning = None;
    for &(resource, wanted) in front {
        let soft = limit_there(wanted, here(resource).limit().1);
        ranks.set_soft(here(resource), soft);
        if resource == Resource::LockedMemory {
            warning = less_locked_memory(wanted, soft);
        }
    }
    warning
}

fn here(resource: Resource) -> limits::Resource {
    match resource {
        Resource::OpenFiles => limits::Resource::OpenFiles,
        Resource::Stack => limits::Resource::Stack,
        Resource::Core => limits::Resource::Core,
        Resource::LockedMemory => limits::Resource::LockedMemory,
    }
}
