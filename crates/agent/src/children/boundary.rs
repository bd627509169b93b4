//! How the workers of this node are held together: by cgroups or, in the fallback tier, by this process as their reaper
//! (K-1, K-4).

use rankrun_core::JobId;
use rankrun_sys::cgroup::{JobCgroup, Unavailable};
use rankrun_wire::message::Containment;

/// The tier.
#[derive(Debug)]
pub(crate) enum Boundary {
    Cgroup(JobCgroup),
    Subreaper { why: String },
}

/// What forces the fallback tier, so that both can be tested on one machine.
const FORCED: &str = "subreaper";

impl Boundary {
    /// The best tier that there is here. That a cgroup can be made is found out by making it.
    pub(crate) fn choose(job: &JobId, forced: Option<&str>) -> Boundary {
        if forced == Some(FORCED) {
            return Boundary::Subreaper { why: format!("RANKRUN_CONTAINMENT={FORCED}") };
        }
        match JobCgroup::create(&job.0) {
            Ok(cgroup) => Boundary::Cgroup(cgroup),
            Err(error) => Boundary::Subreaper { why: explain(&error) },
        }
    }

    pub(crate) fn containment(&self) -> Containment {
        match self {
            Boundary::Cgroup(_) => Containment::Cgroup,
            Boundary::Subreaper { why } => Containment::Subreaper { why: why.clone() },
        }
    }

    pub(crate) fn cgroup(&self) -> Option<&JobCgroup> {
        match self {
            Boundary::Cgroup(cgroup) => Some(cgroup),
            Boundary::Subreaper { .. } => None,
        }
    }
}

fn explain(error: &Unavailable) -> String {
    match error {
        Unavailable::NotWritable { source, .. } => format!("{error}: {}", rankrun_sys::reason(source)),
        Unavailable::NotMounted | Unavailable::NotAMember => error.to_string(),
    }
}
