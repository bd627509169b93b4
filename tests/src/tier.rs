//! The tiers of containment, and in which of them a test runs.

use std::thread;

use crate::leftovers;
use crate::skip::full_scale;

/// How rankrun holds the processes of a rank together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    Cgroup,
    Subreaper,
}

impl Tier {
    /// The tiers that this machine offers to the user who runs the tests: `cgroup` needs a directory of cgroup v2 in
    /// which we may make others.
    pub fn available() -> Vec<Tier> {
        if leftovers::can_make_cgroups() { vec![Tier::Cgroup, Tier::Subreaper] } else { vec![Tier::Subreaper] }
    }

    /// Runs a test in every tier.
    pub fn in_each(test: impl Fn(Tier)) {
        Tier::available().into_iter().for_each(test);
    }

    /// One of them, and all in a soak run: for a test of something that no tier has a part in. Which one follows from the test's name, so that each
    /// tier has its share of them. What containment promises is tested with [`Tier::available`].
    pub fn sampled() -> Vec<Tier> {
        let available = Tier::available();
        let name = thread::current().name().map_or(0, str::len);
        let one = vec![available[name % available.len()]];
        full_scale(available, one)
    }
}
